"""Pairs of inputs that show how steep a layer is, and layers that were trained for a while."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

import lben
from lben.weights.record import Record

M = TypeVar("M", bound=nn.Module)


def trained(layer: M, shape: tuple[int, ...], steps: int = 25, rate: float = 0.03) -> M:
    """A layer after so many steps of Adam towards a target that is steeper than the layer may be."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=rate)
    like = next(layer.parameters())
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, *shape, generator=generator, dtype=like.dtype)
    with torch.no_grad():
        target = -4 * layer(x) - 3 * x.flatten(1).sum(1).reshape(-1, *[1] * len(shape))
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()
    return layer


def steepest(layer: nn.Module, shape: tuple[int, ...], pairs: int = 8, steps: int = 60) -> float:
    """The largest |f(a) - f(b)|/|a - b| over pairs that climb it by gradient ascent, in double precision."""
    layer = copy.deepcopy(layer).double()
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(pairs, *shape, generator=generator, dtype=torch.float64)
    b = a + torch.logspace(-6, 1, pairs, dtype=torch.float64).reshape(-1, *[1] * len(shape)) * torch.randn(
        pairs, *shape, generator=generator, dtype=torch.float64
    )
    middle, half = ((a + b) / 2).requires_grad_(), ((a - b) / 2).requires_grad_()
    optimizer = torch.optim.Adam([middle, half], lr=0.03)
    best = 0.0
    for _ in range(steps):
        slopes = _norms(layer(middle + half) - layer(middle - half)) / _norms(2 * half)
        best = max(best, float(slopes.detach().max()))
        optimizer.zero_grad()
        (-slopes.sum()).backward()
        optimizer.step()
    return best


def solved(weights: Record, x: Tensor, activation: lben.Activation) -> Tensor:
    """What weights with W = 0 make of rows x."""
    return weights.readout(activation(weights.inject(x)), x)


def _norms(x: Tensor) -> Tensor:
    return x.flatten(1).square().sum(dim=1).clamp(min=1e-60).sqrt()
