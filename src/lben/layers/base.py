"""What all layers share: shapes that are checked before anything is computed, and what a layer is, written down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, Scalar, check_activation, refuse_blocks
from lben.described import Described
from lben.errors import InvalidInput
from lben.numerics.transforms import as_it_is
from lben.weights.image import ImageWeights
from lben.weights.stages import Equilibrium, Shape, Stage


class Layer(Described, ABC):
    """A module that can stand in a stack."""

    @abstractmethod
    def out_shape(self, in_shape: Shape) -> Shape:
        """The shape of one sample behind this layer.

        Args:
            in_shape: that of one sample in front of it.

        Returns:
            A tuple of sizes.

        Raises:
            InvalidInput: where such samples do not fit.
        """

    @abstractmethod
    def stage(self, in_shape: Shape) -> Stage:
        """This layer as a plain record, which certificates read.

        Args:
            in_shape: the shape of one sample in front of it.

        Returns:
            A record of its weights, or of what it does.
        """

    def extra_repr(self) -> str:
        options = self.options()
        sizes = [str(size) for size in options.pop("sizes")]
        return ", ".join([*sizes, *(f"{name}={value!r}" for name, value in options.items())])


class Explicit(Layer):
    """An equilibrium layer with W = 0, of the bound 1: it needs no solver.

    y = Wo sigma(U x + bz) + D x + by, for which Condition `lipschitz` holds by construction.
    """

    gamma = 1.0
    normalize: None = None
    bias: Tensor
    _activation: Activation

    @property
    def activation(self) -> Activation:
        return self._activation

    def _accept(self, activation: Activation, units: int, *, images: bool) -> None:
        check_activation(activation, units)
        refuse_blocks(activation.groups(units))
        if images and not isinstance(activation, Scalar):
            raise InvalidInput(f"A layer of images takes one activation for all its units, not {activation!r}.")
        object.__setattr__(self, "_activation", activation)

    @abstractmethod
    def _compute(self, x: Tensor) -> Tensor:
        """y for an x that fits."""

    @abstractmethod
    def _check(self, x: Tensor) -> None:
        """Raise InvalidInput if x does not fit."""

    def forward(self, x: Tensor) -> Tensor:
        """y; mixed precision is turned off inside.

        Args:
            x: samples, with the batch first.

        Returns:
            A tensor of as many samples.

        Raises:
            InvalidInput: if x does not fit, or is not finite.
        """
        if isinstance(x, Tensor) and torch.is_autocast_enabled("cpu" if x.is_meta else x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.to(self.bias.dtype))
        self._check(x)
        return self._compute(x)

    @as_it_is
    def _refuse_unfinite(self, x: Tensor, *results: Tensor) -> None:
        """Name what is not finite of x and the parameters, if these results show that something is not."""
        for result in results:
            checks.finite_sum(result, x=x, **dict(self.named_parameters()))


class ExplicitImages(Explicit):
    """An explicit layer from images to images: what it is hangs on their height and width."""

    def weights(self, shape: tuple[int, int] | None = None) -> ImageWeights:
        """The equilibrium network that this layer is for images of one size.

        Args:
            shape: their height and width; it must be given.

        Returns:
            An `ImageWeights`, differentiable.

        Raises:
            InvalidInput: without a shape.
        """
        return self._weights(image_size(self, shape))

    @abstractmethod
    def _weights(self, shape: tuple[int, int]) -> ImageWeights: ...

    def stage(self, in_shape: Shape) -> Stage:
        _, high, wide = self.out_shape(in_shape)
        return image_stage(type(self).__name__, self.weights((high, wide)), self.activation)

    def _check(self, x: Tensor) -> None:
        check_images(x, self.bias)
        self.out_shape(tuple(x.shape[1:]))


def image_size(layer: Layer, shape: tuple[int, int] | None) -> tuple[int, int]:
    """Height and width, if they are given."""
    if shape is None:
        name = type(layer).__name__
        raise InvalidInput(
            f"The weights of {'an' if name[0] in 'AEIO' else 'a'} {name} depend on the image: give weights((height, "
            "width)), or put the layer in lben.Sequential(layer, in_shape=(channels, height, width))."
        )
    return shape


def dense_shape(what: str, in_shape: Shape, features: int, out_features: int) -> Shape:
    """The shape behind a layer of features, if `in_shape` is what it takes."""
    if tuple(in_shape) != (features,):
        raise InvalidInput(f"{what} takes samples of shape ({features},), not {tuple(in_shape)}.")
    return (out_features,)


def image_shape(what: str, in_shape: Shape, channels: int, out_channels: int, least: int = 1) -> Shape:
    """The shape behind a layer of images, if `in_shape` is what it takes: (channels, h, w) with h and w >= least."""
    if len(in_shape) != 3 or in_shape[0] != channels:
        raise InvalidInput(f"{what} takes images of shape ({channels}, height, width), not {tuple(in_shape)}.")
    if min(in_shape[1:]) < least:
        raise InvalidInput(f"{what} takes images of at least {least} x {least} pixels, not {_times(in_shape[1:])}.")
    return (out_channels, *in_shape[1:])


def image_stage(name: str, weights: ImageWeights, activation: Activation) -> Equilibrium:
    """The record of a layer of images."""
    return Equilibrium(name, weights.in_shape, weights, activation, weights.out_shape)


def check_images(x: Tensor, like: Tensor) -> None:
    """Pass a batch of images of the dtype and device of `like`."""
    checks.there("x", checks.floating("x", x))
    if x.dim() != 4:
        raise InvalidInput(f"x must have shape (batch, channels, height, width), not {tuple(x.shape)}.")
    if x.dtype != like.dtype:
        raise InvalidInput(f"x is {str(x.dtype)[6:]} but the layer is {str(like.dtype)[6:]}: convert one of them.")
    if x.device != like.device:
        raise InvalidInput(f"x is on {x.device} but the layer is on {like.device}: move one of them.")


def kernel_size_of(kernel_size: int) -> int:
    """`kernel_size`, if a kernel of it has a middle."""
    if checks.count("kernel_size", kernel_size) % 2 == 0:
        raise InvalidInput(f"kernel_size must be odd, so that the kernel has a middle, not {kernel_size}.")
    return kernel_size


def options_of(sizes: tuple[int, ...], **named: Any) -> dict[str, Any]:
    """Options as `Described` wants them: the sizes first, then the others by name."""
    return {"sizes": sizes, **named}


def _times(sizes: Shape) -> str:
    return " x ".join(map(str, sizes))
