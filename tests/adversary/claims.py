"""Claims about a given metric: what is said to hold is exactly true, and what is said to fail is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

import lben
from tests.adversary import draws, exact
from tests.adversary.exact import Exact
from tests.adversary.tally import Tally, show

_STEPS = (
    0.0,
    2.0**-52,
    -(2.0**-52),
    2.0**-50,
    -(2.0**-50),
    1e-15,
    -1e-15,
    1e-13,
    -1e-13,
    -1e-11,
    1e-9,
    -1e-9,
    1e-6,
    -1e-4,
    -0.1,
)


def judge(tally: Tally, kind: str, where: str, ask: Callable[[], Any], truth: Callable[[Any], bool | None]) -> None:
    """One claim. `truth` says whether it is true; None where that is not known."""
    tally.count("asked")
    record = tally.attempt(kind, where, ask)
    if record is None:
        return
    verdict = getattr(record, "verdict", "holds" if record.holds else "fails")
    tally.count(verdict)
    if bool(record) is not record.holds:
        tally.fail(f"{kind}: the truth value of a verdict", f"{where}: bool is {bool(record)} of {record}")
    true = truth(record) if verdict != "undecided" else None
    if true is not None and true is not (verdict == "holds"):
        tally.fail(f"{kind}: {verdict}, and that is false", f"{where}: {show(record)}")


def judge_both(
    tally: Tally, kind: str, where: str, ask: Callable[[bool], Any], truth: Callable[[Any], bool | None]
) -> None:
    """One claim in double precision, and the same rigorously."""
    judge(tally, kind, where, lambda: ask(False), truth)
    judge(tally, f"{kind}, rigorous", where, lambda: ask(True), truth)


def known(tally: Tally, kind: str, where: str, ask: Callable[[], Any], true: Callable[[Any], bool]) -> None:
    """One number that is claimed, with a test of whether it is true."""
    tally.count("asked")
    value = tally.attempt(kind, where, ask)
    if value is not None:
        tally.count("holds")
        if not true(value):
            tally.fail(f"{kind}: false", f"{where}: {show(value) if hasattr(value, '__dict__') else repr(value)}")


def gammas(r: Random, network: Exact, lam: Tensor, scale: float = 1.0) -> list[float | None]:
    """None, some gamma far from the smallest that is true, and many around it, to the last bit."""
    edge = exact.threshold(network, lam, scale)
    if edge is None:
        return [None, 10.0 ** r.uniform(-3, 3)]
    near = [edge * (1 + step) for step in r.sample(_STEPS, 4)]
    return [None, edge * 10.0 ** r.uniform(-3, 3), *(g for g in near if 0 < g < math.inf)]


def around(
    r: Random,
    tally: Tally,
    kind: str,
    where: str,
    net: Any,
    network: Exact,
    lam: Tensor,
    given: Tensor | None,
    **more: Any,
) -> None:
    """certify around the smallest true gamma of a metric, in double precision and rigorously."""
    for gamma in gammas(r, network, lam):
        if gamma is None and getattr(net, "gamma", None) is not None:
            continue
        for rigorous in (False, True):
            judge(
                tally,
                f"{kind}, rigorous" if rigorous else kind,
                f"{where}: certify(gamma={gamma!r}, rigorous={rigorous}) of {show(net)}, lam={lam.tolist()}",
                lambda g=gamma, s=rigorous: lben.certify(net, g, lam=given, rigorous=s, **more),  # type: ignore[misc]
                lambda c: exact.exactly(network, c.lam, c.gamma),
            )


def tightest(tally: Tally, kind: str, where: str, net: Any, network: Exact, **more: Any) -> None:
    """tightest_bound, in double precision and rigorously."""
    ask = lambda rigorous: lben.tightest_bound(net, rigorous=rigorous, **more)  # noqa: E731
    judge_both(tally, kind, where, ask, lambda c: exact.exactly(network, c.lam, c.gamma))


def dense(r: Random, tally: Tally, where: str) -> None:
    w = draws.weights(r)
    assert w.lam is not None
    around(r, tally, "dense", where, w, Exact.of(w), w.lam, r.choice((None, w.lam)))


def passing(r: Random, tally: Tally, where: str) -> None:
    w = draws.passing(r)
    assert w.lam is not None
    network = Exact.of(w)
    around(r, tally, "feed-through", where, w, network, w.lam, r.choice((None, w.lam)))
    tightest(tally, "feed-through, tightest bound", f"{where}: {show(w)}", w, network)


def extreme(r: Random, tally: Tally, where: str) -> None:
    w = draws.extreme(r)
    assert w.lam is not None
    network = Exact.of(w)
    around(r, tally, "extreme", where, w, network, w.lam, None)
    tightest(tally, "extreme, tightest bound", f"{where}: {show(w)}", w, network)


def eliminated(r: Random, tally: Tally, where: str) -> None:
    w, sigma = draws.linear_units(r)
    n = w.hidden_features
    lam = torch.where(torch.tensor(sigma.linear), math.nan, draws.decades(r, n, spread=3.0))
    network = Exact.of(w)
    around(r, tally, "eliminated", where, w, network, lam, lam, activation=sigma)
    tightest(tally, "tightest bound of linear units", f"{where}: {show(w)}, {sigma}", w, network, activation=sigma)


def grouped(r: Random, tally: Tally, where: str) -> None:
    w, sigma = draws.grouped(r)
    assert w.lam is not None
    around(r, tally, "grouped", where, w, Exact.of(w), w.lam, None, activation=sigma)
    judge(
        tally,
        "grouped, tightest bound",
        f"{where}: {show(w)}, {sigma}",
        lambda: lben.tightest_bound(w, activation=sigma),
        lambda c: exact.holds(w, c.lam, c.gamma) and constant(c.lam, sigma.groups(len(w.bz))),
    )


def constant(lam: Tensor, groups: Tensor | None) -> bool:
    return groups is None or all(len(lam[groups == g].unique()) == 1 for g in groups.unique())


def imported(r: Random, tally: Tally, where: str) -> None:
    module = draws.module(r)
    net = tally.attempt("imported", f"{where}: {module}", lambda: lben.from_sequential(module))
    if net is None:
        return
    w = net.weights().detach()
    assert w.lam is not None
    network = Exact.of(w)
    around(r, tally, "imported", where, w, network, w.lam, w.lam, activation=net.activation)
    tightest(tally, "imported, tightest bound", f"{where}: {show(w)}, {net.activation}", net, network)


def convolutional(r: Random, tally: Tally, where: str) -> None:
    metric: lben.Metric = r.choice(("channel", "identity", "pixel"))
    w = draws.convolution(r, metric)
    assert w.lam is not None
    network, kind = exact.convolution(w), f"convolutional, {metric}"
    given = None
    if metric != "pixel" and r.random() < 0.5:
        given = draws.decades(r, w.channels, spread=3.0).repeat(w.geometry.pixels) * 10.0 ** r.uniform(-12, 3)
    lam = w.lam if given is None else given
    if w.gamma is not None and given is None:
        for rigorous in (False, True):  # at its own gamma, at its neighbours and just below
            for gamma in (w.gamma, math.nextafter(w.gamma, 0), w.gamma * (1 - r.randint(2, 8) * 2.0**-53)):
                judge(
                    tally,
                    f"{kind}, its own gamma{', rigorous' * rigorous}",
                    f"{where}: certify({gamma!r}, rigorous={rigorous}) of {show(w)}",
                    lambda g=gamma, s=rigorous: lben.certify(w, g, rigorous=s),  # type: ignore[misc]
                    lambda c: exact.exactly(network, c.lam, c.gamma),
                )
    around(r, tally, kind, where, w, network, lam, given)


def images(r: Random, tally: Tally, where: str) -> None:
    w = draws.images(r)
    assert w.lam is not None
    network, given = exact.images(w), None
    if r.random() < 0.5:
        given = draws.decades(r, w.channels, spread=3.0).repeat(w.pixels) * 10.0 ** r.uniform(-12, 3)
    around(r, tally, "images", where, w, network, w.metric_diagonal() if given is None else given, given)
    tightest(tally, "images, tightest", where, w, network)
