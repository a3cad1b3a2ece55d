"""Activations of single units: sigma = prox^1, prox^alpha by its definition, f by Proposition `sigma`, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import lben
from lben.activations.base import Scalar
from lben.activations.proximal import dilogarithm, integrate_potential, solve_preimage
from tests.problems import label

SCALARS: list[Scalar] = [
    lben.ReLU(),
    lben.LeakyReLU(),
    lben.LeakyReLU(0.0),
    lben.LeakyReLU(1.0),
    lben.Tanh(),
    lben.Sigmoid(),
    lben.Arctan(),
    lben.Softplus(),
    lben.ELU(),
    lben.ELU(0.4),
    lben.HardTanh(),
    lben.Identity(),
    lben.Elementwise(torch.tanh),
    lben.Elementwise(lambda v: torch.nn.functional.softplus(v - 1) / 2),
]
ALPHAS = [1e-3, 0.05, 0.5, 1.0, 2.0, 30.0, 1e3]
GRID = torch.linspace(-12, 12, 481, dtype=torch.float64)


def inner_points(activation: Scalar) -> torch.Tensor:
    """Values that sigma takes where it is strictly increasing."""
    v = torch.linspace(-2, 2, 41, dtype=torch.float64)
    v = v[activation.derivative(v) > 0]
    return activation(v)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("activation", SCALARS, ids=label)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_prox_minimises_its_definition(activation: Scalar, alpha: float) -> None:
    """prox^alpha(u) = argmin (z - u)^2/2 + alpha f(z), against a numerical minimiser."""
    low, high = activation.domain
    for u in (-5.0, -0.7, 0.0, 0.3, 4.0):

        def objective(z: float, u: float = u) -> float:
            f = float(activation.potential(torch.tensor(z, dtype=torch.float64)))
            return (z - u) ** 2 / 2 + alpha * f

        z = float(activation.prox(torch.tensor(u, dtype=torch.float64), alpha))
        bounds = (max(low, -12.0) + 1e-12, min(high, 12.0) - 1e-12)
        best = minimize_scalar(objective, bounds=bounds, method="bounded", options={"xatol": 1e-12})
        assert objective(z) <= best.fun + 1e-9 * (1 + abs(best.fun))


@pytest.mark.parametrize("activation", SCALARS, ids=label)
def test_prox_at_one_is_sigma(activation: Scalar) -> None:
    assert torch.equal(activation.prox(GRID, 1.0), activation(GRID))


@pytest.mark.parametrize("activation", SCALARS, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prox_solves_its_equation_to_machine_precision(activation: Scalar, dtype: torch.dtype) -> None:
    """At u = alpha v + (1 - alpha) sigma(v) the answer is sigma(v), known beforehand."""
    v = GRID.to(dtype)
    for alpha in ALPHAS:
        u = alpha * v + (1 - alpha) * activation(v)
        scale = 1 + u.abs() + alpha * v.abs()
        assert float(((activation.prox(u, alpha) - activation(v)).abs() / scale).max()) < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("activation", SCALARS, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prox_near_one_takes_few_steps(activation: Scalar, dtype: torch.dtype) -> None:
    """Where alpha is nearly 1, prox is nearly sigma, and Newton's method has next to nothing to do."""
    if isinstance(activation, lben.ELU) and float(activation(torch.tensor(-1e-20, dtype=dtype))) == 0:
        pytest.skip("The elu of this torch has no digits near 0, where Newton's method then settles slowly.")
    evaluations = 0

    def sigma(v: torch.Tensor) -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        return activation(v)

    for alpha in (0.9, 0.99, 1 - 1e-6, 1 + 1e-6, 1.01, 1.1):
        evaluations = 0
        solve_preimage(torch.cat([GRID, 1e-9 * GRID]).to(dtype), alpha, sigma, activation.derivative)
        assert evaluations <= 8


@pytest.mark.sampled(4)
@pytest.mark.parametrize("activation", SCALARS, ids=label)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_reflections_become_exact_as_iterates_settle(activation: Scalar, alpha: float) -> None:
    """2 prox(u) - u but for a hundredth of the way from the point reflected last, and to rounding in the end."""
    reflect = activation.reflection(alpha)
    u, left = GRID, abs(1 - alpha) * float((GRID - activation(GRID)).norm())
    for step in (0.0, 1.0, 1e-2, 1e-5, *[0.0] * 6):
        move = step * torch.sin(7 * GRID)
        u, left = u + move, 0.01 * (left + float(move.norm()))
        exact = 2 * activation.prox(u, alpha) - u
        assert float((reflect(u) - exact).norm()) <= left + 1e-13 * (1 + alpha) * float(u.norm())


@pytest.mark.parametrize("activation", SCALARS, ids=label)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_prox_is_monotone_and_nonexpansive(activation: Scalar, alpha: float) -> None:
    steps = activation.prox(GRID, alpha).diff()
    assert float(steps.min()) >= -1e-13
    assert float((steps - GRID.diff()).max()) <= 1e-13


@pytest.mark.parametrize("activation", SCALARS, ids=label)
def test_potential_has_the_derivative_of_the_proposition(activation: Scalar) -> None:
    """f'(z) = sigma^-1(z) - z, by central differences, where sigma is invertible."""
    h = 1e-5
    v = torch.linspace(-2, 2, 41, dtype=torch.float64)
    smooth = (activation.derivative(v) > 1e-3) & (v.abs() > 1e-2) & ((v.abs() - 1).abs() > 1e-2)
    v = v[smooth]
    z = activation(v)
    slope = (activation.potential(z + h) - activation.potential(z - h)) / (2 * h)
    assert torch.allclose(slope, v - z, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("activation", SCALARS, ids=label)
def test_potential_is_infinite_outside_its_domain(activation: Scalar) -> None:
    low, high = activation.domain
    for end, sign in ((low, -1), (high, 1)):
        if math.isfinite(end):
            outside = torch.tensor(end + sign * 1e-6, dtype=torch.float64)
            assert math.isinf(float(activation.potential(outside)))
    assert bool(torch.isfinite(activation.potential(inner_points(activation))).all())


@pytest.mark.parametrize(
    "activation", [lben.Tanh(), lben.Sigmoid(), lben.Softplus(), lben.ELU(), lben.Arctan()], ids=label
)
def test_numerical_potential_agrees_with_the_formula(activation: Scalar) -> None:
    z = inner_points(activation)
    numerical = integrate_potential(z, activation, activation.domain)
    formula = activation.potential(z) - activation.potential(activation(torch.zeros(1, dtype=torch.float64)))
    assert torch.allclose(numerical, formula, atol=1e-9)


def test_dilogarithm_at_known_points() -> None:
    x = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    known = [0.0, math.pi**2 / 12 - math.log(2) ** 2 / 2, math.pi**2 / 6]
    assert torch.allclose(dilogarithm(x), torch.tensor(known, dtype=torch.float64), atol=1e-15)


@pytest.mark.parametrize("activation", SCALARS, ids=label)
@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_prox_is_differentiable_twice(activation: Scalar, alpha: float) -> None:
    u = torch.tensor([-3.1, -0.8, -0.3, 0.45, 1.7, 3.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: activation.prox(t, alpha), u)
    assert torch.autograd.gradgradcheck(lambda t: activation.prox(t, alpha), u, atol=1e-4)


@pytest.mark.parametrize("activation", SCALARS, ids=label)
def test_derivative_is_that_of_autograd(activation: Scalar) -> None:
    v = torch.tensor([-3.1, -0.8, -0.3, 0.45, 1.7, 3.2], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(activation(v).sum(), v)
    assert torch.allclose(activation.derivative(v), expected, atol=1e-12)


@given(u=st.floats(-1e4, 1e4), alpha=st.floats(1e-4, 1e4))
@settings(max_examples=100, deadline=None)
def test_prox_of_tanh_anywhere(u: float, alpha: float) -> None:
    """Optimality: u - z = alpha f'(z) = alpha (artanh z - z)."""
    z = float(lben.Tanh().prox(torch.tensor(u, dtype=torch.float64), alpha))
    assert -1 <= z <= 1
    if abs(z) < 1 - 1e-9:
        assert math.isclose(u, z + alpha * (math.atanh(z) - z), rel_tol=1e-6, abs_tol=1e-9)


def test_per_unit_is_its_parts() -> None:
    parts: list[Scalar] = [lben.Tanh(), lben.ReLU(), lben.Tanh(), lben.Softplus()]
    mixed = lben.PerUnit(parts)
    v = torch.randn(3, 2, 4, dtype=torch.float64)
    for i, part in enumerate(parts):
        assert torch.equal(mixed(v)[..., i], part(v[..., i]))
        assert torch.equal(mixed.derivative(v)[..., i], part.derivative(v[..., i]))
        assert torch.allclose(mixed.prox(v, 0.3)[..., i], part.prox(v[..., i], 0.3), atol=1e-14)
        assert torch.equal(mixed.potential(v)[..., i], part.potential(v[..., i]))
    assert mixed.domains == tuple(part.domain for part in parts)
    assert mixed == lben.PerUnit(parts)
    assert repr(mixed) == "PerUnit(2 x Tanh(), 1 x ReLU(), 1 x Softplus())"


@pytest.mark.parametrize(
    ("fn", "slope", "point"),
    [
        (torch.nn.functional.gelu, -0.1289, -1.414),
        (torch.nn.functional.silu, -0.0998, -2.399),
        (lambda v: 2 * v, 2.0, -10000),
        (lambda v: -0.5 * v, -0.5, -10000),
        (torch.sign, 8000, 0.000125),
    ],
)
def test_slopes_outside_are_refused_by_point_and_slope(fn: object, slope: float, point: float) -> None:
    with pytest.raises(lben.InvalidActivation) as caught:
        lben.Elementwise(fn)  # type: ignore[arg-type]
    words = str(caught.value).split()
    assert float(words[words.index("slope") + 1]) == pytest.approx(slope, rel=1e-2)
    assert float(words[words.index("=") + 1].rstrip(":")) == pytest.approx(point, rel=1e-2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda v: v * (1 + 9e-8),
        lambda v: v * (1 + 1e-13),
        lambda v: torch.relu(v) * (1 + 1e-12),
        lambda v: torch.tanh(v * (1 + 1e-9)),
        lambda v: -1e-13 * v,
        lambda v: torch.tanh(v) - 1e-12 * v,
        lambda v: torch.where((v > 3) & (v < 3.01), v + 1e-9 * (v - 3), v.clamp(max=3) + (v - 3.01).relu() + 0.01),
    ],
)
def test_slopes_just_outside_are_refused(fn: object) -> None:
    with pytest.raises(lben.InvalidActivation, match=r"has slope (1\.0000|-)"):
        lben.Elementwise(fn)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fn",
    [
        torch.tanh,
        torch.relu,
        lambda v: v,
        torch.zeros_like,
        lambda v: torch.erf(v * math.sqrt(math.pi) / 2),
        lambda v: torch.where(v > 0, v, v.clamp(max=0).exp() - 1),
        lambda v: (v + torch.sqrt(v * v + 4)) / 2,
        lambda v: v / (1 + v.abs()),
        lambda v: torch.asinh(v) + 5,
        lambda v: torch.nn.functional.softplus(3 * v) / 3,
        lambda v: v - torch.tanh(v),
        lambda v: torch.nn.functional.softshrink(v, 0.3),
    ],
)
def test_rounding_in_a_function_is_forgiven(fn: object) -> None:
    lben.Elementwise(fn)  # type: ignore[arg-type]


@pytest.mark.parametrize("slope", [5e-324, 1e-300, 1e-30, 1 - 2**-53])
def test_extreme_slopes_of_leaky_relu(slope: float) -> None:
    """f is never NaN, and prox^1 is still sigma."""
    activation = lben.LeakyReLU(slope)
    z = torch.tensor([-1e-200, -1.0, 0.0, 1.0], dtype=torch.float64)
    assert not bool(activation.potential(z).isnan().any())
    assert torch.equal(activation.prox(z, 1.0), activation(z))
    assert float(activation.derivative(z).max()) <= 1


def test_an_activation_of_torch_is_told_its_namesake() -> None:
    for foreign, own in ((torch.nn.ReLU(), "ReLU"), (torch.nn.Hardtanh(), "HardTanh"), (torch.tanh, "Tanh")):
        with pytest.raises(lben.InvalidInput, match=rf"^activation must be one of lben's: use lben.{own}\(\), not"):
            lben.MON(8, 6, 3, activation=foreign)  # type: ignore[arg-type]
