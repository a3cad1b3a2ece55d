"""The neural ODE that contracts by construction; `parameterize/contracting.py` has the equation of its W."""

from __future__ import annotations

import torch

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import Tanh
from lben.dynamics.ode import Dynamics
from lben.networks.dense import EquilibriumNetwork, sizes_of
from lben.normalize import Normalize
from lben.parameterize.contracting import Contracting, Gained
from lben.solvers.base import Solver
from lben.weights.dense import Weights


class ContractingODE(Dynamics, EquilibriumNetwork):
    """v' = -v + W sigma(v) + U x(t) + bz, y = Wo sigma(v) + by, which contracts at `rate`, between 0 and 1.

    Any two trajectories under the same input approach each other in a norm |.|_P at least as fast as e^(-rate t),
    whatever the free variables are; `lben.contraction` finds P. For constant x they reach the equilibrium, which is
    what calling it returns the output of; with `gamma`, that output is gamma-Lipschitz in x. With `gain`, output
    signals move at most so many times as far as input signals, in L2 and from equal states.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        rate: float,
        gamma: float | None = None,
        gain: float | None = None,
        activation: Activation = Tanh(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        normalize: Normalize | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        sizes = (in_features, hidden_features, out_features)
        made = (
            Contracting(*sizes, rate, gamma, dtype=dtype)
            if gain is None
            else Gained(*sizes, rate, gamma, gain, dtype=dtype)
        )
        super().__init__(made, activation, solver, normalize, device=device, dtype=dtype)
        self.rate, self.gain = made.rate, gain

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
        gain: float | None = None,
        activation: Activation = Tanh(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> ContractingODE:
        """The ODE of these weights, if the metric lam that they carry proves what is asked for; raises BoundNotMet."""
        net = cls(
            *sizes_of(weights),
            rate=rate,
            gamma=gamma,
            gain=gain,
            activation=activation,
            solver=solver,
            normalize=normalize,
        )
        return net._assign(weights)
