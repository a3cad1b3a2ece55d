"""The stages of a stack that are linear, as plain records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from lben.weights.stages import Entrywise, Shape, Stage, pooled_sizes


@dataclass(frozen=True, eq=False)
class Linear(Stage):
    """A x + b, with A of shape (p, d) and b of shape (p,) or None; samples may have leading dimensions of their own."""

    weight: Tensor
    bias: Tensor | None

    @property
    def out_shape(self) -> Shape:
        return (*self.in_shape[:-1], len(self.weight))

    @property
    def longest(self) -> int:
        return self.weight.shape[1] + 8

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        weight, bias = _signed(absolute, self.weight, self.bias)
        return F.linear(x.reshape(-1, self.weight.shape[1]), weight, bias).reshape(len(x), self.out_features)


@dataclass(frozen=True, eq=False)
class Convolution(Stage):
    """A convolution of images (c, h, w), with zeros around them or circular, as `nn.Conv2d` computes it.

    Shapes: weight (c', c/groups, k, l), bias (c',) or None. padding: zeros, or pixels from the other side, put on each
    side in each direction: (top, bottom, left, right).
    """

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    mode: Literal["zeros", "circular"]

    @property
    def out_shape(self) -> Shape:
        _, high, wide = self.in_shape
        top, bottom, left, right = self.padding
        sizes = []
        for size, kernel, step, spread in zip(
            (high + top + bottom, wide + left + right), self.weight.shape[2:], self.stride, self.dilation, strict=True
        ):
            sizes.append((size - spread * (kernel - 1) - 1) // step + 1)
        return (len(self.weight), *sizes)

    @property
    def longest(self) -> int:
        return self.weight[0].numel() + 8

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        weight, bias = _signed(absolute, self.weight, self.bias)
        top, bottom, left, right = self.padding
        image = x.reshape(len(x), *self.in_shape)
        image = F.pad(image, (left, right, top, bottom), mode="constant" if self.mode == "zeros" else "circular")
        moved = F.conv2d(image, weight, bias, self.stride, 0, self.dilation, self.groups)
        return moved.flatten(1)


@dataclass(frozen=True, eq=False)
class Scaling(Entrywise):
    """scale * x + shift, one value a channel: of shape (c,), or (1,) for all; a channel is the first dimension."""

    scale: Tensor
    shift: Tensor

    @property
    def longest(self) -> int:
        return 4

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        scale, shift = _signed(absolute, self.scale, self.shift)
        assert shift is not None
        spread = x.reshape(len(x), self.in_shape[0], self.in_features // self.in_shape[0])
        return (spread * scale[:, None] + shift[:, None]).flatten(1)


@dataclass(frozen=True, eq=False)
class Standardize(Entrywise):
    """(x - mean)/std, with one value for all features or one for each: a `Normalize`."""

    mean: Tensor
    std: Tensor

    @property
    def longest(self) -> int:
        return 4

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        return (x.abs() + self.mean.abs()) / self.std if absolute else (x - self.mean) / self.std


@dataclass(frozen=True, eq=False)
class AveragePool(Stage):
    """The means of rectangles of `size`, `stride` apart, of images (c, h, w), after zeros were put around them."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def out_shape(self) -> Shape:
        return (self.in_shape[0], *pooled_sizes(self.in_shape[1:], self.size, self.stride, self.padding))

    @property
    def longest(self) -> int:
        return self.size[0] * self.size[1] + 8

    def apply(self, x: Tensor, *, absolute: bool = False) -> Tensor:
        return F.avg_pool2d(x.reshape(len(x), *self.in_shape), self.size, self.stride, self.padding).flatten(1)


def _signed(absolute: bool, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if not absolute:
        return weight, bias
    return weight.abs(), None if bias is None else bias.abs()
