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
from lben.weights.stages import Flatten, MaxMin, MaxPool, PadChannels, Pointwise, Shape, SpaceToDepth, Stage


class Convolved(nn.Module):
    """A convolution of images (batch, c, h, w) that bring their padding with them, stride and dilation included."""

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
    ) -> None:
        super().__init__()
        self.taps, self.stride, self.dilation = tuple(weight.shape[2:]), stride, dilation
        self.register_buffer("weight", weight.permute(0, 2, 3, 1).flatten(1))
        self.register_buffer("bias", None if bias is None else bias[:, None])

    def forward(self, images: Tensor) -> Tensor:
        sizes = [
            (size - spread * (taps - 1) - 1) // step + 1
            for size, taps, step, spread in zip(images.shape[2:], self.taps, self.stride, self.dilation, strict=True)
        ]
        pieces = []
        for i in range(self.taps[0]):
            for j in range(self.taps[1]):
                rows = slice(i * self.dilation[0], i * self.dilation[0] + self.stride[0] * (sizes[0] - 1) + 1)
                columns = slice(j * self.dilation[1], j * self.dilation[1] + self.stride[1] * (sizes[1] - 1) + 1)
                pieces.append(images[:, :, rows, columns][:, :, :: self.stride[0], :: self.stride[1]])
        patches = torch.cat(pieces, dim=1).flatten(2)
        y = torch.matmul(self.weight, patches)
        y = y if self.bias is None else y + self.bias
        return y.unflatten(2, tuple(sizes))


def wrapped(images: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """Images continued periodically by so many pixels, at most one period."""
    high, wide = images.shape[2:]
    if top or bottom:
        images = torch.cat([images[:, :, high - top :], images, images[:, :, :bottom]], dim=2)
    if left or right:
        images = torch.cat([images[:, :, :, wide - left :], images, images[:, :, :, :right]], dim=3)
    return images


class _Image(nn.Module):
    """Rows as images of `shape`, and back."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x.unflatten(1, self.shape)).flatten(1)

    def change(self, images: Tensor) -> Tensor:
        raise NotImplementedError


class _Convolution(_Image):
    def __init__(self, stage: Convolution) -> None:
        super().__init__(stage.in_shape)
        weight = stage.weight
        if stage.groups > 1:
            own = weight.reshape(stage.groups, -1, *weight.shape[1:])
            wide = own.new_zeros(stage.groups, own.shape[1], stage.groups, *own.shape[2:])
            for group in range(stage.groups):
                wide[group, :, group] = own[group]
            weight = wide.reshape(len(weight), -1, *weight.shape[2:])
        self.padding, self.circular = stage.padding, stage.mode == "circular"
        self.kernel = Convolved(weight, stage.bias, stage.stride, stage.dilation)

    def change(self, images: Tensor) -> Tensor:
        top, bottom, left, right = self.padding
        padded = wrapped(images, *self.padding) if self.circular else F.pad(images, (left, right, top, bottom))
        return self.kernel(padded)


class _AveragePool(_Image):
    def __init__(self, stage: AveragePool) -> None:
        super().__init__(stage.in_shape)
        self.padding = stage.padding
        self.kernel = Convolved(torch.full((1, 1, *stage.size), 1 / prod(stage.size), dtype=torch.float64), None, stage.stride)

    def change(self, images: Tensor) -> Tensor:
        high, wide = self.padding
        padded = F.pad(images, (wide, wide, high, high))
        return self.kernel(padded.flatten(0, 1).unsqueeze(1)).squeeze(1).unflatten(0, (-1, self.shape[0]))


class _MaxPool(_Image):
    def __init__(self, stage: MaxPool) -> None:
        super().__init__(stage.in_shape)
        self.size, self.out = stage.size, stage.out_shape[1:]

    def change(self, images: Tensor) -> Tensor:
        (high, wide), (rows, columns) = self.size, self.out
        images = images[:, :, : rows * high, : columns * wide]
        return images.unflatten(3, (columns, wide)).amax(dim=4).unflatten(2, (rows, high)).amax(dim=3)


class _MaxMin(nn.Module):
    def __init__(self, stage: MaxMin) -> None:
        super().__init__()
        self.pairs = (stage.in_shape[0] // 2, 2, stage.in_features // stage.in_shape[0])

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.unflatten(1, self.pairs)
        return torch.stack([pairs.amax(dim=2), pairs.amin(dim=2)], dim=2).flatten(1)


class _SpaceToDepth(_Image):
    def __init__(self, stage: SpaceToDepth) -> None:
        super().__init__(stage.in_shape)
        self.side, self.out = stage.side, stage.out_shape[1:]

    def change(self, images: Tensor) -> Tensor:
        squares = images.unflatten(3, (self.out[1], self.side)).unflatten(2, (self.out[0], self.side))
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
        if self.plain:
            return self.sigma(x)
        inner, shift, outer, through, offset = self.numbers.unbind()
        return outer * self.sigma(inner * x + shift) + through * x + offset


class _Rows(nn.Module):
    """A linear map of the last dimension of samples."""

    def __init__(self, stage: Linear) -> None:
        super().__init__()
        bias = stage.weight.new_zeros(len(stage.weight)) if stage.bias is None else stage.bias
        self.map, self.shape = Affine(stage.weight, bias), stage.in_shape

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x) if len(self.shape) == 1 else self.map(x.unflatten(1, self.shape)).flatten(1)


def function_of(stage: Stage) -> nn.Module:
    """A stage that is no equilibrium, as a module of rows."""
    if isinstance(stage, Linear):
        return _Rows(stage)
    if isinstance(stage, Scaling):
        times = stage.in_features // stage.in_shape[0]
        spread = [part.expand(stage.in_shape[0]).repeat_interleave(times) for part in (stage.scale, stage.shift)]
        return _Scaled(*spread, divided=False)
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
