"""Claims with a metric, or a bound, that the library finds; and networks whose truth is a rational number."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

import lben
from tests.adversary import draws, exact
from tests.adversary.claims import judge, judge_both, known, tightest
from tests.adversary.exact import Exact
from tests.adversary.tally import Tally, show


def searched(r: Random, tally: Tally, where: str) -> None:
    """Metrics that are found: with d >= n inputs every pattern of slopes is reached, which bounds must survive."""
    drawn = draws.weights(r, largest=3, inputs=3)
    w = lben.Weights(drawn.W, drawn.U, drawn.bz, drawn.Wo, drawn.by)
    network, shown = Exact.of(w), f"{where}: {show(w)}"
    true = lambda c: exact.exactly(network, c.lam, c.gamma)  # noqa: E731
    judge(tally, "certify with a metric it finds", shown, lambda: lben.certify(w), true)
    judge(tally, "certify with a metric it finds", shown, lambda: lben.certify(w, 2.0, rigorous=True), true)
    tightest(tally, "tightest bound", shown, w, network)
    full = network.U.rank() == network.U.nrows()
    for net in (w, drawn):
        bound = lambda net=net: lben.product_bound(net)  # noqa: E731
        known(tally, "product bound", f"{where}: {show(net)}", bound, lambda b: not (full and network.reaches(b)))


def posed(r: Random, tally: Tally, where: str) -> None:
    """`well_posed`, with its older tests; where a metric is known to prove it, "no metric does" is false."""
    w = draws.weights(r)
    W = draws.decades(r, 1, spread=1.0) * w.W if r.random() < 0.3 else w.W
    if r.random() < 0.2:
        n = r.randint(2, 12)
        W = torch.full((n, n), 1 / n, dtype=torch.float64) * (1 + r.choice((0, 1, -1)) * 2.0**-52)
    assert w.lam is not None
    network, ones = Exact(exact.matrix(W), None, None, None), torch.ones(len(W), dtype=torch.float64)

    def proves(lam: Tensor) -> bool:
        return exact.exactly(network, lam, None)

    tally.count("asked")
    found = tally.attempt("well-posed", f"{where}: W={W.tolist()}", lambda: lben.well_posed(W))
    if found is None:
        return
    tally.count("holds" if found.holds else "fails")
    claims = {
        "its metric": not found.holds or proves(found.lam),
        "no metric": found.witness is None or not any(proves(lam) for lam in (w.lam, found.lam) if len(lam) == len(W)),
        "monotone": not found.monotone or proves(ones),
        "norm": not found.norm or all(sum(abs(x) for x in row) < 1 for row in network.W.tolist()),
        "Perron and Frobenius": not found.perron_frobenius or exact.perron_below_one(W),
        "truth value": bool(found) is found.holds,
    }
    for claim, true in claims.items():
        if not true:
            tally.fail(f"well-posed, {claim}: false", f"{where}: W={W.tolist()}: {show(found)}")


def signals(r: Random, tally: Tally, where: str) -> None:
    """Contraction, gain and the test at every frequency."""
    w = draws.weights(r, largest=4)
    if r.random() < 0.5:  # a W that contracts, near the edge or not
        lam = draws.decades(r, w.hidden_features, spread=r.choice((0.0, 3.0)))
        C = 10.0 ** r.uniform(-3, 1) * draws.rough(r, len(lam), len(lam))
        eye, root = torch.eye(len(lam), dtype=torch.float64), lam.rsqrt()
        W = root[:, None] * ((1 - 10.0 ** r.uniform(-12, -0.3)) * (eye - C.T) @ (eye + C)) / root
        w = lben.Weights(W, w.U, w.bz, w.Wo, w.by, lam)
    shown = f"{where}: {show(w)}"
    judge_both(
        tally,
        "contraction",
        shown,
        lambda rigorous: lben.contraction(w, rigorous=rigorous),
        lambda c: exact.contracts(w, c.P, c.T, c.rate) and c.rate <= c.best_rate if c.holds else None,
    )
    judge_both(
        tally,
        "gain",
        shown,
        lambda rigorous: lben.incremental_gain(w, rigorous=rigorous),
        lambda c: exact.gains(w, c.P, c.T, c.gain) if c.holds else None,
    )
    omegas = [0.0, *(10.0 ** r.uniform(-3, 3) for _ in range(4))]
    assert w.lam is not None
    lam = w.lam
    known(
        tally,
        "frequency test",
        shown,
        lambda: lben.frequency_test(w),
        lambda t: all(exact.at_frequency(w.W, lam, o, t.margin) for o in [*omegas, min(t.frequency, 1e300)]),
    )


def linear(r: Random, tally: Tally, where: str) -> None:
    """Linear networks, whose Lipschitz constant and outputs are rational matrices: bounds, radii and lower bounds."""
    w, _ = draws.linear_units(r) if r.random() < 0.5 else (draws.weights(r, largest=3), None)
    sigma, network = lben.Identity(), Exact.of(w)
    J = network.jacobian([1] * w.hidden_features)
    shown = f"{where}: {show(w)}, linear"
    true = lambda c: J is not None and exact.norm_at_most(J, c.gamma)  # noqa: E731
    bound = lambda rigorous: lben.tightest_bound(w, rigorous=rigorous, activation=sigma)  # noqa: E731
    judge_both(tally, "tightest bound of a linear network", shown, bound, true)
    known(
        tally,
        "product bound of a linear network",
        shown,
        lambda: lben.product_bound(w, activation=sigma),
        lambda b: J is not None and exact.norm_at_most(J, b),
    )
    x = draws.gaussian(r, 2, w.in_features) * draws.scale(r)
    if w.out_features > 1 and bool(x.isfinite().all()):
        radius = lambda: lben.certified_radius(w, x, activation=sigma)  # noqa: E731
        known(tally, "radius of a linear network", f"{shown}, x={x.tolist()}", radius, lambda c: inside(w, J, x, c))
    below = lambda: lben.lipschitz_lower_bound(w, x, restarts=1, steps=1, activation=sigma)  # noqa: E731
    if r.random() < 0.1:
        under = lambda b: not b.proved or (J is not None and not (b.value > 0 and norm_below(J, b.value)))  # noqa: E731
        known(tally, "lower bound of a linear network", f"{shown}, x={x.tolist()}", below, under)


def norm_below(J: Any, value: float) -> bool:
    """Whether |J| < value."""
    return exact.definite(exact.rational(value) ** 2 * exact.identity(J.nrows()) - J * J.transpose())


def inside(w: lben.Weights, J: Any, x: Tensor, found: lben.CertifiedRadius) -> bool:
    """Whether every class stays what it is within its radius: (y_i - y_j)^2 >= radius^2 |J_i - J_j|^2."""
    if J is None:
        return False
    bias = exact.matrix(w.Wo) * (exact.identity(len(w.bz)) - exact.matrix(w.W)).inv() * exact.matrix(w.bz)
    for row, i, radius in zip(x, found.predicted.tolist(), found.radius.tolist(), strict=True):
        y = J * exact.matrix(row) + bias + exact.matrix(w.by)
        for j in range(y.nrows()):
            apart = [J[i, k] - J[j, k] for k in range(J.ncols())]
            gap, reach = y[i, 0] - y[j, 0], sum((a * a for a in apart), exact.rational(0))
            if radius > 0 and j != i and (gap < 0 or gap**2 < exact.rational(min(radius, 1e300)) ** 2 * reach):
                return False
    return True


def steep(r: Random, tally: Tally, where: str) -> None:
    """One unit whose slope is a hair above one: refused, or paid for in the bound."""
    slope = 1 + 10.0 ** r.uniform(-12, -5)
    one = torch.ones(1, 1, dtype=torch.float64)
    w = lben.Weights(one - 10.0 ** r.uniform(-7, -1), one, one[0], one, one[0])
    network, shown = Exact.of(w), f"{where}: Elementwise(lambda v: v * {slope!r}), {show(w)}"
    J = network.jacobian([exact.rational(slope)])
    sign = 1 - exact.rational(slope) * network.W[0, 0]
    sigma = tally.attempt("steep", shown, lambda: lben.Elementwise(lambda v: v * slope))
    if sigma is not None:
        true = lambda c: sign > 0 and J is not None and exact.norm_at_most(J, c.gamma)  # noqa: E731
        ask = lambda: lben.tightest_bound(w, rigorous=True, activation=sigma)  # noqa: E731
        judge(tally, "slopes above one", shown, ask, true)
