"""The explicit weights of a recurrent equilibrium network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.errors import InvalidInput
from lben.operators.dense import DenseOperator
from lben.weights.dense import Weights
from lben.weights.record import Record


@dataclass(frozen=True, eq=False)
class Supply:
    """``s(u, y) = y'Qy + 2 u'Sy + u'Ru``, for differences of inputs u and of outputs y.

    Args:
        Q: of shape (p, p), symmetric and negative semidefinite.
        S: of shape (d, p).
        R: of shape (d, d), symmetric.

    Raises:
        InvalidInput: if shapes do not fit each other.

    Examples:
        The supply of a gain of 2: ``2 |u|^2 - |y|^2/2``.

        >>> supply = lben.Supply.of_gain(2.0, d=1, p=1)
        >>> u = torch.ones(1, 1, dtype=torch.float64)
        >>> float(supply.rate(u, 2 * u))
        0.0
    """

    Q: Tensor
    S: Tensor
    R: Tensor

    def __post_init__(self) -> None:
        tensors = {"Q": self.Q, "S": self.S, "R": self.R}
        checks.alike(tensors)
        p, d = (len(part) if part.dim() == 2 else 0 for part in (self.Q, self.R))
        checks.shapes(tensors, {"Q": (p, p), "S": (d, p), "R": (d, d)})

    @staticmethod
    def of_gain(gain: float, d: int, p: int) -> Supply:
        """``gain |u|^2 - |y|^2/gain``, in double precision.

        Args:
            gain: above 0.
            d: the number of inputs.
            p: the number of outputs.

        Returns:
            A `Supply`.

        Raises:
            InvalidInput: for a value outside these ranges.
        """
        gain, d, p = checks.positive("gain", gain), checks.count("d", d), checks.count("p", p)
        double: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        return Supply(-torch.eye(p, **double) / gain, torch.zeros(d, p, **double), gain * torch.eye(d, **double))

    def to(self, like: Tensor) -> Supply:
        """The same in the dtype and on the device of a tensor.

        Args:
            like: the tensor.

        Returns:
            A `Supply`.
        """
        return Supply(*(part.to(like.device, like.dtype) for part in (self.Q, self.S, self.R)))

    def rate(self, u: Tensor, y: Tensor) -> Tensor:
        """s(u, y).

        Args:
            u: of shape (..., d).
            y: of shape (..., p).

        Returns:
            A tensor of shape (...).
        """
        return ((y @ self.Q) * y).sum(-1) + 2 * ((u @ self.S) * y).sum(-1) + ((u @ self.R) * u).sum(-1)


@dataclass(frozen=True, eq=False)
class RENWeights(Record):
    """The explicit weights of a recurrent network, with what proves its promise.

    ``x+ = A x + B1 w + B2 u + bx``, ``w = sigma(C1 x + D11 w + D12 u + bv)``, ``y = C2 x + D21 w + D22 u + by``, for n
    states, q hidden units, d inputs and p outputs. The claim is ``V(x+) - rate^2 V(x) <= s(du, dy)`` along any two
    trajectories, with V = dx'P dx of a difference dx of states, s that of `supply`; without a supply, for equal inputs
    alone, where s is zero.

    Args:
        A: of shape (n, n).
        B1: of shape (n, q).
        B2: of shape (n, d).
        bx: of shape (n,).
        C1: of shape (q, n).
        D11: of shape (q, q).
        D12: of shape (q, d).
        bv: of shape (q,).
        C2: of shape (p, n).
        D21: of shape (p, q).
        D22: of shape (p, d), or None for zero.
        by: of shape (p,).
        P: of shape (n, n), the metric of the states; None where none is known.
        lam: the diagonal of the multiplier of the hidden units, of shape (q,); None where none is known.
        rate: in (0, 1], the factor of the claim; None where nothing is claimed.
        supply: that of the claim, or None.

    Raises:
        InvalidInput: if shapes, dtypes or devices do not fit each other.

    Examples:
        >>> weights = lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(2.0)).weights()
        >>> round(weights.gamma, 3), weights.state_features
        (2.0, 2)
        >>> bool(lben.certify(weights))
        True
    """

    A: Tensor
    B1: Tensor
    B2: Tensor
    bx: Tensor
    C1: Tensor
    D11: Tensor
    D12: Tensor
    bv: Tensor
    C2: Tensor
    D21: Tensor
    D22: Tensor | None
    by: Tensor
    P: Tensor | None = None
    lam: Tensor | None = None
    rate: float | None = None
    supply: Supply | None = None
    options: ClassVar[tuple[str, ...]] = ("rate", "supply")

    def __post_init__(self) -> None:
        for name in ("A", "B1", "B2", "bx", "C1", "D11", "D12", "bv", "C2", "D21", "by"):
            checks.floating(name, getattr(self, name))
        tensors = self.tensors()
        checks.alike(tensors)
        n, q, p = (part.shape[-1] if part.dim() else 0 for part in (self.bx, self.bv, self.by))
        d = self.B2.shape[-1] if self.B2.dim() else 0
        if min(q, d, p) < 1:
            raise InvalidInput(f"A network needs inputs, units and outputs, but has {d}, {q} and {p} of them.")
        into = {"A": (n, n), "B1": (n, q), "B2": (n, d), "bx": (n,), "P": (n, n)}
        hidden = {"C1": (q, n), "D11": (q, q), "D12": (q, d), "bv": (q,), "lam": (q,)}
        checks.shapes(tensors, {**into, **hidden, "C2": (p, n), "D21": (p, q), "D22": (p, d), "by": (p,)})
        if self.rate is not None:
            checks.step_rate(self.rate)
        if self.supply is not None and self.supply.S.shape != (d, p):
            raise InvalidInput(f"The supply is for {tuple(self.supply.S.shape)} inputs and outputs, not ({d}, {p}).")

    @property
    def in_features(self) -> int:
        return self.B2.shape[1]

    @property
    def state_features(self) -> int:
        return len(self.A)

    @property
    def hidden_features(self) -> int:
        return len(self.D11)

    @property
    def out_features(self) -> int:
        return len(self.by)

    @property
    def gamma(self) -> float | None:  # type: ignore[override]
        """The incremental gain that the supply claims, if it is one of a gain."""
        if self.supply is None or bool((self.supply.S != 0).any()):
            return None
        Q, R = self.supply.Q, self.supply.R
        into, out = float(R[0, 0]), -float(Q[0, 0])
        plain = torch.equal(R, into * torch.eye(len(R)).to(R)) and torch.equal(Q, -out * torch.eye(len(Q)).to(Q))
        return (into / out) ** 0.5 if plain and into > 0 and out > 0 else None

    def feedthrough(self) -> Tensor:
        """D22.

        Returns:
            Zeros where there is none.
        """
        return self.B2.new_zeros(self.out_features, self.in_features) if self.D22 is None else self.D22

    def operator(self) -> DenseOperator:
        """D11 as an operator in its metric.

        Returns:
            What solvers take.
        """
        return DenseOperator(self.D11, self.lam)

    def inject(self, x: Tensor) -> Tensor:
        """C1 x + D12 u + bv.

        Args:
            x: rows (x, u).

        Returns:
            Rows of shape (batch, q).
        """
        return F.linear(x, torch.cat([self.C1, self.D12], dim=1), self.bv)

    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        """The next state and the output.

        Args:
            z: rows of hidden units w.
            x: rows (x, u).

        Returns:
            Rows (x+, y).
        """
        step = self.step()
        assert step.D is not None
        return F.linear(z, step.Wo, step.by) + F.linear(x, step.D)

    def step(self) -> Weights:
        """One step as an equilibrium network with a feed-through, from (x, u) to (x+, y).

        Returns:
            A `Weights`.
        """
        return Weights(
            W=self.D11,
            U=torch.cat([self.C1, self.D12], dim=1),
            bz=self.bv,
            Wo=torch.cat([self.B1, self.D21]),
            by=torch.cat([self.bx, self.by]),
            lam=self.lam,
            D=torch.cat([torch.cat([self.A, self.B2], dim=1), torch.cat([self.C2, self.feedthrough()], dim=1)]),
        )
