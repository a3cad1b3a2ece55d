"""Free variables to weights, and back: the only place that knows how W is made.

The equation that all but the unconstrained form share is in `direct.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.errors import BoundNotMet, InvalidInput, NotWellPosed
from lben.operators.base import Operator
from lben.operators.dense import DenseOperator
from lben.parameterize.base import Form
from lben.parameterize.direct import direct_weight
from lben.parameterize.starts import balance, copy_into, uniform
from lben.weights.dense import DenseSizes, Weights
from lben.weights.record import check_constant


class Parameterization(DenseSizes, Form):
    """A W that is a matrix, started in `dtype`.

    direct: whether W is that of `direct.py`, so that making and solving can be one call.
    tied: whether U is not free, but made of other variables.
    """

    direct = False
    tied = False

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int, *, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        d = checks.count("in_features", in_features)
        n = checks.count("hidden_features", hidden_features)
        p = checks.count("out_features", out_features)
        for name, shape in (("W", (n, n)), ("U", (n, d)), ("Wo", (p, n))):
            checks.affordable(name, *shape)
        if not self.tied:
            self.U = uniform(n, d, dtype=dtype)
        self.bz: Tensor = uniform(n, fan_in=d, dtype=dtype)
        self.Wo = uniform(p, n, dtype=dtype)
        self.by: Tensor = uniform(p, fan_in=n, dtype=dtype)

    def options(self) -> dict[str, Any]:
        return {"sizes": (self.in_features, self.hidden_features, self.out_features), "gamma": self.gamma}

    def inject(self, x: Tensor) -> Tensor:
        return F.linear(x, self.U, self.bz)

    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        y, D = F.linear(z, self.Wo, self.by), self.feedthrough()
        return y if D is None else y + F.linear(x, D)

    def feedthrough(self) -> Tensor | None:
        """D, with its history; None where there is none."""
        return None

    def operator(self) -> Operator:
        return DenseOperator(self.hidden_weight(), self.metric(), monotonicity_bound=self.monotonicity())

    def forward(self) -> Weights:
        own = (self.hidden_weight(), self.U, self.bz, self.Wo, self.by, self.metric())
        return Weights(*own, gamma=self.gamma, D=self.feedthrough())

    @abstractmethod
    def hidden_weight(self) -> Tensor:
        """W, with its history."""

    def metric(self) -> Tensor | None:
        return torch.ones_like(self.bz)

    def exponents(self) -> Tensor | None:
        """d for every unit, where Psi = diag(e^d) is not the identity."""
        return None

    def monotonicity(self) -> float | None:
        """A cheap lower bound on m, the strong monotonicity of I - W in the metric; None if none is known."""
        return None

    @abstractmethod
    def assign(self, weights: Weights) -> None:
        """Choose the free variables so that they stand for these valid `weights`, or say why they cannot."""

    def _assign_shared(self, weights: Weights) -> None:
        for name in ("bz", "Wo", "by") if self.tied else ("U", "bz", "Wo", "by"):
            copy_into(getattr(self, name), getattr(weights, name))


class Unconstrained(Parameterization):
    """W itself is free: nothing is proved of it."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int, *, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, dtype=dtype)
        start = Monotone(in_features, hidden_features, out_features, dtype=dtype)
        self.W = nn.Parameter(start.hidden_weight().detach())

    def check_groups(self, groups: Tensor | None) -> None:
        """There is no metric."""

    def hidden_weight(self) -> Tensor:
        return self.W

    def metric(self) -> Tensor | None:
        return None

    def assign(self, weights: Weights) -> None:
        copy_into(self.W, weights.W)
        self._assign_shared(weights)


class Explicit(Parameterization):
    """Weights as they are, with the metric they carry; nothing is free."""

    W: Tensor
    lam: Tensor | None
    D: Tensor | None

    def __init__(self, weights: Weights) -> None:
        nn.Module.__init__(self)
        self.assign(weights)

    def hidden_weight(self) -> Tensor:
        return self.W

    def feedthrough(self) -> Tensor | None:
        return self.D

    def check_groups(self, groups: Tensor | None) -> None:
        if self.lam is not None:
            check_constant(self.lam, groups)

    def metric(self) -> Tensor | None:
        return self.lam

    def assign(self, weights: Weights) -> None:
        for name in ("W", "U", "bz", "Wo", "by", "lam", "D"):
            self.register_buffer(name, getattr(weights, name))
        self.gamma = weights.gamma


class Monotone(Parameterization):
    """W = I - (V'V + eps I + N - N'), monotone in the Euclidean metric: this is MON.

    `epsilon` is a buffer, so that a state dict brings back the very same W.
    """

    epsilon: Tensor
    direct = True

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        epsilon: float = 1.0,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, dtype=dtype)
        self.register_buffer("epsilon", torch.tensor(checks.positive("epsilon", epsilon), dtype=dtype))
        self.V = uniform(hidden_features, hidden_features, dtype=dtype)
        self.N = uniform(hidden_features, hidden_features, dtype=dtype)

    def hidden_weight(self) -> Tensor:
        return direct_weight(self.V, self.N, None, self.U, self.Wo, None, self.epsilon)

    def check_groups(self, groups: Tensor | None) -> None:
        """The identity is constant on all blocks."""

    def monotonicity(self) -> float | None:
        return float(checks.peeled(self.epsilon).min())

    def assign(self, weights: Weights) -> None:
        free = weights.to(torch.float64)
        self._assign_direct(free, torch.ones_like(free.bz))

    def _assign_direct(self, weights: Weights, lam: Tensor) -> None:
        """V'V + eps I is the symmetric part of Lam (I - W), less the terms of gamma; N is half the skew part."""
        candidate = replace(weights, lam=lam)
        well_posed = float(torch.linalg.eigvalsh(candidate.condition(None))[0])
        if not well_posed > 0:
            raise NotWellPosed(
                f"These weights do not satisfy Condition W in the metric used: the smallest eigenvalue of "
                f"2 Lam - Lam W - W' Lam is {well_posed:.6g}, and it must be positive.",
                well_posed,
            )
        values, vectors = torch.linalg.eigh(self._room(candidate))
        room = float(values[0])
        if not room > 0:
            raise BoundNotMet(
                f"These weights do not satisfy Condition lipschitz for gamma = {self.gamma}: the smallest "
                f"eigenvalue is {2 * room:.6g}, and it must be positive. Ask for a larger gamma.",
                2 * room,
            )
        copy_into(self.epsilon, self.epsilon.double().clamp(max=room))
        copy_into(self.V, (values - self.epsilon.double()).clamp(min=0).sqrt()[:, None] * vectors.T)
        half = lam[:, None] * weights.W
        copy_into(self.N, (half.T - half) / 4)
        self._assign_shared(candidate)

    def _room(self, weights: Weights) -> Tensor:
        """Half the matrix of the condition, which is V'V + eps I."""
        return weights.condition(self.gamma) / 2


class WellPosed(Monotone):
    """W = I - Psi (V'V + eps I + N - N') (`direct_rep`): well-posed, with some finite Lipschitz bound.

    `groups` numbers the block of each unit, where units act together: d then has one entry a block.
    """

    groups: Tensor | None

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        epsilon: float = 1.0,
        *,
        groups: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, epsilon, dtype=dtype)
        self.register_buffer("groups", groups, persistent=False)  # the activation knows them
        self.d = nn.Parameter(self.bz.new_zeros(hidden_features if groups is None else int(groups[-1]) + 1))

    def check_groups(self, groups: Tensor | None) -> None:
        """Every block of the activation must lie in a block of d."""
        if groups is None:
            return
        own = torch.arange(len(groups), device="cpu") if self.groups is None else self.groups.cpu()
        try:
            check_constant(own.double(), groups)
        except InvalidInput as error:
            raise InvalidInput(
                "This network was made with a metric that is free to differ within the blocks of that activation: make "
                "a new one with it."
            ) from error

    def exponents(self) -> Tensor:
        return self.d if self.groups is None else self.d[self.groups]

    def hidden_weight(self) -> Tensor:
        return direct_weight(self.V, self.N, self.exponents(), self.U, self.Wo, None, self.epsilon)

    def metric(self) -> Tensor | None:
        return torch.exp(-self.exponents())

    def monotonicity(self) -> float | None:
        return float(checks.peeled(self.epsilon).min() * torch.exp(checks.peeled(self.d).detach().min()))

    def assign(self, weights: Weights) -> None:
        lam = check_constant(carried_metric(weights, "lben.well_posed finds one"), self.groups)
        free = weights.to(torch.float64)
        self._assign_direct(free, lam)
        if self.groups is not None:
            lam = lam.new_zeros(len(self.d)).scatter(0, self.groups, lam)
        copy_into(self.d, -torch.log(lam))


class LipschitzBounded(WellPosed):
    """`direct_gamma`: Condition `lipschitz` holds for gamma, whatever the free variables are."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        gamma: float,
        epsilon: float = 1.0,
        *,
        groups: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, epsilon, groups=groups, dtype=dtype)
        self.gamma = gamma
        balance(gamma, self.U, self.Wo)

    def hidden_weight(self) -> Tensor:
        return direct_weight(self.V, self.N, self.exponents(), self.U, self.Wo, self.gamma, self.epsilon)


def carried_metric(weights: Weights, advice: str) -> Tensor:
    """The metric that weights carry, in double precision, if they do."""
    if weights.lam is None:
        raise InvalidInput(
            f"These weights carry no metric lam, and without one they cannot be parameterized: {advice}."
        )
    return weights.lam.to(torch.float64)
