"""Training images that change from epoch to epoch, as seed and epoch decide."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lben.errors import InvalidInput

Augmentation = Literal["flip", "shift", "flip and shift"]
"""What is done to training images, each epoch anew.

"flip": half of them are mirrored, left to right; "shift": each is moved by up to two pixels down or up and left or
right, its edge repeated where nothing was; "flip and shift": both."""

SHIFT = 2
"""Pixels. More is usual where training is long; in some ten epochs little is learned of images that are far off."""


class Augmented:
    """The changes of one epoch: which of its `count` samples are mirrored, and how far each is moved.

    They are drawn for all samples at once, so that they do not depend on the batches, nor on how many processes share
    them.
    """

    def __init__(self, kind: Augmentation | None, count: int, generator: torch.Generator) -> None:
        self.mirrored = self.moves = None
        if kind in ("flip", "flip and shift"):
            self.mirrored = torch.rand(count, generator=generator) < 0.5
        if kind in ("shift", "flip and shift"):
            self.moves = torch.randint(-SHIFT, SHIFT + 1, (count, 2), generator=generator)

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        """The samples x of these numbers, (batch, c, h, w), as they are in this epoch."""
        if self.mirrored is None and self.moves is None:
            return x
        if x.dim() != 4:
            raise InvalidInput(
                "Only images of shape (channels, height, width) can be flipped or shifted, not samples of shape "
                f"{tuple(x.shape[1:])}: give images of that shape, or augment=None."
            )
        if self.mirrored is not None:
            x = torch.where(self.mirrored[index, None, None, None].to(x.device), x.flip(-1), x)
        return x if self.moves is None else _moved(x, self.moves[index].to(x.device))


def _moved(x: Tensor, moves: Tensor) -> Tensor:
    """Each image of x, (batch, c, h, w), moved by its row of `moves`, (batch, 2), down and to the right."""
    high, wide = (
        (torch.arange(size, device=x.device) - move[:, None]).clamp(0, size - 1)
        for size, move in zip(x.shape[2:], moves.T, strict=True)
    )
    batch = torch.arange(len(x), device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[batch, high[:, :, None], wide[:, None, :]].permute(0, 3, 1, 2).contiguous()
