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

With a gain g, the incremental L2 gain from x(.) to y(.) is at most g as well. For T > Wo'Wo/2 diagonal, L L' = 2 I -
T^(-1/2) Wo'Wo T^(-1/2), N = T^(1/2) U, O = Wo T^(-1/2) and any square Z and V,

    W = T^(-1/2) (Z L' - X) T^(1/2),   2 kappa X = N N'/g^2 + Z Z' + V V' + eps I  +  kappa (O'O + N N')/gamma,

again the last term only where gamma is given. Then 2 kappa X - N N'/g^2 - (M + X)(L L')^-1 (M + X)' is V V' + eps I
and the last term: it is the Schur complement of [[2 kappa P - P U U' P/g^2, -(P W + T)], [., 2 T - Wo'Wo]] at
P = T^(1/2) X^-1 T^(1/2), so that one P proves rate and gain. Since Z L' + L Z' <= Z Z'/kappa + kappa L L', half the
matrix of Condition `lipschitz`, in the coordinates of M, is at least (1 - kappa) I. T = Lam (1 + |Wo Lam^(-1/2)|^2/2)
is any T above Wo'Wo/2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import BoundNotMet, InvalidInput
from lben.numerics.angles import largest_kappa
from lben.numerics.riccati import between_solutions, solve_riccati
from lben.parameterize.dense import Parameterization, carried_metric
from lben.parameterize.starts import balance, copy_into, uniform
from lben.weights.dense import Weights

_EPSILON = 1e-3  # what is left in the inequality of a gain
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


class Gained(Contracting):
    """The second equation at the head of this file: `gain` bounds signals, besides rate and gamma."""

    epsilon: Tensor

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        rate: float,
        gamma: float | None,
        gain: float,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, rate, gamma, dtype=dtype)
        self.gain = checks.positive("gain", gain)
        balance(self.gain, self.U, self.Wo)
        self.register_buffer("epsilon", torch.tensor(_EPSILON, dtype=dtype))
        self.C = uniform(hidden_features, hidden_features, dtype=dtype)
        self.V = uniform(hidden_features, hidden_features, dtype=dtype)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "gain": self.gain}

    def metric(self) -> Tensor:
        lam = torch.exp(-self.d)
        T: Tensor = lam * (1 + torch.linalg.matrix_norm(self.Wo / lam.sqrt(), 2) ** 2 / 2)
        return T

    def hidden_weight(self) -> Tensor:
        root = self.metric().rsqrt()
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        out, into = self.Wo * root, self.U / root[:, None]
        L = torch.linalg.cholesky(2 * identity - out.T @ out)
        inner = into @ into.T / self.gain**2 + self.C @ self.C.T + self.V @ self.V.T + self.epsilon * identity
        M: Tensor = self.C @ L.T - inner / (2 * self.kappa) - self._bounding(root)
        return root[:, None] * M / root

    def assign(self, weights: Weights) -> None:
        """X between the two solutions of the Riccati equation, C and V from it; epsilon shrinks where it must."""
        T = carried_metric(weights, "lben.incremental_gain finds one, T")
        free, root = weights.to(torch.float64), T.rsqrt()
        self._assign_shared(free)
        identity, kappa = torch.eye(len(T), dtype=T.dtype), float(self.kappa)
        out, into = free.Wo * root, free.U / root[:, None]
        share = float(torch.linalg.matrix_norm(out, 2)) ** 2 / 2
        M = free.W * root / root[:, None] + self._bounding(root).detach().to(T)
        least, inner = -1.0, identity
        if share < 1:
            L = torch.linalg.cholesky(2 * identity - out.T @ out)
            R = torch.cholesky_inverse(L)
            drive = M @ R @ M.T + into @ into.T / self.gain**2
            X = torch.linalg.inv_ex(between_solutions(M @ R - kappa * identity, drive, R)).inverse
            if bool(torch.isfinite(X).all()):
                Z = torch.linalg.solve_triangular(L, (M + X).T, upper=False).T
                inner = 2 * kappa * X - into @ into.T / self.gain**2 - Z @ Z.T
                least = float(torch.linalg.eigvalsh((inner + inner.T) / 2)[0])
        if not least > 0:
            raise BoundNotMet(
                f"The metric lam of these weights does not prove the rate {self.rate} and the gain {self.gain}.", least
            )
        copy_into(self.epsilon, torch.tensor(min(float(self.epsilon), least / 2)))
        copy_into(self.d, -torch.log(T * (1 - share)))
        copy_into(self.C, Z)
        copy_into(self.V, torch.linalg.cholesky((inner + inner.T) / 2 - float(self.epsilon) * identity))
