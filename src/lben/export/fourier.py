"""Peaceman-Rachford for large images: C in the Fourier domain, by real matrices, with what is proved of it.

W is a circular convolution plus P Q, of low rank. With E the transform of `operators/grid.py`, a real matrix with
E'E = I, C is E' B E + P~ Q~ for blocks B, one a frequency (`operators/factors.py`). The inequality of `contraction.py`
is D + F M F' > 0, with D a block a frequency and F of low rank, which `certify/verified.py` proves. Norms are in the
metric, which has one entry a channel and so passes through E.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lben.certify.frequencies import TINY, UNIT, Condition
from lben.certify.verified import exceeds, norm_above
from lben.export.contraction import SHARES, Step, rate, stored
from lben.export.domains import UP
from lben.operators.factors import Factor
from lben.operators.grid import Grid, complex_form, real_form

_HALVINGS = 14


class Spectrum:
    """I - W at every frequency in the metric, A = K + L R', and how far that may be from the network's own.

    Shapes: kernel (C, C, k, l), P (n, p) and Q (p, n) or None, entries of the metric (C,). wrong: a bound on the norm,
    in the metric, of what rounding has changed in W when its kernel, P and Q were made.
    """

    def __init__(
        self,
        kernel: Tensor,
        P: Tensor | None,
        Q: Tensor | None,
        shape: tuple[int, int],
        entries: Tensor,
        wrong: float,
    ) -> None:
        self.kernel, self.P, self.Q, self.wrong = kernel, P, Q, wrong
        self.grid, self.root = Grid(*shape, kernel), entries.sqrt()
        self.wide = self.root.repeat(shape[0] * shape[1])
        symbol = -torch.complex(*self.grid.symbol(kernel))
        symbol.diagonal(dim1=1, dim2=2).add_(1)
        self.A = self.root[:, None] * symbol / self.root
        eye = torch.eye(len(kernel), dtype=torch.float64)
        self.terms = (self.root[:, None] * kernel.abs().sum(dim=(2, 3)) / self.root + eye) * UP
        self.off = (2 * kernel[0, 0].numel() + 128) * (UNIT * self.terms + TINY)
        empty = self.A.new_zeros(*self.A.shape[:2], 0)
        self.L = empty if P is None else complex_form(self.grid.forward(-self.wide[:, None] * P))
        self.R = empty if Q is None else complex_form(self.grid.forward(Q.T / self.wide[:, None]))

    def slack(self, alpha: float) -> float:
        """About the s of every frequency alone, at this step: a guide to the best one."""
        eye = torch.eye(len(self.root), dtype=self.A.dtype)
        factor, info = torch.linalg.cholesky_ex(eye + alpha**2 * self.A.mH @ self.A)
        if bool((info != 0).any()):
            return 0.0
        half = torch.linalg.solve_triangular(factor, alpha * (self.A + self.A.mH), upper=False)
        both = torch.linalg.solve_triangular(factor, half.mH, upper=False)
        return float(torch.linalg.eigvalsh((both + both.mH) / 2)[:, 0].min())

    def contraction(self, alpha: float) -> float:
        """A proved bound on |C|; 1 where none below is proved."""
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._condition(alpha, middle)[0].margin() > 0 else (low, middle)
        for share in SHARES if low > 0 else ():
            if exceeds(*self._condition(alpha, share * low)):
                return rate(share * low)
        return 1.0

    def _condition(self, alpha: float, s: float) -> tuple[Condition, float]:
        """alpha (A + A') - s (I + alpha^2 A'A), and what it must exceed for all that rounding may have changed."""
        A, L, R, eye = self.A, self.L, self.R, torch.eye(len(self.root), dtype=torch.float64)
        D = alpha * (A + A.mH) - s * (eye + alpha**2 * A.mH @ A)
        T = self.terms
        terms = alpha * (T + T.T) + s * (eye + alpha**2 * T.T @ T)
        count = 2 * self.kernel[0, 0].numel() + 2 * len(eye) + 256
        lost = 2 * count * (UNIT * terms + TINY * (1 + float(terms.max())))
        p = L.shape[-1]
        one, none, share = torch.eye(p, dtype=torch.float64), torch.zeros(p, p, dtype=torch.float64), s * alpha**2
        inner = (L.mH @ L).sum(dim=0).real if p else none
        F = torch.cat([L, R, A.mH @ L], dim=-1) if p else L
        M = torch.cat(
            [
                torch.cat([none, alpha * one, none], 1),
                torch.cat([alpha * one, -share * (inner + inner.T) / 2, -share * one], 1),
                torch.cat([none, -share * one, none], 1),
            ]
        )
        left, right = (float(torch.linalg.vector_norm(part)) * UP for part in (L, R))
        norm = float(torch.linalg.matrix_norm(T)) + left * right
        products = share * left * right * (float(torch.linalg.matrix_norm(T)) + left * right)
        rounding = 64 * (len(self.wide) + count) * UNIT * products
        changed = 2 * alpha * self.wrong * (1 + s * alpha * (norm + self.wrong))
        middle = 4 * float(torch.linalg.matrix_norm(M)) * UP if p else 0.0
        return Condition(D, F, M, terms, middle, lost, self.grid), (rounding + changed) * UP + TINY


class Transformed(nn.Module):
    """offset + (E' B E + left right) w for rows."""

    high: Tensor
    wide: Tensor
    blocks: Tensor
    left: Tensor | None
    right: Tensor | None

    def __init__(self, grid: Grid, blocks: Tensor, left: Tensor | None, right: Tensor | None) -> None:
        super().__init__()
        self.sizes = (grid.height, grid.half, 2 * grid.width, grid.frequencies, blocks.shape[2])
        self.units = grid.height * grid.width * blocks.shape[1] // 2
        self.register_buffer("high", grid.along_height)
        self.register_buffer("wide", grid.along_width)
        self.register_buffer("blocks", blocks)
        self.register_buffer("left", left)
        self.register_buffer("right", right)

    def forward(self, offset: Tensor, w: Tensor) -> Tensor:
        return self.apply_to(w) + offset

    def apply_to(self, w: Tensor) -> Tensor:
        """Without an offset."""
        height, half, width, frequencies, channels = self.sizes
        columns = w.T
        x = torch.matmul(self.high, columns.reshape(height, -1))
        x = torch.matmul(self.wide, x.reshape(half, width, -1))
        x = torch.matmul(self.blocks, x.reshape(frequencies, channels, -1))
        x = torch.matmul(self.wide.T, x.reshape(half, width, -1))
        x = torch.matmul(self.high.T, x.reshape(2 * half, -1)).reshape(self.units, -1)
        if self.left is not None and self.right is not None:
            x = x + torch.matmul(self.left, torch.matmul(self.right, columns))
        return x.T


class FourierStep(Step):
    """C by transforms."""

    def __init__(self, spectrum: Spectrum, alpha: float, rho: float, dtype: torch.dtype) -> None:
        super().__init__()
        kernel, grid = spectrum.kernel, spectrum.grid
        steps = torch.full((len(kernel),), alpha, dtype=torch.float64)
        factor = Factor.build(kernel, spectrum.P, spectrum.Q, grid, steps)
        blocks, left, right = (
            None if part is None else stored(part, dtype) for part in (factor.blocks, factor.left, factor.right)
        )
        assert blocks is not None
        self.map = Transformed(grid, blocks, left, right)
        limits = torch.finfo(dtype)
        self.rho, self.spare = rho, 8 * limits.eps
        self.lost = _lost(spectrum, alpha, blocks, left, right, limits.eps)
        size = (
            1 + float(blocks.abs().max()) + sum(float(part.abs().max()) for part in (left, right) if part is not None)
        )
        count = 4 * (grid.height + grid.width + len(kernel)) + len(spectrum.wide)
        self.faint = count * limits.tiny * size**2 * float(spectrum.wide.norm()) * 8 * math.sqrt(len(kernel)) * UP

    def forward(self, offset: Tensor, w: Tensor) -> Tensor:
        found: Tensor = self.map(offset, w)
        return found


def _lost(spectrum: Spectrum, alpha: float, B: Tensor, left: Tensor | None, right: Tensor | None, eps: float) -> float:
    """A bound on |computed C w - C w|/|w|: the defect of the stored C, and the rounding of every product.

    With M = I + alpha (I - W) but for P Q, the defect C (M - alpha P Q) - (2 I - M + alpha P Q) is
    (B M + M - 2 I) + P~ (Q~ M - Q) + (P~ - alpha (B P + P + P~ Q~ P)) Q.
    """
    grid, scale = spectrum.grid, spectrum.root.repeat(2)
    plain = torch.complex(*grid.symbol(spectrum.kernel))
    M = -alpha * plain
    M.diagonal(dim1=1, dim2=2).add_(1 + alpha)
    whole = real_form(M.real, M.imag)
    twice = 2 * torch.eye(B.shape[-1], dtype=torch.float64)
    ratio = scale[:, None] / scale
    size = float(torch.linalg.matrix_norm(ratio * B.abs()).max()) * UP
    reach = (1 + 2 * alpha * float(torch.linalg.matrix_norm(spectrum.terms))) * UP
    rounded = 8 * (2 * len(scale) + 16) * UNIT * (size + 1) * reach
    off = alpha * 2 * float(torch.linalg.matrix_norm(spectrum.off)) * (size + 1)
    defect = norm_above(ratio * (B @ whole + whole - twice), rounded + off)
    loss = _transform_loss(grid, B.shape[-1], size, eps)
    if left is None or right is None or spectrum.P is None or spectrum.Q is None:
        return (defect + alpha * spectrum.wrong * 2 + loss) * UP
    wide = spectrum.wide
    double = 4 * _transform_loss(grid, B.shape[-1], size + reach, UNIT)  # of what is computed here, by the same means
    norms = [
        float(torch.linalg.vector_norm(part)) * UP for part in _in_metric(wide, left, right, spectrum.P, spectrum.Q)
    ]
    to_Q = grid.convolve(whole.mT, right.T).T - spectrum.Q
    to_P = left - alpha * (grid.convolve(B, spectrum.P) + spectrum.P + left @ (right @ spectrum.P))
    rest = [float(torch.linalg.vector_norm(part)) * UP for part in _in_metric(wide, to_P, to_Q)]
    sums = 8 * (len(wide) + 16) * UNIT
    rest[1] += double * norms[1] + sums * (norms[1] * reach + norms[3])
    rest[0] += alpha * norms[2] * (double + sums * (1 + size + norms[0] * norms[1])) + sums * norms[0]
    defect += norms[0] * rest[1] + rest[0] * norms[3]
    return (defect + alpha * spectrum.wrong * 2 + loss + 2 * (len(wide) + 16) * eps * norms[0] * norms[1]) * UP


def _in_metric(wide: Tensor, *parts: Tensor) -> list[Tensor]:
    """Alternately matrices of shape (n, p), and of shape (p, n), as they are in the metric."""
    return [part / wide if place % 2 else wide[:, None] * part for place, part in enumerate(parts)]


def _transform_loss(grid: Grid, channels: int, size: float, eps: float) -> float:
    """What E' B E w may be off by, relative to |w|, for blocks whose Frobenius norm in the metric is at most `size`.

    The matrices of the transform are isometries, so that with absolute entries their norms are at most the roots of
    how many columns they have.
    """
    return size * transform_count((grid.height, grid.width), channels) * eps


def transform_count(size: tuple[int, int], channels: int) -> int:
    """How often rounding counts in E' B E w, for images of a size and blocks with so many columns."""
    high, wide = size[0], 2 * size[1]
    turns = (high + 32) * math.sqrt(high) + (wide + 32) * math.sqrt(wide)
    return math.ceil(1.1 * (2 * turns + channels + 16))
