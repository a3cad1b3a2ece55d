"""Outputs in double precision with proved bounds on their errors, as every kind of network computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from lben.numerics.rounding import norm_bound

_FAINT = 1e-290  # far above what underflow takes from a norm


@dataclass(frozen=True, eq=False)
class Reach:
    """By how much an error of length one, before a linear or Lipschitz map, can move its outputs.

    rows: of a matrix, shape (p, n); or None, where all that is known is the Lipschitz bound `most`.
    """

    rows: Tensor | None
    most: float = math.inf

    @cached_property
    def entries(self) -> Tensor:
        """Each output alone, shape (p,) or (1,)."""
        return torch.tensor([self.most], dtype=torch.float64) if self.rows is None else norm_bound(self.rows)

    @cached_property
    def pairs(self) -> Tensor:
        """The difference of two outputs, shape (p, p) or (1, 1)."""
        if self.rows is None:
            return torch.tensor([[math.nextafter(math.sqrt(2), 2) * self.most * (1 + 1e-15)]], dtype=torch.float64)
        return norm_bound(self.rows[:, None] - self.rows)

    @cached_property
    def norm(self) -> float:
        """All outputs together."""
        if self.rows is None:
            return self.most
        return min(float(torch.linalg.matrix_norm(self.rows, 2)) * (1 + 1e-9) + _FAINT, self.most)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Outputs y, shape (batch, p), and what they may be off by.

    rounding: on each entry of y from the last sums, shape (batch, p).
    errors: of what y is made of, each a length, shape (batch,), with its reach; infinite where nothing is proved.
    converged: whether all equilibria were found to the tolerance; where nothing is proved there may be none.
    """

    y: Tensor
    rounding: Tensor
    errors: tuple[tuple[Tensor, Reach], ...]
    converged: Tensor

    @property
    def predicted(self) -> Tensor:
        """The class of each row; -1 where there is no equilibrium to give one."""
        return torch.where(self.converged, self.y.argmax(dim=-1), -1)

    def entry_error(self) -> Tensor:
        """A bound on |y - y*|, entry by entry."""
        total = self.rounding
        for length, reach in self.errors:
            total = total + reach.entries * length[:, None]
        return total * (1 + 1e-12)

    def pair_error(self, chosen: Tensor) -> Tensor:
        """A bound on the error of y_i - y_j for the chosen i of each row and every j, shape (batch, p)."""
        at = torch.arange(len(self.y))
        total = self.rounding + self.rounding[at, chosen][:, None]
        for length, reach in self.errors:
            pairs = reach.pairs.expand(self.y.shape[1], self.y.shape[1])
            total = total + pairs[chosen] * length[:, None]
        return total * (1 + 1e-12)

    def norm_error(self, *, proved: bool = True) -> Tensor:
        """A bound on the length of y - y*, shape (batch,); of its rounding alone where nothing else is `proved`."""
        total = norm_bound(self.rounding)
        for length, reach in self.errors if proved else ():
            total = total + reach.norm * length
        return total * (1 + 1e-12)


def joined(parts: list[Evaluation]) -> Evaluation:
    """Evaluations of parts of a batch as one; errors have the same reaches in all of them."""
    first = parts[0]
    errors = tuple(
        (torch.cat([part.errors[k][0] for part in parts]), reach) for k, (_, reach) in enumerate(first.errors)
    )
    named = {f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(first) if f.name != "errors"}
    return Evaluation(errors=errors, **named)
