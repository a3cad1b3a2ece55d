"""The state of torch in which everything here computes, whatever the caller has set; and how bounds are printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from lben.errors import InvalidInput
from lben.numerics.norms import row_norm

_SUBNORMAL = 2.0**-1040
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def full_precision() -> Iterator[None]:
    """Mixed precision off."""
    with ExitStack() as settings:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                settings.enter_context(torch.autocast(device, enabled=False))
        yield


def undisturbed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function with gradients on, and with mixed precision and the flushing of small numbers to zero off."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with ExitStack() as settings:
            settings.enter_context(torch.inference_mode(False))
            settings.enter_context(torch.enable_grad())
            if float(torch.tensor(_SUBNORMAL, dtype=torch.float64) * 1) == 0:
                torch.set_flush_denormal(False)
                settings.callback(torch.set_flush_denormal, True)
            settings.enter_context(full_precision())
            try:
                return function(*args, **kwargs)
            except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
                raise InvalidInput(f"LAPACK found no decomposition for these weights ({error}): scale them.") from error

    return run


def norm_bound(rows: Tensor) -> Tensor:
    """An upper bound on |x| of each row, though its entries, or what they were made of, may have underflowed."""
    limits = torch.finfo(rows.dtype)
    return row_norm(rows) * (1 + (rows.shape[-1] + 16) * limits.eps) + rows.shape[-1] * limits.tiny


def at_most(bound: float, digits: int = 6) -> str:
    """An upper bound as text, rounded up: what is printed is a bound, too."""
    return _rounded(bound, digits, ROUND_CEILING)


def at_least(bound: float, digits: int = 6) -> str:
    """A lower bound as text, rounded down."""
    return _rounded(bound, digits, ROUND_FLOOR)


def _rounded(bound: float, digits: int, direction: str) -> str:
    nearest = f"{bound:.{digits}g}"
    if float(nearest) == bound or math.isnan(bound):  # 0.1 is not 1/10, and is printed as 0.1 all the same
        return nearest
    return f"{float(Context(prec=digits, rounding=direction).create_decimal(bound)):.{digits}g}"
