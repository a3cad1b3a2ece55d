"""The linear activation behind gradients and Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lben.activations import Activation


class Gain(Activation):
    """The linear activation v -> j*v with 0 <= j <= 1, entry by entry of a batch.

    `binary` says that every j is 0 or 1, which makes its prox the same for every alpha.
    """

    def __init__(self, j: Tensor, binary: bool = False) -> None:
        self.j = j
        self.binary = binary

    def __call__(self, v: Tensor) -> Tensor:
        return self.j * v

    def derivative(self, v: Tensor) -> Tensor:
        return self.j

    def potential(self, z: Tensor) -> Tensor:
        return torch.where(z == 0, 0.0, (1 / self.j - 1) / 2 * z**2)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return u * self._prox_gain(alpha)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        gain = self._prox_gain(alpha)
        return partial(torch.mul, gain + (gain - 1))

    def _prox_gain(self, alpha: float) -> Tensor:
        return self.j if self.binary else self.j / torch.lerp(self.j, torch.ones_like(self.j), alpha)

    def rows(self, index: Tensor) -> Activation:
        return Gain(self.j[index], self.binary)
