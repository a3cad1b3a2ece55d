"""Layers without weights, which move numbers about or sort them: isometries, and contractions of the bound 1."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.errors import InvalidInput
from lben.layers.base import Layer, options_of
from lben.weights import stages
from lben.weights.stages import Shape, Stage


class _Weightless(Layer):
    """A layer of samples with one batch dimension in front."""

    def _check(self, x: Tensor, name: str = "x") -> None:
        checks.floating(name, x)
        if x.dim() < 2:
            raise InvalidInput(f"{name} must have a batch dimension and the shape of a sample, not {tuple(x.shape)}.")
        self.out_shape(tuple(x.shape[1:]))


class SpaceToDepth(_Weightless):
    """Squares of pixels become channels: (batch, c, h, w) to (batch, c side^2, h/side, w/side), an isometry.

    Args:
        side: that of a square; it must divide h and w.

    Raises:
        InvalidInput: if side is not at least 1; and, when it is called, if images do not fit.

    Examples:
        >>> lben.SpaceToDepth(2)(torch.rand(5, 1, 28, 28)).shape
        torch.Size([5, 4, 14, 14])
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = checks.count("side", side)

    def options(self) -> dict[str, Any]:
        return options_of((self.side,))

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) != 3:
            raise InvalidInput(f"SpaceToDepth takes images of shape (channels, height, width), not {tuple(in_shape)}.")
        if prod(in_shape) < 1 or in_shape[1] % self.side or in_shape[2] % self.side:
            high, wide = in_shape[1:]
            raise InvalidInput(f"SpaceToDepth({self.side}) cannot divide {high} x {wide} pixels into its squares.")
        return self._record(in_shape).out_shape

    def _record(self, in_shape: Shape) -> Stage:
        return stages.SpaceToDepth("SpaceToDepth", tuple(in_shape), self.side)

    def stage(self, in_shape: Shape) -> Stage:
        self.out_shape(in_shape)
        return self._record(in_shape)

    def forward(self, x: Tensor) -> Tensor:
        """The channels of all squares.

        Args:
            x: images, of shape (batch, c, h, w).

        Returns:
            Images of shape (batch, c side^2, h/side, w/side).
        """
        self._check(x)
        return F.pixel_unshuffle(x, self.side)


class PadChannels(_Weightless):
    """Channels of zeros behind those there are: (batch, c, ...) to (batch, channels, ...), an isometry.

    A channel is the first dimension of a sample; for features it is a feature.

    Args:
        channels: how many there are behind it.

    Raises:
        InvalidInput: if channels is not at least 1; and, when it is called, if a sample has more.

    Examples:
        >>> lben.PadChannels(3)(torch.ones(1, 2))
        tensor([[1., 1., 0.]])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = checks.count("channels", channels)

    def options(self) -> dict[str, Any]:
        return options_of((self.channels,))

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) < 1:
            raise InvalidInput("PadChannels takes samples that have channels, not single numbers.")
        if in_shape[0] > self.channels:
            raise InvalidInput(f"PadChannels({self.channels}) cannot take the {in_shape[0]} channels of its input.")
        return (self.channels, *in_shape[1:])

    def stage(self, in_shape: Shape) -> Stage:
        self.out_shape(in_shape)
        return stages.PadChannels("PadChannels", tuple(in_shape), self.channels)

    def forward(self, x: Tensor) -> Tensor:
        """x with channels of zeros behind its own.

        Args:
            x: of shape (batch, c, ...).

        Returns:
            A tensor of shape (batch, channels, ...).
        """
        self._check(x)
        return F.pad(x, (0, 0) * (x.dim() - 2) + (0, self.channels - x.shape[1]))


class MaxMin(_Weightless):
    """Channels in pairs, each replaced by its larger and its smaller value: (batch, c, ...) to the same shape.

    It sorts, and so is 1-Lipschitz; but not monotone, and so no activation of an equilibrium: it stands between layers.

    Raises:
        InvalidInput: when it is called, if the number of channels is odd.

    Examples:
        >>> lben.MaxMin()(torch.tensor([[1.0, 2.0, 5.0, 3.0]]))
        tensor([[2., 1., 5., 3.]])
    """

    def __init__(self) -> None:
        super().__init__()

    def options(self) -> dict[str, Any]:
        return options_of(())

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) < 1 or in_shape[0] % 2:
            raise InvalidInput(f"MaxMin takes samples with an even number of channels, not of shape {tuple(in_shape)}.")
        return tuple(in_shape)

    def stage(self, in_shape: Shape) -> Stage:
        self.out_shape(in_shape)
        return stages.MaxMin("MaxMin", tuple(in_shape))

    def forward(self, x: Tensor) -> Tensor:
        """The pairs, sorted.

        Args:
            x: of shape (batch, c, ...), c even.

        Returns:
            A tensor of the same shape.
        """
        self._check(x)
        even, odd = x[:, 0::2], x[:, 1::2]
        return torch.stack([torch.maximum(even, odd), torch.minimum(even, odd)], dim=2).reshape(x.shape)
