"""Projection onto a polyhedron {z : C z <= d}: a small quadratic program for every row of a batch, solved exactly.

DAQP, a dual active-set method, finds the active constraints, row by row; from these the projection and its Jacobian
follow by one linear system, to rounding. Small polyhedra are faster to look through: all sets of at most k independent
constraints are tried at once, for all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from lben.errors import NotConverged
from lben.extras import need

_DEPENDENT = 1e-11  # squared sine of the angle to the active normals below which a normal is one of their combinations
_CLOSE = 1e-11  # by which a constraint may be violated, and a multiplier negative
_SOLVED, _INFEASIBLE = 1, -1
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


def active_constraints(C: Tensor, d: Tensor, v: Tensor) -> Tensor | None:
    """Which constraints hold with equality at the projection of each row of v; None if the polyhedron is empty.

    The active normals are linearly independent. Shapes: C (r, k) with rows of length one, d (r,), v (batch, k); the
    result is (batch, r).
    """
    daqp = need("daqp", "The projection onto a polyhedron", extra="qp")
    normals, limits = C.cpu().numpy(), d.cpu().numpy()
    hessian = np.eye(C.shape[1])
    multipliers = np.empty((len(v), len(C)))
    for row, point in enumerate(v.cpu().numpy()):
        _, _, flag, info = daqp.solve(hessian, -point, normals, limits, primal_tol=_CLOSE, dual_tol=_CLOSE)
        if flag == _INFEASIBLE:
            return None
        if flag != _SOLVED:
            raise NotConverged(f"No projection onto the polyhedron was found: DAQP ended with {flag}.", math.nan)
        multipliers[row] = info["lam"]
    return torch.from_numpy(multipliers).to(v.device) > 0


def masked(gram: Tensor, active: Tensor) -> Tensor:
    """The Gram matrix of the active normals, with the identity for the others, for each row."""
    both = active[:, :, None] & active[:, None, :]
    return torch.where(both, gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
