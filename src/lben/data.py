"""Data sets, held in memory as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from torch import Tensor

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
"""Of the pixels, in [0, 1], of the whole training set."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images as rows of bytes and labels as integers: (count, features) uint8 and (count,) int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def pixels(images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Bytes as numbers in [0, 1]."""
    return images.to(dtype or torch.get_default_dtype()) / 255


def embedded_mnist() -> ImageData:
    """The part of MNIST that ships with the package: 6,000 train and 1,000 test images, stratified by digit.

    MNIST: LeCun, Cortes, Burges; CC BY-SA 3.0.
    """
    with resources.files("lben").joinpath("embedded/mnist.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        return ImageData(
            torch.from_numpy(arrays["train_images"]),
            torch.from_numpy(arrays["train_labels"].astype(np.int64)),
            torch.from_numpy(arrays["test_images"]),
            torch.from_numpy(arrays["test_labels"].astype(np.int64)),
        )
