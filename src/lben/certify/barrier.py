"""Two small interior-point methods with the structure of Condition `lipschitz`: only n x n products.

Both work on X = Lam A + A' Lam - Lam K Lam / rho, with Lam diagonal. With G = X^-1, B = A' - Lam K / rho and Y = G B,
the gradient of -log det X in lam is -2 diag(Y) and its Hessian 2 (G o (B' Y + K / rho) + Y o Y'), o the entrywise
product. Every iterate is strictly feasible, so whatever stops the method, what it returns is a true bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_GROWTH = 5.0  # of the weight of the objective, from stage to stage: 30 saves stages and doubles the Newton steps
_GAP = 1e-6  # relative distance of rho from the optimum at which the last stage ends
_NEGLIGIBLE = 1e-20  # of the first rho: nothing is read of what the input reaches, and rho may fall for ever
_PULL = 1e-2
_CENTRED = 0.05  # Newton decrement, squared and halved, at which a stage ends
_NEWTON_STEPS = 300  # in one stage; a stage of a hard problem of 1,000 units takes 60
_STAGES = 60
_SHORTEST = 1e-9  # of a line search


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The data of X: A and K, and which entries of lam are free; the others stay 1.

    `groups` numbers the block of each free entry, where lam is to be constant on blocks.
    """

    A: Tensor
    K: Tensor
    rank: int
    free: int
    groups: Tensor | None = None

    def pull(self, start: Tensor) -> Tensor:
        """The weights of a small linear term in lam, without which the lam of units that no input reaches diverge."""
        pull = torch.zeros_like(start)
        pull[: self.free] = _PULL / start[: self.free]
        return pull

    def matrix(self, lam: Tensor, rho: float) -> Tensor:
        half = lam[:, None] * (self.A - self.K * (lam / (2 * rho)))
        return half + half.T


@dataclass(frozen=True, eq=False)
class _Point:
    """A strictly feasible point and the Cholesky factor of its X."""

    lam: Tensor
    rho: float
    factor: Tensor

    def log_det(self) -> float:
        return 2 * float(self.factor.diagonal().log().sum())


def minimise_rho(problem: Quadratic, lam: Tensor, rho: float) -> tuple[Tensor, float, bool]:
    """The smallest rho, and its lam, with X positive definite; from a strictly feasible start.

    The last value is whether it is known to be the smallest, to a millionth: rounding may stop the search before.

    Newton's method on t rho - log det X - k log rho + p'lam, k the rank of K and p small, with t growing until
    (n + k + p'lam)/t, which bounds the distance from the optimum at a centred point, is small.
    """
    point = _feasible(problem, lam, rho)
    if point is None:
        raise ValueError("The barrier method needs a strictly feasible start.")
    pull = problem.pull(lam)
    t = _GROWTH * (len(lam) + problem.rank) / rho
    finished = False
    for _ in range(_STAGES):
        point, centred = _centre(problem, point, t, pull)
        order = len(lam) + problem.rank + float(pull @ point.lam)
        finished = centred and (order / t <= _GAP * point.rho or point.rho <= _NEGLIGIBLE * rho)
        if finished or not centred:
            break
        t = min(t * _GROWTH, 1.01 * order / (_GAP * point.rho))
    return point.lam, point.rho, finished


def _feasible(problem: Quadratic, lam: Tensor, rho: float) -> _Point | None:
    if not (rho > 0 and bool((lam > 0).all())):
        return None
    factor, info = torch.linalg.cholesky_ex(problem.matrix(lam, rho))
    return _Point(lam, rho, factor) if int(info) == 0 else None


def _centre(problem: Quadratic, point: _Point, t: float, pull: Tensor) -> tuple[_Point, bool]:
    """Newton with backtracking at one t; whether it got there, or rounding stopped it first."""
    for _ in range(_NEWTON_STEPS):
        gradient, hessian = _derivatives(problem, point, t, pull)
        step, decrement = grouped_direction(gradient, hessian, problem.groups)
        if not decrement >= 0:
            return point, False
        if decrement <= _CENTRED:
            return point, True
        moved = _search(problem, point, t, pull, step, decrement)
        if moved is None:
            return point, decrement <= 1
        point = moved
    return point, False


def _derivatives(problem: Quadratic, point: _Point, t: float, pull: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian in the free entries of lam, and in rho last."""
    lam, rho, f = point.lam, point.rho, problem.free
    K = problem.K / rho
    scaled = lam[:, None] * K
    G = torch.cholesky_inverse(point.factor)
    B = problem.A.T - scaled
    Y = G @ B
    C = scaled * lam
    GC = G @ C
    hessian = torch.empty(f + 1, f + 1, dtype=lam.dtype)
    hessian[:f, :f] = 2 * (G * (B.T @ Y + K) + Y * Y.T)[:f, :f]
    trace = float(GC.diagonal().sum())
    cross = torch.linalg.vecdot(GC, Y.T) - torch.linalg.vecdot(G, scaled.T)
    hessian[:f, f] = hessian[f, :f] = 2 * cross[:f] / rho
    hessian[f, f] = (float((GC * GC.T).sum()) + 2 * trace + problem.rank) / rho**2
    gradient = torch.cat([(pull - 2 * Y.diagonal())[:f], lam.new_tensor([t - (trace + problem.rank) / rho])])
    return gradient, hessian


def grouped_direction(gradient: Tensor, hessian: Tensor, groups: Tensor | None) -> tuple[Tensor, float]:
    """`newton_direction` among the steps that are equal on every block; entries beyond `groups` are on their own."""
    if groups is None:
        return newton_direction(gradient, hessian)
    count = int(groups.max()) + 1
    index = torch.cat([groups, count + torch.arange(len(gradient) - len(groups))])
    total = int(index.max()) + 1
    rows = hessian.new_zeros(total, len(index)).index_add(0, index, hessian)
    joint = hessian.new_zeros(total, total).index_add(1, index, rows)
    step, decrement = newton_direction(gradient.new_zeros(total).index_add(0, index, gradient), joint)
    return step[index], decrement


def newton_direction(gradient: Tensor, hessian: Tensor) -> tuple[Tensor, float]:
    """-H^-1 g and half the squared decrement g' H^-1 g, with H scaled to a unit diagonal first; NaN if H is lost.

    lam spreads over many decades on large networks; the scaling keeps the factorisation accurate there.
    """
    scale = hessian.diagonal().rsqrt()
    factor, info = torch.linalg.cholesky_ex(scale[:, None] * hessian * scale)
    if int(info) != 0:
        return torch.zeros_like(gradient), math.nan
    step = -scale * torch.cholesky_solve((scale * gradient)[:, None], factor)[:, 0]
    return step, -0.5 * float(gradient @ step)


def _search(problem: Quadratic, point: _Point, t: float, pull: Tensor, step: Tensor, decrement: float) -> _Point | None:
    """Backtrack until the next point is feasible and the objective has fallen enough."""
    f, change = problem.free, float(step[-1])
    slope = t * change + float(pull[:f] @ step[:f])
    length = 1.0
    while length > _SHORTEST:
        lam = point.lam.clone()
        lam[:f] += length * step[:f]
        moved = _feasible(problem, lam, point.rho + length * change)
        if moved is not None:
            fall = length * slope + point.log_det() - moved.log_det()
            fall -= problem.rank * math.log1p(length * change / point.rho)
            if fall <= -0.2 * length * decrement:
                return moved
        length *= 0.5
    return None
