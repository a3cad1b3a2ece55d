"""Equilibrium networks: z = sigma(W z + U x + bz), y = Wo z + by (Equation `implicit`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations import Activation, ReLU, check_activation
from lben.certify.certificate import Domain
from lben.certify.lmi import certify, product_bound
from lben.errors import BoundNotMet, InvalidInput
from lben.fused import fused_equilibrium
from lben.implicit import Known, equilibrium
from lben.nearest import choose_metric, nearest_weights
from lben.normalize import Normalize
from lben.operators import DenseOperator
from lben.parameterize import LipschitzBounded, Monotone, Parameterization, Unconstrained, WellPosed
from lben.solvers.base import OnFailure, Problem, Solution, Solver, check_solver
from lben.solvers.loop import solve
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights import Weights

Network = TypeVar("Network", bound="EquilibriumNetwork")


class EquilibriumNetwork(nn.Module):
    """A parameterization, an activation and a solver, with an optional `Normalize` in front.

    x has shape (..., in_features); extra leading dimensions are all batch. A bias given with x, of shape
    (..., hidden_features), is added to U x + bz.
    """

    def __init__(
        self,
        parameterization: Parameterization,
        activation: Activation,
        solver: Solver | None,
        normalize: Normalize | None,
    ) -> None:
        super().__init__()
        self.parameterization = parameterization
        self.normalize = normalize
        self.activation = activation
        self.solver = PeacemanRachford() if solver is None else solver
        self._kept: tuple[list[Tensor], DenseOperator] | None = None
        if normalize is not None and not isinstance(normalize, Normalize):
            raise InvalidInput(f"normalize must be an lben.Normalize(mean, std), not {normalize!r}.")
        if normalize is not None and normalize.features not in (1, self.in_features):
            raise InvalidInput(f"normalize has {normalize.features} features, but the network {self.in_features}.")

    @property
    def in_features(self) -> int:
        return self.parameterization.U.shape[1]

    @property
    def hidden_features(self) -> int:
        return self.parameterization.U.shape[0]

    @property
    def out_features(self) -> int:
        return self.parameterization.Wo.shape[0]

    @property
    def gamma(self) -> float | None:
        """The prescribed Lipschitz bound from network input to output; None if none was prescribed."""
        return self.parameterization.gamma

    @property
    def activation(self) -> Activation:
        """sigma; assign another at any time."""
        return self._activation

    @activation.setter
    def activation(self, activation: Activation) -> None:
        check_activation(activation, self.hidden_features)
        self.parameterization.check_groups(activation.groups(self.hidden_features))
        self._activation = activation

    @property
    def solver(self) -> Solver:
        """The method that finds equilibria, forward and backward; assign another at any time."""
        return self._solver

    @solver.setter
    def solver(self, solver: Solver) -> None:
        self._solver = check_solver(solver)

    def weights(self) -> Weights:
        """The explicit weights, as differentiable functions of the free variables."""
        weights: Weights = self.parameterization()
        return weights

    def forward(self, x: Tensor, *, bias: Tensor | None = None) -> Tensor:
        """y, of shape (..., out_features); mixed precision is turned off inside."""
        if torch.is_autocast_enabled(x.device.type if isinstance(x, Tensor) else "cpu"):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.to(self.parameterization.U.dtype), bias=bias)
        p, on_failure = self.parameterization, self._on_failure()
        if self.training and isinstance(p, Monotone):
            scaled, outside = self._scaled(x), self._outside(x, bias)
            z = fused_equilibrium(p, _rows(scaled), outside, self.activation, self.solver, on_failure)
        else:
            b = self._bias(x, bias)
            z = equilibrium(self._operator(), self.activation, b, self.solver, on_failure=on_failure)
        return F.linear(z, p.Wo, p.by).reshape(*x.shape[:-1], self.out_features)

    def solve(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        start: Tensor | Solution | None = None,
        keep_history: bool = False,
    ) -> Solution:
        """The equilibrium at x with its residuals; its z is differentiable as the network's is.

        `start` is a z or an earlier solution to start from; `keep_history` keeps the residuals of every iteration.
        """
        b, operator, on_failure = self._bias(x, bias), self._operator(), self._on_failure()
        problem = Problem(operator, self.activation, b.detach())
        flat = solve(self.solver, problem, start=start, keep_history=keep_history, on_failure=on_failure)
        known = Known(flat.z, flat.v, flat.iterations)
        z = equilibrium(operator, self.activation, b, self.solver, on_failure=on_failure, known=known)
        return flat.reshape(z, x.shape[:-1])

    def bound(self, domain: Domain = "input") -> float:
        """A Lipschitz bound, checked now from the weights in double precision.

        It is gamma where one was prescribed, else |Wo Lam^(-1/2)| |Lam^(1/2) U| / m. `domain` says where distances
        between inputs are measured: at the network's input, after `Normalize`, or in pixels, before it.
        """
        if self.gamma is None:
            return product_bound(self, domain=domain)
        certificate = certify(self, domain=domain)
        if not certificate.holds or certificate.gamma is None:
            raise BoundNotMet(
                f"Rounding has broken the bound gamma = {self.gamma}: the smallest eigenvalue of Condition lipschitz "
                f"is {certificate.margin:.6g}. Use float64, or smaller free variables.",
                certificate.margin,
            )
        return certificate.gamma

    def _scaled(self, x: Tensor) -> Tensor:
        """x at the network's input: checked, and normalised if there is a `Normalize`."""
        checks.features("x", x, self.in_features, self.parameterization.U)
        return x if self.normalize is None else self.normalize(x)

    def _outside(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """The bias from outside, one row for each of x."""
        if bias is None:
            return None
        checks.features("bias", bias, self.hidden_features, self.parameterization.U)
        shape = (*x.shape[:-1], self.hidden_features)
        if not _fits(bias.shape, shape):
            raise InvalidInput(f"bias of shape {tuple(bias.shape)} does not fit a hidden layer of shape {shape}.")
        return _rows(bias.expand(shape))

    def _bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """U x + bz, and the bias from outside if there is one, as rows."""
        p = self.parameterization
        b = _rows(F.linear(self._scaled(x), p.U, p.bz))
        outside = self._outside(x, bias)
        b = b if outside is None else b + outside
        checks.finite_sum(b, x=x, bias=bias, **dict(p.named_parameters()))
        return b

    def _operator(self) -> DenseOperator:
        """The operator of W; in evaluation it is kept, with its factors, until a free variable changes.

        Values are compared, not version counters, since those miss changes through `.data`.
        """
        W, lam = self.parameterization.hidden_weight(), self.parameterization.metric()
        if self.training:
            return DenseOperator(W, lam, monotonicity_bound=self.parameterization.monotonicity())
        now = [W] if lam is None else [W, lam]
        if self._kept is None or not _same(self._kept[0], now):
            kept = [tensor.detach().clone() for tensor in now]
            self._kept = kept, DenseOperator(*kept)
        return self._kept[1].rebind(W)

    def _on_failure(self) -> OnFailure:
        return self.solver.on_failure or ("fallback" if self.training else "raise")

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.hidden_features}, {self.out_features}"
        gamma = "" if self.gamma is None else f", gamma={self.gamma:.4g}"
        return f"{sizes}{gamma}, activation={self.activation!r}, solver={self.solver!r}"

    def _assign(self: Network, weights: Weights) -> Network:
        self.to(device=weights.W.device, dtype=weights.W.dtype)
        self.parameterization.assign(weights.detach().validate())
        return self


class LBEN(EquilibriumNetwork):
    """A Lipschitz-bounded equilibrium network.

    With `gamma`, the map from x to y is gamma-Lipschitz in the l2 norm, whatever the free variables are; with
    gamma=None it is well-posed, with some finite bound. `epsilon` > 0 is the room left in the condition: larger
    makes equilibria easier to find, smaller makes more networks reachable.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        gamma: float | None = None,
        epsilon: float = 1.0,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> None:
        sizes = (in_features, checks.count("hidden_features", hidden_features), out_features)
        groups = check_activation(activation, hidden_features).groups(hidden_features)
        super().__init__(
            WellPosed(*sizes, epsilon, groups=groups)
            if gamma is None
            else LipschitzBounded(*sizes, gamma, epsilon, groups=groups),
            activation,
            solver,
            normalize,
        )

    @classmethod
    def from_weights(
        cls,
        weights: Weights,
        *,
        gamma: float | None = None,
        epsilon: float = 1.0,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> LBEN:
        """The LBEN of these weights, in the metric they carry; gamma is theirs unless given.

        epsilon becomes what the weights leave room for, if that is less. Raises NotWellPosed or BoundNotMet.
        """
        sizes = _sizes(weights)
        net = cls(
            *sizes,
            gamma=weights.gamma if gamma is None else gamma,
            epsilon=epsilon,
            activation=activation,
            solver=solver,
            normalize=normalize,
        )
        return net._assign(weights)

    @classmethod
    def initialize_from(
        cls,
        weights: Weights,
        gamma: float | None = None,
        *,
        lam: Tensor | None = None,
        epsilon: float | None = None,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> Start:
        """An LBEN of bound gamma, to train on, from the admissible weights that are nearest to the given ones.

        Nearest in the norm of `nearest_weights` and for a fixed metric: `lam` if given; else the one the weights carry,
        if they carry a gamma too; else that of their tightest bound. Admissible weights leave a room of 2 epsilon, of
        which V keeps a half, so that training can move in every direction; epsilon is a hundredth of the median entry
        of the metric unless given. With gamma None, W alone may have to move.
        """
        _sizes(weights)
        if gamma is not None:
            checks.positive("gamma", gamma)
        free = weights.detach().validate().to(torch.float64).to("cpu")
        groups = check_activation(activation, free.hidden_features).groups(free.hidden_features)
        metric = choose_metric(free, groups) if lam is None else checks.floating("lam", lam).detach()
        free = replace(free, lam=metric.to("cpu", torch.float64))
        epsilon = 1e-2 * float(free.validate().metric().median()) if epsilon is None else epsilon
        found = nearest_weights(free, gamma, 2 * checks.positive("epsilon", epsilon))
        net = cls.from_weights(
            replace(found.weights, gamma=gamma).to(weights.W.dtype).to(weights.W.device),
            gamma=gamma,
            epsilon=epsilon,
            activation=activation,
            solver=solver,
            normalize=normalize,
        )
        return Start(net, found.distance, found.relative)


@dataclass(frozen=True, eq=False)
class Start:
    """A network to train, and how far its weights are from those it was made from.

    distance: (|Lam dW|^2 + |Lam dU|^2 + |dWo|^2)^(1/2), Frobenius norms all, Lam the metric of the network.
    relative: the same, divided by the norm of what was given, (Lam (I - W), Lam U, Wo).
    """

    net: LBEN
    distance: float
    relative: float


class MON(EquilibriumNetwork):
    """A monotone operator equilibrium network (Winston & Kolter 2020): well-posed in the Euclidean metric."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        epsilon: float = 1.0,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> None:
        super().__init__(Monotone(in_features, hidden_features, out_features, epsilon), activation, solver, normalize)

    @classmethod
    def from_weights(
        cls,
        weights: Weights,
        *,
        epsilon: float = 1.0,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> MON:
        """The MON of these weights, whose metric is the Euclidean one whatever they carry; raises NotWellPosed."""
        sizes = _sizes(weights)
        net = cls(*sizes, epsilon=epsilon, activation=activation, solver=solver, normalize=normalize)
        return net._assign(weights)


class UnconstrainedEN(EquilibriumNetwork):
    """An equilibrium network whose W is free: it may have no equilibrium, or many, and nothing is proved of it."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> None:
        super().__init__(Unconstrained(in_features, hidden_features, out_features), activation, solver, normalize)

    @classmethod
    def from_weights(
        cls,
        weights: Weights,
        *,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> UnconstrainedEN:
        """The unconstrained network of these weights; their metric is forgotten, for training would void it."""
        sizes = _sizes(weights)
        net = cls(*sizes, activation=activation, solver=solver, normalize=normalize)
        return net._assign(weights)


def _sizes(weights: Weights) -> tuple[int, int, int]:
    if not isinstance(weights, Weights):
        raise InvalidInput(f"from_weights takes an lben.Weights, not {weights!r}.")
    return weights.in_features, weights.hidden_features, weights.out_features


def _fits(shape: torch.Size, target: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape expands to the target."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def _rows(b: Tensor) -> Tensor:
    return b.reshape(-1, b.shape[-1])


def _same(kept: list[Tensor], now: list[Tensor]) -> bool:
    return len(kept) == len(now) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(kept, now, strict=True)
    )
