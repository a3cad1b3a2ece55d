"""Networks with a feed-through, y = Wo z + D x + by, where |D| < gamma by construction, or D = I.

With R = gamma I - D'D/gamma and Z = Lam U + Wo'D/gamma,

    Lam (I - W) = (Wo'Wo/gamma + Z R^-1 Z')/2 + V'V + eps I + N - N'

is `direct_gamma` at D = 0, and necessary and sufficient for Condition `lipschitz` with D, as that is without it. Every
D of norm below gamma comes of one free X: D = gamma C^-1 X with C C' = I + X X', C lower triangular, for which
I - D D'/gamma^2 = (C'C)^-1. At D = I and gamma = 1, R vanishes, and so must Z: then U = -Psi Wo' D (`Tied`). That is
on the boundary of the condition, where no rounding could be afforded, and so D is a hair smaller than I there.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor

from lben.errors import BoundNotMet, InvalidInput
from lben.parameterize.ball import inside_ball, out_of_ball
from lben.parameterize.dense import WellPosed
from lben.parameterize.starts import balance, copy_into, uniform
from lben.weights.dense import Weights

Skip = Literal["linear", "identity"]
HAIR = 2e-6
"""By how much D is smaller than I at gamma = 1: far more than rounding in single precision, far less than matters."""
_TIED = 1e-5  # how far U may be from -Psi Wo' D, relatively, where it is not free


class Skipped(WellPosed):
    """The equation at the head of this file; without gamma, `direct_rep` and any D."""

    direct = False

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        gamma: float | None,
        skip: Skip,
        epsilon: float = 1.0,
        *,
        groups: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.skip: Skip = skip
        super().__init__(in_features, hidden_features, out_features, epsilon, groups=groups, dtype=dtype)
        if skip == "identity" and in_features != out_features:
            sizes = f"{in_features} and {out_features}"
            raise InvalidInput(f'skip="identity" adds x to y, and needs as many inputs as outputs, not {sizes}.')
        self.gamma = gamma
        if skip == "linear":
            self.X = uniform(out_features, in_features, dtype=dtype)
            if gamma is not None:
                balance(gamma, self.U, self.Wo)

    def _check_gamma(self, gamma: float | None) -> None:
        if self.skip == "identity" and gamma is not None and not gamma > 1:
            raise InvalidInput(
                f'gamma must be above 1 for this network, not {gamma:g}: skip="identity" adds x to y, and at gamma = 1 '
                "it is made with U tied to Wo, below it not at all."
            )

    def options(self) -> dict[str, Any]:
        return {**super().options(), "skip": self.skip}

    def feedthrough(self) -> Tensor:
        if self.skip == "identity":
            return (1 - HAIR * self.tied) * torch.eye(self.out_features, dtype=self.by.dtype, device=self.by.device)
        return self.X if self.gamma is None else self.gamma * self._root()[1]

    def _root(self) -> tuple[Tensor, Tensor]:
        """C and D/gamma."""
        return inside_ball(self.X)

    def hidden_weight(self) -> Tensor:
        psi = torch.exp(self.exponents())
        return super().hidden_weight() - psi[:, None] * self._bounding(torch.reciprocal(psi))

    def _bounding(self, lam: Tensor) -> Tensor | float:
        """(Wo'Wo/gamma + Z R^-1 Z')/2, with R^-1 = (I + (D/gamma)' C'C (D/gamma))/gamma."""
        gamma = self.gamma
        if gamma is None:
            return 0.0
        own, into = self.Wo.T @ self.Wo / gamma, lam[:, None] * self.U
        if self.skip == "identity":
            Z = into + self.Wo.T / gamma
            return (own + Z @ Z.T / (gamma - 1 / gamma)) / 2
        C, D = self._root()
        Z = into + self.Wo.T @ D
        back = Z @ D.T @ C.T
        return (own + (Z @ Z.T + back @ back.T) / gamma) / 2

    def _room(self, weights: Weights) -> Tensor:
        """Half the matrix of the condition, as its Schur complement of size n."""
        twin = copy.deepcopy(self).to(weights.W)
        twin._assign_shared(weights)
        with torch.no_grad():
            return weights.condition(None) / 2 - twin._bounding(weights.metric())

    def _assign_shared(self, weights: Weights) -> None:
        super()._assign_shared(weights)
        D = weights.D
        if self.skip == "identity":
            if not is_identity(D):
                raise InvalidInput('skip="identity" is for weights whose D is the identity.')
            return
        D = torch.zeros_like(self.X, dtype=torch.float64) if D is None else D.to(torch.float64)
        copy_into(self.X, D if self.gamma is None else out_of_ball(D / self.gamma))


class Tied(Skipped):
    """gamma = 1 and D = I, but for a hair: U = -Psi Wo' D is not free."""

    tied = True

    def __init__(
        self,
        features: int,
        hidden_features: int,
        epsilon: float = 1.0,
        *,
        groups: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, hidden_features, features, 1.0, "identity", epsilon, groups=groups, dtype=dtype)

    @property
    def U(self) -> Tensor:  # type: ignore[override]
        return (HAIR - 1) * torch.exp(self.exponents())[:, None] * self.Wo.T

    def _check_gamma(self, gamma: float | None) -> None:
        if gamma != 1:
            raise InvalidInput(f"gamma of this network is 1, since its U is tied to Wo, and cannot become {gamma}.")

    def _bounding(self, lam: Tensor) -> Tensor | float:
        return self.Wo.T @ self.Wo / 2

    def _assign_shared(self, weights: Weights) -> None:
        """U is what Wo and the metric make of it, if it is so in the weights."""
        super()._assign_shared(weights)
        wanted = (HAIR - 1) * weights.Wo.T / weights.metric()[:, None]
        off = float((wanted - weights.U).abs().max()) / max(float(wanted.abs().max()), 1e-300)
        if not off <= _TIED:
            raise BoundNotMet(
                f"With D = I and gamma = 1, U must be -Psi Wo', and differs from it by {off:.3g} of its size.", -off
            )


def is_identity(D: Tensor | None) -> bool:
    """Whether D is the identity, but for a hair."""
    if D is None or D.shape[0] != D.shape[1]:
        return False
    return float((D - torch.eye(len(D), dtype=D.dtype, device=D.device)).abs().max()) <= 2 * HAIR
