"""Figure `two_by_two`: for which W = [[0, W12], [0, W22]] each condition proves a unique equilibrium."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.certify.lipschitz import well_posed
from lben.disk import make_folder, write_bytes
from lben.errors import InvalidInput
from lben.experiments.reading import read_record, record
from lben.progress import Show, track


@dataclass(frozen=True, eq=False)
class Regions:
    """Which condition holds on a grid, shape (rows, columns): W22 along the rows, W12 along the columns."""

    W12: Tensor
    W22: Tensor
    diagonal_metric: Tensor
    monotone: Tensor
    norm: Tensor
    perron_frobenius: Tensor

    def as_dict(self) -> dict[str, list[Any]]:
        """The coordinates as lists of numbers, the answers as lists of rows, each a word of zeros and ones."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: ["".join(str(int(cell)) for cell in row) for row in tensor] if tensor.ndim == 2 else tensor.tolist()
            for name, tensor in tensors.items()
        }

    @classmethod
    def from_dict(cls, content: object) -> Regions:
        """The inverse of `as_dict`."""
        found = record(_Words, content)
        lines = [torch.tensor(line, dtype=torch.float64) for line in (found.W12, found.W22)]
        answers = [
            torch.tensor([[cell == "1" for cell in row] for row in rows])
            for rows in (found.diagonal_metric, found.monotone, found.norm, found.perron_frobenius)
        ]
        shape = (len(found.W22), len(found.W12))
        if min(shape) < 2 or any(answer.shape != shape for answer in answers):
            raise InvalidInput(f"the answers do not make a grid of {shape[0]} x {shape[1]} points")
        return cls(*lines, *answers)


@dataclass(frozen=True)
class _Words:
    """`Regions` as text."""

    W12: list[float]
    W22: list[float]
    diagonal_metric: list[str]
    monotone: list[str]
    norm: list[str]
    perron_frobenius: list[str]


def reproduce_regions(folder: str | Path, points: int = 121, *, progress: Show = None) -> Regions:
    """The grid in `regions.json` of a folder, made if it is not there."""
    file = Path(folder) / "regions.json"
    if file.is_file():
        return read_regions(file)
    make_folder(folder)
    found = regions(points, progress=progress)
    write_bytes(file, (json.dumps(found.as_dict()) + "\n").encode())
    return found


def read_regions(file: Path) -> Regions:
    """The grid that `reproduce_regions` wrote."""
    return read_record(file, Regions.from_dict, "does not hold regions: remove it, and the command makes it again")


def regions(points: int = 121, *, extent: float = 4.0, progress: Show = None) -> Regions:
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
