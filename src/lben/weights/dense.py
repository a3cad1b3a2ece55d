"""The explicit weights of a dense network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.errors import InvalidInput
from lben.operators.dense import DenseOperator
from lben.weights.record import Record


class DenseSizes:
    """The sizes of whatever has a dense U and Wo."""

    U: Tensor
    Wo: Tensor

    @property
    def in_features(self) -> int:
        return self.U.shape[1]

    @property
    def hidden_features(self) -> int:
        return self.U.shape[0]

    @property
    def out_features(self) -> int:
        return self.Wo.shape[0]


@dataclass(frozen=True, eq=False)
class Weights(DenseSizes, Record):
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

    def inject(self, x: Tensor) -> Tensor:
        return F.linear(x, self.U, self.bz)

    def metric(self) -> Tensor:
        """The diagonal of Lambda; ones (the Euclidean metric) where none is known."""
        return torch.ones_like(self.bz) if self.lam is None else self.lam

    def operator(self) -> DenseOperator:
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
