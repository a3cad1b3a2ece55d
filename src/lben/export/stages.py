"""Stages of a stack that are no equilibria, as modules of rows.

Convolutions and pools are written as slices and products: those every runtime has in double precision, too.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben.errors import InvalidInput
from lben.export.parts import Affine
from lben.export.prox import prox_of
from lben.weights.linear import AveragePool, Convolution, Linear, Scaling, Standardize
from lben.weights.stages import Flatten, MaxMin, MaxPool, PadChannels, Pointwise, SpaceToDepth, Stage

Pair = tuple[int, int]


class Convolved(nn.Module):
    """A convolution of images (batch, c, *size) that bring their padding with them.

    All sizes are numbers of Python, so that no runtime has to compute them.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, weight: Tensor, bias: Tensor | None, size: Pair, stride: Pair = (1, 1), dilation: Pair = (1, 1)
    ) -> None:
        super().__init__()
        self.taps, self.stride, self.dilation = (weight.shape[2], weight.shape[3]), stride, dilation
        high, wide = (
            (whole - spread * (taps - 1) - 1) // step + 1
            for whole, taps, step, spread in zip(size, self.taps, stride, dilation, strict=True)
        )
        self.out = (len(weight), high, wide)
        self.register_buffer("weight", weight.permute(0, 2, 3, 1).flatten(1))
        self.register_buffer("bias", None if bias is None else bias[:, None])

    def forward(self, images: Tensor) -> Tensor:
        pieces = []
        for i in range(self.taps[0]):
            rows = window(images, 2, i * self.dilation[0], self.out[1], self.stride[0])
            for j in range(self.taps[1]):
                pieces.append(window(rows, 3, j * self.dilation[1], self.out[2], self.stride[1]))
        patches = torch.cat(pieces, dim=1).reshape(-1, self.weight.shape[1], self.out[1] * self.out[2])
        y = torch.matmul(self.weight, patches)
        y = y if self.bias is None else y + self.bias
        return y.reshape(-1, *self.out)


def window(images: Tensor, dim: int, start: int, count: int, step: int = 1) -> Tensor:
    """So many rows or columns, `step` apart."""
    piece = images.narrow(dim, start, step * (count - 1) + 1)
    if step == 1:
        return piece
    return piece[:, :, ::step] if dim == 2 else piece[:, :, :, ::step]


def wrapped(images: Tensor, size: Pair, top: int, bottom: int, left: int, right: int) -> Tensor:
    """Images of a size continued periodically by so many pixels, at most one period."""
    for dim, whole, before, after in ((2, size[0], top, bottom), (3, size[1], left, right)):
        ends = [images.narrow(dim, whole - before, before)] if before else []
        others = [images.narrow(dim, 0, after)] if after else []
        images = torch.cat([*ends, images, *others], dim=dim) if ends or others else images
    return images


class _Image(nn.Module):
    """Rows as images of `shape`, and back."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.shape, self.features = stage.in_shape, stage.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x.reshape(-1, *self.shape)).reshape(-1, self.features)

    def change(self, images: Tensor) -> Tensor:
        raise NotImplementedError


class _Convolution(_Image):
    def __init__(self, stage: Convolution) -> None:
        super().__init__(stage)
        weight = stage.weight
        if stage.groups > 1:
            own = weight.reshape(stage.groups, -1, *weight.shape[1:])
            wide = own.new_zeros(stage.groups, own.shape[1], stage.groups, *own.shape[2:])
            for group in range(stage.groups):
                wide[group, :, group] = own[group]
            weight = wide.reshape(len(weight), -1, *weight.shape[2:])
        self.padding, self.circular = stage.padding, stage.mode == "circular"
        top, bottom, left, right = stage.padding
        self.size = (stage.in_shape[1], stage.in_shape[2])
        size = (self.size[0] + top + bottom, self.size[1] + left + right)
        self.kernel = Convolved(weight, stage.bias, size, stage.stride, stage.dilation)

    def change(self, images: Tensor) -> Tensor:
        if self.circular:
            padded = wrapped(images, self.size, *self.padding)
        else:
            top, bottom, left, right = self.padding
            padded = F.pad(images, (left, right, top, bottom))
        moved: Tensor = self.kernel(padded)
        return moved


class _AveragePool(_Image):
    def __init__(self, stage: AveragePool) -> None:
        super().__init__(stage)
        high, wide = stage.padding
        self.size, self.padding = (stage.in_shape[1] + 2 * high, stage.in_shape[2] + 2 * wide), (wide, wide, high, high)
        share = torch.full((1, 1, *stage.size), 1 / prod(stage.size), dtype=torch.float64)
        self.kernel = Convolved(share, None, self.size, stage.stride)

    def change(self, images: Tensor) -> Tensor:
        means: Tensor = self.kernel(F.pad(images, self.padding).reshape(-1, 1, *self.size))
        return means


class _MaxPool(_Image):
    def __init__(self, stage: MaxPool) -> None:
        super().__init__(stage)
        self.size, self.out = stage.size, stage.out_shape[1:]

    def change(self, images: Tensor) -> Tensor:
        (high, wide), (rows, columns) = self.size, self.out
        images = window(window(images, 2, 0, rows * high), 3, 0, columns * wide)
        return images.reshape(-1, self.shape[0], rows, high, columns, wide).amax(dim=(3, 5))


class _MaxMin(nn.Module):
    def __init__(self, stage: MaxMin) -> None:
        super().__init__()
        self.pairs = (stage.in_shape[0] // 2, 2, stage.in_features // stage.in_shape[0])
        self.features = stage.in_features

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.reshape(-1, *self.pairs)
        return torch.cat([pairs.amax(dim=2, keepdim=True), pairs.amin(dim=2, keepdim=True)], dim=2).reshape(
            -1, self.features
        )


class _SpaceToDepth(_Image):
    def __init__(self, stage: SpaceToDepth) -> None:
        super().__init__(stage)
        self.side, self.out = stage.side, stage.out_shape[1:]

    def change(self, images: Tensor) -> Tensor:
        squares = images.reshape(-1, self.shape[0], self.out[0], self.side, self.out[1], self.side)
        return squares.permute(0, 1, 3, 5, 2, 4)


class _Padded(nn.Module):
    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, self.more))


class _Scaled(nn.Module):
    """scale x + shift, or (x - shift)/scale where it is `divided`; one value a feature."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor, divided: bool) -> None:
        super().__init__()
        self.divided = divided
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale if self.divided else x * self.scale + self.shift


class _Pointwise(nn.Module):
    numbers: Tensor

    def __init__(self, stage: Pointwise) -> None:
        super().__init__()
        self.sigma = prox_of(stage.sigma, stage.in_features, 1.0)
        numbers = [stage.inner, stage.shift, stage.outer, stage.through, stage.offset]
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.float64))
        self.plain = stage.plain

    def forward(self, x: Tensor) -> Tensor:
        inner, shift, outer, through, offset = self.numbers.unbind()
        y: Tensor = self.sigma(x if self.plain else inner * x + shift)
        return y if self.plain else outer * y + through * x + offset


class _Rows(nn.Module):
    """A linear map of the last dimension of samples."""

    def __init__(self, stage: Linear) -> None:
        super().__init__()
        bias = stage.weight.new_zeros(len(stage.weight)) if stage.bias is None else stage.bias
        self.map, self.shape, self.features = Affine(stage.weight, bias), stage.in_shape, stage.out_features

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.map(x.reshape(-1, *self.shape))
        return y.reshape(-1, self.features)


def function_of(stage: Stage) -> nn.Module:
    """A stage that is no equilibrium, as a module of rows."""
    if isinstance(stage, Linear):
        return _Rows(stage)
    if isinstance(stage, Scaling):
        times = stage.in_features // stage.in_shape[0]
        scale, shift = (part.expand(stage.in_shape[0]).repeat_interleave(times) for part in (stage.scale, stage.shift))
        return _Scaled(scale, shift, divided=False)
    if isinstance(stage, Standardize):
        return _Scaled(stage.std, stage.mean, divided=True)
    if isinstance(stage, PadChannels):
        return _Padded(stage.out_features - stage.in_features)
    if isinstance(stage, Flatten):
        return nn.Identity()
    kinds: dict[type[Stage], type[nn.Module]] = {
        Convolution: _Convolution,
        AveragePool: _AveragePool,
        MaxPool: _MaxPool,
        MaxMin: _MaxMin,
        SpaceToDepth: _SpaceToDepth,
        Pointwise: _Pointwise,
    }
    if type(stage) not in kinds:
        raise InvalidInput(f"Stage {stage.name} cannot be exported: it has no form in plain operations.")
    return kinds[type(stage)](stage)
