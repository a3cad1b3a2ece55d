"""The explicit weights of an equilibrium network: a plain frozen record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.operators import DenseOperator


@dataclass(frozen=True, eq=False)
class Weights:
    """z = sigma(W z + U x + bz), y = Wo z + by (Equation `implicit`), with what proves it.

    Shapes: W (n, n), U (n, d), bz (n,), Wo (p, n), by (p,), lam (n,) or None.
    `lam` is the diagonal of the metric Lambda of Conditions `W` and `lipschitz`; None where none is known.
    `gamma` is the Lipschitz bound that `lam` is meant to prove; None where only well-posedness is meant.
    """

    W: Tensor
    U: Tensor
    bz: Tensor
    Wo: Tensor
    by: Tensor
    lam: Tensor | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        for name in ("W", "U", "bz", "Wo", "by"):
            checks.floating(name, getattr(self, name))
        checks.alike(self.tensors())
        n, p = self.bz.shape[-1] if self.bz.dim() else 0, self.by.shape[-1] if self.by.dim() else 0
        d = self.U.shape[-1] if self.U.dim() else 0
        if min(n, d, p) < 1:
            raise InvalidInput(f"A network needs inputs, units and outputs, but has {d}, {n} and {p} of them.")
        expected = {"W": (n, n), "U": (n, d), "bz": (n,), "Wo": (p, n), "by": (p,), "lam": (n,)}
        checks.shapes(self.tensors(), expected)
        if self.gamma is not None:
            checks.positive("gamma", self.gamma)

    @property
    def in_features(self) -> int:
        return self.U.shape[1]

    @property
    def hidden_features(self) -> int:
        return self.W.shape[0]

    @property
    def out_features(self) -> int:
        return self.Wo.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, without a metric that is not there."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "gamma"}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def detach(self) -> Weights:
        """The same numbers without their history."""
        return self._map(Tensor.detach)

    def clone(self) -> Weights:
        """The same numbers in memory of their own."""
        return self._map(Tensor.clone)

    def to(self, target: torch.dtype | torch.device | str) -> Weights:
        """The same weights in another dtype or on another device."""
        return self._map(lambda tensor: checks.converted(tensor, target))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)

    def validate(self) -> Weights:
        """These weights, if every entry is finite and the metric is positive."""
        for name, tensor in self.tensors().items():
            checks.finite(name, tensor)
        if self.lam is not None and not bool((self.lam > 0).all()):
            raise InvalidInput(f"lam must be positive in every entry, but its smallest is {float(self.lam.min()):.6g}.")
        return self

    def metric(self) -> Tensor:
        """The diagonal of Lambda; ones (the Euclidean metric) where none is known."""
        return torch.ones_like(self.bz) if self.lam is None else self.lam

    def operator(self) -> DenseOperator:
        """W as an operator in its metric."""
        return DenseOperator(self.W, self.lam)

    def condition(self, gamma: float | None) -> Tensor:
        """The matrix that Condition `lipschitz` wants positive definite; that of Condition `W` for gamma None.

        2*Lam - Lam*W - W'*Lam - (Wo'*Wo + Lam*U*U'*Lam)/gamma, of shape (n, n).
        """
        lam = self.metric()
        half = torch.diag(lam) - lam[:, None] * self.W
        matrix = half + half.T
        if gamma is not None:
            checks.positive("gamma", gamma)
            scaled = lam[:, None] * self.U
            matrix = matrix - (self.Wo.T @ self.Wo + scaled @ scaled.T) / gamma
        return matrix


def same(one: Any, other: Any) -> bool:
    """Whether two records of weights, or records that hold some, agree by value in every field but the biases.

    This is what decides W and every bound, so that what was computed of one serves for the other.
    """
    if is_dataclass(one):
        compared = [f.name for f in fields(one) if f.name not in ("bz", "by")]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in compared)
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
