"""Projection onto a polyhedron {z : C z <= d}: a small quadratic program for every row of a batch, solved exactly.

The dual method of Goldfarb and Idnani (1983), for all rows at once: constraints are added one by one, the most violated
first, and dropped where their multiplier would turn negative. It ends with the active constraints, and from these the
projection and its Jacobian follow by one linear system, to rounding. Small polyhedra are faster to look through: all
sets of at most k independent constraints are tried at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from lben.errors import NotConverged

_DEPENDENT = 1e-11  # squared sine of the angle to the active normals below which a normal is one of their combinations
_ROUNDING = 64  # units of rounding by which a constraint may seem violated
_STEPS = 50  # for each constraint and dimension
_MOST_ENTRIES = 4096  # multipliers of all sets of constraints together, up to which they are looked through


@dataclass(frozen=True, eq=False)
class Faces:
    """Every set of at most k independent constraints, with the multipliers that make it active: maps v + offsets.

    Shapes: active (sets, r), maps (k, sets * r), offsets (sets * r,).
    """

    active: Tensor
    maps: Tensor
    offsets: Tensor

    @staticmethod
    def of(C: Tensor, d: Tensor) -> Faces | None:
        """None where there are too many."""
        r, k = C.shape
        if r * sum(math.comb(r, count) for count in range(min(r, k) + 1)) > _MOST_ENTRIES:
            return None
        rows, maps, offsets = [], [], []
        for count in range(min(r, k) + 1):
            for chosen in combinations(range(r), count):
                index = list(chosen)
                normals = C[index]
                gram = normals @ normals.T
                if count and float(torch.linalg.eigvalsh(gram)[0]) <= _DEPENDENT:
                    continue
                solved = torch.linalg.solve(gram, torch.cat([normals, -d[index, None]], dim=1))
                whole = C.new_zeros(r, k + 1)
                whole[index] = solved
                rows.append(torch.tensor([i in chosen for i in range(r)]))
                maps.append(whole[:, :k])
                offsets.append(whole[:, k])
        return Faces(torch.stack(rows), torch.cat(maps).T.contiguous(), torch.cat(offsets))

    def choose(self, C: Tensor, d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The set whose multipliers and constraints are violated least, and where that is more than rounding."""
        y = torch.addmm(self.offsets, v, self.maps).unflatten(1, self.active.shape)
        slack = (v @ C.T - d)[:, None] - y @ (C @ C.T)
        worst, which = torch.maximum(-y, slack).amax(dim=-1).min(dim=-1)
        scale = 1 + float(d.abs().max()) + torch.linalg.vector_norm(v, dim=-1)
        return self.active[which], worst > 1e-9 * scale

    def to(self, device: torch.device) -> Faces:
        return Faces(self.active.to(device), self.maps.to(device), self.offsets.to(device))


def active_constraints(C: Tensor, d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Which constraints hold with equality at the projection of each row of v, and which rows have no projection.

    The active normals are linearly independent. Shapes: C (r, k) with rows of length one, d (r,), v (batch, k); the
    results are (batch, r) and (batch,).
    """
    search = _Search(C, d, v)
    for _ in range(_STEPS * sum(C.shape)):
        rows = search.open()
        if len(rows) == 0:
            return search.active, search.empty
        search.step(rows)
    worst = float(search.violation().max())
    raise NotConverged(f"No projection onto the polyhedron was found: a constraint is violated by {worst:.3g}.", worst)


class _Search:
    """The state of all rows: points z, multipliers y, active constraints, and the one that is being added."""

    def __init__(self, C: Tensor, d: Tensor, v: Tensor) -> None:
        self.C, self.d, self.gram = C, d, C @ C.T
        self.z, self.y = v.clone(), v.new_zeros(len(v), len(C))
        self.active = torch.zeros_like(self.y, dtype=torch.bool)
        self.pending = torch.full((len(v),), -1, device=v.device)
        self.empty = torch.zeros_like(self.pending, dtype=torch.bool)
        scale = 1 + float(d.abs().max()) + torch.linalg.vector_norm(v, dim=-1)
        self.tolerance = _ROUNDING * torch.finfo(v.dtype).eps * scale

    def violation(self) -> Tensor:
        return (self.z @ self.C.T - self.d).masked_fill(self.active, -torch.inf)

    def open(self) -> Tensor:
        """The rows that are not done; each with the constraint it is to add."""
        violation = self.violation()
        worst, which = violation.max(dim=-1)
        fresh = self.pending < 0
        self.pending = torch.where(fresh & (worst > self.tolerance), which, self.pending)
        rows: Tensor = ((self.pending >= 0) & ~self.empty).nonzero()[:, 0]
        return rows

    def step(self, rows: Tensor) -> None:
        """Move as far as the new constraint needs, or as the first multiplier that vanishes allows."""
        p, active, y = self.pending[rows], self.active[rows], self.y[rows]
        at = torch.arange(len(rows), device=rows.device)
        fall = torch.linalg.solve(masked(self.gram, active), torch.where(active, self.gram[p], 0.0))
        direction = self.C[p] - fall @ self.C
        steepness = (direction * self.C[p]).sum(dim=-1)
        needed = (self.z[rows] * self.C[p]).sum(dim=-1) - self.d[p]
        dependent = steepness <= _DEPENDENT
        full = torch.where(dependent, torch.inf, needed / steepness)
        ratios = torch.where(active & (fall > 0), y / fall, torch.inf)
        partial, blocking = ratios.min(dim=-1)
        length = torch.minimum(full, partial)
        self.empty[rows] = torch.isinf(length)
        length = torch.where(torch.isinf(length), 0.0, length)
        self.z[rows] -= torch.where(dependent, 0.0, length)[:, None] * direction
        y = (y - length[:, None] * fall).clamp(min=0)
        y[at, p] += length
        added = full <= partial
        active[at[added], p[added]] = True
        dropped = ~added & ~self.empty[rows]
        active[at[dropped], blocking[dropped]] = False
        y[at[dropped], blocking[dropped]] = 0.0
        self.pending[rows] = torch.where(added, -1, p)
        self.active[rows], self.y[rows] = active, y


def masked(gram: Tensor, active: Tensor) -> Tensor:
    """The Gram matrix of the active normals, with the identity for the others, for each row."""
    both = active[:, :, None] & active[:, None, :]
    return torch.where(both, gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
