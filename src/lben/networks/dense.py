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
    """What dense equilibrium networks share: ``z = sigma(W z + U x + bz)``, ``y = Wo z + by`` (Equation `implicit`).

    Make an `LBEN`, a `MON` or an `UnconstrainedEN`; this class is for type hints and isinstance.

    Args:
        parameterization: free variables, and how weights are made of them.
        activation: sigma, one of lben's, such as ``lben.ReLU()`` or ``lben.Tanh()``. It can be assigned later.
        solver: how equilibria are found, such as ``lben.PeacemanRachford(tolerance=1e-6)``; None: Peaceman-Rachford
            splitting. It can be assigned later.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if a part is none of lben's, or they do not fit each other.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> isinstance(net, lben.EquilibriumNetwork)
        True
        >>> net.in_features, net.hidden_features, net.out_features
        (2, 4, 1)
    """

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
        """The explicit weights, as differentiable functions of the free variables.

        Returns:
            A `Weights`, with the metric and the gamma that it is meant to prove, where there are.
        """
        weights: Weights = self.parameterization()
        return weights

    @as_it_is
    def _equilibrium(self, x: Tensor, bias: Tensor | None) -> Tensor:
        p = self.parameterization
        if not (self.training and p.direct and isinstance(p, Monotone)) or checks.transformed():
            return super()._equilibrium(x, bias)
        return fused_equilibrium(p, x, bias, self.activation, self.solver, self._on_failure())

    def drive(self, x: Tensor) -> Tensor:
        """U x + bz, what the input adds to the pre-activations.

        Args:
            x: of shape (..., in_features).

        Returns:
            A tensor of shape (..., hidden_features).
        """
        self.parameterization.refresh()
        return self.parameterization.inject(self._scaled(x))

    def _assign(self: Network, weights: Weights) -> Network:
        if weights.D is not None and self.parameterization.feedthrough() is None:
            raise InvalidInput("These weights have a feed-through D: LBEN.from_weights makes a network with one.")
        self.to(device=weights.W.device, dtype=weights.W.dtype)
        self.parameterization.assign(weights.detach().validate())
        return self


class LBEN(EquilibriumNetwork):
    """A Lipschitz-bounded equilibrium network: ``z = sigma(W z + U x + bz)``, ``y = Wo z + by``.

    With `gamma`, the map from x to y is gamma-Lipschitz in the l2 norm, whatever the free variables are; with gamma
    None it is well-posed, with some finite bound. It trains with any optimizer of torch, without projections. Inputs
    have shape (..., in_features), outputs (..., out_features).

    Args:
        in_features: the number of inputs d.
        hidden_features: the number of hidden units n.
        out_features: the number of outputs p.
        gamma: the Lipschitz bound from the network's input, behind `normalize`, to its output; above 0, and in training
            at least 1e-3 in float32 and 1e-6 in float64. None: none is prescribed.
        epsilon: the room left in the condition, above 0: larger makes equilibria easier to find, smaller makes more
            networks reachable.
        skip: what passes the hidden units by: "linear", ``y = Wo z + D x + by`` with a D that is learned, ``|D| <
            gamma``; or "identity", ``y = x + Wo z + by``, with as many outputs as inputs and gamma of at least 1 (at 1,
            U is tied to Wo). None: nothing.
        activation: sigma, one of lben's, such as ``lben.ReLU()`` or ``lben.Tanh()``. It can be assigned later.
        solver: how equilibria are found, such as ``lben.PeacemanRachford(tolerance=1e-6)``; None: Peaceman-Rachford
            splitting. It can be assigned later.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        The bound holds before and after training, and is proved from the weights.

        >>> _ = torch.manual_seed(0)
        >>> net = lben.LBEN(2, 8, 1, gamma=0.5)
        >>> x, y = torch.randn(64, 2), torch.randn(64, 1)
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        >>> for _ in range(5):
        ...     loss = (net(x) - y).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(lben.certify(net)), net.bound()
        (True, 0.5)
        >>> net(x).shape, net.solve(x).z.shape
        (torch.Size([64, 1]), torch.Size([64, 8]))

        With skip="identity" it is a residual block of a deep network.

        >>> block = lben.LBEN(3, 8, 3, gamma=2.0, skip="identity", activation=lben.Tanh())
        >>> lben.tightest_bound(block).gamma <= 2.0
        True
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
        """The LBEN of these weights, in the metric they carry.

        Args:
            weights: with a metric lam that proves the bound. With a D, the skip is "identity" if D is, and else
                "linear".
            gamma: the bound; that of the weights if not given.
            epsilon: the room left in the condition; it becomes what the weights leave room for, if that is less.
            activation: sigma, one of lben's.
            solver: how equilibria are found; None: Peaceman-Rachford splitting.
            normalize: a `Normalize` in front, or None.

        Returns:
            A network, to train on or to examine.

        Raises:
            NotWellPosed: if the metric does not prove an equilibrium.
            BoundNotMet: if it does not prove gamma.

        Examples:
            >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
            >>> same = lben.LBEN.from_weights(net.weights())
            >>> x = torch.tensor([[1.0, -1.0]])
            >>> torch.allclose(same(x), net(x), atol=1e-3)
            True
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

        Nearest in the norm that `Start` states, for a fixed metric. Admissible weights leave a room of 2 epsilon, of
        which V keeps a half, so that training can move in every direction.

        Args:
            weights: a network, whose activation and normalisation are taken as well unless others are given; or bare
                weights.
            gamma: the bound; None: well-posedness alone, for which W alone may have to move.
            lam: the diagonal of the metric, shape (n,); if not given the one the weights carry, if they carry a gamma
                too, else that of their tightest bound.
            epsilon: half of the room; a hundredth of the median entry of the metric if not given.
            activation: sigma; that of the network if not given, ReLU for bare weights.
            solver: how equilibria are found; None: Peaceman-Rachford splitting.
            normalize: a `Normalize` in front; that of the network if not given.

        Returns:
            A `Start`: the network, and how far its weights are from the given ones.

        Raises:
            InvalidInput: if an argument is none of these.

        Examples:
            A trained network without a bound becomes one with a bound.

            >>> free = lben.MON(2, 6, 1)
            >>> start = lben.LBEN.initialize_from(free, gamma=0.2)
            >>> bool(lben.certify(start.net, 0.2)), 0 <= start.relative < 1
            (True, True)
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
    """A network to train, and how far its weights are from those it was made from: `LBEN.initialize_from` returns it.

    Attributes:
        net: the network.
        distance: ``(|Lam dW|^2 + |Lam dU|^2 + |dWo|^2)^(1/2)``, Frobenius norms all, Lam the metric of the network.
        relative: the same, divided by the norm of what was given, ``(Lam (I - W), Lam U, Wo)``.

    Examples:
        Weights that satisfy the bound with room to spare need not move.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> start = lben.LBEN.initialize_from(net, gamma=2.0)
        >>> type(start.net).__name__, start.relative < 1e-3
        ('LBEN', True)
    """

    net: LBEN
    distance: float
    relative: float


class MON(EquilibriumNetwork):
    """A monotone operator equilibrium network (Winston & Kolter 2020): well-posed in the Euclidean metric.

    No Lipschitz bound is prescribed, but it has one: `bound` and `tightest_bound` find it.

    Args:
        in_features: the number of inputs d.
        hidden_features: the number of hidden units n.
        out_features: the number of outputs p.
        epsilon: the room left in the condition, above 0: larger makes equilibria easier to find, smaller makes more
            networks reachable.
        activation: sigma, one of lben's, such as ``lben.ReLU()`` or ``lben.Tanh()``. It can be assigned later.
        solver: how equilibria are found, such as ``lben.PeacemanRachford(tolerance=1e-6)``; None: Peaceman-Rachford
            splitting. It can be assigned later.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> net = lben.MON(2, 4, 1)
        >>> lben.well_posed(net).monotone
        True
        >>> lben.tightest_bound(net).gamma <= net.bound()
        True
    """

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
        """The MON of these weights, whose metric is the Euclidean one whatever they carry.

        Args:
            weights: monotone in the Euclidean metric.
            epsilon: the room left in the condition; it becomes what the weights leave room for, if that is less.
            activation: sigma, one of lben's.
            solver: how equilibria are found; None: Peaceman-Rachford splitting.
            normalize: a `Normalize` in front, or None.

        Returns:
            A network, to train on or to examine.

        Raises:
            NotWellPosed: if I - W is not monotone enough.
        """
        sizes = sizes_of(weights)
        net = cls(*sizes, epsilon=epsilon, activation=activation, solver=solver, normalize=normalize)
        return net._assign(weights)


class UnconstrainedEN(EquilibriumNetwork):
    """An equilibrium network whose W is free: it may have no equilibrium, or many, and nothing is promised of it.

    Args:
        in_features: the number of inputs d.
        hidden_features: the number of hidden units n.
        out_features: the number of outputs p.
        activation: sigma, one of lben's, such as ``lben.ReLU()`` or ``lben.Tanh()``. It can be assigned later.
        solver: how equilibria are found, such as ``lben.PeacemanRachford(tolerance=1e-6)``; None: Peaceman-Rachford
            splitting. It can be assigned later.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        It can be examined all the same: `well_posed` looks for a metric.

        >>> _ = torch.manual_seed(0)
        >>> net = lben.UnconstrainedEN(2, 4, 1)
        >>> bool(lben.well_posed(net))
        True
    """

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
        """The unconstrained network of these weights; their metric is forgotten, for training would void it.

        Args:
            weights: any.
            activation: sigma, one of lben's.
            solver: how equilibria are found; None: Peaceman-Rachford splitting.
            normalize: a `Normalize` in front, or None.

        Returns:
            A network, to train on or to examine.
        """
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
