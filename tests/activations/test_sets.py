"""Projections onto sets: their closed forms, and numbers of every size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lben
from tests.blocks import HEXAGON, points


def test_blocks_whose_squares_overflow() -> None:
    v = torch.tensor([3e19, -3e19])
    assert torch.allclose(lben.Projection(lben.Ball(2))(v), torch.tensor([1.0, -1.0]) / 2**0.5)
    assert bool((lben.GroupSoftThreshold(2, 1e30)(v) == 0).all())
    assert bool(lben.Projection(HEXAGON)(torch.tensor([torch.inf, 1.0])).isnan().all())


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
