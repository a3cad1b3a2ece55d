"""Projections onto polyhedra: against general solvers and rational numbers, however their constraints lie."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from lben.activations.polyhedron import Faces, active_constraints, dual_projection, settle
from tests.blocks import points, random_polyhedron


@settings(max_examples=15, deadline=None)
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


@settings(max_examples=20, deadline=None)
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


@pytest.mark.parametrize("seed", range(3))
def test_dependent_triples_among_many_constraints_are_projected_onto(seed: int) -> None:
    """Too many sets to look through when it is made: what double precision cannot decide, rational arithmetic does."""
    generator = torch.Generator().manual_seed(seed + 7)
    C = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    C = C / C.norm(dim=1, keepdim=True)
    both = C[0] + C[1]
    C[2] = both + 1e-8 * torch.randn(6, generator=generator, dtype=torch.float64)
    C[2] /= C[2].norm()
    d = torch.full((60,), 3.0, dtype=torch.float64)
    d[:3] = torch.tensor([1.0, 1.0, 2 / float(both.norm())])
    polyhedron = lben.Polyhedron(C, d)
    v = 5 * torch.randn(300, 6, generator=generator, dtype=torch.float64)
    z = polyhedron.project(v)
    assert float((z @ C.T - d).max()) <= 1e-12
    apart, before = torch.pdist(z), torch.pdist(v)
    assert bool((apart <= before * (1 + 1e-9)).all())


def test_rational_projections_are_those_of_the_faces() -> None:
    generator = torch.Generator().manual_seed(0)
    C, d = torch.randn(7, 3, generator=generator).double(), torch.rand(7, generator=generator).double()
    C = C / C.norm(dim=1, keepdim=True)
    polyhedron = lben.Polyhedron(C, d)
    v = 3 * torch.randn(40, 3, generator=generator).double()
    for row, wanted in zip(v, polyhedron.project(v), strict=True):
        found = dual_projection(C, d, row[None])
        assert found is not None
        M, z0 = found
        assert torch.allclose(row @ M[0] + z0[0], wanted, atol=1e-13)
    empty = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(), torch.tensor([-1.0, -1.0]).double()
    assert dual_projection(*empty, torch.zeros(1, 2).double()) is None
