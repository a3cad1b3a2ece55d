"""The first stage of a network that takes pixels: a shift and a scale that bounds account for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import InvalidInput


class Normalize(nn.Module):
    """The first stage of a network that takes pixels: ``x -> (x - mean)/std``, which bounds account for.

    It multiplies a Lipschitz bound by `gain` = 1/min(std): the bound from pixels is that from its output times this.

    Args:
        mean: one for all features, or one for each, of shape (d,); for images also one a channel, (c,) or (c, 1, 1).
        std: the same; above 0.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if they are no finite numbers, a std is not above 0, or their numbers differ.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, normalize=lben.Normalize(0.5, 0.25))
        >>> net.bound(), net.bound("pixels")
        (1.0, 4.0)
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: float | Sequence[float] | Tensor,
        std: float | Sequence[float] | Tensor,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.placement(device, dtype)
        self.register_buffer("mean", _statistic("mean", mean, dtype))
        self.register_buffer("std", _statistic("std", std, dtype))
        sizes = (self.mean.numel(), self.std.numel())
        if min(sizes) > 1 and sizes[0] != sizes[1]:
            raise InvalidInput(f"mean has {sizes[0]} entries and std {sizes[1]}: they must be as many, or one.")
        self.validate()
        self.to(device=device)

    def validate(self) -> Normalize:
        """This stage, if its numbers are finite and every std is above 0: they may have been set since it was made.

        Returns:
            The stage itself.

        Raises:
            InvalidInput: naming what is wrong.
        """
        _check(self.mean, self.std)
        return self

    @property
    def features(self) -> int:
        """The number of features it is made for; 1 if it fits any."""
        return max(self.mean.numel(), self.std.numel())

    @property
    def scale(self) -> float:
        """The smallest std: a bound at the output of this stage, divided by it, is one for pixels."""
        return float(self.validate().std.min())

    @property
    def gain(self) -> float:
        """The Lipschitz constant of this stage."""
        return 1 / self.scale

    def repeated(self, times: int) -> Normalize:
        """The same for features that come in runs of this length, as the pixels of a channel do.

        Args:
            times: the length of a run.

        Returns:
            A stage of as many times more features.
        """
        checks.count("times", times)
        made = Normalize(0.0, 1.0).to(self.std)
        for name in ("mean", "std"):
            setattr(made, name, getattr(self, name).expand(self.features).repeat_interleave(times))
        return made

    def selected(self, features: list[int]) -> Normalize:
        """The same for some of the features alone.

        Args:
            features: their numbers.

        Returns:
            A stage of these features.
        """
        made = Normalize(0.0, 1.0).to(self.std)
        for name in ("mean", "std"):
            values = getattr(self, name)
            setattr(made, name, values if values.numel() == 1 else values[features])
        return made

    def describe(self) -> list[int]:
        """How many numbers it holds: they are tensors.

        Returns:
            Those of mean and of std.
        """
        return [self.mean.numel(), self.std.numel()]

    def options(self) -> dict[str, Tensor]:
        """What it is made of.

        Returns:
            mean and std by their names.
        """
        return {"mean": self.mean, "std": self.std}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        _check(state_dict.get(f"{prefix}mean", self.mean), state_dict.get(f"{prefix}std", self.std))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _by_channel(self, x: Tensor) -> bool:
        """Whether x holds images (.., channels, height, width), and these are the values of their channels."""
        return self.features > 1 and x.dim() >= 3 and x.shape[-3] == self.features != x.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        """(x - mean)/std.

        Args:
            x: of shape (..., features), or images with one value a channel.

        Returns:
            A tensor of the shape of x.

        Raises:
            InvalidInput: if x does not fit.
        """
        try:
            if self._by_channel(x):
                return (x - self.mean.reshape(-1, 1, 1)) / self.std.reshape(-1, 1, 1)
            return (x - self.mean) / self.std
        except (AttributeError, TypeError, RuntimeError):  # named where it failed alone: this is in every step
            checks.width("x", checks.there("x", checks.floating("x", x)), self.features)
            raise

    def extra_repr(self) -> str:
        if self.features > 1 or self.mean.is_meta:
            return f"features={self.features}"
        return f"mean={float(self.mean):.4g}, std={float(self.std):.4g}"


def _check(mean: Tensor, std: Tensor) -> None:
    for name, tensor in (("mean", mean), ("std", std)):
        checks.finite(name, checks.floating(name, tensor))
    if not bool((std > 0).all()):
        raise InvalidInput(f"std must be above 0 in every entry, but its smallest is {float(std.min()):.6g}.")


def _statistic(name: str, value: float | Sequence[float] | Tensor, dtype: torch.dtype | None) -> Tensor:
    try:
        tensor = torch.as_tensor(value, dtype=dtype or torch.get_default_dtype()).detach().clone().reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must be a number or one number a feature, not {value!r}.") from error
    if tensor.numel() == 0:
        raise InvalidInput(f"{name} must be a number or one number a feature, but it is empty.")
    return tensor
