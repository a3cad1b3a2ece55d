"""Multipliers of half-spaces, for many small problems at once: the least of a linear function over part of a ball.

The least of base + h'x over |x| <= r with a_k + g_k'x >= 0 is the largest of base - a'mu - r |h - G'mu| over mu >= 0.
A logarithmic barrier, and steps that are Newton's for |e| <= (|e|^2/s + s)/2 with s the length of e so far, which never
go too far, as Newton's own do where |e| ends at 0. Any mu >= 0 gives a true bound, and whoever uses it checks that.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WEIGHTS = (0.3, 0.03, 3e-3, 3e-4, 3e-5, 1e-6)  # of the barrier
_STEPS = 4  # for each
_LENGTHS = (2.0, 1.0, 0.3)
_SMOOTH = 1e-9  # at least, of a length, below which it is rounded off; with the barrier, more


def multipliers(h: Tensor, a: Tensor, G: Tensor, r: float, asked: Tensor) -> Tensor:
    """Nearly the best mu, shape (batch, m), 0 where not `asked`.

    h: (batch, k). a, asked: (batch, m). G: (batch, m, k).
    """
    if not bool(asked.any()):
        return torch.zeros_like(a)
    sizes = torch.linalg.vector_norm(G, dim=2).clamp(min=1e-280)
    problem = _Problem(h, (a / sizes) * asked, G / sizes[:, :, None] * asked[:, :, None], r, asked)
    length = torch.linalg.vector_norm(h, dim=1).clamp(min=1e-280)
    mu = (0.1 * length / asked.sum(dim=1).clamp(min=1))[:, None].expand_as(a)
    for weight in _WEIGHTS:
        for _ in range(_STEPS):
            mu = problem.moved(mu, weight * r * length / a.shape[1], (0.3 * weight + _SMOOTH) * length)
    found: Tensor = mu * asked / sizes
    return found


class _Problem:
    def __init__(self, h: Tensor, a: Tensor, G: Tensor, r: float, asked: Tensor) -> None:
        self.h, self.a, self.G, self.r, self.asked = h, a, G, r, asked
        self.gram = G @ G.mT

    def _length(self, mu: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
        rest = self.h - (mu[:, None, :] @ self.G)[:, 0]
        return rest, (rest.square().sum(dim=1) + small.square()).sqrt()

    def _value(self, mu: Tensor, weight: Tensor, small: Tensor) -> Tensor:
        barrier = (mu.clamp(min=1e-300).log() * self.asked).sum(dim=1)
        value = (self.a * mu).sum(dim=1) + self.r * self._length(mu, small)[1] - weight * barrier
        return torch.where((mu > 0).all(dim=1), value, torch.inf).nan_to_num(nan=torch.inf)

    def moved(self, mu: Tensor, weight: Tensor, small: Tensor) -> Tensor:
        """One step, which lowers a'mu + r |h - G'mu| - weight sum log mu, or none; lengths are rounded off."""
        rest, length = self._length(mu, small)
        along = (self.G @ rest[:, :, None])[:, :, 0]
        gradient = self.a - self.r * along / length[:, None] - weight[:, None] / mu
        barrier = torch.where(self.asked, weight[:, None] / mu.square(), 1.0)
        hessian = self.r * self.gram / length[:, None, None] + torch.diag_embed(barrier)
        step, info = torch.linalg.solve_ex(hessian, -(gradient * self.asked)[:, :, None])
        step = torch.where((info == 0)[:, None], step[:, :, 0], 0.0).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        room = torch.where(step < 0, -0.95 * mu / step.clamp(max=-1e-280), torch.inf).amin(dim=1)
        best, found = self._value(mu, weight, small), mu
        for part in _LENGTHS:
            trial = mu + room.clamp(max=part)[:, None] * step
            value = self._value(trial, weight, small)
            better = value < best
            found, best = torch.where(better[:, None], trial, found), torch.where(better, value, best)
        return found
