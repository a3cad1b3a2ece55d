"""The Riccati equation by the matrix sign function: products and inverses alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_STEPS = 100
_SCALED_STEPS = 12


def solve_riccati(F: Tensor, S: Tensor, Q: Tensor) -> Tensor:
    """The symmetric P with P S P + P F + F'P + Q = 0 for which F + S P is stable; S and Q symmetric, all (n, n)."""
    return _extremes(F, S, Q)[0]


def between_solutions(F: Tensor, S: Tensor, Q: Tensor) -> Tensor:
    """A symmetric P > 0 with P S P + P F + F'P + Q < 0, for S >= 0 and Q > 0, if there is one.

    Its inverse X satisfies X Q X + X F' + F X + S < 0. All X with <= 0 lie between the two solutions, and are a convex
    set: the mean of these two has the most room, while at either the left side is zero. (P itself has no largest
    solution where S is singular.)
    """
    least, most = _extremes(F.T, Q, S)
    return _symmetric(torch.linalg.inv_ex((least + most) / 2).inverse)


def _extremes(F: Tensor, S: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """The two solutions P for which F + S P is stable, and for which it is antistable.

    The columns of [I; P] span the stable subspace of H = [[F, S], [-Q, -F']], on which sign(H) is -I, or the
    antistable one, on which it is I. They exist where H has no imaginary eigenvalue; near one, P is inaccurate, and
    where there is one it is not finite or no solution: whoever needs P checks it.
    """
    n = len(F)
    Z = _sign(torch.cat([torch.cat([F, S], dim=1), torch.cat([-Q, -F.T], dim=1)]))
    if not bool(torch.isfinite(Z).all()):
        return torch.full_like(F, torch.nan), torch.full_like(F, torch.nan)
    shift = torch.eye(n, dtype=F.dtype)
    return _solution(Z, n, shift), _solution(Z, n, -shift)


def _solution(Z: Tensor, n: int, shift: Tensor) -> Tensor:
    """The P for which (Z + diag(shift, shift)) [I; P] = 0, as nearly as there is one."""
    left = torch.cat([Z[:n, n:], Z[n:, n:] + shift])
    right = torch.cat([Z[:n, :n] + shift, Z[n:, :n]])
    return _symmetric(-torch.linalg.lstsq(left, right).solution)


def _symmetric(P: Tensor) -> Tensor:
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
