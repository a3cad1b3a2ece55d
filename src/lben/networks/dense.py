"""Equilibrium networks: z = sigma(W z + U x + bz), y = Wo z + by (Equation `implicit`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, check_activation
from lben.activations.scalar import ReLU
from lben.errors import InvalidInput
from lben.networks.base import BaseNetwork, check_form
from lben.normalize import Normalize
from lben.numerics.transforms import as_it_is
from lben.parameterize.dense import LipschitzBounded, Monotone, Parameterization, Unconstrained, WellPosed
from lben.parameterize.fused import fused_equilibrium
from lben.parameterize.nearest import choose_metric, nearest_weights
from lben.parameterize.skip import Skip, Skipped, Tied, is_identity
from lben.parameterize.starts import SMALLEST_GAMMA, trainable
from lben.solvers.base import Solver
from lben.weights.dense import Weights

Network = TypeVar("Network", bound="EquilibriumNetwork")


class EquilibriumNetwork(BaseNetwork):
    """An equilibrium network of dense weights."""

    parameterization: Parameterization

    def __init__(
        self,
        parameterization: Parameterization,
        activation: Activation,
        solver: Solver | None,
        normalize: Normalize | None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_form(parameterization, Parameterization)
        super().__init__(parameterization, activation, solver, normalize, device=device, dtype=dtype)

    def weights(self) -> Weights:
        """The explicit weights, as differentiable functions of the free variables."""
        weights: Weights = self.parameterization()
        return weights

    @as_it_is
    def _equilibrium(self, x: Tensor, bias: Tensor | None) -> Tensor:
        p = self.parameterization
        if not (self.training and p.direct and isinstance(p, Monotone)) or checks.transformed():
            return super()._equilibrium(x, bias)
        return fused_equilibrium(p, x, bias, self.activation, self.solver, self._on_failure())

    def drive(self, x: Tensor) -> Tensor:
        """U x + bz, what the input adds to the pre-activations, of shape (..., hidden_features)."""
        self.parameterization.refresh()
        return self.parameterization.inject(self._scaled(x))

    def _assign(self: Network, weights: Weights) -> Network:
        if weights.D is not None and self.parameterization.feedthrough() is None:
            raise InvalidInput("These weights have a feed-through D: LBEN.from_weights makes a network with one.")
        self.to(device=weights.W.device, dtype=weights.W.dtype)
        self.parameterization.assign(weights.detach().validate())
        return self


class LBEN(EquilibriumNetwork):
    """A Lipschitz-bounded equilibrium network.

    With `gamma`, the map from x to y is gamma-Lipschitz in the l2 norm, whatever the free variables are; with
    gamma=None it is well-posed, with some finite bound. `epsilon` > 0 is the room left in the condition: larger
    makes equilibria easier to find, smaller makes more networks reachable.
    skip: what passes the hidden units by: "linear", y = Wo z + D x + by with a D that is learned, |D| < gamma; or
        "identity", y = x + Wo z + by, with as many outputs as inputs and gamma >= 1 (at 1, U is tied to Wo).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        gamma: float | None = None,
        epsilon: float = 1.0,
        skip: Skip | None = None,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        normalize: Normalize | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        sizes = (in_features, checks.count("hidden_features", hidden_features), out_features)
        checks.affordable("W", hidden_features, hidden_features)
        groups = check_activation(activation, hidden_features).groups(hidden_features)
        form = _form(sizes, gamma, epsilon, skip, groups, dtype)
        super().__init__(form, activation, solver, normalize, device=device, dtype=dtype)

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

        epsilon becomes what the weights leave room for, if that is less. With a D, the skip is "identity" if D is, and
        else "linear". Raises NotWellPosed or BoundNotMet.
        """
        sizes = sizes_of(weights)
        net = cls(
            *sizes,
            gamma=weights.gamma if gamma is None else gamma,
            skip=_skip_of(weights),
            epsilon=epsilon,
            activation=activation,
            solver=solver,
            normalize=normalize,
        )
        return net._assign(weights)

    @classmethod
    def initialize_from(
        cls,
        weights: Weights | EquilibriumNetwork,
        gamma: float | None = None,
        *,
        lam: Tensor | None = None,
        epsilon: float | None = None,
        activation: Activation | None = None,
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> Start:
        """An LBEN of bound gamma, to train on, from the admissible weights that are nearest to the given ones.

        Nearest in the norm of `nearest_weights` and for a fixed metric: `lam` if given; else the one the weights carry,
        if they carry a gamma too; else that of their tightest bound. Admissible weights leave a room of 2 epsilon, of
        which V keeps a half, so that training can move in every direction; epsilon is a hundredth of the median entry
        of the metric unless given. With gamma None, W alone may have to move.

        Of a network, activation and normalisation are taken as well, unless others are given; bare weights do not know
        theirs, which is ReLU unless given.
        """
        if isinstance(weights, EquilibriumNetwork):
            activation = weights.activation if activation is None else activation
            normalize = weights.normalize if normalize is None else normalize
            weights = weights.weights()
        activation = ReLU() if activation is None else activation
        sizes_of(weights)
        if gamma is not None:
            trainable(gamma, weights.W.dtype, SMALLEST_GAMMA)
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        form = Monotone(in_features, hidden_features, out_features, epsilon, dtype=dtype)
        super().__init__(form, activation, solver, normalize, device=device, dtype=dtype)

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
        sizes = sizes_of(weights)
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        form = Unconstrained(in_features, hidden_features, out_features, dtype=dtype)
        super().__init__(form, activation, solver, normalize, device=device, dtype=dtype)

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
        sizes = sizes_of(weights)
        net = cls(*sizes, activation=activation, solver=solver, normalize=normalize)
        return net._assign(weights)


def _form(
    sizes: tuple[int, int, int],
    gamma: float | None,
    epsilon: float,
    skip: Skip | None,
    groups: Tensor | None,
    dtype: torch.dtype | None,
) -> Parameterization:
    """The free variables of an LBEN."""
    if skip is not None:
        checks.choice("skip", skip, ("linear", "identity"))
        if skip == "identity" and gamma is not None and checks.positive("gamma", gamma) < 1:
            raise InvalidInput(f'gamma must be at least 1 with skip="identity", which adds x to y, not {gamma:g}.')
        if skip == "identity" and gamma == 1 and sizes[0] == sizes[2]:
            return Tied(sizes[0], sizes[1], epsilon, groups=groups, dtype=dtype)
        return Skipped(*sizes, gamma, skip, epsilon, groups=groups, dtype=dtype)
    if gamma is None:
        return WellPosed(*sizes, epsilon, groups=groups, dtype=dtype)
    return LipschitzBounded(*sizes, gamma, epsilon, groups=groups, dtype=dtype)


def _skip_of(weights: Weights) -> Skip | None:
    if weights.D is None:
        return None
    return "identity" if is_identity(weights.D) else "linear"


def sizes_of(weights: Weights) -> tuple[int, int, int]:
    if not isinstance(weights, Weights):
        raise InvalidInput(f"An lben.Weights is needed, such as net.weights(), not {type(weights).__name__}.")
    return weights.in_features, weights.hidden_features, weights.out_features
