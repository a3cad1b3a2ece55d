"""Proved errors of hidden layers and outputs, against equilibria in exact or in long arithmetic."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import lben
from lben.certify.condition import sure_monotonicity
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.kinds import subject_of
from lben.solvers.base import Problem
from lben.solvers.loop import solve
from tests import problems
from tests.rational import exact, is_definite

SCALES = [1e-300, 1e-159, 1e-40, 1e-20, 1e-5, 1.0, 1e5, 1e20, 1e100]


def weights(n: int, seed: int, dtype: torch.dtype, spread: float = 0.5) -> lben.Weights:
    """Weights of an LBEN of 2 inputs, n units and 2 outputs, with biases."""
    generator = torch.Generator().manual_seed(seed)
    net = lben.LBEN(2, n, 2, gamma=10 ** float(torch.rand((), generator=generator) * 2 - 1)).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
        net.parameterization.d.mul_(spread)  # type: ignore[operator]
    return net.weights().detach()


def solve_exactly(A: list[list[Fraction]], b: list[Fraction]) -> list[Fraction]:
    """A^-1 b by elimination."""
    n, rows = len(b), [[*row, right] for row, right in zip(A, b, strict=True)]
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(n):
            if i != k and rows[i][k] != 0:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [a - factor * c for a, c in zip(rows[i], rows[k], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def relu_equilibrium(w: lben.Weights, x: Tensor, guess: Tensor) -> list[Fraction] | None:
    """The equilibrium of one x in rationals; None if the units that `guess` shows alive are not those that are."""
    W, U, bz, row = exact(w.W), exact(w.U), exact(w.bz), exact(x)
    n = len(bz)
    b = [bz[i] + sum(u * a for u, a in zip(U[i], row, strict=True)) for i in range(n)]
    alive = [i for i in range(n) if guess[i] > 0]
    A = [[int(i == j) - W[i][j] for j in alive] for i in alive]
    z = [Fraction(0)] * n
    for i, value in zip(alive, solve_exactly(A, [b[i] for i in alive]), strict=True):
        z[i] = value
    v = [b[i] + sum(W[i][j] * z[j] for j in alive) for i in range(n)]
    return z if all(z[i] >= 0 if i in alive else v[i] <= 0 for i in range(n)) else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_errors_are_true_in_exact_arithmetic(dtype: torch.dtype) -> None:
    """|z - z*|_Lam <= error_bound and |y - y*| <= error, in rationals, over decades of scale."""
    checked = 0
    limits = torch.finfo(dtype)
    for seed in range(40):
        n, scale = 1 + seed % 8, SCALES[seed % len(SCALES)]
        w = weights(n, seed, dtype)
        if not limits.tiny < scale < limits.max / 1e4:
            continue
        generator = torch.Generator().manual_seed(seed)
        x = scale * torch.randn(2, 2, generator=generator, dtype=dtype)
        w = lben.Weights(w.W, w.U, scale * w.bz, w.Wo, w.by, w.lam)
        net = lben.UnconstrainedEN.from_weights(w).eval()
        net.solver = lben.PeacemanRachford(tolerance=10.0 ** -(seed % 5 + 1), max_iterations=200, on_failure="warn")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lben.ConvergenceWarning)  # an error is proved of whatever was found
            solution = net.solve(x)
        found = lben.enclose(w, x)
        precise = w.to(torch.float64)
        b = torch.nn.functional.linear(x.double(), precise.U, precise.bz)
        bound = solution.error_bound(w, x)
        assert found
        alive = solve(lben.Newton(tolerance=1e-10), Problem(precise.operator(), lben.ReLU(), b)).z
        for i in range(2):
            z = relu_equilibrium(w, x[i], alive[i])
            if z is None:
                continue
            lam, mine = exact(w.metric()), exact(solution.z[i].detach())
            error = sum(a * (b - c) ** 2 for a, b, c in zip(lam, mine, z, strict=True))
            assert error <= Fraction(float(bound[i])) ** 2
            for k in range(2):
                y = exact(w.by)[k] + sum(a * b for a, b in zip(exact(w.Wo)[k], z, strict=True))
                assert abs(y - Fraction(found.y[i, k].item())) <= Fraction(found.error[i, k].item())
            checked += 1
    assert checked > 30


SMOOTH: dict[str, tuple[lben.Activation, str]] = {
    "tanh": (lben.Tanh(), "tanh"),
    "sigmoid": (lben.Sigmoid(), "sigmoid"),
    "arctan": (lben.Arctan(), "atan"),
    "softplus": (lben.Softplus(), "softplus"),
}


def long_value(flint: Any, kind: str, v: Any) -> Any:
    """sigma(v) in balls."""
    if kind == "sigmoid":
        return 1 / (1 + (-v).exp())
    if kind == "softplus":
        return (1 + v.exp()).log()
    return getattr(v, kind)()


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_errors_are_true_in_long_arithmetic(kind: str, dtype: torch.dtype) -> None:
    """Functions that torch does not round correctly, against Newton's method with 300 bits."""
    flint = pytest.importorskip("flint")
    activation, function = SMOOTH[kind]
    with flint.ctx.workprec(300):
        for seed, scale in enumerate([1e-12, 1e-3, 1.0, 30.0]):
            n = 1 + seed
            w = weights(n, seed, dtype)
            x = scale * problems.biases(1, 2, seed).to(dtype)
            net = lben.UnconstrainedEN.from_weights(w, activation=activation).eval()
            with torch.no_grad():
                solution = net.solve(x)
            bound, found = solution.error_bound(w, x, activation=activation), lben.enclose(w, x, activation=activation)
            W, U = ([[flint.arb(a) for a in row] for row in t.double().tolist()] for t in (w.W, w.U))
            b = [
                flint.arb(float(w.bz[i])) + sum(u * flint.arb(float(a)) for u, a in zip(U[i], x[0], strict=True))
                for i in range(n)
            ]
            z = newton(flint, function, W, b, [flint.arb(float(a)) for a in solution.z[0]])
            lam = [flint.arb(float(a)) for a in w.metric()]
            error = sum(a * (c - flint.arb(float(d))) ** 2 for a, c, d in zip(lam, z, solution.z[0], strict=True))
            assert error <= flint.arb(float(bound[0])) ** 2
            for k in range(2):
                y = flint.arb(float(w.by[k])) + sum(flint.arb(float(a)) * c for a, c in zip(w.Wo[k], z, strict=True))
                assert abs(y - flint.arb(found.y[0, k].item())) <= flint.arb(found.error[0, k].item())


def newton(flint: Any, function: str, W: list[Any], b: list[Any], z: list[Any]) -> list[Any]:
    """Newton's method on z - sigma(W z + b), with the middles of balls."""
    n = len(b)
    step = flint.arb("1e-40")

    def residual(z: list[Any]) -> list[Any]:
        return [z[i] - long_value(flint, function, b[i] + sum(W[i][j] * z[j] for j in range(n))) for i in range(n)]

    for _ in range(12):
        r = residual(z)
        columns = []
        for j in range(n):
            shifted = [z[i] + (step if i == j else 0) for i in range(n)]
            columns.append([(a - c) / step for a, c in zip(residual(shifted), r, strict=True)])
        J = flint.arb_mat([[columns[j][i].mid() for j in range(n)] for i in range(n)])
        move = J.solve(flint.arb_mat([[a.mid()] for a in r]))
        z = [(z[i] - move[i, 0]).mid() for i in range(n)]
    assert all(abs(a) < flint.arb("1e-35") for a in residual(z))
    return z


def networks() -> dict[str, lben.EquilibriumNetwork | lben.ConvNetwork]:
    """One of every kind that has a metric, in single precision."""
    torch.manual_seed(0)
    scale = lben.Normalize(0.3, 0.2)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5), torch.nn.Tanh())
    image = ((1, 4, 4), 3, 2)
    return {
        "dense": lben.LBEN(4, 9, 3, gamma=2.0, normalize=scale),
        "monotone": lben.MON(4, 9, 3, activation=lben.Tanh()),
        "blocks": lben.LBEN(4, 8, 3, gamma=2.0, activation=lben.Softmax(4)),
        "projection": lben.LBEN(4, 8, 3, gamma=2.0, activation=lben.Projection(lben.Ball(4))),
        "layered": lben.from_sequential(torch.nn.Sequential(layers, torch.nn.Linear(5, 2))),
        "channel": lben.ConvLBEN(*image, gamma=2.0, normalize=scale),
        "identity": lben.ConvMON(*image),
        "pixel": lben.ConvLBEN(*image, gamma=2.0, metric="pixel", solver=lben.FISTA(max_iterations=20_000)),
    }


@pytest.mark.parametrize("kind", networks())
def test_every_way_to_an_output_leads_into_the_enclosure(kind: str) -> None:
    """Rough and precise solvers, and the hidden layer in single precision, all with errors that explain the rest."""
    net = networks()[kind].eval()
    x = torch.randn(3, net.in_features, generator=torch.Generator().manual_seed(1))
    precise = lben.enclose(net, x)
    assert precise.proved
    assert float(precise.error.max()) < 1e-8  # sets are allowed more rounding than functions
    for tolerance in (1e-1, 1e-3, 1e-6):
        rough = lben.enclose(net, x, solver=lben.ForwardBackward(tolerance=tolerance, max_iterations=20_000))
        assert bool(((rough.y - precise.y).abs() <= rough.error + precise.error).all())
    subject = subject_of(net).settled()
    assert isinstance(subject, EquilibriumSubject)
    with torch.no_grad():
        solution = net.solve(x)
        z = subject._solve(x.double(), lben.Newton(tolerance=1e-13)).z
    error = ((solution.z - z) * subject.diagonal.sqrt()).norm(dim=-1)
    bound = solution.error_bound(net, x)
    assert bool((error <= bound + 1e-10).all())
    assert float(bound.max()) < 1e-1


def test_a_solution_is_judged_by_the_network_and_the_input_it_is_held_against() -> None:
    """The bound is that of the distance to this network's equilibrium, whatever the solution was made for."""
    net = networks()["dense"].eval()
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    bias = torch.linspace(-1, 1, 9)
    with torch.no_grad():
        one, other = net.solve(x), net.solve(x, bias=bias)
    apart = ((one.z - other.z) * net.weights().lam.sqrt()).norm(dim=-1)  # type: ignore[union-attr]
    assert one.error_bound(net, x).shape == (5, 3)
    assert float(other.error_bound(net, x, bias=bias).max()) < 1e-2
    assert bool((other.error_bound(net, x) >= apart - one.error_bound(net, x) - 1e-6).all())
    with pytest.raises(lben.InvalidInput, match="hidden layer has shape"):
        one.error_bound(net, x[:2])
    with pytest.raises(lben.InvalidInput, match="does not fit"):
        one.error_bound(net, x, bias=torch.zeros(2, 9))


def test_slopes_of_a_deployed_network_are_explained() -> None:
    """|y1 - y2| <= gamma |x1 - x2| + e1 + e2 for what single precision computes, at inputs a millionth apart."""
    torch.manual_seed(3)
    net = lben.LBEN(4, 30, 3, gamma=1.0, solver=lben.PeacemanRachford(tolerance=1e-3)).eval()
    x = torch.randn(50, 4)
    moved = x + 1e-6 * torch.randn(50, 4)
    outputs, errors = [], []
    for at in (x, moved):
        true = lben.enclose(net, at)
        outputs.append(net(at).double())
        errors.append(((outputs[-1] - true.y).abs() + true.error).norm(dim=1))
    distance = (outputs[0] - outputs[1]).norm(dim=1)
    allowed = net.bound() * (x.double() - moved.double()).norm(dim=1)
    assert bool((distance <= allowed + errors[0] + errors[1]).all())
    exact = [lben.enclose(net, at) for at in (x, moved)]
    slack = exact[0].error.norm(dim=1) + exact[1].error.norm(dim=1)
    assert bool(((exact[0].y - exact[1].y).norm(dim=1) <= allowed + slack).all())
    assert float((slack / allowed).max()) < 1e-3


def test_nothing_is_claimed_without_a_metric() -> None:
    x = torch.ones(2, 1)
    settled = lben.Weights(torch.tensor([[3.0]]), torch.ones(1, 1), torch.zeros(1), torch.ones(1, 1), torch.zeros(1))
    found = lben.enclose(settled, -x)  # z = relu(3 z - 1) has two solutions, of which one is found
    assert not found
    assert not found.proved
    assert bool(torch.isinf(found.error).all())
    assert "no proved error" in str(found)
    lost = lben.enclose(settled, x)  # z = 3 z + 1 has none above 0
    assert bool(torch.isnan(lost.y).all())
    assert not lost


def test_an_enclosure_reads_as_a_sentence() -> None:
    net = networks()["dense"].eval()
    found = lben.enclose(net, torch.zeros(2, 5, 4))
    assert found.y.shape == found.error.shape == (2, 5, 3)
    assert "30 outputs, each within" in str(found)
    empty = lben.enclose(net, torch.zeros(0, 4))
    assert empty.y.shape == (0, 3)
    for wrong in (torch.zeros(2, 5), torch.full((1, 4), torch.nan), [0.0] * 4):
        with pytest.raises(lben.InvalidInput):
            lben.enclose(net, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [0.5, 5.0, 40.0])
def test_monotonicity_is_not_overstated(spread: float) -> None:
    """m of the stored numbers, by an exact elimination: 2 Lam - Lam W - W' Lam - 2 m Lam is positive definite."""
    for seed in range(12):
        w = weights(1 + seed % 5, seed, torch.float64, spread)
        m = sure_monotonicity(w.W, w.metric(), w.operator().monotonicity)
        computed = w.operator().monotonicity
        assert m <= computed or m == pytest.approx(computed)
        if not m > 0:
            continue
        W, lam, bound = exact(w.W), exact(w.metric()), Fraction(m)
        n = len(lam)
        X = [
            [2 * lam[i] * (1 - bound) * (i == j) - lam[i] * W[i][j] - lam[j] * W[j][i] for j in range(n)]
            for i in range(n)
        ]
        assert is_definite(X)


@pytest.mark.parametrize("metric", ["channel", "identity", "pixel"])
def test_errors_of_a_convolution_nearly_without_monotonicity_are_true(metric: lben.Metric) -> None:
    """One pixel with W = 1 - t, which no double is: z = relu(W z + 1) = 1/t, and m = t."""
    one, zero = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    entries = torch.ones((1, 1) if metric == "pixel" else (1,), dtype=torch.float64)
    for t in (0.3, 1e-6, 1e-12, 1.5e-16, 3e-16, 1e-17):
        w = lben.ConvWeights(t * one, one, zero, one, zero, entries, metric, lben.Geometry((1, 1, 1), 0, 1))
        subject = subject_of(w)
        assert isinstance(subject, EquilibriumSubject)
        assert 0.999 * t < subject.monotonicity < t
        for share in (1.0, 1.001, 0.5, 3.0):
            z = torch.full((1, 1), share / t, dtype=torch.float64)
            error = subject.distance(z, z, torch.ones(1, 1, dtype=torch.float64))
            assert abs(Fraction(z.item()) - 1 / Fraction(t)) <= Fraction(error.item())
    for t in (0.0, -1e-17):
        w = lben.ConvWeights(t * one, one, zero, one, zero, entries, metric, lben.Geometry((1, 1, 1), 0, 1))
        assert not subject_of(w).settled().proved


def test_terms_that_cancel_within_a_function_are_allowed_for() -> None:
    """exp(v) - 1 loses a rounding of 1, however small v is."""
    elu = lben.Elementwise(lambda v: torch.exp(v.clamp(max=0)) - 1 + v.clamp(min=0))
    one, nought = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    w = lben.Weights(one / 2, one, nought, one, nought)
    for size in (1e-13, 1e-12, 1e-8, 1e-5):
        exact = -2 * size + 4 * size**2  # z = z/2 - s + (z/2 - s)^2/2 + .., to terms of order s^3
        for activation in (elu, lben.PerUnit([elu]), lben.Blocks([(elu, 1)])):
            found = lben.enclose(w, -size * one, activation=activation)
            assert abs(float(found.y) - exact) <= float(found.error) + 10 * size**3
    x = 1e-13 * torch.linspace(-3, 3, 50, dtype=torch.float64)[:, None]
    lower = lben.lipschitz_lower_bound(w, x, restarts=8, steps=20, activation=elu)
    assert lower.value <= float(lben.tightest_bound(w, activation=elu).gamma or 0)


def test_underflow_within_a_normalisation_is_allowed_for() -> None:
    one, nought = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for U, std, x in ((1e140, 1e200, 2.7e-123), (1e100, 1e250, 1e-72), (1e60, 1e290, 1e-32)):
        normalize = lben.Normalize(0.0, 1.0).double()
        normalize.std.fill_(std)
        w = lben.Weights(0 * one, U * one, nought, one, nought)
        net = lben.UnconstrainedEN.from_weights(w, normalize=normalize)
        found, exact = lben.enclose(net, x * one), Fraction(x) * Fraction(U) / Fraction(std)
        assert abs(Fraction(float(found.y)) - exact) <= Fraction(float(found.error))
