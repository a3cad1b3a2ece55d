"""Activations in blocks: each is the prox it claims to be, its Jacobian is right, and Lambda is constant on blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lben
from lben.activations.base import Jacobian
from tests.blocks import ACTIVATIONS, network, points, random_polyhedron
from tests.problems import name

ALPHAS = [1e-3, 0.05, 0.5, 1.0, 2.0, 30.0, 1e3]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_prox_solves_its_equation(activation: lben.Activation, alpha: float) -> None:
    """At u = alpha v + (1 - alpha) sigma(v) the answer is sigma(v), known beforehand."""
    v = points()
    u = alpha * v + (1 - alpha) * activation(v)
    assert torch.allclose(activation.prox(u, alpha), activation(v), atol=1e-14 * (1 + 30 * alpha), rtol=0)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, lben.Projection(random_polyhedron(40, 2, seed=0))], ids=name)
def test_nan_stays_nan(activation: lben.Activation) -> None:
    """A solver that overflows must not be told that all is well."""
    v = points(2)
    v[0] = torch.nan
    z = activation(v)
    assert bool(z[0].isnan().all())
    assert bool(z[1].isfinite().all())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_prox_minimises_its_definition(activation: lben.Activation, alpha: float) -> None:
    """No point that sigma takes is better than prox^alpha(u) in |z - u|^2/2 + alpha f(z)."""
    u = points(20)
    candidates = activation(points(400, seed=1))

    def objective(z: Tensor) -> Tensor:
        return ((z - u[:, None]) ** 2).sum(dim=-1) / 2 + alpha * activation.potential(z).sum(dim=-1)

    best = objective(activation.prox(u, alpha)[:, None])
    assert bool(torch.isfinite(best).all())
    assert bool((best <= objective(candidates[None]) + 1e-9).all())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("alpha", [0.1, 1.0, 7.0])
def test_sigma_is_firmly_nonexpansive_with_lambda_constant_on_blocks(activation: lben.Activation, alpha: float) -> None:
    """(sigma(a) - sigma(b))' Lam (a - b) >= |sigma(a) - sigma(b)|^2_Lam, the condition behind every certificate."""
    a, b = points(500), points(500, seed=1)
    groups = activation.groups(6)
    groups = torch.arange(6) if groups is None else groups
    lam = torch.rand(6, dtype=torch.float64)[groups] + 0.1
    moved = activation.prox(a, alpha) - activation.prox(b, alpha)
    assert bool(((moved * lam * (a - b - moved)).sum(dim=-1) >= -1e-12).all())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_jacobians_of_sigma_and_prox(activation: lben.Activation, alpha: float) -> None:
    """By autograd and finite differences, to second order, and as `gain` has them: symmetric, between 0 and I."""
    v = points(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: activation.prox(u, alpha), v)
    assert torch.autograd.gradgradcheck(lambda u: activation.prox(u, alpha), v)
    J = activation.gain(v.detach()).times(torch.eye(6, dtype=torch.float64))
    rows = [torch.autograd.functional.jacobian(activation, row) for row in v.detach()]
    assert torch.allclose(J, torch.stack(rows), atol=1e-12)
    assert torch.allclose(J, J.mT, atol=1e-15)
    values = torch.linalg.eigvalsh(J)
    assert float(values.min()) >= -1e-12
    assert float(values.max()) <= 1 + 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_a_gain_is_a_linear_activation(activation: lben.Activation) -> None:
    v = points(8)
    gain: Jacobian = activation.gain(v)
    J = gain.times(torch.eye(6, dtype=torch.float64))
    u, w = points(8, seed=1), points(8, seed=2)
    apply = torch.linalg.vecdot(J, u[:, None])
    assert torch.allclose(gain(u), apply, atol=1e-13)
    for alpha in (0.2, 3.0):
        mixed = alpha * u + (1 - alpha) * apply
        assert torch.allclose(gain.prox(mixed, alpha), apply, atol=1e-12)
        assert torch.allclose(gain.reflection(alpha)(mixed), 2 * apply - mixed, atol=1e-12)
    index = torch.tensor([5, 1])
    assert torch.allclose(gain.rows(index)(u[index]), apply[index], atol=1e-13)
    parts = tuple(tensor.clone().requires_grad_() for tensor in gain.tensors)
    expected = torch.autograd.grad((w * gain.rebind(*parts)(u)).sum(), parts)
    for found, wanted in zip(gain.pullback(w, u), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_potential_is_finite_where_sigma_leads(activation: lben.Activation, dtype: torch.dtype) -> None:
    v = 3 * points(200).to(dtype)
    assert bool(activation.potential(activation(v)).isfinite().all())


def block_weights() -> lben.Weights:
    weights = network(lben.ReLU()).weights().detach()
    return replace(weights, lam=torch.arange(1.0, 7.0, dtype=torch.float64), gamma=None)


CALLS: list[tuple[str, Callable[[], object], str]] = [
    ("far too large", lambda: lben.Polyhedron([[1e200, 0]], [1e200]), "too large or too small"),
    ("far too small", lambda: lben.Polyhedron([[1e-200, 0]], [1e-200]), "too large or too small"),
    ("far away", lambda: lben.Polyhedron([[-1, 0]], [-1e31]), "too large or too small"),
    ("not a tensor", lambda: lben.Softmax(3)([1.0, 2.0, 3.0]), "not list"),  # type: ignore[arg-type]
    ("convolution", lambda: lben.ConvMON((1, 8, 8), 2, 3, activation=lben.Softmax(2)), "units that act in blocks need"),
    ("contraction", lambda: lben.contraction(network(lben.Softmax(3))), "acts on several at once"),
    ("infeasible", lambda: lben.Polyhedron([[1], [-1]], [-1, -1]), "polyhedron is empty"),
    ("infeasible in the plane", lambda: lben.Polyhedron([[1, 0], [0, 1], [-1, -1]], [0, 0, -1]), "is empty"),
    ("no constraints", lambda: lben.Polyhedron(torch.zeros(0, 2), []), r"not \(0, 2\)"),
    ("d too long", lambda: lben.Polyhedron([[1, 0]], [1, 2]), r"\(1, 2\) and \(2,\)"),
    ("zero row", lambda: lben.Polyhedron([[1, 0], [0, 0]], [1, 2]), "Row 1 of C is zero"),
    ("NaN", lambda: lben.Polyhedron([[float("nan"), 0]], [1]), "C holds nan"),
    ("text", lambda: lben.Polyhedron("C", [1]), "C must hold numbers, not 'C'"),  # type: ignore[arg-type]
    ("empty box", lambda: lben.Box([0, 2], [1, 1]), "low = 2 is not below high = 1"),
    ("box of two lengths", lambda: lben.Box([0, 2], [1, 1, 1]), "low has 2 entries, high 3"),
    ("box of nothing", lambda: lben.Box([], []), "low must be a number"),
    ("empty softmax", lambda: lben.Softmax(0), "size .* not 0"),
    ("empty ball", lambda: lben.Ball(0), "size .* not 0"),
    ("radius 0", lambda: lben.Ball(2, 0.0), "radius .* not 0.0"),
    ("negative simplex", lambda: lben.Simplex(2, -1.0), "total .* not -1.0"),
    ("no threshold", lambda: lben.GroupSoftThreshold(2, 0.0), "threshold .* not 0.0"),
    ("no set", lambda: lben.Projection(3), "not 3"),  # type: ignore[arg-type]
    ("alpha 0", lambda: lben.Softmax(2).prox(points(), 0.0), "alpha .* not 0.0"),
    ("empty list", lambda: lben.Blocks([]), "empty"),
    ("empty block", lambda: lben.Blocks([(lben.ReLU(), 0)]), "units of a block .* not 0"),
    ("no pair", lambda: lben.Blocks([lben.ReLU()]), "pairs"),  # type: ignore[list-item]
    ("3 units of 2", lambda: lben.Blocks([(lben.Softmax(2), 3)]), "3 units cannot be divided"),
    ("5 units of 2", lambda: lben.LBEN(4, 5, 3, activation=lben.Softmax(2)), "5 units cannot be divided"),
    ("shape", lambda: lben.Softmax(4)(points()), r"blocks of 4, but the tensor's shape is \(40, 6\)"),
    ("shape of Blocks", lambda: ACTIVATIONS[-1](points()[:, :5]), r"6 units, but .* \(40, 5\)"),
    ("later", lambda: setattr(network(lben.ReLU()), "activation", lben.Softmax(2)), "make a new one"),
    ("larger later", lambda: setattr(network(lben.Softmax(2)), "activation", lben.Softmax(3)), "make a new one"),
    ("lam", lambda: lben.certify(block_weights(), activation=lben.Softmax(2)), "block 0 it goes from 1 to 2"),
    (
        "lam given",
        lambda: lben.certify(network(lben.Softmax(2)), lam=torch.arange(1.0, 7.0)),
        "constant on every block",
    ),
    ("lam of LBEN", lambda: lben.LBEN.from_weights(block_weights(), activation=lben.Softmax(2)), "constant on every"),
]


@pytest.mark.parametrize(("call", "words"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
