"""How steep an activation can be on its way from one point to another that is not far.

For a unit at v and every v' with |v' - v| <= d, sigma(v') - sigma(v) = s (v' - v) with s between two slopes, which are
nearer to each other than 0 and 1. Slopes rise up to one point and fall behind it, for every activation of the table,
and so do their means over a stretch of fixed length: where they are least is at an end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lben.activations.base import Activation, Scalar
from lben.activations.scalar import Identity, LeakyReLU, PerUnit, ReLU
from lben.errors import InvalidInput

_EPS = torch.finfo(torch.float64).eps
_TINY = 1e-290


def sectors(activation: Activation, v: Tensor, off: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest s, rounded outwards, for units within `off` of v that move by at most d.

    Shapes: v, off, d and both results (batch, n), in double precision.
    Raises InvalidInput for an activation of which no slopes are known: `Elementwise`, and those of several units.
    """
    if isinstance(activation, PerUnit):
        lower, upper = torch.zeros_like(v), torch.ones_like(v)
        for sigma, units in activation.parts:
            lower[:, units], upper[:, units] = sectors(sigma, v[:, units], off[:, units], d[:, units])
        return lower, upper
    if not isinstance(activation, Scalar) or activation.steepest is None:
        raise InvalidInput(f"Of {activation!r} no slopes between two points are known, which a local bound rests on.")
    if activation.linear:
        return torch.ones_like(v), torch.ones_like(v)
    return _sector(activation, activation.steepest, v, off, d)


def _sector(sigma: Scalar, steepest: float, v: Tensor, off: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    d = d.clamp(min=_TINY)
    rounded = 2 * _EPS * (v.abs() + off + d)
    low, high = v - off - rounded, v + off + rounded
    first, last = low - d - rounded, high + d + rounded
    lower = torch.minimum(sigma.derivative(first), sigma.derivative(last))
    most = last if steepest == math.inf else last.clamp(max=steepest).maximum(first)
    upper = sigma.derivative(most)
    ends = [(point, sign) for point in (low, high) for sign in (-1, 1)]
    secants = torch.stack([(sigma(point + sign * d) - sigma(point)) * sign / d for point, sign in ends])
    sizes = v.abs() + off + d + sigma(first).abs() + sigma(last).abs() + sigma.inner_terms
    lost = 4 * sigma.rounding * _EPS * sizes / d
    least = torch.minimum(secants.amin(dim=0), torch.minimum(sigma.derivative(low), sigma.derivative(high)))
    lower = torch.maximum(lower - sigma.rounding * _EPS, least - lost)
    upper = upper + sigma.rounding * _EPS
    if steepest == math.inf:  # a mean of slopes that never fall is largest over the last stretch
        upper = torch.minimum(upper, secants[3] + lost)
    known = d.isfinite()
    lower = torch.where(known, lower.nan_to_num(nan=0.0), 0.0).clamp(0, 1)
    upper = torch.where(known, upper.nan_to_num(nan=1.0), 1.0).clamp(0, 1)
    return lower, torch.maximum(lower, upper)


def slopes_below(activation: Activation, units: int, purpose: str) -> Tensor:
    """For units that are linear on both sides of 0, with slope 1 above, their slopes below it, shape (units,).

    Raises InvalidInput for others: `purpose` says what for.
    """
    parts = activation.parts if isinstance(activation, PerUnit) else ((activation, slice(None)),)
    found = torch.zeros(units, dtype=torch.float64)
    for sigma, where in parts:
        if isinstance(sigma, LeakyReLU):
            found[where] = sigma.slope
        elif isinstance(sigma, Identity):
            found[where] = 1.0
        elif not isinstance(sigma, ReLU):
            raise InvalidInput(f"{purpose} is for ReLU, LeakyReLU and Identity, not for {sigma!r}.")
    return found
