"""Proved upper bounds on the norms of linear stages."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from lben.certify.frequencies import TINY, UNIT
from lben.certify.verified import norm_above
from lben.operators.grid import real_form
from lben.weights.linear import AveragePool, Convolution, Linear, Scaling

_MOST_ENTRIES = 2**22  # of a convolution that is looked at as the matrix it is
_MOST_AT_ONCE = 2**24  # entries of all frequency blocks together


def convolution_norm(stage: Convolution) -> tuple[float, str]:
    """The norm of a convolution as it is padded: of its matrix where that is small, else of a circular one above it.

    The outputs of a convolution are among those of the circular one of the padded image. With a stride, squares of
    pixels are channels of a smaller image, and outputs all that image's.
    """
    if stage.in_features * stage.out_features <= _MOST_ENTRIES:
        matrix = replace(stage, bias=None).apply(torch.eye(stage.in_features, dtype=torch.float64))
        if stage.mode == "zeros":  # every entry is one of the kernel's
            return norm_above(matrix[None], 0.0), "its norm"
        off = 4 * prod(stage.weight.shape[2:]) * (UNIT * matrix.abs() + TINY)
        return norm_above(matrix[None], float(torch.linalg.matrix_norm(off))), "its norm"
    kernel, grid = _polyphase(stage)
    return _circular_norm(kernel, grid), "the norm of a circular convolution above it"


def linear_norm(stage: Linear | Convolution) -> tuple[float, str]:
    """That of a matrix or a convolution."""
    if isinstance(stage, Convolution):
        return convolution_norm(stage)
    return norm_above(stage.weight[None], 0.0), "its norm"


def scaled_norm(stage: Linear | Convolution, scaling: Scaling) -> float:
    """That of a map whose outputs are scaled by channel: of one map, the entries of which are rounded products.

    Entry by entry they are off by a share of themselves, which is sqrt(rank) of the norm at most, or by an underflow.
    """
    scale = scaling.scale.reshape(-1, *[1] * (stage.weight.dim() - 1))
    bound, _ = linear_norm(replace(stage, weight=stage.weight * scale, bias=None))
    sizes = (stage.in_features, stage.out_features)
    return bound * (1 + 4 * UNIT * math.sqrt(min(sizes))) + 2 * TINY * math.sqrt(prod(sizes))


def pool_norm(stage: AveragePool) -> tuple[float, str]:
    """That of a convolution of one channel by a constant."""
    share = torch.full((1, 1, *stage.size), 1 / prod(stage.size), dtype=torch.float64)
    high, wide = stage.padding
    one = Convolution(
        stage.name, (1, *stage.in_shape[1:]), share, None, stage.stride, (high, high, wide, wide), (1, 1), 1, "zeros"
    )
    bound, method = convolution_norm(one)
    return bound * (1 + 4 * UNIT), method


def _polyphase(stage: Convolution) -> tuple[Tensor, tuple[int, int]]:
    """The kernel on an image whose channels are the squares that the stride divides it into, and that image's size.

    Shape (groups, c'/groups, c/groups stride^2, k, l).
    """
    weight, (down, right) = stage.weight, stage.stride
    taps = [spread * (size - 1) + 1 for spread, size in zip(stage.dilation, weight.shape[2:], strict=True)]
    wide = weight.new_zeros(*weight.shape[:2], *taps)
    wide[:, :, :: stage.dilation[0], :: stage.dilation[1]] = weight
    wide = F.pad(wide, (0, -taps[1] % right, 0, -taps[0] % down))
    k, l = wide.shape[2] // down, wide.shape[3] // right  # noqa: E741
    phases = wide.reshape(*weight.shape[:2], k, down, l, right).permute(0, 1, 3, 5, 2, 4)
    kernel = phases.reshape(len(weight), -1, k, l)
    high, broad = stage.in_shape[1:]
    if stage.mode == "circular":  # the strides divide it, and taps beyond it are on their way around again
        grid = (high // down, broad // right)
    else:
        top, bottom, left, beside = stage.padding
        grid = (max(-(-(high + top + bottom) // down), k), max(-(-(broad + left + beside) // right), l))
    return kernel.reshape(stage.groups, -1, *kernel.shape[1:]), grid


def _circular_norm(kernel: Tensor, grid: tuple[int, int]) -> float:
    """The largest norm of all frequencies, by sums over the taps, whose rounding is bounded."""
    groups, rows, columns, k, l = kernel.shape  # noqa: E741
    taps = k * l
    lost = 4 * (taps + 16) * (UNIT * kernel.abs().sum(dim=(3, 4)) + TINY)
    off = 2 * float(torch.linalg.matrix_norm(lost).max())
    flat = kernel.reshape(groups * rows * columns, taps)
    high, wide = grid
    step = max(1, _MOST_AT_ONCE // (4 * groups * rows * columns))
    places = [(a, b) for a in range(high // 2 + 1) for b in range(wide)]
    most = 0.0
    tap_rows, tap_columns = torch.arange(k).repeat_interleave(l), torch.arange(l).repeat(k)
    for start in range(0, len(places), step):
        a, b = torch.tensor(places[start : start + step]).T
        turns = (a[:, None] * tap_rows % high).double() / high + (b[:, None] * tap_columns % wide).double() / wide
        angle = 2 * math.pi * turns
        parts = [(wave @ flat.T).reshape(-1, rows, columns) for wave in (angle.cos(), angle.sin())]
        most = max(most, norm_above(real_form(parts[0], parts[1]), off))
    return most
