"""Free variables to weights, and back: the only place that knows how W is made.

With Psi = diag(e^d) and Lambda = Psi^-1, every form is

    W = I - Psi (V'V + eps I + N - N' + (Wo'Wo + Lam U U' Lam)/(2 gamma)),

which is `direct_gamma`; without the last term it is `direct_rep`; with Psi = I besides, the monotone form of MON.
S = N - N' is skew-symmetric for any square N.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import BoundNotMet, InvalidInput, NotWellPosed
from lben.weights import Weights


class DirectW(torch.autograd.Function):
    """W from V, N, d, U and Wo, with the backward written by hand: a third of the calls of autograd's own.

    d is None in the monotone form, U and Wo are None without gamma. The backward is made of differentiable calls,
    so that second derivatives are right too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        V: Tensor,
        N: Tensor,
        d: Tensor | None,
        U: Tensor | None,
        Wo: Tensor | None,
        gamma: float | None,
        epsilon: Tensor,
    ) -> Tensor:
        M = torch.addmm(N, V.T, V).sub_(N.T)
        gram = None
        if gamma is not None and U is not None and Wo is not None and d is not None:
            lam = torch.exp(-d)
            gram = torch.mm(U, U.T).mul_(lam).mul_((0.5 / gamma * lam)[:, None])
            M.add_(gram).addmm_(Wo.T, Wo, alpha=0.5 / gamma)
        M.diagonal().add_(epsilon)
        W = M.neg_() if d is None else M.mul_(-torch.exp(d)[:, None])
        W.diagonal().add_(1)
        ctx.gamma, ctx.gram = gamma, gram
        ctx.save_for_backward(V, d, U, Wo, W)
        return W

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (G,) = grads
        V, d, U, Wo, W = ctx.saved_tensors
        H = -G if d is None else G * -torch.exp(d)[:, None]
        both = H + H.T
        grad_d = grad_U = grad_Wo = None
        if d is not None:
            grad_d = (G * W).sum(1) - G.diagonal()
        if ctx.gamma is not None:
            grad_Wo = Wo @ both * (0.5 / ctx.gamma)
            lam = torch.exp(-d) * math.sqrt(0.5 / ctx.gamma)
            outer = lam * lam[:, None]
            grad_U = (both * outer) @ U
            gram = torch.mm(U, U.T) * outer if torch.is_grad_enabled() else ctx.gram
            grad_d = grad_d - (both * gram).sum(1)
        return V @ both, H - H.T, grad_d, grad_U, grad_Wo, None, None


class Parameterization(nn.Module):
    """Free variables that any optimizer may move, and the weights they stand for."""

    gamma: float | None = None

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        d = checks.count("in_features", in_features)
        n = checks.count("hidden_features", hidden_features)
        p = checks.count("out_features", out_features)
        self.U = _uniform(n, d)
        self.bz = _uniform(n, fan_in=d)
        self.Wo = _uniform(p, n)
        self.by = _uniform(p, fan_in=n)

    def forward(self) -> Weights:
        return Weights(self.hidden_weight(), self.U, self.bz, self.Wo, self.by, self.metric(), self.gamma)

    @abstractmethod
    def hidden_weight(self) -> Tensor:
        """W, with its history."""

    def metric(self) -> Tensor | None:
        return torch.ones_like(self.bz)

    def monotonicity(self) -> float | None:
        """A cheap lower bound on m, the strong monotonicity of I - W in the metric; None if none is known."""
        return None

    @abstractmethod
    def assign(self, weights: Weights) -> None:
        """Choose the free variables so that they stand for `weights`, or say why they cannot."""

    def _assign_shared(self, weights: Weights) -> None:
        for name in ("U", "bz", "Wo", "by"):
            _copy(getattr(self, name), getattr(weights, name))


class Unconstrained(Parameterization):
    """W itself is free: nothing is proved of it."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__(in_features, hidden_features, out_features)
        start = Monotone(in_features, hidden_features, out_features)
        self.W = nn.Parameter(start.hidden_weight().detach())

    def hidden_weight(self) -> Tensor:
        return self.W

    def metric(self) -> Tensor | None:
        return None

    def assign(self, weights: Weights) -> None:
        _copy(self.W, weights.W)
        self._assign_shared(weights)


class Monotone(Parameterization):
    """W = I - (V'V + eps I + N - N'), monotone in the Euclidean metric: this is MON.

    `epsilon` is a buffer, so that a state dict brings back the very same W.
    """

    epsilon: Tensor

    def __init__(self, in_features: int, hidden_features: int, out_features: int, epsilon: float = 1.0) -> None:
        super().__init__(in_features, hidden_features, out_features)
        self.register_buffer("epsilon", torch.tensor(checks.positive("epsilon", epsilon)))
        self.V = _uniform(hidden_features, hidden_features)
        self.N = _uniform(hidden_features, hidden_features)

    def hidden_weight(self) -> Tensor:
        return _direct(self.V, self.N, None, None, None, None, self.epsilon)

    def monotonicity(self) -> float | None:
        return float(self.epsilon)

    def assign(self, weights: Weights) -> None:
        free = weights.to(torch.float64).validate()
        self._assign_direct(free, torch.ones_like(free.bz))

    def _assign_direct(self, weights: Weights, lam: Tensor) -> None:
        """V'V + eps I is the symmetric part of Lam (I - W), less the terms of gamma; N is half the skew part."""
        candidate = Weights(weights.W, weights.U, weights.bz, weights.Wo, weights.by, lam)
        well_posed = float(torch.linalg.eigvalsh(candidate.condition(None))[0])
        if not well_posed > 0:
            raise NotWellPosed(
                f"These weights do not satisfy Condition W in the metric used: the smallest eigenvalue of "
                f"2 Lam - Lam W - W' Lam is {well_posed:.6g}, and it must be positive.",
                well_posed,
            )
        values, vectors = torch.linalg.eigh(candidate.condition(self.gamma) / 2)
        room = float(values[0])
        if not room > 0:
            raise BoundNotMet(
                f"These weights do not satisfy Condition lipschitz for gamma = {self.gamma}: the smallest "
                f"eigenvalue is {2 * room:.6g}, and it must be positive. Ask for a larger gamma.",
                2 * room,
            )
        _copy(self.epsilon, self.epsilon.double().clamp(max=room))
        _copy(self.V, (values - self.epsilon.double()).clamp(min=0).sqrt()[:, None] * vectors.T)
        half = lam[:, None] * weights.W
        _copy(self.N, (half.T - half) / 4)
        self._assign_shared(weights)

    def extra_repr(self) -> str:
        return f"epsilon={float(self.epsilon):.4g}"


class WellPosed(Monotone):
    """W = I - Psi (V'V + eps I + N - N') (`direct_rep`): well-posed, with some finite Lipschitz bound."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int, epsilon: float = 1.0) -> None:
        super().__init__(in_features, hidden_features, out_features, epsilon)
        self.d = nn.Parameter(torch.zeros(hidden_features))

    def hidden_weight(self) -> Tensor:
        return _direct(self.V, self.N, self.d, None, None, None, self.epsilon)

    def metric(self) -> Tensor | None:
        return torch.exp(-self.d)

    def monotonicity(self) -> float | None:
        return float(self.epsilon * torch.exp(self.d.detach().min()))

    def assign(self, weights: Weights) -> None:
        if weights.lam is None:
            raise InvalidInput("These weights carry no metric lam, and without one they cannot be parameterized.")
        free = weights.to(torch.float64).validate()
        lam = free.metric()
        self._assign_direct(free, lam)
        _copy(self.d, -torch.log(lam))


class LipschitzBounded(WellPosed):
    """`direct_gamma`: Condition `lipschitz` holds for gamma, whatever the free variables are."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int, gamma: float, epsilon: float = 1.0
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, epsilon)
        self.gamma = checks.positive("gamma", gamma)

    def hidden_weight(self) -> Tensor:
        return _direct(self.V, self.N, self.d, self.U, self.Wo, self.gamma, self.epsilon)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma:.4g}, {super().extra_repr()}"


def _direct(
    V: Tensor,
    N: Tensor,
    d: Tensor | None,
    U: Tensor | None,
    Wo: Tensor | None,
    gamma: float | None,
    epsilon: Tensor,
) -> Tensor:
    W: Tensor = DirectW.apply(V, N, d, U, Wo, gamma, epsilon)  # type: ignore[no-untyped-call]
    return W


def _uniform(*shape: int, fan_in: int | None = None) -> nn.Parameter:
    """Uniform on +-1/sqrt(fan_in), as torch.nn.Linear starts."""
    bound = 1 / math.sqrt(shape[-1] if fan_in is None else fan_in)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


def _copy(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)
