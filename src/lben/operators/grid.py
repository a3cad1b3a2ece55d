"""The real Fourier transform of images, by matrix products, and circular convolutions as blocks, one a frequency.

A hidden layer of height H, width W and C channels is a row of n = H W C numbers, ordered by row, column and channel.
A batch of them is kept in memory as (H, W, C, batch): then the transform along H and the one along W are products with
small matrices from the left, and so is what a convolution does at one frequency. Nothing is ever transposed, which
would cost more than a fast transform saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from lben import checks


class Scratch:
    """Pairs of buffers that are not in use: whoever takes one gives it back, so that threads never share one."""

    def __init__(self) -> None:
        self.spare: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def of(self, size: int, like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Two buffers of so many numbers."""
        try:
            pair = self.spare.pop()
        except IndexError:
            pair = like.new_empty(0), like.new_empty(0)
        if pair[0].numel() != size:
            pair = like.new_empty(size), like.new_empty(size)
        yield pair
        self.spare.append(pair)


class Grid:
    """The frequencies of images of one size: all along W, and those up to the middle along H.

    E, the transform, is a real matrix with E'E = I: each frequency has a real and an imaginary part, and those that
    stand for their conjugates too are scaled by sqrt(2). With B the blocks of a convolution, it is E' B E.
    """

    def __init__(self, height: int, width: int, like: Tensor) -> None:
        self.height, self.width = height, width
        self.half = height // 2 + 1
        self.dtype, self.device = like.dtype, like.device
        within = torch._C._are_functorch_transforms_active()  # these tensors serve at every level of nested transforms
        with torch._C._DisableFuncTorch() if within else nullcontext():
            self.rows = _angles(torch.arange(self.half), torch.arange(height), height)
            self.columns = _angles(torch.arange(width), torch.arange(width), width)
            self.along_height = self._along_height().to(self.device, self.dtype)
            self.along_width = self._along_width().to(self.device, self.dtype)

    @property
    def frequencies(self) -> int:
        return self.half * self.width

    @property
    def multiplicity(self) -> Tensor:
        """How often each frequency counts: twice where it stands for its conjugate too, shape (frequencies,)."""
        count = torch.full((self.half, self.width), 2, dtype=torch.int64)
        count[self._alone()] = 1
        return count.reshape(-1)

    def _alone(self) -> list[int]:
        """The frequencies along H whose conjugates are among themselves."""
        return [0, self.half - 1] if self.height % 2 == 0 else [0]

    def independent(self) -> tuple[Tensor, Tensor, Tensor]:
        """Frequencies of which none is the conjugate of another, how often each counts, and which are their own.

        Where a frequency counts twice, the transform of a real image has sqrt(2) times its entries in E there; where
        it is its own conjugate, that entry is real.
        """
        h, w = torch.meshgrid(torch.arange(self.half), torch.arange(self.width), indexing="ij")
        alone = torch.isin(h, torch.tensor(self._alone()))
        own = alone & ((2 * w) % self.width == 0)
        kept = ~alone | (2 * w <= self.width)
        twice = alone & ~own
        return kept.reshape(-1).nonzero()[:, 0], 1 + twice[kept].to(torch.int64), own[kept]

    def _along_height(self) -> Tensor:
        """From H real numbers to `half` pairs of a real and an imaginary part, shape (2 half, H)."""
        scale = torch.full((self.half, 1, 1), math.sqrt(2 / self.height), dtype=torch.float64)
        scale[self._alone()] = math.sqrt(1 / self.height)
        parts = torch.stack([self.rows.cos(), -self.rows.sin()], dim=1)
        return (scale * parts).reshape(2 * self.half, self.height)

    def _along_width(self) -> Tensor:
        """From W real and W imaginary parts to W pairs of both, shape (2 W, 2 W)."""
        cos, sin = self.columns.cos(), self.columns.sin()
        real, imaginary = torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)
        both = torch.cat([real.reshape(-1, self.width), imaginary.reshape(-1, self.width)], dim=1)
        return both / math.sqrt(self.width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """E x: from columns of shape (n, batch) to (frequencies, 2 C, batch), by way of `memory` if that is given."""
        n, batch = x.shape
        channels = n // (self.height * self.width)
        tall = self.width * channels * batch
        first = None if memory is None or torch.is_grad_enabled() else memory.view(2 * self.half, tall)
        first = torch.mm(self.along_height, x.reshape(self.height, tall), out=first)
        second = self.along_width @ first.reshape(self.half, 2 * self.width, channels * batch)
        return second.reshape(self.frequencies, 2 * channels, batch)

    def backward(self, y: Tensor) -> Tensor:
        """E'y: from (frequencies, 2 C, batch) to columns of shape (n, batch)."""
        channels, batch = y.shape[1] // 2, y.shape[2]
        first = self.along_width.T @ y.reshape(self.half, 2 * self.width, channels * batch)
        second = self.along_height.T @ first.reshape(2 * self.half, self.width * channels * batch)
        return second.reshape(self.height * self.width * channels, batch)

    def convolve(self, blocks: Tensor, x: Tensor) -> Tensor:
        """E' B E x for columns x."""
        return self.backward(blocks @ self.forward(x))

    def convolve_into(
        self, out: Tensor, offset: Tensor, blocks: Tensor, x: Tensor, scratch: tuple[Tensor, Tensor]
    ) -> None:
        """offset + E' B E x, all in memory that is there already: finding new pages costs a quarter of the time."""
        h, w, (one, two) = self.half, self.width, scratch
        wide = self.along_width.expand(h, 2 * w, 2 * w)
        size, batch = blocks.shape[1], x.shape[1]
        row = size // 2 * batch  # the numbers of one pixel, in all images
        tall, image = (2 * h, w * row), (self.height, w * row)
        lines, spectrum = (h, 2 * w, row), (self.frequencies, size, batch)
        torch.mm(self.along_height, x.view(image), out=one.view(tall))
        torch.bmm(wide, one.view(lines), out=two.view(lines))
        torch.bmm(blocks, two.view(spectrum), out=one.view(spectrum))
        torch.bmm(wide.mT, one.view(lines), out=two.view(lines))
        torch.addmm(offset.view(image), self.along_height.T, two.view(tall), out=out.view(image))

    def scratch_size(self, x: Tensor) -> int:
        return x.numel() // (self.height * self.width) * 2 * self.frequencies

    def phases(self, high: int, wide: int) -> tuple[Tensor, Tensor]:
        """The real and imaginary parts of what a shift by each tap of a kernel does, shape (frequencies, high wide)."""
        row = _angles(torch.arange(self.half), torch.arange(high) - high // 2, self.height)
        column = _angles(torch.arange(self.width), torch.arange(wide) - wide // 2, self.width)
        angle = row[:, None, :, None] + column[None, :, None, :]
        angle = angle.reshape(self.frequencies, high * wide)
        return angle.cos().to(self.device, self.dtype), angle.sin().to(self.device, self.dtype)

    def symbol(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """The real and imaginary parts, shape (frequencies, out, in), of a circular convolution as conv2d has it.

        kernel: shape (out, in, high, wide), with the tap that does not shift at [high // 2, wide // 2].
        """
        cos, sin = self.phases(*kernel.shape[2:])
        flat = kernel.flatten(2).flatten(0, 1).T
        shape = (self.frequencies, *kernel.shape[:2])
        return (cos @ flat).reshape(shape), (sin @ flat).reshape(shape)

    def kernel(self, symbol: Tensor) -> Tensor:
        """The kernel, as large as the image, of a convolution that is known at every frequency: undoes `symbol`."""
        cos, sin = self.phases(self.height, self.width)
        shape = (*symbol.shape[1:], self.height, self.width)
        count = self.multiplicity.to(cos)[:, None] / (self.height * self.width)
        flat = (cos * count).T @ symbol.real.flatten(1) + (sin * count).T @ symbol.imag.flatten(1)
        return flat.T.reshape(shape)

    def blocks(self, kernel: Tensor) -> Tensor:
        """The convolution at each frequency as a real matrix [[Re, -Im], [Im, Re]], (frequencies, 2 out, 2 in)."""
        return real_form(*self.symbol(kernel))

    def kernel_gradient(self, blocks: Tensor, high: int, wide: int) -> Tensor:
        """From the gradient of `blocks` to that of the kernel: the adjoint of `blocks`."""
        cos, sin = self.phases(high, wide)
        out, into = blocks.shape[1] // 2, blocks.shape[2] // 2
        real = blocks[:, :out, :into] + blocks[:, out:, into:]
        imaginary = blocks[:, out:, :into] - blocks[:, :out, into:]
        flat = cos.T @ real.flatten(1) + sin.T @ imaginary.flatten(1)
        return flat.T.reshape(out, into, high, wide)


def real_form(real: Tensor, imaginary: Tensor) -> Tensor:
    """[[Re, -Im], [Im, Re]] of batches of complex matrices."""
    if checks.transformed() or (torch.is_grad_enabled() and (real.requires_grad or imaginary.requires_grad)):
        top, bottom = torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)
        return torch.cat([top, bottom], dim=1)
    (count, high, wide), form = real.shape, real.new_empty(len(real), 2, real.shape[1], 2, real.shape[2])
    form[:, 0, :, 0], form[:, 0, :, 1] = real, -imaginary
    form[:, 1, :, 0], form[:, 1, :, 1] = imaginary, real
    return form.view(count, 2 * high, 2 * wide)


def complex_form(columns: Tensor) -> Tensor:
    """The complex vectors, shape (frequencies, C, batch), whose parts E x has one above the other."""
    size = columns.shape[1] // 2
    return torch.complex(columns[:, :size].contiguous(), columns[:, size:].contiguous())


def gram(kernel: Tensor) -> Tensor:
    """The kernel of U U' for a circular convolution U: shape (a, m, k, k) to (a, a, 2k-1, 2k-1)."""
    return torch.nn.functional.conv2d(kernel, kernel, padding=kernel.shape[-1] - 1)


def transposed(kernel: Tensor) -> Tensor:
    """The kernel of the transposed convolution."""
    return kernel.transpose(0, 1).flip(2, 3)


def correlate(left: Tensor, right: Tensor) -> Tensor:
    """The kernel of L'R for circular convolutions L and R: shapes (m, a, k, k), (m, b, k, k) to (a, b, 2k-1, 2k-1).

    L'R at shift s is the sum over taps t of L[t]' R[t + s].
    """
    k = left.shape[-1]
    return torch.nn.functional.conv2d(right.transpose(0, 1), left.transpose(0, 1), padding=k - 1).transpose(0, 1)


def _angles(frequencies: Tensor, places: Tensor, size: int) -> Tensor:
    """2 pi f h / size for all pairs; the product is taken modulo size, so that it stays accurate."""
    product = torch.outer(frequencies, places) % size
    return product.to(torch.float64) * (2 * math.pi / size)
