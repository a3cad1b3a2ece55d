"""The stages of a stack that are no equilibria, as plain records: maps of rows, each with its shapes.

Rows hold the features of one sample, those of an image by channel, row and column. Every stage is a function of real
numbers that `apply` computes; with `absolute` every number of it, and of x, stands in absolute value and every minus
sign is a plus, which bounds the terms that rounding is relative to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.errors import InvalidInput
from lben.weights.record import Record, Sized

S = TypeVar("S", bound="Stage")
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stage(ABC):
    """One map from samples of `in_shape` to samples of `out_shape`, as rows. `name` is what people call it."""

    name: str
    in_shape: Shape

    @property
    @abstractmethod
    def out_shape(self) -> Shape: ...

    @abstractmethod
    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        """The outputs for rows x, differentiable in x."""

    @property
    def longest(self) -> int:
        """How many roundings any term of an output goes through, at most."""
        return 0

    @property
    def in_features(self) -> int:
        return prod(self.in_shape)

    @property
    def out_features(self) -> int:
        return prod(self.out_shape)

    def precise(self: S) -> S:
        """A copy in double precision on the CPU, without history, if every entry is finite."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                if value.is_complex():
                    raise InvalidInput(f"{field.name} of {self.name} is complex, and stages are of real numbers.")
                finite = checks.finite(f"{field.name} of {self.name}", value.detach())
                changed[field.name] = finite.to("cpu", torch.float64, copy=True)
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Entrywise(Stage):
    """One that keeps the shape of its input."""

    @property
    def out_shape(self) -> Shape:
        return self.in_shape


@dataclass(frozen=True, eq=False)
class Equilibrium(Stage):
    """An equilibrium network, with the activation that its weights do not carry; it is solved, not applied."""

    weights: Record
    activation: Activation
    given_shape: Shape | None = None

    @property
    def out_shape(self) -> Shape:
        return (self.weights.out_features,) if self.given_shape is None else self.given_shape

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        raise InvalidInput(f"{self.name} is an equilibrium, which a solver finds.")

    def precise(self) -> Equilibrium:
        return replace(self, weights=self.weights.precise())


@dataclass(frozen=True, eq=False)
class MaxPool(Stage):
    """The largest values of squares of `size` that do not overlap, of images (c, h, w)."""

    size: tuple[int, int]

    @property
    def out_shape(self) -> Shape:
        return (self.in_shape[0], *pooled_sizes(self.in_shape[1:], self.size, self.size, (0, 0)))

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        return F.max_pool2d(x.reshape(len(x), *self.in_shape), self.size).flatten(1)


@dataclass(frozen=True, eq=False)
class MaxMin(Entrywise):
    """Channels in pairs, each replaced by its larger and its smaller value; a channel is the first dimension."""

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        pairs = x.reshape(len(x), self.in_shape[0] // 2, 2, prod(self.in_shape[1:]))
        both = torch.stack([pairs.amax(dim=2), pairs.amin(dim=2)], dim=2)
        return (both.abs() if absolute else both).flatten(1)


@dataclass(frozen=True, eq=False)
class Pointwise(Entrywise):
    """outer * sigma(inner * x + shift) + through * x + offset, entry by entry."""

    sigma: Activation
    inner: float = 1.0
    shift: float = 0.0
    outer: float = 1.0
    through: float = 0.0
    offset: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether it is sigma alone."""
        return (self.inner, self.shift, self.outer, self.through, self.offset) == (1.0, 0.0, 1.0, 0.0, 0.0)

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        if not absolute:
            return self.outer * self.sigma(self.inner * x + self.shift) + self.through * x + self.offset
        inside = abs(self.inner) * x.abs() + abs(self.shift) + self.sigma.inner_terms
        middle = inside + self.sigma(torch.zeros_like(x)).abs()  # slopes are at most 1
        return abs(self.outer) * middle + abs(self.through) * x.abs() + abs(self.offset)

    @property
    def longest(self) -> int:
        return int(self.sigma.rounding) + 8


@dataclass(frozen=True, eq=False)
class Flatten(Stage):
    """The same numbers as one dimension; or, where a shape is given, in that."""

    given_shape: Shape | None = None

    @property
    def out_shape(self) -> Shape:
        return (self.in_features,) if self.given_shape is None else self.given_shape

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class SpaceToDepth(Stage):
    """Squares of `side` pixels become channels: (c, h, w) to (c side^2, h/side, w/side)."""

    side: int

    @property
    def out_shape(self) -> Shape:
        c, h, w = self.in_shape
        return (c * self.side**2, h // self.side, w // self.side)

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        return F.pixel_unshuffle(x.reshape(len(x), *self.in_shape), self.side).flatten(1)


@dataclass(frozen=True, eq=False)
class PadChannels(Stage):
    """Channels of zeros behind those there are, up to `channels`."""

    channels: int

    @property
    def out_shape(self) -> Shape:
        return (self.channels, *self.in_shape[1:])

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        return F.pad(x, (0, self.out_features - self.in_features))


@dataclass(frozen=True, eq=False)
class Sum(Stage):
    """The sum of several branches of stages that all take the same input; a branch without stages is the input."""

    branches: tuple[tuple[Stage, ...], ...]

    @property
    def out_shape(self) -> Shape:
        longest = max(self.branches, key=len)
        return longest[-1].out_shape if longest else self.in_shape

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        raise InvalidInput(f"{self.name} is made of stages, which are applied one by one.")

    def precise(self) -> Sum:
        return replace(self, branches=tuple(tuple(stage.precise() for stage in branch) for branch in self.branches))


@dataclass(frozen=True, eq=False)
class Stack(Sized):
    """Stages, one after another. `gamma` is None: what bounds a stack is the product of what bounds its stages."""

    stages: tuple[Stage, ...]
    gamma: float | None = None

    @property
    def in_shape(self) -> Shape:
        return self.stages[0].in_shape

    @property
    def in_features(self) -> int:
        return self.stages[0].in_features

    @property
    def hidden_features(self) -> int:
        return sum(stage.weights.hidden_features for stage in self.stages if isinstance(stage, Equilibrium))

    @property
    def out_features(self) -> int:
        return self.stages[-1].out_features

    def precise(self) -> Stack:
        return replace(self, stages=tuple(stage.precise() for stage in self.stages))


def pooled_sizes(sizes: Shape, kernel: Shape, stride: Shape, padding: Shape) -> Shape:
    """Height and width of what a pool leaves."""
    return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(sizes, kernel, stride, padding, strict=True))
