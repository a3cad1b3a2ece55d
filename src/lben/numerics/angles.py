"""Searches over the angle theta, with e^(-i theta) on the unit circle: one frequency after another, all of them.

1/(1 + i omega) = (1 + e^(-i theta))/2 with omega = tan(theta/2): what must hold at every frequency of the linear
part of the neural ODE is a statement on the Hermitian matrices N0 + Herm(e^(-i theta) N1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FIRST = 16  # intervals to begin with
_SHARP = 1e-9  # relative width at which the search ends
_UNDERFLOW = 1e-280
_MOST = 60  # halvings


def phase(theta: Tensor) -> Tensor:
    """(1 + e^(-i theta))/2, the value of 1/(1 + i omega) at omega = tan(theta/2); shape (k, 1, 1)."""
    value = (1 + torch.exp(-1j * theta.to(torch.complex128))) / 2
    return value[:, None, None]


def largest_eigenvalue(N0: Tensor, N1: Tensor) -> tuple[float, float, float]:
    """The maximum over theta of the largest eigenvalue of N0 + Herm(e^(-i theta) N1), for real matrices, N0 symmetric.

    Returns an upper bound on it, a value that is attained, and the theta that attains it. The largest eigenvalue is the
    maximum of functions a + r cos(theta - t) with r <= |N1|, each of which exceeds the larger of its values at the
    ends of an interval of length h by at most |N1| h^2/8. Intervals that may hold the maximum are halved. Infinite, and
    attained at no theta, where the matrices overflow.
    """
    if not bool(torch.isfinite(N0).all() and torch.isfinite(N1).all()):
        return math.inf, math.inf, math.nan
    curvature = float(torch.linalg.matrix_norm(N1, 2)) / 8
    size = float(torch.linalg.matrix_norm(N0, 2)) + 8 * curvature
    ends = torch.linspace(0, math.pi, _FIRST + 1, dtype=torch.float64)  # N0 and N1 are real: -theta gives the same
    values = _values(N0, N1, ends)
    left, right, low, high = ends[:-1], ends[1:], values[:-1], values[1:]
    best = int(values.argmax())
    attained, where = float(values[best]), float(ends[best])
    bound = attained
    for _ in range(_MOST):
        ceiling = torch.maximum(low, high) + curvature * (right - left) ** 2
        bound = max(attained, float(ceiling.max()))
        if bound - attained <= _SHARP * size:
            break
        open_ = ceiling > attained + _SHARP * size
        left, right, low, high = left[open_], right[open_], low[open_], high[open_]
        middle = (left + right) / 2
        values = _values(N0, N1, middle)
        best = int(values.argmax())
        if float(values[best]) > attained:
            attained, where = float(values[best]), float(middle[best])
        left, right = torch.cat([left, middle]), torch.cat([middle, right])
        low, high = torch.cat([low, values]), torch.cat([values, high])
    rounding = 32 * len(N0) * torch.finfo(torch.float64).eps * (size + _UNDERFLOW)
    return bound + rounding, attained, where


def largest_kappa(M: Tensor) -> float:
    """The smallest kappa with (Im w)^2 <= 4 kappa (kappa - Re w) for all w = u*Mu, |u| = 1, rounded up.

    It is the maximum over theta of the largest eigenvalue of Herm((1 + e^(-i theta)) M/2), and never negative, since
    this is 0 at theta = pi: the ODE of W contracts at every rate below 1 - kappa if M = T^(1/2) W T^(-1/2).
    """
    bound, _, _ = largest_eigenvalue((M + M.T) / 4, M / 2)
    return max(bound, 0.0)


def _values(N0: Tensor, N1: Tensor, theta: Tensor) -> Tensor:
    turned = torch.exp(-1j * theta.to(torch.complex128))[:, None, None] * N1 / 2
    values: Tensor = torch.linalg.eigvalsh(N0 + turned + turned.mH)
    return values[:, -1]
