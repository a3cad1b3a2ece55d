"""The Riccati equation by the matrix sign function: products and inverses alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_STEPS = 100
_SCALED_STEPS = 12


def solve_riccati(F: Tensor, S: Tensor, Q: Tensor) -> Tensor:
    """The symmetric P with P S P + P F + F'P + Q = 0 for which F + S P is stable; S and Q symmetric, all (n, n).

    The columns of [I; P] span the stable subspace of H = [[F, S], [-Q, -F']], on which sign(H) is -I. It exists where H
    has no imaginary eigenvalue; near one, P is inaccurate, and where there is none it is not finite or no solution:
    whoever needs P checks it.
    """
    n = len(F)
    identity = torch.eye(n, dtype=F.dtype)
    Z = _sign(torch.cat([torch.cat([F, S], dim=1), torch.cat([-Q, -F.T], dim=1)]))
    if not bool(torch.isfinite(Z).all()):
        return torch.full_like(F, torch.nan)
    left = torch.cat([Z[:n, n:], Z[n:, n:] + identity])
    right = torch.cat([Z[:n, :n] + identity, Z[n:, :n]])
    P: Tensor = -torch.linalg.lstsq(left, right).solution
    return (P + P.T) / 2


def _sign(H: Tensor) -> Tensor:
    """sign(H) by Newton's iteration Z+ = (c Z + (c Z)^-1)/2, with c = |det Z|^(-1/2n) at first."""
    Z, change = H, math.inf
    for step in range(_STEPS):
        inverse, info = torch.linalg.inv_ex(Z)
        if int(info) != 0:
            return torch.full_like(H, torch.nan)
        scale = math.exp(-float(torch.linalg.slogdet(Z).logabsdet) / len(Z)) if step < _SCALED_STEPS else 1.0
        moved = (scale * Z + inverse / scale) / 2
        last, change = change, float(torch.linalg.matrix_norm(moved - Z) / torch.linalg.matrix_norm(moved))
        Z = moved
        if not change < math.inf or change <= 1e-14 or (step > _SCALED_STEPS and change < 1e-8 and change >= last):
            break
    return Z
