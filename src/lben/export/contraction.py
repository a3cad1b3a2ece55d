"""How fast Peaceman-Rachford is proved to converge, for matrices.

With A = I - W, R = (I + alpha A)^-1 and C = 2R - I = (I - alpha A)(I + alpha A)^-1, one iteration is
u+ = C (2 prox(u) - u) + 2 alpha R b. The reflection 2 prox - I is non-expansive in the norm of Lambda. |C| <= rho there
if and only if, for s = (1 - rho^2)/(1 + rho^2),

    alpha (Lam A + A' Lam) - s (Lam + alpha^2 A' Lam A) >= 0,

since |(I - alpha A) r|^2 <= rho^2 |(I + alpha A) r|^2 for all r is that. So rho is proved without an inverse. What a
stored C differs by from the true one is bounded by its defect: C~ - C = (C~ (I + alpha A) - (I - alpha A)) R, |R| <= 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lben.certify.verified import norm_above
from lben.errors import InvalidInput
from lben.export.domains import UP
from lben.numerics.enclosed import EPS, Enclosed, balance, definite

SHARES = (1 - 1e-9, 1 - 1e-7, 1 - 1e-5, 1 - 1e-3, 0.9, 0.5)
_GOLDEN = (math.sqrt(5) - 1) / 2
_LOOKS, _LOOKS_LARGE, _LARGE = 16, 8, 200  # evaluations of the search for a step, fewer for so many units


class Step(nn.Module):
    """offset + C w for rows, with what is proved of it, in the norm of Lambda.

    rho: a bound on |C|. lost: what is computed is off by at most lost |w| + spare |offset|, but for underflow, `faint`.
    """

    rho: float
    lost: float
    spare: float
    faint: float

    def forward(self, offset: Tensor, w: Tensor) -> Tensor:
        raise NotImplementedError


class MatrixStep(Step):
    """C as a matrix."""

    matrix: Tensor

    def __init__(self, W: Enclosed, lam: Tensor, alpha: float, rho: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.rho = rho
        size, limits = len(lam), torch.finfo(dtype)
        A, eye = Enclosed.exact(torch.eye(size, dtype=torch.float64)) - W, torch.eye(size, dtype=torch.float64)
        C = stored(2 * torch.linalg.inv(eye + alpha * A.mid) - eye, dtype)
        scaled = Enclosed.exact(torch.tensor(alpha, dtype=torch.float64)) * A
        identity = Enclosed.exact(eye)
        defect = Enclosed.exact(C) @ (identity + scaled) - (identity - scaled)
        root = lam.sqrt()
        wrong = metric_norm(defect.mid, root, root, defect.error)
        self.spare = (size + 4) * limits.eps
        self.lost = (wrong + self.spare * metric_norm(C.abs(), root, root)) * UP
        self.faint = (size + 2) * limits.tiny * (1 + float(C.abs().max())) * float(root.norm()) * UP
        self.register_buffer("matrix", C.T.to(dtype).contiguous())

    def forward(self, offset: Tensor, w: Tensor) -> Tensor:
        return torch.addmm(offset, w, self.matrix)


def stored(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix as the dtype holds it, without subnormal numbers, in double precision."""
    rounded = matrix.to(dtype)
    if not bool(rounded.isfinite().all()):
        raise InvalidInput(f"The constants of the exported network overflow in {str(dtype)[6:]}: scale the weights.")
    return torch.where(rounded.abs() < torch.finfo(dtype).tiny, 0.0, rounded).to(torch.float64)


def metric_norm(matrix: Tensor, left: Tensor, right: Tensor, error: Tensor | None = None) -> float:
    """A proved bound on |diag(left) M diag(right)^-1| for every M within `error` of the matrix, entry by entry."""
    scaled = left[:, None] * matrix / right
    off = 8 * EPS * float(torch.linalg.matrix_norm(scaled)) * (1 + matrix.numel() * EPS)
    if error is not None:
        off += float(torch.linalg.matrix_norm(left[:, None] * error / right)) * UP
    return norm_above(scaled[None], off)


def slack(A: Tensor, alpha: float) -> float:
    """About the largest s of the head of this file, for A in its metric: the smallest eigenvalue of a pencil."""
    eye = torch.eye(len(A), dtype=A.dtype)
    factor, info = torch.linalg.cholesky_ex(eye + alpha**2 * A.T @ A)
    if int(info) != 0 or not bool(factor.isfinite().all()):
        return 0.0
    half = torch.linalg.solve_triangular(factor, alpha * (A + A.T), upper=False)
    both = torch.linalg.solve_triangular(factor, half.T, upper=False)
    return float(torch.linalg.eigvalsh((both + both.T) / 2)[0]) if bool(both.isfinite().all()) else 0.0


def best_step(look: Callable[[float], float], guess: float, size: int) -> float:
    """The alpha near a guess at which the slack is largest, by golden section of its logarithm."""
    low, high = math.log(guess) - 2, math.log(guess) + 2
    points = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    found = [look(math.exp(point)) for point in points]
    for _ in range(_LOOKS if size <= _LARGE else _LOOKS_LARGE):
        if found[0] > found[1]:
            high, points, found = points[1], [0.0, points[0]], [0.0, found[0]]
            points[0] = high - _GOLDEN * (high - low)
            found[0] = look(math.exp(points[0]))
        else:
            low, points, found = points[0], [points[1], 0.0], [found[1], 0.0]
            points[1] = low + _GOLDEN * (high - low)
            found[1] = look(math.exp(points[1]))
    return math.exp(points[0] if found[0] > found[1] else points[1])


def contraction(W: Enclosed, lam: Tensor, alpha: float) -> float:
    """A proved bound on |C| in the norm of Lambda; 1 where none below is proved."""
    k = balance(lam)
    W, multipliers = W.shifted(k - k[:, None]), Enclosed.exact(lam).shifted(2 * k)
    identity = torch.eye(len(lam), dtype=torch.float64)
    A = Enclosed.exact(identity) - W
    root = multipliers.mid.sqrt()
    estimate = slack(root[:, None] * A.mid / root, alpha)
    step = Enclosed.exact(torch.tensor(alpha, dtype=torch.float64))
    column = Enclosed(multipliers.mid[:, None], multipliers.error[:, None])
    half, whole = step * (column * A), step * A
    mass = Enclosed(torch.diag(multipliers.mid), torch.diag(multipliers.error)) + whole.T @ (column * whole)
    for share in SHARES if estimate > 0 else ():
        s = share * estimate
        if definite(half + half.T - Enclosed.exact(torch.tensor(s, dtype=torch.float64)) * mass) == "holds":
            return rate(s)
    return 1.0


def rate(s: float) -> float:
    """sqrt((1 - s)/(1 + s)), rounded up."""
    return min(math.sqrt(max(1 - s, 0.0) / (1 + s)) * (1 + 8 * EPS) + 1e-200, 1.0)
