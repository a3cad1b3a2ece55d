"""W of neural ODEs that contract by construction.

With Psi = diag(e^d), Lambda = Psi^-1, kappa = 1 - rate and any square C,

    W = Psi^(1/2) kappa (I - C')(I + C) Lam^(1/2)  -  Psi (Wo'Wo + Lam U U' Lam)/(2 gamma),

the last term only where gamma is given. With M = Lam^(1/2) W Lam^(-1/2), u of length one and w = u*Mu, the first term
gives Re w = kappa (1 - |Cu|^2) and |Im w| <= 2 kappa |Cu|, so that every such w lies in the parabola
(Im w)^2 <= 4 kappa (kappa - Re w): this is the test over theta of `numerics/angles.py`, and the rate is proved with
T = Lambda. The last term only lowers Re w. Half the matrix of Condition `lipschitz`, in the coordinates of M, is
(1 - kappa) I + kappa C'C > 0, so that gamma bounds the steady state.

Without gamma the form is necessary, too: every W that a diagonal T proves is made by Lambda = T and some C. With
X = kappa (I - C')(I - C) the equation of M is (M + X)(M + X)' = 4 kappa X, a Riccati equation with a solution wherever
the test holds, and Lam^(1/2) X^-1 Lam^(1/2) is the metric P.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import BoundNotMet, InvalidInput
from lben.numerics.angles import largest_kappa
from lben.numerics.riccati import solve_riccati
from lben.parameterize.dense import Parameterization, carried_metric
from lben.parameterize.starts import copy_into, uniform
from lben.weights.dense import Weights

_ROOM = 1e-3  # share of 1 - rate that is kept back, for rounding to use


class Contracting(Parameterization):
    """The equation at the head of this file: the ODE contracts at `rate`, whatever the free variables C and d are.

    kappa is a buffer, so that a state dict brings back the very same W.
    """

    kappa: Tensor

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        rate: float,
        gamma: float | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, dtype=dtype)
        self.rate = checks.rate(rate)
        self.gamma = gamma
        self.register_buffer("kappa", torch.tensor((1 - self.rate) * (1 - _ROOM), dtype=dtype))
        self.C = uniform(hidden_features, hidden_features, dtype=dtype)
        self.d = nn.Parameter(self.bz.new_zeros(hidden_features))

    def options(self) -> dict[str, Any]:
        return {**super().options(), "rate": self.rate}

    def validate(self) -> None:
        super().validate()
        kappa, room = float(self.kappa), 1 - self.rate
        if not kappa <= room * (1 + torch.finfo(self.kappa.dtype).eps):
            raise InvalidInput(f"kappa = {kappa:.6g} is above 1 - rate = {room:.6g}.")

    def hidden_weight(self) -> Tensor:
        root = torch.exp(self.d / 2)
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        M = self.kappa * ((identity - self.C.T) @ (identity + self.C)) - self._bounding(root)
        return root[:, None] * M / root

    def _bounding(self, root: Tensor) -> Tensor:
        """(Wo'Wo + Lam U U' Lam)/(2 gamma) in the coordinates of M."""
        if self.gamma is None:
            return torch.zeros_like(self.C)
        out, into = self.Wo * root, self.U / root[:, None]
        return (out.T @ out + into @ into.T) / (2 * self.gamma)

    def metric(self) -> Tensor | None:
        return torch.exp(-self.d)

    def monotonicity(self) -> float | None:
        return 1 - float(checks.peeled(self.kappa).max())

    def assign(self, weights: Weights) -> None:
        """C from the Riccati equation; kappa grows to what the weights need, if 1 - rate allows it."""
        lam = carried_metric(weights, "lben.contraction finds one, T")
        free = weights.to(torch.float64)
        root = lam.rsqrt()
        self._assign_shared(free)
        copy_into(self.d, -torch.log(lam))
        M = free.W * root / root[:, None] + self._bounding(root).detach()
        needed = largest_kappa(M)
        if not needed < 1 - self.rate:
            raise BoundNotMet(
                f"The metric lam of these weights proves the rate {1 - needed:.6g} at most, and not {self.rate}"
                + ("." if self.gamma is None else f" together with gamma = {self.gamma}."),
                1 - needed - self.rate,
            )
        kappa = max(float(self.kappa), needed + _ROOM * (1 - self.rate - needed))
        identity = torch.eye(len(M), dtype=M.dtype)
        X = solve_riccati((M - 2 * kappa * identity).T, identity, M @ M.T)
        copy_into(self.kappa, torch.tensor(kappa))
        copy_into(self.C, identity - (M + X).T / (2 * kappa))
