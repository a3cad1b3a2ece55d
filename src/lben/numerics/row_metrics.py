"""For many small networks at once, a metric in which one linear function of their state has a small bound.

With S = Lam A + A'Lam - Lam K Lam > 0, q = f + Lam h and diagonal Lam, the function lam -> q'S^-1 q is convex. With
G = S^-1, B = A' - Lam K, Y = G B, y = G q and e = h - B'y, its gradient is 2 y o e and its Hessian
2 R'G R + 2 K o y y' with R = diag(e) - B diag(y); those of -log det S are -2 diag(Y) and 2 (G o (B'Y + K) + Y o Y').
Newton's method on s q'S^-1 q - log det S + pull'lam, for few growing s: what it finds is near the best, and whoever
uses it checks what it proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 2  # of Newton, in each stage
_PULL = 1e-2
_LENGTHS = (1.0, 0.5, 0.2, 0.05)


@dataclass(frozen=True, eq=False)
class RowProblem:
    """A and K, shapes (batch, n, n), f and h, (batch, n): one function a network."""

    A: Tensor
    K: Tensor
    f: Tensor
    h: Tensor

    def part(self, units: Tensor) -> RowProblem:
        """That of some units of each network, shape (batch, m), where the others are not coupled to them."""
        rows = units[:, :, None].expand(-1, -1, self.A.shape[2])
        columns = units[:, None, :].expand(-1, units.shape[1], -1)
        A, K = (matrix.gather(1, rows).gather(2, columns) for matrix in (self.A, self.K))
        return RowProblem(A, K, self.f.gather(1, units), self.h.gather(1, units))

    def factor(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The Cholesky factor of S, and which of the batch have one."""
        half = lam[:, :, None] * (self.A - self.K * (lam / 2)[:, None, :])
        C, info = torch.linalg.cholesky_ex(half + half.mT)
        return C, (info == 0) & (lam > 0).all(dim=1)

    def value(self, lam: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        """q'S^-1 q, and log det S."""
        q = (self.f + lam * self.h)[:, :, None]
        white = torch.linalg.solve_triangular(C, q, upper=False)
        return white.square().sum(dim=(1, 2)), 2 * C.diagonal(dim1=1, dim2=2).log().sum(dim=1)

    def step(self, lam: Tensor, C: Tensor, s: Tensor, pull: Tensor) -> Tensor:
        """Newton's step; zero where the Hessian is lost to rounding."""
        G = torch.cholesky_inverse(C)
        B = self.A.mT - lam[:, :, None] * self.K
        Y = G @ B
        y = (G @ (self.f + lam * self.h)[:, :, None])[:, :, 0]
        e = self.h - (B.mT @ y[:, :, None])[:, :, 0]
        R = torch.diag_embed(e) - B * y[:, None, :]
        ours = R.mT @ (G @ R) + self.K * (y[:, :, None] * y[:, None, :])
        barrier = G * (B.mT @ Y + self.K) + Y * Y.mT
        gradient = 2 * s[:, None] * y * e - 2 * Y.diagonal(dim1=1, dim2=2) + pull
        hessian = 2 * (s[:, None, None] * ours + barrier)
        scale = hessian.diagonal(dim1=1, dim2=2).clamp(min=1e-280).rsqrt()
        H, info = torch.linalg.cholesky_ex(scale[:, :, None] * hessian * scale[:, None, :])
        found = -scale * torch.cholesky_solve((scale * gradient)[:, :, None], H)[:, :, 0]
        return torch.where((info == 0)[:, None], found, 0.0).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def improved_metrics(problem: RowProblem, lam: Tensor, stages: Sequence[float]) -> Tensor:
    """The lam that a few of Newton's steps find from strictly feasible ones; where a step fails, the last one.

    stages: the s to go through, in units of n over the first value.
    """
    C, sound = problem.factor(lam)
    first, _ = problem.value(lam, C)
    pull = _PULL / lam
    for stage in stages:
        s = stage * lam.shape[1] / first.clamp(min=1e-280)
        for _ in range(_STEPS):
            step = problem.step(lam, C, s, pull)
            lam, C = _moved(problem, lam, C, step, s, pull)
    return torch.where(sound[:, None], lam, torch.ones_like(lam))


def _moved(problem: RowProblem, lam: Tensor, C: Tensor, step: Tensor, s: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    """The longest of some parts of the step that stays feasible and lowers the function; else where it was."""
    before = _objective(problem, lam, C, s, pull)
    open_ = torch.ones(len(lam), dtype=torch.bool)
    new, factor = lam, C
    for length in _LENGTHS:
        trial = lam + length * step
        made, sound = problem.factor(trial)
        better = open_ & sound & (_objective(problem, trial, made, s, pull) < before)
        new = torch.where(better[:, None], trial, new)
        factor = torch.where(better[:, None, None], made, factor)
        open_ = open_ & ~better
        if not bool(open_.any()):
            break
    return new, factor


def _objective(problem: RowProblem, lam: Tensor, C: Tensor, s: Tensor, pull: Tensor) -> Tensor:
    value, log_det = problem.value(lam, C)
    return (s * value - log_det + (pull * lam).sum(dim=1)).nan_to_num(nan=torch.inf)
