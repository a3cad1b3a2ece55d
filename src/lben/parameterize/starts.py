"""The sizes that free variables start from, and the bounds that can be trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import InvalidInput

SMALLEST_GAMMA = {torch.float32: 1e-3, torch.float64: 1e-6}
"""With which dense networks train, by runs of 20 steps; for wide ones, such as convolutions, it is larger."""
_BALANCED_GAMMA = 0.05  # from which on U and Wo may start at their usual size


def uniform(*shape: int, fan_in: int | None = None, dtype: torch.dtype | None = None) -> nn.Parameter:
    """Uniform on +-1/sqrt(fan_in), as torch.nn.Linear and Conv2d start."""
    bound = 1 / math.sqrt(math.prod(shape[1:]) if fan_in is None else fan_in)
    return nn.Parameter(torch.empty(*shape, dtype=dtype).uniform_(-bound, bound))


def trainable(gamma: float, dtype: torch.dtype, smallest: dict[torch.dtype, float]) -> None:
    """Pass a gamma that can be trained with: a step s of U or Wo moves W by s^2/gamma, whatever the start."""
    least = smallest.get(dtype, 0.0)
    if checks.positive("gamma", gamma) < least:
        raise InvalidInput(
            f"gamma = {gamma:g} is too small to train with in {str(dtype)[6:]}: give at least {least:g}, such as 1, "
            "and multiply the outputs, which multiplies the bound, too. In evaluation any gamma serves."
        )


def balance(gamma: float, U: Tensor, Wo: Tensor) -> None:
    """Start from smaller U and Wo where gamma is small, so that (Wo'Wo + U U')/gamma in W is not large."""
    if gamma < _BALANCED_GAMMA:
        for weight in (U, Wo):
            copy_into(weight, math.sqrt(gamma / _BALANCED_GAMMA) * weight)


def copy_into(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)
