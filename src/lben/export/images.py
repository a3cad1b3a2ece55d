"""Circular convolutions of exported networks: by slices, or, where kernels are large, by transforms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben.export.contraction import metric_norm
from lben.export.domains import UP
from lben.export.fourier import Transformed, transform_count
from lben.export.stages import Convolved, window, wrapped
from lben.operators.grid import Grid
from lben.weights.image import ImageWeights

MOST_TAPS = 49  # of a kernel that is applied by slices


def kernel_norm(kernel: Tensor, root: Tensor) -> float:
    """A proved bound on |R U| for a circular convolution U, R with one entry a channel: by the sums of its taps."""
    return metric_norm(kernel.abs().sum(dim=(2, 3)), root, torch.ones(kernel.shape[1], dtype=torch.float64)) * UP


def kernel_terms(kernel: Tensor, left: Tensor, right: Tensor, size: tuple[int, int]) -> tuple[float, int]:
    """What the rounding of `Circular` is relative to, in metrics of one entry a channel, and how often it counts."""
    sums = kernel.abs().sum(dim=(2, 3))
    if kernel[0, 0].numel() <= MOST_TAPS:
        return metric_norm(sums, left, right) * UP, kernel[0].numel()
    most = math.sqrt(2) * float(torch.linalg.matrix_norm(left[:, None] * sums / right)) * UP
    return most, transform_count(size, 2 * kernel.shape[1]) + 2 * kernel[0, 0].numel() + 128


class Circular(nn.Module):
    """A circular convolution of images (batch, c, *size)."""

    bias: Tensor | None

    def __init__(self, kernel: Tensor, bias: Tensor | None, size: tuple[int, int]) -> None:
        super().__init__()
        high, wide = kernel.shape[2] - 1, kernel.shape[3] - 1
        above, left = kernel.shape[2] // 2, kernel.shape[3] // 2
        self.size, self.ends = size, (above, high - above, left, wide - left)
        self.out = (*size, len(kernel))
        self.kernel, self.spectrum = None, None
        self.register_buffer("bias", None if bias is None else bias[:, None, None])
        if kernel[0, 0].numel() <= MOST_TAPS:
            self.kernel = Convolved(kernel, None, (size[0] + high, size[1] + wide))
        else:
            grid = Grid(*size, kernel)
            self.spectrum = Transformed(grid, grid.blocks(kernel), None, None)
            self.features = size[0] * size[1] * kernel.shape[1]

    def forward(self, images: Tensor) -> Tensor:
        if self.spectrum is not None:
            rows = self.spectrum.apply_to(images.permute(0, 2, 3, 1).reshape(-1, self.features))
            y = rows.reshape(-1, *self.out).permute(0, 3, 1, 2)
        else:
            assert self.kernel is not None
            y = self.kernel(wrapped(images, self.size, *self.ends))
        return y if self.bias is None else y + self.bias


class Injected(nn.Module):
    """U x + bz: zeros around the image, then a circular convolution; hidden units by row, column and channel."""

    def __init__(self, U: Tensor, bz: Tensor, shape: tuple[int, int, int], padding: int, inner: bool = False) -> None:
        super().__init__()
        self.size = (shape[1] + 2 * padding, shape[2] + 2 * padding)
        self.kernel = Circular(U, bz, self.size)
        self.shape, self.padding, self.taken = shape, padding, padding if inner else 0
        kept = [size - 2 * self.taken for size in self.size]
        self.units = len(U) * kept[0] * kept[1]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.kernel(F.pad(x.reshape(-1, *self.shape), (self.padding,) * 4))
        return cropped(hidden, self.size, self.taken).permute(0, 2, 3, 1).reshape(-1, self.units)


class ReadOut(nn.Module):
    """Wo z + D x + by, from hidden units and rows of images to rows of images."""

    def __init__(self, w: ImageWeights) -> None:
        super().__init__()
        self.kernel = Circular(w.Wo, w.by, w.shape)
        self.past = None if w.D is None else Circular(w.D, None, w.shape)
        self.shape, self.hidden, self.size = w.in_shape, (*w.hidden_shape, w.channels), w.shape
        self.padding, self.inner, self.features = w.padding, w.inner, w.out_features

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        hidden = z.reshape(-1, *self.hidden).permute(0, 3, 1, 2)
        y: Tensor = self.kernel(F.pad(hidden, (self.padding,) * 4) if self.inner else hidden)
        if self.past is not None:
            y = y + self.past(F.pad(x.reshape(-1, *self.shape), (self.padding,) * 4))
        return cropped(y, self.size, self.padding).reshape(-1, self.features)


def cropped(images: Tensor, size: tuple[int, int], padding: int) -> Tensor:
    """Images of a size without their padding."""
    if padding == 0:
        return images
    return window(window(images, 2, padding, size[0] - 2 * padding), 3, padding, size[1] - 2 * padding)
