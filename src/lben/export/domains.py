"""The inputs that a promise is made for, and what becomes of them from stage to stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.numerics.rounding import norm_bound

UP = 1 + 1e-12  # far above what rounding takes from a few sums and products
Numbers = float | Sequence[float] | Tensor


@dataclass(frozen=True, eq=False)
class Region:
    """All x with |x - center| <= radius; and with |x_i - center_i| <= half_i, where `half` is known.

    Shapes: center (d,), half (d,).
    """

    center: Tensor
    radius: float
    half: Tensor | None = None

    @property
    def sizes(self) -> Tensor:
        """A bound on every |x_i|, shape (d,)."""
        return (self.center.abs() + (self.radius if self.half is None else self.half.clamp(max=self.radius))) * UP

    def wider(self, error: float) -> Region:
        """All that lies within `error` of it."""
        if error == 0:
            return self
        half = None if self.half is None else (self.half + error) * UP
        return Region(self.center, (self.radius + error) * UP, half)


@dataclass(frozen=True)
class InBox:
    """The inputs with low <= x_i <= high for every feature i: what an exported network is promised for.

    Args:
        low: a number for all features, or one for each, in the order of a flattened sample; finite.
        high: the same; at least low.

    Raises:
        InvalidInput: if the box is empty, or an end is not finite.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> plain = lben.export(net, accuracy=1e-3, domain=lben.InBox([-1.0, 0.0], [1.0, 10.0]))
        >>> bool(plain(torch.tensor([[-1.0, 10.0]]))[1] < 1e-2)
        True
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __init__(self, low: Numbers = 0.0, high: Numbers = 1.0) -> None:
        object.__setattr__(self, "low", _numbers("low", low))
        object.__setattr__(self, "high", _numbers("high", high))
        if min(len(self.low), len(self.high)) > 1 and len(self.low) != len(self.high):
            raise InvalidInput(f"low has {len(self.low)} entries, high {len(self.high)}: they must be as many, or one.")
        size = max(len(self.low), len(self.high))
        ends = zip(*(end * size if len(end) == 1 else end for end in (self.low, self.high)), strict=True)
        for low_end, high_end in ends:
            if not low_end <= high_end:
                raise InvalidInput(f"The box is empty: low = {low_end:g} is above high = {high_end:g}.")

    def region(self, features: int) -> Region:
        """These inputs.

        Args:
            features: how many there are.

        Returns:
            A record of centre, radius and half widths.
        """
        low, high = _vector("low", self.low, features), _vector("high", self.high, features)
        center = low / 2 + high / 2
        half = torch.maximum(high - center, center - low) * UP + torch.finfo(torch.float64).tiny
        return Region(center, float(norm_bound(half)), half)

    def __str__(self) -> str:
        if len(self.low) == len(self.high) == 1:
            return f"every input with all entries in [{self.low[0]:g}, {self.high[0]:g}]"
        return f"every input in a box of {max(len(self.low), len(self.high))} intervals"


@dataclass(frozen=True)
class InBall:
    """The inputs within a distance of a centre, in the l2 norm: what an exported network is promised for.

    Args:
        center: a number for all features, or one for each, in the order of a flattened sample.
        radius: a finite number above 0.

    Raises:
        InvalidInput: for anything else.

    Examples:
        >>> plain = lben.export(lben.LBEN(2, 4, 1, gamma=1.0), accuracy=1e-3, domain=lben.InBall(0.0, 1.0))
        >>> plain(torch.tensor([[0.6, 0.8], [3.0, 0.0]]))[1].isinf().tolist()
        [False, True]
    """

    center: tuple[float, ...]
    radius: float

    def __init__(self, center: Numbers, radius: float) -> None:
        object.__setattr__(self, "center", _numbers("center", center))
        object.__setattr__(self, "radius", checks.positive("radius", radius))

    def region(self, features: int) -> Region:
        """These inputs.

        Args:
            features: how many there are.

        Returns:
            A record of centre and radius.
        """
        return Region(_vector("center", self.center, features), self.radius)

    def __str__(self) -> str:
        where = f"{self.center[0]:g} everywhere" if len(self.center) == 1 else f"a point of {len(self.center)} features"
        return f"every input within {self.radius:g} of {where}"


Inputs = InBox | InBall


def check_domain(domain: Inputs | None) -> Inputs:
    """`domain` if it is one; the pixels' for None."""
    if domain is None:
        return InBox(0.0, 1.0)
    if not isinstance(domain, InBox | InBall):
        raise InvalidInput(
            f"domain must be an lben.InBox(low, high) or an lben.InBall(center, radius), not {domain!r}."
        )
    return domain


def _numbers(name: str, value: Numbers) -> tuple[float, ...]:
    try:
        if isinstance(value, Tensor) and (value.is_complex() or value.layout is not torch.strided or value.is_meta):
            raise TypeError
        found = torch.as_tensor(value, dtype=torch.float64).detach().cpu().reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must be a number or one number a feature, not {value!r}.") from error
    if found.numel() == 0 or not bool(found.isfinite().all()):
        raise InvalidInput(f"{name} must hold finite numbers, one or one a feature, not {value!r}.")
    return tuple(found.tolist())


def _vector(name: str, numbers: tuple[float, ...], features: int) -> Tensor:
    if len(numbers) not in (1, features):
        raise InvalidInput(f"{name} has {len(numbers)} entries, but the network takes {features} features.")
    return torch.tensor(numbers, dtype=torch.float64).expand(features).clone()


def finite(bound: float) -> float:
    """A bound, or infinity where it is no number."""
    return math.inf if math.isnan(bound) else bound
