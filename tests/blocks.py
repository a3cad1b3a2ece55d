"""Activations that act on blocks of units, and networks of them, shared by the tests."""

from __future__ import annotations

import torch
from torch import Tensor

import lben

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


def points(count: int = 40, seed: int = 0) -> Tensor:
    return 2 * torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_polyhedron(rows: int, size: int, seed: int) -> lben.Polyhedron:
    """One that contains a point which is not the origin."""
    generator = torch.Generator().manual_seed(seed)
    C = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    inside = torch.randn(size, generator=generator, dtype=torch.float64)
    return lben.Polyhedron(C, C @ inside + torch.rand(rows, generator=generator, dtype=torch.float64))


def network(activation: lben.Activation, *, gamma: float | None = 1.0, seed: int = 0) -> lben.LBEN:
    """An LBEN in double precision whose metric spreads from block to block."""
    torch.manual_seed(seed)
    net = lben.LBEN(4, 6, 3, gamma=gamma, activation=activation, solver=lben.PeacemanRachford(tolerance=1e-11)).double()
    with torch.no_grad():
        net.get_parameter("parameterization.d").normal_(0, 0.7)
        net.get_parameter("parameterization.V").mul_(2)
    return net
