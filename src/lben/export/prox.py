"""Proximal operators in plain operations: closed forms for every step, and at the step 1 the activation itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lben.activations.base import Activation
from lben.activations.blocks import Blocks, GroupSoftThreshold, Projection, Softmax
from lben.activations.scalar import (
    ELU,
    Arctan,
    Elementwise,
    HardTanh,
    Identity,
    LeakyReLU,
    PerUnit,
    ReLU,
    Sigmoid,
    Softplus,
    Tanh,
)
from lben.activations.sets import Ball, Box, Simplex
from lben.errors import InvalidInput

_CLOSED = (ReLU, HardTanh, Identity, LeakyReLU, GroupSoftThreshold)
_ALLOWED = 32.0  # units of rounding of torch's functions, and of the sums around them: an allowance, not a proof
_HALVINGS = 4  # of the argument of an arctangent, which then is at most 0.1
_TERMS = 8  # of its series, of which the next is below 1e-18


def constant(number: float) -> Tensor:
    """A number as a tensor of its own, which moves with the module and is written to files in full."""
    return torch.tensor(number, dtype=torch.float64)


class Prox(nn.Module):
    """prox^alpha for rows u.

    rounding: how many units of rounding of |u_i|, |prox(u)_i| and `inner` may be lost in an entry; where units act
    `together`, of the largest entries of the row.
    """

    rounding: float = 0.0
    inner: float = 0.0
    together: bool = False

    def mirror(self, u: Tensor) -> Tensor:
        """2 prox(u) - u."""
        mirrored: Tensor = 2 * self(u) - u
        return mirrored


class _Positive(Prox):
    def forward(self, u: Tensor) -> Tensor:
        return torch.relu(u)

    def mirror(self, u: Tensor) -> Tensor:
        return u.abs()


class _Same(Prox):
    def forward(self, u: Tensor) -> Tensor:
        return u

    def mirror(self, u: Tensor) -> Tensor:
        return u


class _Clipped(Prox):
    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.rounding = 2.0  # of the ends, where these are no numbers of the dtype
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, u: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(u, self.low), self.high)


class _Leaky(Prox):
    slope: Tensor

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.rounding = 8.0
        self.register_buffer("slope", constant(slope))

    def forward(self, u: Tensor) -> Tensor:
        return torch.maximum(u, self.slope * u)


class _Arctan(Prox):
    """By halving, arctan v = 2 arctan(v/(1 + sqrt(1 + v^2))), and a series: runtimes lack it in double precision."""

    series: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.rounding = 2 * _ALLOWED
        self.register_buffer("series", _series())

    def forward(self, v: Tensor) -> Tensor:
        large = v.abs().clamp(min=1.0)
        small = v / large  # v and 1 over the larger of both, whose squares do not overflow
        ratio = small / (1 / large + torch.sqrt(1 / (large * large) + small * small))
        for _ in range(_HALVINGS - 1):
            ratio = ratio / (1 + torch.sqrt(1 + ratio * ratio))
        square, total = ratio * ratio, torch.zeros_like(ratio)
        for k in reversed(range(_TERMS)):
            total = total * square + self.series[k]
        return 2.0**_HALVINGS * ratio * total


class _Smooth(Prox):
    """A function of single units, at the step 1."""

    def __init__(self, function: Callable[[Tensor], Tensor], inner: float = 0.0, rounding: float = _ALLOWED) -> None:
        super().__init__()
        self.function, self.inner, self.rounding = function, inner, rounding

    def forward(self, u: Tensor) -> Tensor:
        return self.function(u)


class _Elastic(Prox):
    a: Tensor

    def __init__(self, a: float) -> None:
        super().__init__()
        self.rounding, self.inner = _ALLOWED, 1.0
        self.register_buffer("a", constant(a))

    def forward(self, u: Tensor) -> Tensor:
        return torch.relu(u) + self.a * (torch.exp(-torch.relu(-u)) - 1)


class _Together(Prox):
    """Blocks of `size` units, as the last of three dimensions."""

    together = True

    def __init__(self, size: int, units: int, rounding: float) -> None:
        super().__init__()
        self.size, self.count, self.rounding = size, units // size, rounding

    def forward(self, u: Tensor) -> Tensor:
        return self.blocks(u.reshape(-1, self.count, self.size)).reshape(-1, self.count * self.size)

    def blocks(self, v: Tensor) -> Tensor:
        raise NotImplementedError


class _Round(_Together):
    """Onto a ball."""

    radius: Tensor

    def __init__(self, size: int, units: int, radius: float) -> None:
        super().__init__(size, units, 8.0 * size + _ALLOWED)
        self.register_buffer("radius", constant(radius))

    def blocks(self, v: Tensor) -> Tensor:
        return v * (self.radius / torch.maximum(_lengths(v), self.radius))


class _Shrunk(_Together):
    """max(1 - threshold/|v|, 0) v."""

    threshold: Tensor

    def __init__(self, size: int, units: int, threshold: float) -> None:
        super().__init__(size, units, 8.0 * size + _ALLOWED)
        self.register_buffer("threshold", constant(threshold))

    def blocks(self, v: Tensor) -> Tensor:
        return v - v * (self.threshold / torch.maximum(_lengths(v), self.threshold))


class _Shared(_Together):
    """Onto {z >= 0, sum z = total}: v less a threshold, which is the largest of (sum of the k largest - total)/k."""

    counts: Tensor
    total: Tensor

    def __init__(self, size: int, units: int, total: float) -> None:
        super().__init__(size, units, 16.0 * size + _ALLOWED)
        self.inner = total
        self.register_buffer("total", constant(total))
        self.register_buffer("counts", torch.arange(1, size + 1, dtype=torch.float64))

    def blocks(self, v: Tensor) -> Tensor:
        v = v - v.amax(dim=-1, keepdim=True)
        ordered = torch.topk(v, self.size, dim=-1).values
        threshold = ((ordered.cumsum(dim=-1) - self.total) / self.counts).amax(dim=-1, keepdim=True)
        return torch.relu(v - threshold)


class _Soft(_Together):
    def __init__(self, size: int, units: int) -> None:
        super().__init__(size, units, 4.0 * size + _ALLOWED)
        self.inner = 1.0

    def blocks(self, v: Tensor) -> Tensor:
        return torch.softmax(v, dim=-1)


class _SideBySide(Prox):
    """Several, each of units of its own: of those that `index` names, or of runs of `widths`."""

    index: Tensor
    back: Tensor

    def __init__(self, parts: list[Prox], index: list[Tensor]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.widths = [len(own) for own in index]
        whole = torch.cat(index)
        self.register_buffer("index", whole)
        self.register_buffer("back", torch.argsort(whole))
        self.rounding = max(part.rounding for part in parts)
        self.inner = max(part.inner for part in parts)
        self.together = any(part.together for part in parts)

    def forward(self, u: Tensor) -> Tensor:
        pieces = u.index_select(1, self.index).split(self.widths, dim=1)
        both = zip(self.parts, pieces, strict=True)
        return torch.cat([part(piece) for part, piece in both], dim=1).index_select(1, self.back)


def _series() -> Tensor:
    return torch.tensor([(-1) ** k / (2 * k + 1) for k in range(_TERMS)], dtype=torch.float64)


def _lengths(v: Tensor) -> Tensor:
    return (v * v).sum(dim=-1, keepdim=True).sqrt()


def _softplus(v: Tensor) -> Tensor:
    return torch.relu(v) + torch.log(1 + torch.exp(-v.abs()))


def free_step(activation: Activation) -> bool:
    """Whether prox^alpha has a closed form for every alpha; else alpha must be 1, where it is sigma."""
    if isinstance(activation, PerUnit):
        return all(free_step(one) for one in activation.activations)
    if isinstance(activation, Blocks):
        return all(free_step(part) for part, _ in activation.parts)
    return isinstance(activation, _CLOSED) or (isinstance(activation, Projection) and activation.own_prox)


def prox_of(activation: Activation, units: int, alpha: float) -> Prox:
    """prox^alpha of an activation of so many units; raises InvalidInput for what has no plain operations."""
    if isinstance(activation, PerUnit):
        kinds = list(dict.fromkeys(activation.activations))
        index = [torch.tensor([i for i, one in enumerate(activation.activations) if one == kind]) for kind in kinds]
        return _SideBySide([prox_of(kind, len(own), alpha) for kind, own in zip(kinds, index, strict=True)], index)
    if isinstance(activation, Blocks):
        index = list(torch.arange(units).split(activation.widths))
        return _SideBySide([prox_of(part, width, alpha) for part, width in activation.parts], index)
    if isinstance(activation, Projection):
        return _projection(activation, units)
    if isinstance(activation, GroupSoftThreshold):
        return _Shrunk(activation.size, units, alpha * activation.threshold)
    if isinstance(activation, Softmax):
        return _Soft(activation.size, units)
    if isinstance(activation, ReLU):
        return _Positive()
    if isinstance(activation, Identity):
        return _Same()
    if isinstance(activation, HardTanh):
        one = torch.ones((), dtype=torch.float64)
        return _Clipped(-one, one)
    if isinstance(activation, LeakyReLU):
        return _Leaky(activation.slope / (alpha + (1 - alpha) * activation.slope))
    return _smooth(activation)


def _smooth(activation: Activation) -> Prox:
    if isinstance(activation, ELU):
        return _Elastic(activation.a)
    if isinstance(activation, Softplus):
        return _Smooth(_softplus, 1.0)
    if isinstance(activation, Arctan):
        return _Arctan()
    if isinstance(activation, Tanh):
        return _Smooth(torch.tanh)
    if isinstance(activation, Sigmoid):
        return _Smooth(torch.sigmoid)
    if isinstance(activation, Elementwise):
        return _Smooth(activation.fn, activation.inner_terms)
    raise InvalidInput(f"{activation!r} cannot be exported: it has no form in plain operations.")


def _projection(activation: Projection, units: int) -> Prox:
    target = activation.set
    if isinstance(target, Box):
        low, high = (torch.tensor(end, dtype=torch.float64) for end in (target.low, target.high))
        return _Clipped(low.repeat(units // len(low)), high.repeat(units // len(high)))
    if isinstance(target, Ball):
        return _Round(target.size, units, target.radius)
    if isinstance(target, Simplex):
        return _Shared(target.size, units, target.total)
    raise InvalidInput(f"A projection onto a {type(target).__name__} cannot be exported: it is found by a solver.")
