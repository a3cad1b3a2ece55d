"""From an activation to its proximal operator and its convex potential (Proposition `sigma`), numerically.

An activation is here a pair of functions: sigma and its derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lben.errors import InvalidActivation, InvalidInput

if TYPE_CHECKING:
    from lben.activations import Activation

Function = Callable[[Tensor], Tensor]
Domain = tuple[float, float]

_FAR = 1e8  # where an activation is taken to have reached its limit


class Preimage(torch.autograd.Function):
    """The v with alpha*v + (1 - alpha)*sigma(v) = u, so that prox^alpha(u) = sigma(v)."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, alpha: float, activation: Activation) -> Tensor:
        v = solve_preimage(u, alpha, activation, activation.derivative)
        ctx.alpha, ctx.activation = alpha, activation
        ctx.save_for_backward(v)
        return v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (v,) = ctx.saved_tensors
        return grads[0] / (ctx.alpha + (1 - ctx.alpha) * ctx.activation.derivative(v)), None, None


def solve_preimage(u: Tensor, alpha: float, sigma: Function, derivative: Function) -> Tensor:
    """Solve alpha*v + (1 - alpha)*sigma(v) = u by Newton's method kept inside a bracket.

    The left side rises with a slope between min(alpha, 1) and max(alpha, 1), which gives the bracket;
    where a Newton step leaves it or does not halve the error, the bracket is halved instead.
    """
    v, value = u.clone(), sigma(u)
    error = alpha * (v - value) + value - u  # in this order nothing cancels where sigma(v) = v
    steep, flat = v - error / max(alpha, 1.0), v - error / min(alpha, 1.0)
    low, high = torch.minimum(flat, steep), torch.maximum(flat, steep)
    eps = 4 * torch.finfo(u.dtype).eps
    done = ~torch.isfinite(u)
    slow = torch.zeros_like(done)
    for _ in range(200):
        newton = v - error / (alpha + (1 - alpha) * derivative(v))
        inside = (newton >= low) & (newton <= high) & ~slow
        v = torch.where(done, v, torch.where(inside, newton, (low + high) / 2))
        value = sigma(v)
        previous, error = error, alpha * (v - value) + value - u
        done |= error.abs() <= eps * (u.abs() + alpha * v.abs() + abs(1 - alpha) * value.abs())
        if bool(done.all()):
            break
        low, high = torch.where(error < 0, v, low), torch.where(error > 0, v, high)
        slow = error.abs() > 0.5 * previous.abs()
    return v


def integrate_potential(z: Tensor, sigma: Function, domain: Domain) -> Tensor:
    """f(z) = integral of sigma^-1(s) - s from sigma(0) to z, and infinity outside the domain.

    By parts the inverse leaves the integral: with x = sigma^-1(z) it is
    z*x - (integral of sigma from 0 to x) - (z^2 - sigma(0)^2)/2.
    """
    low, high = domain
    inside = (z >= low) & (z <= high)
    flat = z.detach().to(torch.float64).clamp(low, high).reshape(-1)
    x = _invert(flat, sigma)
    nodes, weights = _gauss_legendre(z.device)
    points = x[:, None] * nodes
    area = x * (sigma(points.reshape(-1)).reshape(points.shape) @ weights)
    start = sigma(flat.new_zeros(1))
    value = flat * x - area - (flat**2 - start**2) / 2
    value = value.reshape(z.shape).to(z.dtype)
    return torch.where(inside, value, torch.full_like(value, math.inf))


def _gauss_legendre(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]: eight points on each of 256 panels, so that a kink costs little."""
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(8)
    panels = 256
    nodes = (np.arange(panels)[:, None] + (x + 1) / 2) / panels
    weights = np.tile(w / 2 / panels, panels)
    return torch.from_numpy(nodes.reshape(-1)).to(device), torch.from_numpy(weights).to(device)


def _invert(z: Tensor, sigma: Function) -> Tensor:
    """The x nearest to zero with sigma(x) = z, by bisection (sigma is non-decreasing)."""
    sign = torch.where(z >= sigma(torch.zeros_like(z)), 1.0, -1.0).to(z.dtype)
    near, far = torch.zeros_like(z), torch.ones_like(z)
    short = torch.ones_like(z, dtype=torch.bool)
    while bool(short.any()) and float(far.max()) < _FAR:
        short = (sigma(sign * far) - z) * sign < 0
        near, far = torch.where(short, far, near), torch.where(short, 2 * far, far)
    for _ in range(100):
        middle = (near + far) / 2
        short = (sigma(sign * middle) - z) * sign < 0
        near, far = torch.where(short, middle, near), torch.where(short, far, middle)
    return sign * far


def sampled_domain(sigma: Function) -> Domain:
    """The closure of the range of sigma; an end is infinite where sigma still grows at 1e8."""
    ends = []
    for sign in (-1.0, 1.0):
        half, full = sigma(sign * torch.tensor([_FAR / 2, _FAR], dtype=torch.float64)).tolist()
        ends.append(sign * math.inf if abs(full - half) > 1e-3 else full)
    return ends[0], ends[1]


def check_slopes(name: str, sigma: Function, derivative: Function) -> None:
    """Refuse a function whose slope leaves [0, 1] on a dense sample (which is no proof that it never does).

    Both the derivative at 88,000 points of [-1e4, 1e4] and the secants between neighbours are looked at,
    so that a jump, whose derivative is zero on both sides, is seen as well.
    """
    far = torch.logspace(1, 4, 4000, dtype=torch.float64)
    near = torch.linspace(-10, 10, 80_001, dtype=torch.float64)
    x = torch.cat([-far.flip(0)[:-1], near, far[1:]])
    y = _sample(name, sigma, x)
    secants = (y[1:] - y[:-1]) / (x[1:] - x[:-1])
    points = torch.cat([x, (x[1:] + x[:-1]) / 2])
    derivatives = derivative(x).detach()
    slopes = torch.cat([derivatives, secants])
    excess = torch.maximum(slopes - 1, -slopes)
    worst = int(torch.where(excess.isnan(), torch.full_like(excess, math.inf), excess).argmax())
    if not float(excess[worst]) <= 1e-7:
        refuse_slope(name, float(points[worst]), float(slopes[worst]))
    _compare_with_autograd(name, x, secants, derivatives)


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


def _compare_with_autograd(name: str, x: Tensor, secants: Tensor, derivatives: Tensor) -> None:
    """Refuse a function whose derivative autograd does not see, for its gradients would be wrong in silence."""
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
        f"{name} has slope {slope:.6g} at x = {point:.6g}: every slope must lie in [0, 1], "
        "or neither well-posedness nor a Lipschitz bound can be proved."
    )


def dilogarithm(x: Tensor) -> Tensor:
    """Li2(x) for 0 <= x <= 1: its power series up to 1/2, Euler's reflection above."""
    small = torch.where(x > 0.5, 1 - x, x)
    series, power = torch.zeros_like(x), torch.ones_like(x)
    for k in range(1, 51):
        power = power * small
        series = series + power / k**2
    reflected = math.pi**2 / 6 - torch.xlogy(torch.log1p(-small), small) - series
    return torch.where(x > 0.5, reflected, series)
