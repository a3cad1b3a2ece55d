"""What all records of weights share, whatever kind of network they are of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.operators.base import Operator

R = TypeVar("R", bound="Record")


class Sized(ABC):
    """What has inputs, hidden units and outputs."""

    @property
    @abstractmethod
    def in_features(self) -> int: ...

    @property
    @abstractmethod
    def hidden_features(self) -> int: ...

    @property
    @abstractmethod
    def out_features(self) -> int: ...


class Record(Sized):
    """z = sigma(W z + U x + bz), y = Wo z + D x + by (Equation `implicit`): the tensors of one kind, by name.

    `gamma` is the Lipschitz bound that the metric is meant to prove; None where only well-posedness is meant.
    """

    gamma: float | None
    by: Tensor
    options: ClassVar[tuple[str, ...]] = ("gamma",)
    """The fields that are no tensors."""

    @abstractmethod
    def operator(self) -> Operator:
        """W as an operator in its metric.

        Returns:
            What solvers take.
        """

    @abstractmethod
    def inject(self, x: Tensor) -> Tensor:
        """U x + bz.

        Args:
            x: rows, of shape (batch, d).

        Returns:
            Rows of shape (batch, n).
        """

    @abstractmethod
    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        """y for hidden units and inputs.

        Args:
            z: rows, of shape (batch, n).
            x: rows, of shape (batch, d), which matter where there is a feed-through.

        Returns:
            Rows of shape (batch, p).
        """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, without a metric that is not there.

        Returns:
            A dictionary.
        """
        names = [f.name for f in fields(self) if f.name not in self.options]  # type: ignore[arg-type] # a dataclass
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def detach(self: R) -> R:
        """The same numbers without their history.

        Returns:
            A record of the same kind.
        """
        return self._map(Tensor.detach)

    def clone(self: R) -> R:
        """The same numbers in memory of their own.

        Returns:
            A record of the same kind.
        """
        return self._map(Tensor.clone)

    def to(self: R, target: torch.dtype | torch.device | str) -> R:
        """The same weights in another dtype or on another device.

        Args:
            target: a dtype or a device.

        Returns:
            A record of the same kind.
        """
        return self._map(lambda tensor: checks.converted(tensor, target))

    def precise(self: R) -> R:
        """A copy in double precision on the CPU, without history, if every entry is finite and the metric positive.

        Returns:
            A record of the same kind.

        Raises:
            InvalidInput: naming the tensor that is not.
        """
        return self.detach().validate()._map(lambda tensor: tensor.to("cpu", torch.float64, copy=True))

    def _map(self: R, change: Callable[[Tensor], Tensor]) -> R:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)  # type: ignore[type-var]

    def validate(self: R) -> R:
        """These weights, if every entry is finite and the metric is positive.

        Returns:
            The record itself.

        Raises:
            InvalidInput: naming the tensor that is not.
        """
        tensors = self.tensors()
        for name, tensor in tensors.items():
            checks.finite(name, tensor)
        for name in {"lam", "entries"} & tensors.keys():
            if not bool((tensors[name] > 0).all()):
                least = float(tensors[name].detach().min())
                raise InvalidInput(f"{name} must be positive in every entry, but its smallest is {least:.6g}.")
        return self


def same(one: Any, other: Any, *, biases: bool = False) -> bool:
    """Whether two records of weights, or tuples that hold some, agree by value in every field but the biases.

    This is what decides W and every bound, so that what was computed of one serves for the other. With `biases` they
    must agree as well, and then both are one function.
    """
    if isinstance(one, tuple):
        pairs = zip(one, other, strict=True) if type(one) is type(other) and len(one) == len(other) else None
        return pairs is not None and all(same(a, b, biases=biases) for a, b in pairs)
    if is_dataclass(one):
        names = [f.name for f in fields(one) if biases or f.name not in ("bz", "by")]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name), biases=biases) for name in names
        )
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def check_constant(lam: Tensor, groups: Tensor | None) -> Tensor:
    """A metric, if it is constant on every block of units that act together; NaN, of units that need none, passes."""
    if groups is not None:
        known = torch.where(lam.isnan(), 1.0, lam)
        low, high = (
            known.new_zeros(int(groups.max()) + 1).scatter_reduce(0, groups, known, kind, include_self=False)
            for kind in ("amin", "amax")
        )
        if bool((low != high).any()):
            block = int((low != high).nonzero()[0, 0])
            raise InvalidInput(
                f"lam must be constant on every block of units that act together, but on block {block} it goes from "
                f"{float(low[block]):.6g} to {float(high[block]):.6g}: elsewhere it proves nothing."
            )
    return lam


def image_rows(name: str, x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images of this shape, or rows of their features, as rows."""
    checks.floating(name, x)
    features = prod(shape)
    if tuple(x.shape[-3:]) == shape:
        return x.reshape(*x.shape[:-3], features)
    if x.dim() >= 1 and x.shape[-1] == features:
        return x
    raise InvalidInput(
        f"{name} must hold images of shape {shape}, or rows of {features} features, but its shape is {tuple(x.shape)}."
    )
