"""Figure `two_by_two`: for which W = [[0, W12], [0, W22]] each condition proves a unique equilibrium."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.certify.wellposed import well_posed
from lben.progress import track


@dataclass(frozen=True, eq=False)
class Regions:
    """Which condition holds on a grid, shape (rows, columns): W22 along the rows, W12 along the columns."""

    W12: Tensor
    W22: Tensor
    diagonal_metric: Tensor
    monotone: Tensor
    norm: Tensor
    perron_frobenius: Tensor


def regions(points: int = 61, *, extent: float = 4.0, progress: bool = False) -> Regions:
    """Ask `well_posed` at every point of a square grid: the condition over all metrics, and the three older tests."""
    checks.count("points", points)
    line = torch.linspace(-checks.positive("extent", extent), extent, points, dtype=torch.float64)
    answers = torch.zeros(4, points, points, dtype=torch.bool)
    cells = [(i, j) for i in range(points) for j in range(points)]
    for i, j in track(cells, "Regions", len(cells), show=progress):
        W = torch.zeros(2, 2, dtype=torch.float64)
        W[0, 1], W[1, 1] = line[j], line[i]
        found = well_posed(W)
        answers[:, i, j] = torch.tensor([found.holds, found.monotone, found.norm, found.perron_frobenius])
    return Regions(line, line, *answers)
