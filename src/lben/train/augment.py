"""Training images that change from epoch to epoch, as seed and epoch decide."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lben.errors import InvalidInput

Augmentation = Literal["flip"]
"""What is done to training images, each epoch anew: "flip", half of them mirrored, left to right."""


class Augmented:
    """The changes of one epoch: which of its `count` samples are mirrored. They are drawn for all samples at once.

    So they do not depend on the batches, nor on how many processes share them.
    """

    def __init__(self, kind: Augmentation | None, count: int, generator: torch.Generator) -> None:
        self.mirrored = None if kind is None else torch.rand(count, generator=generator) < 0.5

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        """The samples x of these numbers, (batch, c, h, w), as they are in this epoch."""
        if self.mirrored is None:
            return x
        if x.dim() != 4:
            raise InvalidInput(
                f"Only images of shape (channels, height, width) have a left and a right to flip, not samples of shape "
                f"{tuple(x.shape[1:])}: give images of that shape, or augment=None."
            )
        return torch.where(self.mirrored[index, None, None, None].to(x.device), x.flip(-1), x)
