"""Activations in blocks: each is the prox it claims to be, its Jacobian is right, and Lambda is constant on blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lben
from lben.activations.base import Jacobian
from lben.activations.polyhedron import Faces, active_constraints, settle
from lben.solvers.base import Problem
from lben.solvers.newton import newton_step
from tests.problems import SOLVERS, biases, name, operator

HEXAGON = lben.Polyhedron([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]], [1, 1, 1, 1, 1.5, 1.5])
ACTIVATIONS: list[lben.Activation] = [
    lben.Projection(lben.Box([-1, 0, -0.5], [1, 2, float("inf")])),
    lben.Projection(lben.Ball(3, 0.8)),
    lben.Projection(lben.Simplex(3, 2.0)),
    lben.Projection(HEXAGON),
    lben.Softmax(3),
    lben.GroupSoftThreshold(2, 0.7),
    lben.Blocks([(lben.ReLU(), 1), (lben.Softmax(2), 2), (lben.Identity(), 1), (lben.Projection(HEXAGON), 2)]),
]
ALPHAS = [1e-3, 0.05, 0.5, 1.0, 2.0, 30.0, 1e3]


def points(count: int = 40, seed: int = 0) -> Tensor:
    return 2 * torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_polyhedron(rows: int, size: int, seed: int) -> lben.Polyhedron:
    """One that contains a point which is not the origin."""
    generator = torch.Generator().manual_seed(seed)
    C = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    inside = torch.randn(size, generator=generator, dtype=torch.float64)
    return lben.Polyhedron(C, C @ inside + torch.rand(rows, generator=generator, dtype=torch.float64))


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


def test_blocks_whose_squares_overflow() -> None:
    v = torch.tensor([3e19, -3e19])
    assert torch.allclose(lben.Projection(lben.Ball(2))(v), torch.tensor([1.0, -1.0]) / 2**0.5)
    assert bool((lben.GroupSoftThreshold(2, 1e30)(v) == 0).all())
    assert bool(lben.Projection(HEXAGON)(torch.tensor([torch.inf, 1.0])).isnan().all())


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


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 16), st.integers(1, 6), st.integers(0, 10**6))
def test_projection_onto_any_polyhedron_satisfies_its_optimality_conditions(rows: int, size: int, seed: int) -> None:
    """z is feasible, and v - z lies in the cone of the normals that are active there, by least squares."""
    from scipy.optimize import nnls

    polyhedron = random_polyhedron(rows, size, seed)
    v = 4 * torch.randn(6, size, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    z = polyhedron.project(v)
    C, d = np.array(polyhedron.C), np.array(polyhedron.d)
    assert bool(polyhedron.contains(z).all())
    for point, target in zip(z.numpy(), v.numpy(), strict=True):
        active = d - C @ point < 1e-9
        left = np.linalg.norm(target - point) if not active.any() else nnls(C[active].T, target - point)[1]
        assert left < 1e-8


def test_projection_onto_a_polyhedron_is_that_of_a_general_solver() -> None:
    cp: Any = cvxpy
    polyhedron = random_polyhedron(8, 4, 0)
    for v in points(5)[:, :4]:
        z = cp.Variable(4)
        constraints = [np.array(polyhedron.C) @ z <= np.array(polyhedron.d)]
        cp.Problem(cp.Minimize(cp.sum_squares(z - v.numpy())), constraints).solve(solver=cp.CLARABEL)
        assert torch.allclose(polyhedron.project(v), torch.as_tensor(z.value), atol=1e-6)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (5, 2), (8, 3)])
def test_looking_through_all_faces_finds_the_projection_of_a_quadratic_program(rows: int, size: int) -> None:
    """The two ways to the projection agree, wherever both are open."""
    for seed in range(10):
        C, d = random_polyhedron(rows, size, seed)._constraints
        v = 4 * points(30, seed)[:, :size]
        faces = Faces.of(C, d)
        assert faces is not None
        M, z0, missed = faces.choose(v)
        assert not bool(missed.any())
        active = active_constraints(C, d, v)
        assert active is not None
        found = settle(C, d, v, active)
        assert found is not None
        assert torch.allclose(M, found[0], atol=1e-11)
        assert torch.allclose(z0, found[1], atol=1e-11)
    assert Faces.of(torch.eye(13, dtype=torch.float64), torch.ones(13, dtype=torch.float64)) is None


def exact_projection(C: list[list[Fraction]], d: list[Fraction], v: list[Fraction]) -> list[Fraction]:
    """The nearest point of a polyhedron in the plane, in rational arithmetic, from its definition alone."""

    def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return a[0] * b[0] + a[1] * b[1]

    found = [v]
    for i, (c, limit) in enumerate(zip(C, d, strict=True)):
        step = (dot(c, v) - limit) / dot(c, c)
        found.append([v[0] - step * c[0], v[1] - step * c[1]])
        for e, other in zip(C[:i], d[:i], strict=True):
            area = c[0] * e[1] - c[1] * e[0]
            if area:
                found.append([(limit * e[1] - other * c[1]) / area, (c[0] * other - e[0] * limit) / area])
    inside = [z for z in found if all(dot(c, z) <= limit for c, limit in zip(C, d, strict=True))]
    return min(inside, key=lambda z: dot([z[0] - v[0], z[1] - v[1]], [z[0] - v[0], z[1] - v[1]]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-12, 1), st.sampled_from([0.0, 1e-8, 1.0]))
def test_projection_onto_nearly_parallel_constraints_is_exact_or_refused(
    seed: int, exponent: float, gap: float
) -> None:
    """Against rational arithmetic, for wedges, slabs and cuts of any angle, near their vertices and far away."""
    generator = torch.Generator().manual_seed(seed)
    angle, turn = 10.0**exponent, float(torch.rand(1, generator=generator)) * 6
    side = 1 if seed % 2 else -1
    C = [
        [float(np.cos(turn)), float(np.sin(turn))],
        [side * float(np.cos(turn + angle)), side * float(np.sin(turn + angle))],
        [float(np.cos(turn + 2)), float(np.sin(turn + 2))],
    ]
    d = [gap, 0.0, 0.5]
    try:
        polyhedron = lben.Polyhedron(C, d)
    except lben.InvalidInput:
        assert angle < 2e-5
        return
    normals, limits = polyhedron._constraints
    rational = [[Fraction(c) for c in row] for row in normals.tolist()]
    v = torch.randn(12, 2, generator=generator, dtype=torch.float64) * 10.0 ** torch.arange(-9.0, 3.0)[:, None]
    for point, z in zip(v.tolist(), polyhedron.project(v).tolist(), strict=True):
        exact = exact_projection(rational, [Fraction(x) for x in limits.tolist()], [Fraction(x) for x in point])
        error = max(abs(float(a - Fraction(b))) for a, b in zip(exact, z, strict=True))
        assert error <= 1e6 * 2.3e-16 * max(map(abs, [*point, gap, 0.5]))


def test_nearly_parallel_constraints_are_refused() -> None:
    """Two, three that are nearly dependent, and some of a polyhedron that is too large to be looked through."""
    for angle in (2e-6, 1e-9, 1e-13):
        with pytest.raises(lben.InvalidInput, match="Rows 0, 1 of C are too nearly parallel"):
            lben.Polyhedron([[0.0, 1.0], [np.sin(angle), np.cos(angle)]], [0.0, 0.0])
    with pytest.raises(lben.InvalidInput, match="Rows 0, 1, 2 of C"):
        lben.Polyhedron([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1e-7]], [0.0, 0.0, 0.0])
    turns = torch.arange(100, dtype=torch.float64) * 2 * torch.pi / 100
    C = torch.stack([turns.cos(), turns.sin()], dim=1)
    lben.Polyhedron(C, torch.ones(100))
    C[1] = C[0] + torch.tensor([0.0, 1e-7])
    with pytest.raises(lben.InvalidInput, match="Rows 0, 1 of C"):
        lben.Polyhedron(C, torch.ones(100))


def test_a_wrong_proposal_is_mended_or_refused() -> None:
    """With the active constraints of a point close by the projection is found; with nearly parallel ones, nothing."""
    polyhedron = random_polyhedron(8, 3, 0)
    C, d = polyhedron._constraints
    v = 4 * points(50)[:, :3]
    right, active = active_constraints(C, d, v), active_constraints(C, d, v + 0.2 * points(50, seed=1)[:, :3])
    assert right is not None
    assert active is not None
    assert not torch.equal(active, right)
    found = settle(C, d, v, active)
    assert found is not None
    assert torch.allclose((found[0] @ v[..., None])[..., 0] + found[1], polyhedron.project(v), atol=1e-12)
    sharp = torch.tensor([[0.0, 1.0], [1e-6, 1.0]], dtype=torch.float64)
    assert settle(sharp, torch.zeros(2).double(), v[:, :2], torch.ones(len(v), 2, dtype=torch.bool)) is None


def test_nearly_parallel_constraints_that_never_meet_are_no_harm() -> None:
    """x <= 1 and x + 1e-9 y <= 3 where |y| <= 1."""
    C, d = [[1.0, 0.0], [1.0, 1e-9], [0.0, 1.0], [0.0, -1.0]], [1.0, 3.0, 1.0, 1.0]
    v = points(20)[:, :2]
    expected = torch.stack([v[:, 0].clamp(max=1), v[:, 1].clamp(-1, 1)], dim=1)
    assert torch.allclose(lben.Polyhedron(C, d).project(v), expected, atol=1e-15)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("rows", [8, 60])
def test_polyhedra_of_every_size(size: float, rows: int) -> None:
    """What is scaled with its set is projected alike, by either way to the active constraints."""
    polyhedron = random_polyhedron(rows, 3, 0)
    scaled = lben.Polyhedron(polyhedron.C, [size * limit for limit in polyhedron.d])
    v = points(20)[:, :3]
    assert torch.allclose(scaled.project(size * v) / size, polyhedron.project(v), atol=1e-11)


def test_degenerate_polyhedra() -> None:
    """Parallel, repeated and scaled constraints, a single point, and an equality written as two inequalities."""
    v = points(20)[:, :2]
    repeated = lben.Polyhedron([[1, 0], [2, 0], [1, 0], [1e6, 1e6]], [1, 2, 1.5, 1e6])
    plain = lben.Polyhedron([[1, 0], [1, 1]], [1, 1])
    assert torch.allclose(repeated.project(v), plain.project(v), atol=1e-12)
    point = lben.Polyhedron([[1, 0], [-1, 0], [0, 1], [0, -1]], [0.5, -0.5, 2, -2])
    assert torch.allclose(point.project(v), torch.tensor([0.5, 2.0], dtype=torch.float64).expand(20, 2), atol=1e-12)
    line = lben.Polyhedron([[1, 1], [-1, -1]], [1, -1])
    assert torch.allclose(line.project(v), v - (v.sum(dim=-1, keepdim=True) - 1) / 2, atol=1e-12)
    assert torch.allclose(
        lben.Polyhedron([[1.0, 0], [0, 1], [-1, 0], [0, -1]], [1.0, 1, 1, 1]).project(v), v.clamp(-1, 1), atol=1e-12
    )


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_potential_is_finite_where_sigma_leads(activation: lben.Activation, dtype: torch.dtype) -> None:
    v = 3 * points(200).to(dtype)
    assert bool(activation.potential(activation(v)).isfinite().all())


def test_a_simplex_is_not_left_however_far_away() -> None:
    corner = torch.tensor([1.0, 0.0, 0.0])
    for total, far in ((1.0, 3e7), (1e-6, 40.0), (1.0, 1e30)):
        sigma = lben.Projection(lben.Simplex(3, total))
        assert torch.equal(sigma(far * corner), total * corner)
        assert torch.equal(sigma.derivative(far * corner), torch.zeros(1, 3, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_sigma_is_firmly_nonexpansive_over_all_decades(dtype: torch.dtype, size: float) -> None:
    """From the smallest to the largest numbers, with sets of any size, to a few units of rounding, and no overflow."""
    generator = torch.Generator().manual_seed(0)
    limits = torch.finfo(dtype)
    box = lben.Box([-size, 0.0, -float("inf")], [size, float("inf"), size])
    corner = lben.Polyhedron([[1, 0, 0], [0, -1, 1], [1, 1, 1]], [min(size, 1e15), 0, min(size, 1e15)])
    sets = [box, lben.Ball(3, size), lben.Simplex(3, size), corner]
    activations = [*map(lben.Projection, sets), lben.Softmax(3), lben.GroupSoftThreshold(3, size), lben.Tanh()]
    decades = torch.empty(2000, 1, dtype=torch.float64).uniform_(-37, np.log10(limits.max) - 1, generator=generator)
    spread = torch.empty(2000, 3, dtype=torch.float64).uniform_(-3, 0, generator=generator)
    v = (torch.randn(2000, 3, generator=generator, dtype=torch.float64).clamp(-2, 2) * 10 ** (decades + spread)).to(
        dtype
    )
    near = 10 ** torch.empty(2000, 1, dtype=torch.float64).uniform_(-8, 0, generator=generator)
    w = (v * (1 + near * torch.randn(2000, 3, generator=generator, dtype=torch.float64))).to(dtype)
    for activation in activations:
        a, b = activation(v).double(), activation(w).double()
        scale = (
            torch.stack([v.double().abs(), w.double().abs(), a.abs(), b.abs()]).amax(dim=0).amax(dim=-1, keepdim=True)
        )
        moved, by = (b - a) / scale, (w.double() - v.double()) / scale
        assert bool(a.isfinite().all())
        length = moved.norm(dim=-1) + by.norm(dim=-1) + limits.eps
        assert float(((moved * (moved - by)).sum(dim=-1) / length).max()) <= 16 * limits.eps


def test_known_projections() -> None:
    v = points()
    ball = lben.Projection(lben.Ball(6, 0.5))(v)
    assert torch.allclose(ball, 0.5 * v / v.norm(dim=-1, keepdim=True))
    simplex = lben.Projection(lben.Simplex(6))(v)
    assert torch.allclose(simplex.sum(dim=-1), torch.ones(40, dtype=torch.float64))
    as_polyhedron = lben.Polyhedron(
        torch.cat([-torch.eye(6), torch.ones(1, 6), -torch.ones(1, 6)]), [0.0] * 6 + [1.0, -1.0]
    )
    assert torch.allclose(simplex, as_polyhedron.project(v), atol=1e-11)
    assert torch.allclose(lben.GroupSoftThreshold(1, 0.7)(v), torch.nn.functional.softshrink(v, 0.7))
    assert torch.equal(lben.Projection(lben.Box(-1, 1))(v), lben.HardTanh()(v))
    single = lben.Projection(HEXAGON)(v.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), lben.Projection(HEXAGON)(v), atol=1e-6)


def network(activation: lben.Activation, *, gamma: float | None = 1.0, seed: int = 0) -> lben.LBEN:
    """An LBEN in double precision whose metric spreads from block to block."""
    torch.manual_seed(seed)
    net = lben.LBEN(4, 6, 3, gamma=gamma, activation=activation, solver=lben.PeacemanRachford(tolerance=1e-11)).double()
    with torch.no_grad():
        net.get_parameter("parameterization.d").normal_(0, 0.7)
        net.get_parameter("parameterization.V").mul_(2)
    return net


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_gradients_of_equilibria(activation: lben.Activation) -> None:
    """In training by the fused layer, in evaluation by the other, to second order."""
    net = network(activation)
    x = points(2)[:, :4].requires_grad_()
    for training in (True, False):
        net.train(training)
        assert torch.autograd.gradcheck(net, x)
        assert torch.autograd.gradgradcheck(net, x)
    loss = net(x).square().sum()
    d = net.get_parameter("parameterization.d")
    (grad,) = torch.autograd.grad(loss, d)
    with torch.no_grad():
        d[0] += 1e-6
        higher = net(x).square().sum()
        d[0] -= 2e-6
        lower = net(x).square().sum()
    assert float(grad[0]) == pytest.approx(float(higher - lower) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_every_solver_finds_the_same_equilibrium(solver: lben.Solver) -> None:
    activation = lben.Blocks([(lben.Tanh(), 1), (lben.Softmax(2), 2), (lben.Projection(lben.Ball(3)), 3)])
    net = network(activation).eval()
    x = points(5)[:, :4]
    net.solver = replace(solver, tolerance=1e-9)
    found = net.solve(x)
    W, b = net.weights().W, x @ net.weights().U.T + net.weights().bz
    assert bool(found.converged.all())
    assert torch.allclose(found.z, activation(found.z @ W.T + b), atol=1e-7)


def test_newton_takes_the_whole_jacobian() -> None:
    """From close by, one semismooth step lands on the equilibrium of a piecewise linear network."""
    W, activation = operator(6, spread=0.0), lben.Projection(HEXAGON)
    problem = Problem(W, activation, biases(8, 6))
    z = problem.b
    for _ in range(20):
        z = z + newton_step(problem, z)
    assert torch.allclose(z, activation(W.affine(z, problem.b)), atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ACTIVATIONS), st.sampled_from([0.2, 1.0, 5.0]), st.integers(0, 10**6))
def test_bounds_hold_and_are_in_order(activation: lben.Activation, gamma: float, seed: int) -> None:
    net = network(activation, gamma=gamma, seed=seed).eval()
    tight = lben.tightest_bound(net)
    assert tight.gamma is not None
    groups = activation.groups(6)
    if groups is not None:
        for block in groups.unique():
            assert len(tight.lam[groups == block].unique()) == 1
    x = 3 * points(24, seed)[:, :4]
    with torch.no_grad():
        y = net(x)
    slope = float((torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)).max())
    assert slope <= tight.gamma * (1 + 1e-9)
    assert tight.gamma <= gamma * (1 + 1e-9)
    assert lben.certify(net).holds


@pytest.mark.parametrize("activation", ACTIVATIONS[1:], ids=repr)
def test_certificates_on_blocks(activation: lben.Activation) -> None:
    """The barrier method agrees with SCS and ball arithmetic; a metric per unit proves less than it seems to."""
    net = network(activation).eval()
    tight, weights = lben.tightest_bound(net, rigorous=True), net.weights().detach()
    assert tight.gamma == pytest.approx(lben.tightest_bound(net, solver="scs").gamma, rel=1e-4)
    alone = lben.tightest_bound(replace(weights, lam=None)).gamma  # for units that act alone, over more metrics
    assert alone is not None
    assert tight.gamma is not None
    assert alone <= tight.gamma * (1 + 1e-6)
    free = replace(weights, lam=None, gamma=None)
    found = lben.tightest_bound(free, activation=activation).gamma
    assert found == pytest.approx(tight.gamma, rel=1e-5)
    assert lben.well_posed(net).holds
    radius = lben.certified_radius(net, points(6)[:, :4])
    assert float(radius.radius.min()) >= 0
    assert 0 < lben.lipschitz_lower_bound(net, restarts=2, steps=5).value <= tight.gamma


def test_blocks_can_fail_where_units_alone_would_not() -> None:
    """W = [[0, 3], [0, 0]] is well-posed for units alone, but for a block Lam = I is the only metric, and fails."""
    W = torch.tensor([[0.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    weights = lben.Weights(W, eye, zero, eye, zero)
    assert lben.well_posed(weights).holds
    net = lben.UnconstrainedEN.from_weights(weights, activation=lben.Softmax(2))
    found = lben.well_posed(net)
    assert not found.holds
    assert not lben.well_posed(W, activation=lben.Softmax(2)).holds
    assert found.witness is not None
    assert float(torch.linalg.eigvalsh(found.witness)[0]) >= -1e-12
    assert float(((eye - W) @ found.witness).trace()) <= 1e-12
    with pytest.raises(lben.NotWellPosed):
        lben.tightest_bound(weights, activation=lben.Softmax(2))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_save_load_and_from_weights(activation: lben.Activation, tmp_path: Path) -> None:
    net = network(activation).eval()
    x = points(3)[:, :4]
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net")
    assert again.activation == net.activation
    assert torch.equal(again.eval()(x), net(x))
    third = lben.LBEN.from_weights(net.weights(), activation=activation, solver=net.solver).eval()
    assert torch.allclose(third(x), net(x), atol=1e-9)


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


def test_scalars_side_by_side_are_per_unit() -> None:
    blocks = lben.Blocks([(lben.ReLU(), 2), (lben.Tanh(), 4)])
    units = lben.PerUnit([lben.ReLU()] * 2 + [lben.Tanh()] * 4)
    one, other = network(blocks).eval(), network(units).eval()
    x = points(5)[:, :4]
    assert torch.allclose(one(x), other(x), atol=1e-12)
    assert lben.tightest_bound(one).gamma == lben.tightest_bound(other).gamma
    assert lben.lipschitz_lower_bound(one, x, restarts=2, steps=2).value > 0


def test_networks_that_need_no_common_metric_change_activations_freely() -> None:
    mon = lben.MON(4, 6, 3)
    mon.activation = lben.Softmax(3)
    assert lben.certify(mon).holds
    net = network(lben.Softmax(3))
    net.activation = lben.Softmax(1)
    net.activation = lben.ReLU()
    assert lben.certify(net).holds
