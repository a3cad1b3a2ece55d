"""From an activation to its proximal operator and its convex potential (Proposition `sigma`), numerically.

An activation is here a pair of functions: sigma and its derivative.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lben.activations.slopes import FAR, Domain, Function

_PLAIN_STEPS = 8  # of Newton's method, before a bracket is kept around what it looks for
_BRACKETED_STEPS = 200
_ENOUGH = 0.01  # of the way from one iterate to the next: what is left then costs a solver no iterations


class Sigma(Protocol):
    """sigma, and its derivative."""

    def __call__(self, v: Tensor) -> Tensor: ...

    def derivative(self, v: Tensor) -> Tensor: ...


class Preimage(torch.autograd.Function):
    """The v with alpha*v + (1 - alpha)*sigma(v) = u, so that prox^alpha(u) = sigma(v)."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, alpha: float, activation: Sigma) -> Tensor:
        v = solve_preimage(u, alpha, activation, activation.derivative)
        ctx.alpha, ctx.activation = alpha, activation
        ctx.save_for_backward(v)
        return v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (v,) = ctx.saved_tensors
        return grads[0] / (ctx.alpha + (1 - ctx.alpha) * ctx.activation.derivative(v)), None, None


def solve_preimage(u: Tensor, alpha: float, sigma: Function, derivative: Function) -> Tensor:
    """Solve alpha*v + (1 - alpha)*sigma(v) = u to rounding.

    By plain Newton steps; where a few of them do not do, as may be for alpha far from 1, by steps inside a bracket.
    """
    v, size = u, u.abs()
    for _ in range(_PLAIN_STEPS):
        value = sigma(v)
        error = alpha * (v - value) + value - u  # in this order nothing cancels where sigma(v) = v
        slope = alpha + (1 - alpha) * derivative(v)
        if bool(_negligible(error, slope, v, value, size).all()):
            return v
        v = v - error / slope
    return _bracketed_preimage(u, alpha, sigma, derivative)[0]


def _negligible(error: Tensor, slope: Tensor, v: Tensor, value: Tensor, size: Tensor) -> Tensor:
    """Where an error is no more than rounding in sigma(v) and u, of the given size, or in v itself, explains."""
    return error.abs() <= 4 * torch.finfo(v.dtype).eps * (slope * v.abs() + value.abs() + size)


def _bracketed_preimage(u: Tensor, alpha: float, sigma: Function, derivative: Function) -> tuple[Tensor, Tensor]:
    """The v of `solve_preimage` by Newton's method kept inside a bracket, and sigma(v).

    The left side rises with a slope between min(alpha, 1) and max(alpha, 1), which gives the bracket; where a Newton
    step leaves it or does not halve the error, the bracket is halved instead, so that it soon is as short as rounding.
    """
    v, value = u.clone(), sigma(u)
    error = alpha * (v - value) + value - u
    steep, flat = v - error / max(alpha, 1.0), v - error / min(alpha, 1.0)
    low, high = torch.minimum(flat, steep), torch.maximum(flat, steep)
    slope = alpha + (1 - alpha) * derivative(v)
    eps = torch.finfo(u.dtype).eps
    done = ~torch.isfinite(u)
    slow = torch.zeros_like(done)
    for _ in range(_BRACKETED_STEPS):
        newton = v - error / slope
        inside = (newton >= low) & (newton <= high) & ~slow
        v = torch.where(done, v, torch.where(inside, newton, (low + high) / 2))
        value = sigma(v)
        previous, error = error, alpha * (v - value) + value - u
        slope = alpha + (1 - alpha) * derivative(v)
        done |= _negligible(error, slope, v, value, u.abs()) | (high - low <= eps * v.abs())
        if bool(done.all()):
            break
        low, high = torch.where(error < 0, v, low), torch.where(error > 0, v, high)
        slow = error.abs() > 0.5 * previous.abs()
    return v, value


class Reflection:
    """u -> 2*prox^alpha(u) - u for the iterates u of a solver, ever more exactly as they settle; carries no gradient.

    Newton's method goes on from the preimage v of the last u, and stops when in each row a hundredth is left of the way
    from that u to this one: the answer is the reflection of a point so close to u. Near a fixed point one step does.
    """

    def __init__(self, activation: Sigma, alpha: float) -> None:
        self.activation = activation
        self.alpha = alpha
        self.v: Tensor | None = None

    def __call__(self, u: Tensor) -> Tensor:
        sigma, alpha = self.activation, self.alpha
        if alpha == 1:
            return torch.lerp(u, sigma(u), 2.0)
        if self.v is None:
            self.v, self.value = u, sigma(u)
            self.reached = torch.lerp(self.value, u, alpha)
        v, value, gap = self.v, self.value, u - self.reached
        enough = _ENOUGH * torch.linalg.vector_norm(gap, dim=-1)
        for _ in range(_PLAIN_STEPS):
            v = torch.addcdiv(v, gap, sigma.derivative(v).mul(1 - alpha).add_(alpha))
            value = sigma(v)
            reached = torch.lerp(value, v, alpha)
            gap = u - reached
            left = torch.linalg.vector_norm(gap, dim=-1)
            if bool((left <= enough).all()) or bool((left <= enough + _rounding(u, value, alpha * v)).all()):
                break
        else:
            v, value = _bracketed_preimage(u, alpha, sigma, sigma.derivative)
            reached = torch.lerp(value, v, alpha)
        self.v, self.value, self.reached = v, value, reached
        return torch.lerp(reached, value, 2.0)


def _rounding(*parts: Tensor) -> Tensor:
    """What rounding may leave of a sum of these parts, in each row."""
    sizes = torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts])
    return 4 * torch.finfo(sizes.dtype).eps * sizes.sum(dim=0)


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
    while bool(short.any()) and float(far.max()) < FAR:
        short = (sigma(sign * far) - z) * sign < 0
        near, far = torch.where(short, far, near), torch.where(short, 2 * far, far)
    for _ in range(100):
        middle = (near + far) / 2
        short = (sigma(sign * middle) - z) * sign < 0
        near, far = torch.where(short, middle, near), torch.where(short, far, middle)
    return sign * far


def dilogarithm(x: Tensor) -> Tensor:
    """Li2(x) for 0 <= x <= 1: its power series up to 1/2, Euler's reflection above."""
    small = torch.where(x > 0.5, 1 - x, x)
    series, power = torch.zeros_like(x), torch.ones_like(x)
    for k in range(1, 51):
        power = power * small
        series = series + power / k**2
    reflected = math.pi**2 / 6 - torch.xlogy(torch.log1p(-small), small) - series
    return torch.where(x > 0.5, reflected, series)
