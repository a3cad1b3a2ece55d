"""An activation of hidden images whose outermost pixels are held at zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, Scalar
from lben.activations.scalar import ReLU
from lben.errors import InvalidInput


@dataclass(frozen=True)
class Framed(Activation):
    """sigma(v) inside a hidden image, and 0 on a frame around it, where f is 0 at 0 and infinite elsewhere.

    Every slope still lies in [0, 1], so that all that is proved for sigma is proved for this. With a frame as wide as
    the reach of its kernels, a circular convolution of hidden units is one with zeros around the image. For a
    convolutional network, whose units are ordered by row, column and channel.

    Args:
        height: of the hidden image, its padding included.
        width: of the hidden image, its padding included.
        channels: of the hidden image.
        border: the width of the frame, in pixels, at least 1.
        activation: that of the units inside, one of single units.

    Raises:
        InvalidInput: if the frame leaves nothing of the image, or an argument is of another kind.

    Examples:
        >>> sigma = lben.Framed(height=4, width=4, channels=1)
        >>> sigma(torch.ones(16)).reshape(4, 4)
        tensor([[0., 0., 0., 0.],
                [0., 1., 1., 0.],
                [0., 1., 1., 0.],
                [0., 0., 0., 0.]])
    """

    height: int
    width: int
    channels: int
    border: int = 1
    activation: Scalar = ReLU()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        for name in ("height", "width", "channels", "border"):
            checks.count(name, getattr(self, name))
        checks.affordable("A hidden image", self.height, self.width, self.channels)
        if 2 * self.border >= min(self.height, self.width):
            raise InvalidInput(f"A frame of {self.border} leaves nothing of an image of {self.height} x {self.width}.")
        if not isinstance(self.activation, Scalar):
            raise InvalidInput(
                f"Framed takes an activation of single units, such as lben.ReLU(), not {self.activation!r}."
            )

    @property
    def units(self) -> int:  # type: ignore[override]
        return self.height * self.width * self.channels

    @property
    def own_prox(self) -> bool:  # type: ignore[override]
        return self.activation.own_prox

    @property
    def homogeneous(self) -> bool:  # type: ignore[override]
        return self.activation.homogeneous

    @property
    def inner_terms(self) -> float:  # type: ignore[override]
        return self.activation.inner_terms

    def inside(self, v: Tensor) -> Tensor:
        """Which units are not held at zero.

        Args:
            v: pre-activations, of shape (..., units); its device alone matters.

        Returns:
            Booleans of shape (units,).
        """
        checks.width("The tensor", checks.floating("The tensor", v), self.units)
        mask = torch.zeros(self.height, self.width, self.channels, dtype=torch.bool, device=v.device)
        mask[self.border : -self.border, self.border : -self.border] = True
        return mask.reshape(-1)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.where(self.inside(v), self.activation(v), 0.0)

    def derivative(self, v: Tensor) -> Tensor:
        return torch.where(self.inside(v), self.activation.derivative(v), 0.0)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return torch.where(self.inside(u), self.activation.prox(u, alpha), 0.0)

    def potential(self, z: Tensor) -> Tensor:
        frame = torch.where(z == 0, 0.0, math.inf).to(z.dtype)
        return torch.where(self.inside(z), self.activation.potential(z), frame)
