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
    """A neural ODE that contracts by construction: ``v' = -v + W sigma(v) + U x(t) + bz``, ``y = Wo sigma(v) + by``.

    Any two trajectories under the same input approach each other in some norm at least as fast as e^(-rate t), whatever
    the free variables are; `lben.contraction` finds the norm. For constant x they reach the equilibrium, and calling it
    returns the output there.

    Args:
        in_features: the number of inputs d.
        hidden_features: the number of hidden units n.
        out_features: the number of outputs p.
        rate: of contraction, between 0 and 1.
        gamma: a Lipschitz bound of the output at rest; None: none is prescribed.
        gain: output signals move at most so many times as far as input signals, in L2 and from equal states; None: none
            is prescribed.
        activation: sigma, one of lben's, such as ``lben.ReLU()`` or ``lben.Tanh()``. It can be assigned later.
        solver: how equilibria are found, such as ``lben.PeacemanRachford(tolerance=1e-6)``; None: Peaceman-Rachford
            splitting. It can be assigned later.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        Two trajectories forget where they began.

        >>> ode = lben.ContractingODE(1, 2, 1, rate=0.5)
        >>> x, t = torch.ones(2, 1), torch.linspace(0, 20, 3)
        >>> v = ode.simulate(x, torch.tensor([[1.0, -1.0], [-3.0, 2.0]]), t)
        >>> torch.allclose(v[-1, 0], v[-1, 1], atol=1e-3)
        True
        >>> lben.contraction(ode).rate >= 0.5
        True
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
        """The ODE of these weights, if the metric lam that they carry proves what is asked for.

        Args:
            weights: with a metric lam.
            rate: of contraction, between 0 and 1.
            gamma: a Lipschitz bound of the output at rest, or None.
            gain: of signals, in L2, or None.
            activation: sigma, one of lben's.
            solver: how equilibria are found; None: Peaceman-Rachford splitting.
            normalize: a `Normalize` in front, or None.

        Returns:
            An ODE, to train on or to examine.

        Raises:
            BoundNotMet: if lam does not prove it.
        """
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
