"""Two small interior-point methods with the structure of Condition `lipschitz`: only n x n products.

Both work on X = Lam A + A' Lam - Lam K Lam / rho, with Lam diagonal. With G = X^-1, B = A' - Lam K / rho and Y = G B,
the gradient of -log det X in lam is -2 diag(Y) and its Hessian 2 (G o (B' Y + K / rho) + Y o Y'), o the entrywise
product. Every iterate is strictly feasible, so whatever stops the method, what it returns is a true bound.
A and K may be stacks, (k, n, n) and complex: then every X of the stack must be positive definite.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lben.errors import NotConverged

_GROWTH = 5.0  # of the weight of the objective, from stage to stage: 30 saves stages and doubles the Newton steps
_NEGLIGIBLE = 1e-20  # of one or the first rho, if less: nothing is read of what the input reaches, rho falls for ever
_PULL = 1e-2
_CENTRED = 0.05  # Newton decrement, squared and halved, at which a stage ends
_NEWTON_STEPS = 300  # in one stage; a stage of a hard problem of 1,000 units takes 60
_ALL_STEPS = (
    2000  # of all stages: where lam must cross tens of decades, each stage takes hundreds, and ends in rounding
)
_STAGES = 300
_SHORTEST = 1e-9  # of a line search


@dataclass(frozen=True, eq=False)
class Point:
    """A strictly feasible point, and the Cholesky factor of its X."""

    lam: Tensor
    rho: float
    factor: Tensor


class Program(ABC):
    """Minimise rho with X(lam, rho) positive definite.

    rank: that of K. free: how many entries of lam, the first ones, are variables. size: that of X.
    gap: the relative distance of rho from the optimum at which the search may end.
    groups: the number of each free entry's block, where lam is to be constant on blocks; None where each is on its own.
    """

    rank: int
    gap: float
    groups: Tensor | None

    @property
    @abstractmethod
    def free(self) -> int: ...

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def matrix(self, lam: Tensor, rho: float) -> Tensor:
        """X, or a stack of which every one must be positive definite."""

    @abstractmethod
    def derivatives(self, point: Point, t: float, pull: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of t rho - log det X - rank log rho + pull'lam in the free lam, and in rho last."""

    def feasible(self, lam: Tensor, rho: float) -> Point | None:
        """The point, or None where X is not positive definite."""
        if not (rho > 0 and bool((lam > 0).all())):
            return None
        factor, info = torch.linalg.cholesky_ex(self.matrix(lam, rho))
        return None if bool(info.any()) else Point(lam, rho, factor)

    def log_det(self, point: Point) -> float:
        """log det X, and of whatever else must stay positive."""
        return 2 * float(point.factor.diagonal(dim1=-2, dim2=-1).real.log().sum())


@dataclass(frozen=True, eq=False)
class Quadratic(Program):
    """X from A and K, one matrix or a stack of them; rank is that of all K together.

    count: of the entries of lam that are free; the others stay 1.
    """

    A: Tensor
    K: Tensor
    rank: int
    count: int
    gap: float = 1e-6
    groups: Tensor | None = None

    @property
    def free(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        return self.A[..., 0].numel()

    def matrix(self, lam: Tensor, rho: float) -> Tensor:
        half = lam[:, None] * (self.A - self.K * (lam / (2 * rho)))
        return half + half.mH

    def derivatives(self, point: Point, t: float, pull: Tensor) -> tuple[Tensor, Tensor]:
        lam, rho, f = point.lam, point.rho, self.free
        K = self.K / rho
        scaled = lam[:, None] * K
        G = torch.cholesky_inverse(point.factor)
        B = self.A.mH - scaled
        Y = G @ B
        C = scaled * lam
        GC = G @ C
        hessian = torch.empty(f + 1, f + 1, dtype=lam.dtype)
        hessian[:f, :f] = 2 * _total(G.conj() * (B.mH @ Y + K) + Y * Y.mT)[:f, :f]
        trace = float(GC.diagonal(dim1=-2, dim2=-1).real.sum())
        cross = _total(GC * Y.mT - G * scaled.mT).sum(dim=1)
        hessian[:f, f] = hessian[f, :f] = 2 * cross[:f] / rho
        hessian[f, f] = (float(_total(GC * GC.mT).sum()) + 2 * trace + self.rank) / rho**2
        slope = _total(Y).diagonal()
        gradient = torch.cat([(pull - 2 * slope)[:f], lam.new_tensor([t - (trace + self.rank) / rho])])
        return gradient, hessian


def minimise_rho(problem: Program, lam: Tensor, rho: float) -> tuple[Tensor, float, bool]:
    """The smallest rho, and its lam, with X positive definite; from a strictly feasible start.

    The last value is whether it is known to be the smallest, to `gap`: rounding, or a lam that must cross very many
    decades, may stop the search before.

    Newton's method on t rho - log det X - k log rho + p'lam, k the rank of K and p small, with t growing until
    (n + k + p'lam)/t, which bounds the distance from the optimum at a centred point, is small.
    """
    point = problem.feasible(lam, rho)
    if point is None:
        raise NotConverged("The search for a bound found no place to begin: scale the weights to similar sizes.", rho)
    pull = _pull(problem, lam)
    t = _GROWTH * (problem.size + problem.rank) / rho
    finished, left = False, _ALL_STEPS
    for _ in range(_STAGES):
        point, centred, taken = _centre(problem, point, t, pull, min(left, _NEWTON_STEPS))
        left -= taken
        order = problem.size + problem.rank + float(pull @ point.lam)
        finished = centred and (order / t <= problem.gap * point.rho or point.rho <= _NEGLIGIBLE * min(rho, 1.0))
        if finished or not centred:
            break
        t = min(t * _GROWTH, 1.01 * order / (problem.gap * point.rho))
    return point.lam, point.rho, finished


def _pull(problem: Program, start: Tensor) -> Tensor:
    """The weights of a small linear term in lam, without which the lam of units that no input reaches diverge."""
    pull = torch.zeros_like(start)
    pull[: problem.free] = _PULL / start[: problem.free]
    return pull


def _centre(problem: Program, point: Point, t: float, pull: Tensor, most: int) -> tuple[Point, bool, int]:
    """Newton with backtracking at one t; whether it got there, or rounding or `most` stopped it; the steps it took."""
    for taken in range(most):
        gradient, hessian = problem.derivatives(point, t, pull)
        step, decrement = grouped_direction(gradient, hessian, problem.groups)
        if not decrement >= 0:
            return point, False, taken
        if decrement <= _CENTRED:
            return point, True, taken
        moved = _search(problem, point, t, pull, step, decrement)
        if moved is None:
            return point, decrement <= 1, taken
        point = moved
    return point, False, most


def _total(matrices: Tensor) -> Tensor:
    """The real part, summed over a stack."""
    return matrices.real.sum(dim=0) if matrices.dim() == 3 else matrices


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


def _search(problem: Program, point: Point, t: float, pull: Tensor, step: Tensor, decrement: float) -> Point | None:
    """Backtrack until the next point is feasible and the objective has fallen enough."""
    f, change = problem.free, float(step[-1])
    slope = t * change + float(pull[:f] @ step[:f])
    length = 1.0
    while length > _SHORTEST:
        lam = point.lam.clone()
        lam[:f] += length * step[:f]
        moved = problem.feasible(lam, point.rho + length * change)
        if moved is not None:
            fall = length * slope + problem.log_det(point) - problem.log_det(moved)
            fall -= problem.rank * math.log1p(length * change / point.rho)
            if fall <= -0.2 * length * decrement:
                return moved
        length *= 0.5
    return None


def feasible_start(problem: Quadratic, lam: Tensor) -> Tensor:
    """A multiple of lam with room below it for Wo'Wo: 2 Lam - Lam W - W' Lam > 2 Wo'Wo, and ones for the outputs."""
    n, size = problem.free, problem.A.shape[-1]
    M = problem.matrix(torch.cat([lam, lam.new_zeros(size - n)]), math.inf)[..., :n, :n]
    out = torch.linalg.solve_triangular(torch.linalg.cholesky(M), problem.A[..., n:, :n].mH, upper=False)
    return torch.cat([lam * (2 * largest_norm(out) ** 2), lam.new_ones(size - n)])


def smallest_rho(problem: Quadratic, lam: Tensor) -> float:
    """The smallest rho for this lam, rounded up; infinite if there is none."""
    factor, info = torch.linalg.cholesky_ex(problem.matrix(lam, math.inf))
    if bool(info.any()) or not bool((lam > 0).all()):
        return math.inf
    scaled = torch.linalg.solve_triangular(factor, lam[:, None] * problem.K * lam, upper=False)
    inner = torch.linalg.solve_triangular(factor, scaled.mH, upper=False)
    return float(torch.linalg.eigvalsh((inner + inner.mH) / 2)[..., -1].max()) * (1 + 1e-9)


def largest_norm(matrix: Tensor) -> float:
    """The spectral norm, the largest of a stack; 0 of nothing."""
    return float(torch.linalg.matrix_norm(matrix, 2).max()) if matrix.numel() else 0.0
