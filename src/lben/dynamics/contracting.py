"""The neural ODE that contracts by construction; `parameterize/contracting.py` has the equation of its W."""

from __future__ import annotations

import torch

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import Tanh
from lben.dynamics.ode import Dynamics
from lben.networks.dense import EquilibriumNetwork, sizes_of
from lben.normalize import Normalize
from lben.parameterize.contracting import Contracting
from lben.solvers.base import Solver
from lben.weights.dense import Weights


class ContractingODE(Dynamics, EquilibriumNetwork):
    """v' = -v + W sigma(v) + U x(t) + bz, y = Wo sigma(v) + by, which contracts at `rate`, between 0 and 1.

    Any two trajectories under the same input approach each other in a norm |.|_P at least as fast as e^(-rate t),
    whatever the free variables are; `lben.contraction` finds P. For constant x they reach the equilibrium, which is
    what calling it returns the output of; with `gamma`, that output is gamma-Lipschitz in x.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        rate: float,
        gamma: float | None = None,
        activation: Activation = Tanh(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        normalize: Normalize | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        made = Contracting(in_features, hidden_features, out_features, rate, gamma, dtype=dtype)
        super().__init__(made, activation, solver, normalize, device=device, dtype=dtype)
        self.rate = made.rate

    @property
    def network(self) -> EquilibriumNetwork:
        return self

    @classmethod
    def from_weights(
        cls,
        weights: Weights,
        *,
        rate: float,
        gamma: float | None = None,
        activation: Activation = Tanh(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> ContractingODE:
        """The ODE of these weights, if the metric lam that they carry proves the rate; raises BoundNotMet."""
        net = cls(*sizes_of(weights), rate=rate, gamma=gamma, activation=activation, solver=solver, normalize=normalize)
        return net._assign(weights)
