"""Whether a function is monotone with slopes in [0, 1], looked at on a sample."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lben.errors import InvalidActivation, InvalidInput

Function = Callable[[Tensor], Tensor]
Domain = tuple[float, float]

FAR = 1e8  # where an activation is taken to have reached its limit
_UNITS = 16  # of rounding, of 1, x and sigma(x), that may be lost in evaluating sigma(x) in double precision


def sampled_domain(sigma: Function) -> Domain:
    """The closure of the range of sigma; an end is infinite where sigma still grows at 1e8."""
    ends = []
    for sign in (-1.0, 1.0):
        half, full = sigma(sign * torch.tensor([FAR / 2, FAR], dtype=torch.float64)).tolist()
        ends.append(sign * math.inf if abs(full - half) > 1e-3 else full)
    return ends[0], ends[1]


def check_slopes(name: str, sigma: Function, derivative: Function) -> None:
    """Refuse a function whose slope leaves [0, 1] on a dense sample (which is no proof that it never does).

    Both the derivative at 88,000 points of [-1e4, 1e4] and secants are looked at, so that a jump, whose derivative is
    zero on both sides, is seen as well. Secants join points that are 1, 2, 4, ... apart in the list: over a distance h
    rounding moves a slope by about eps/h, so that the long ones show what the short ones cannot tell from rounding.
    """
    far = torch.logspace(1, 4, 4000, dtype=torch.float64)
    near = torch.linspace(-10, 10, 80_001, dtype=torch.float64)
    x = torch.cat([-far.flip(0)[:-1], near, far[1:]])
    y = _sample(name, sigma, x)
    rounding = _UNITS * torch.finfo(x.dtype).eps * (1 + x.abs() + y.abs())
    derivatives = derivative(x).detach()
    _check_range(name, derivatives, rounding, x)
    apart = 1
    while apart < len(x):
        step = x[apart:] - x[:-apart]
        secants = (y[apart:] - y[:-apart]) / step
        _check_range(name, secants, (rounding[apart:] + rounding[:-apart]) / step, (x[apart:] + x[:-apart]) / 2)
        apart *= 2
    _compare_with_autograd(name, x, y, derivatives)


def _check_range(name: str, slopes: Tensor, rounding: Tensor, points: Tensor) -> None:
    """Refuse slopes that are outside [0, 1] by more than rounding; of those, the one that is farthest outside."""
    excess = torch.maximum(slopes - 1, -slopes)
    outside = ~(excess <= rounding)
    if bool(outside.any()):
        worst = int(torch.where(excess.isnan(), torch.inf, excess).where(outside, -torch.inf).argmax())
        refuse_slope(name, float(points[worst]), float(slopes[worst]))


def _sample(name: str, sigma: Function, x: Tensor) -> Tensor:
    """sigma(x), if it is a tensor like x, finite, and each of its entries depends on its own entry of x alone."""
    try:
        y = sigma(x)
    except Exception as error:
        raise InvalidInput(f"{name} fails on a float64 tensor: {type(error).__name__}: {error}") from error
    if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
        raise InvalidInput(f"{name} must return a tensor of the shape and dtype it is given.")
    y = y.detach()
    if not bool(torch.isfinite(y).all()):
        where = float(x[~torch.isfinite(y)][0])
        raise InvalidActivation(f"{name} is not finite at x = {where:.6g}, so it has no slope there.")
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1000]
    again = sigma(x[chosen].reshape(20, 50)).detach().reshape(-1)
    if not torch.allclose(again, y[chosen], rtol=1e-6, atol=1e-9):
        raise InvalidInput(f"{name} is not elementwise: each output entry must depend on its own input entry alone.")
    return y


def _compare_with_autograd(name: str, x: Tensor, y: Tensor, derivatives: Tensor) -> None:
    """Refuse a function whose derivative autograd does not see, for its gradients would be wrong in silence."""
    secants = y.diff() / x.diff()
    left, right = derivatives[:-1], derivatives[1:]
    apart = (secants - (left + right) / 2).abs() - (left - right).abs()
    apart = torch.where(x[1:].abs() <= 10, apart, 0.0)
    worst = int(apart.argmax())
    if float(apart[worst]) > 1e-3:
        raise InvalidActivation(
            f"{name} rises with slope {float(secants[worst]):.6g} at x = {float(x[worst]):.6g}, but autograd finds "
            f"{float(left[worst]):.6g}: write it in torch operations that can be differentiated."
        )


def refuse_slope(name: str, point: float, slope: float) -> None:
    """Raise the one sentence that names where the slope leaves [0, 1]."""
    raise InvalidActivation(
        f"{name} has slope {_decimals(slope)} at x = {point:.6g}: every slope must lie in [0, 1], "
        "or neither well-posedness nor a Lipschitz bound can be proved."
    )


def _decimals(slope: float) -> str:
    """A slope, with as many digits as tell it from 1."""
    short = f"{slope:.6g}"
    return f"{slope:.17g}" if short == "1" else short
