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
    """The explicit weights of a dense network: ``z = sigma(W z + U x + bz)``, ``y = Wo z + D x + by``.

    All verbs of the library take them in place of a network (Equation `implicit`); sigma is then ReLU unless one is
    given.

    Args:
        W: of shape (n, n).
        U: of shape (n, d).
        bz: of shape (n,).
        Wo: of shape (p, n).
        by: of shape (p,).
        lam: the diagonal of the metric Lambda of Conditions `W` and `lipschitz`, of shape (n,); None where none is
            known.
        gamma: the Lipschitz bound that lam is meant to prove; None where only well-posedness is meant.
        D: a feed-through past the hidden units, of shape (p, d); None where there is none, as in the paper.

    Raises:
        InvalidInput: if shapes, dtypes or devices do not fit each other.

    Examples:
        >>> zero = torch.zeros(2, 2)
        >>> eye, none = torch.eye(2), torch.zeros(2)
        >>> weights = lben.Weights(zero, eye, none, 3 * eye, none)
        >>> round(lben.tightest_bound(weights).gamma, 3)
        3.0
    """

    W: Tensor
    U: Tensor
    bz: Tensor
    Wo: Tensor
    by: Tensor
    lam: Tensor | None = None
    gamma: float | None = None
    D: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("W", "U", "bz", "Wo", "by"):
            checks.floating(name, getattr(self, name))
        checks.alike(self.tensors())
        n, p = self.bz.shape[-1] if self.bz.dim() else 0, self.by.shape[-1] if self.by.dim() else 0
        d = self.U.shape[-1] if self.U.dim() else 0
        if min(n, d, p) < 1:
            raise InvalidInput(f"A network needs inputs, units and outputs, but has {d}, {n} and {p} of them.")
        expected = {"W": (n, n), "U": (n, d), "bz": (n,), "Wo": (p, n), "by": (p,), "lam": (n,), "D": (p, d)}
        checks.shapes(self.tensors(), expected)
        if self.gamma is not None:
            checks.positive("gamma", self.gamma)

    def inject(self, x: Tensor) -> Tensor:
        return F.linear(x, self.U, self.bz)

    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        y = F.linear(z, self.Wo, self.by)
        return y if self.D is None else y + F.linear(x, self.D)

    def metric(self) -> Tensor:
        """The diagonal of Lambda.

        Returns:
            Of shape (n,); ones (the Euclidean metric) where none is known.
        """
        return torch.ones_like(self.bz) if self.lam is None else self.lam

    def operator(self) -> DenseOperator:
        return DenseOperator(self.W, self.lam)

    def condition(self, gamma: float | None) -> Tensor:
        """The matrix that Condition `lipschitz` wants positive definite; that of Condition `W` for gamma None.

        ``2*Lam - Lam*W - W'*Lam - (Wo'*Wo + Lam*U*U'*Lam)/gamma``; with D see `condition_matrix`.

        Args:
            gamma: the Lipschitz bound, above 0, or None.

        Returns:
            A symmetric matrix of shape (n, n); with a D and a gamma, of shape (n + p, n + p).

        Raises:
            InvalidInput: if gamma is not above 0.

        Examples:
            >>> weights = lben.LBEN(2, 4, 1, gamma=1.0).weights().detach()
            >>> bool((torch.linalg.eigvalsh(weights.condition(1.0)) > 0).all())
            True
        """
        if gamma is not None:
            checks.positive("gamma", gamma)
        return condition_matrix(self.W, self.U, self.Wo, self.D, self.metric(), gamma)


def condition_matrix(W: Tensor, U: Tensor, Wo: Tensor, D: Tensor | None, lam: Tensor, gamma: float | None) -> Tensor:
    """M - (Wo'Wo + Lam U U' Lam)/gamma with M = 2 Lam - Lam W - W' Lam; M alone for gamma None.

    With D it is [[M - Lam U U' Lam/gamma, Wo' + Lam U D'/gamma], [., gamma I - D D'/gamma]], of which the other is the
    Schur complement at D = 0.
    """
    half = torch.diag(lam) - lam[:, None] * W
    M = half + half.T
    if gamma is None:
        return M
    scaled = lam[:, None] * U
    if D is None:
        return M - (Wo.T @ Wo + scaled @ scaled.T) / gamma
    side = Wo.T + scaled @ D.T / gamma
    corner = gamma * torch.eye(len(D), dtype=M.dtype, device=M.device) - D @ D.T / gamma
    return torch.cat([torch.cat([M - scaled @ scaled.T / gamma, side], 1), torch.cat([side.T, corner], 1)])
