"""Recurrent equilibrium networks: signals in, signals out, and a promise about any two of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as recomputed

from lben import checks
from lben.activations.base import Activation, check_activation, refuse_blocks
from lben.activations.scalar import ReLU
from lben.certify.trajectories import Method, outputs, run
from lben.described import Described, arguments, made
from lben.errors import InvalidInput, NotConverged
from lben.implicit import Known, equilibrium
from lben.numerics.transforms import as_it_is
from lben.operators.dense import DenseOperator
from lben.parameterize.behaviours import Behaviour, check_behaviour
from lben.parameterize.recurrent import Free, Promised, RecurrentForm
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import OnFailure, Problem, Solver, check_solver
from lben.solvers.loop import solve
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights.record import same
from lben.weights.recurrent import RENWeights

Initial = Literal["zero", "learned"]


class Simulation(NamedTuple):
    """What `REN.simulate` returns.

    Attributes:
        y: outputs, of shape (times, batch, p).
        states: of shape (times + 1, batch, n), the first before and the last after all inputs.

    Examples:
        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Contracting())
        >>> found = ren.simulate(torch.randn(5, 4, 1))
        >>> found.y.shape, found.states.shape
        (torch.Size([5, 4, 1]), torch.Size([6, 4, 2]))
    """

    y: Tensor
    states: Tensor


class Step(NamedTuple):
    """What `REN.step` returns.

    Attributes:
        y: the output, of shape (..., p).
        state: the next state, of shape (..., n).
        hidden: the hidden units, from which the next step may start, of shape (..., q).

    Examples:
        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Contracting())
        >>> first = ren.step(torch.randn(4, 1))
        >>> second = ren.step(torch.randn(4, 1), first.state, start=first.hidden)
        >>> second.y.shape
        torch.Size([4, 1])
    """

    y: Tensor
    state: Tensor
    hidden: Tensor


class REN(Described):
    """A recurrent equilibrium network: signals in, signals out, and a promise about any two of them.

    ``x+ = A x + B1 w + B2 u + bx``, ``w = sigma(C1 x + D11 w + D12 u + bv)``, ``y = C2 x + D21 w + D22 u + by``.
    Whatever the free variables are, any two trajectories keep the promise of its behaviour; hidden units w are an
    equilibrium, found by the solver. Calling it with signals u, of shape (times, batch, in_features), gives those of y.

    Args:
        in_features: the number of inputs u.
        state_features: the number of states x. Without states (0) it is an equilibrium network at every time step.
        hidden_features: the number of hidden units w.
        out_features: the number of outputs y.
        behaviour: `Contracting`, `Lipschitz`, `Passive` or `Dissipative`; None: weights are free, and nothing is
            promised.
        feedthrough: whether D22 is there.
        acyclic: whether D11 is strictly lower triangular, so that w is found by one sweep.
        initial: the state that a simulation starts from if none is given: "zero", or one that is "learned".
        activation: sigma, one of lben's, of single units. It can be assigned later.
        solver: how hidden units are found; None: a sweep where D11 is acyclic, else Peaceman-Rachford splitting.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these, or the behaviour cannot be kept by such a network.

    Examples:
        Output signals move at most twice as far as input signals.

        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(2.0))
        >>> u = torch.randn(2, 10, 1, 1)
        >>> bool((ren(u[0]) - ren(u[1])).norm() <= 2 * (u[0] - u[1]).norm())
        True
        >>> bool(lben.certify(ren))
        True
    """

    elsewhere = ("solver",)
    normalize = None

    def __init__(
        self,
        in_features: int,
        state_features: int,
        hidden_features: int,
        out_features: int,
        *,
        behaviour: Behaviour | None,
        feedthrough: bool = True,
        acyclic: bool = False,
        initial: Initial = "zero",
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.placement(device, dtype)
        sizes = (in_features, state_features, hidden_features, out_features)
        self._behaviour = check_behaviour(behaviour)
        self.parameterization: RecurrentForm = (
            Free(sizes, feedthrough, acyclic, dtype)
            if behaviour is None
            else Promised(sizes, behaviour, feedthrough, acyclic, dtype)
        )
        checks.choice("initial", initial, ("zero", "learned"))
        start = torch.zeros(state_features, dtype=dtype)
        self.start = nn.Parameter(start) if initial == "learned" else None
        self.activation = activation
        self.solver = _fitting(activation, acyclic) if solver is None else solver
        self._kept: tuple[tuple[Tensor, ...], RENWeights, DenseOperator] | None = None
        self.to(device=device, dtype=dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        """Past `nn.Module`, which would take an nn.ReLU for a part of the network before its property can refuse it."""
        if name in ("activation", "solver"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @classmethod
    def from_weights(
        cls,
        weights: RENWeights,
        *,
        behaviour: Behaviour | None,
        acyclic: bool = False,
        initial: Initial = "zero",
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
    ) -> REN:
        """The network of these weights, if the P and lam that they carry prove the behaviour.

        Every network that some P and lam prove can be made where Q is not singular. Where it is, as of `Passive()`, a
        little of the supply is kept back, and networks that need the last 1e-3 of it are refused. Without a behaviour
        any weights can be taken, and their P and lam are forgotten.

        Args:
            weights: such as those of another network.
            behaviour: what they are to promise; None for nothing.
            acyclic: whether D11 is strictly lower triangular.
            initial: "zero", or "learned", from zero on.
            activation: sigma, one of lben's, of single units.
            solver: how hidden units are found; None: as in the constructor.

        Returns:
            A network, to train on or to examine.

        Raises:
            BoundNotMet: if they do not prove the behaviour.
            InvalidInput: for anything that is no `RENWeights`.
        """
        if not isinstance(weights, RENWeights):
            raise InvalidInput(f"An lben.RENWeights is needed, such as ren.weights(), not {type(weights).__name__}.")
        net = cls(
            *_sizes_of(weights),
            behaviour=behaviour,
            feedthrough=weights.D22 is not None,
            acyclic=acyclic,
            initial=initial,
            activation=activation,
            solver=solver,
        )
        net.to(device=weights.A.device, dtype=weights.A.dtype)
        net.parameterization.assign(weights.detach().validate())
        return net

    @property
    def behaviour(self) -> Behaviour | None:
        """What is promised of any two trajectories; None where nothing is."""
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: object) -> None:
        raise InvalidInput(
            "The behaviour of a network stands in how its weights are made, and cannot be changed: REN.from_weights("
            "ren.weights(), behaviour=...) makes another of them, if they keep its promise."
        )

    @property
    def in_features(self) -> int:
        return self.parameterization.in_features

    @property
    def state_features(self) -> int:
        return self.parameterization.state_features

    @property
    def hidden_features(self) -> int:
        return self.parameterization.hidden_features

    @property
    def out_features(self) -> int:
        return self.parameterization.out_features

    @property
    def activation(self) -> Activation:
        """sigma, of single units; assign another at any time."""
        return self._activation

    @activation.setter
    def activation(self, activation: Activation) -> None:
        refuse_blocks(check_activation(activation, self.hidden_features).groups(self.hidden_features))
        self._activation = activation

    @property
    def solver(self) -> Solver:
        """The method that finds hidden units, forward and backward; assign another at any time."""
        return self._solver

    @solver.setter
    def solver(self, solver: Solver) -> None:
        self._solver = check_solver(solver)

    def options(self) -> dict[str, Any]:
        form = self.parameterization
        return {
            "sizes": form.sizes,
            "behaviour": self.behaviour,
            "feedthrough": form.feedthrough,
            "acyclic": form.acyclic,
            "initial": "zero" if self.start is None else "learned",
            "activation": self.activation,
            "solver": self.solver,
        }

    def constants(self) -> dict[str, float]:
        return self.parameterization.constants()

    def extra_repr(self) -> str:
        options = self.options()
        sizes = [str(size) for size in options.pop("sizes")]
        return ", ".join([*sizes, *(f"{name}={value!r}" for name, value in options.items())])

    @classmethod
    def _restore(cls, options: dict[str, Any], tensors: dict[str, Tensor]) -> REN:
        """A network of these options, as `options` has them, with any weights of the shapes of these tensors."""
        return made(lambda: cls(*options["sizes"], **arguments(cls, options)), tensors)

    def validate(self) -> None:
        """Pass a network whose tensors are finite and within their ranges.

        Raises:
            InvalidInput: naming the first tensor that is not.
        """
        self.parameterization.validate()
        if self.start is not None:
            checks.finite("start", self.start)

    def weights(self) -> RENWeights:
        """The explicit weights, as differentiable functions of the free variables, with what proves the promise.

        Returns:
            A `RENWeights`.
        """
        found: RENWeights = self.parameterization()
        return found

    def forward(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        """The outputs of `simulate`.

        Args:
            u: input signals, of shape (times, batch, in_features).
            x0: the first states, as `simulate` takes them.

        Returns:
            Output signals, of shape (times, batch, out_features).
        """
        return self.simulate(u, x0).y

    def simulate(self, u: Tensor, x0: Tensor | None = None, *, checkpoint: int | None = None) -> Simulation:
        """Outputs and states under input signals.

        Args:
            u: of shape (times, batch, in_features), with at least one time step.
            x0: the first states, of shape (batch, state_features), or (state_features,) for all; the network's own
                initial state if not given.
            checkpoint: keep the hidden units of so many steps at a time alone, and compute them again for gradients:
                for long signals. Gradients are exact either way, and memory does not grow with the solver's iterations.

        Returns:
            A `Simulation`.

        Raises:
            NotConverged: where states overflow, or hidden units are not found.
            InvalidInput: if u or x0 does not fit.
        """
        self._check_signal(u)
        x = self._first(x0, u.shape[1:-1])
        if checkpoint is not None:
            checks.count("checkpoint", checkpoint)
        with torch.autocast(u.device.type, enabled=False):
            weights, operator = self._ready()
            if checkpoint is None:
                return _checked(self._piece(weights, operator, u, x))
            pieces = []
            for part in u.split(checkpoint):
                args = (weights, operator, part, x)
                y, states = recomputed(self._piece, *args, use_reentrant=False, preserve_rng_state=False)
                pieces.append((y, states))
                x = states[-1]
            states = torch.cat([pieces[0][1][:1], *(states[1:] for _, states in pieces)])
            return _checked(Simulation(torch.cat([y for y, _ in pieces]), states))

    def step(self, u: Tensor, x: Tensor | None = None, *, start: Tensor | None = None) -> Step:
        """One step.

        In evaluation, and without gradients, what is made of the free variables is kept until they change.

        Args:
            u: inputs, of shape (..., in_features).
            x: states, of shape (..., state_features); the network's own initial state if not given.
            start: hidden units to start from, such as those of the step before.

        Returns:
            A `Step`.

        Raises:
            NotConverged: if hidden units are not found.
            InvalidInput: if an argument does not fit.
        """
        x = self._first(x, self._fitting_rows(u))
        with torch.autocast(u.device.type, enabled=False):
            weights, operator = self._ready()
            b = F.linear(x, weights.C1, weights.bv) + F.linear(u, weights.D12)
            w = self._hidden(operator, b.reshape(-1, self.hidden_features), start, u, x).reshape(b.shape)
            after = F.linear(x, weights.A, weights.bx) + F.linear(w, weights.B1) + F.linear(u, weights.B2)
            return Step(outputs(weights, x, w, u), after, w)

    def _piece(self, weights: RENWeights, operator: DenseOperator, u: Tensor, x: Tensor) -> Simulation:
        method = Method(operator, self.activation, self.solver, self._on_failure())
        y, states, _ = run(weights, method, u, x)
        return Simulation(y, states)

    @as_it_is
    def _hidden(self, operator: DenseOperator, rows: Tensor, start: Tensor | None, u: Tensor, x: Tensor) -> Tensor:
        checks.finite_sum(rows, u=u, x=x, **dict(self.named_parameters()))
        solver, on_failure = self.solver, self._on_failure()
        known = None
        if start is not None and not checks.transformed():
            problem = Problem(operator, self.activation, rows.detach())
            found = solve(solver, problem, start=start, on_failure=on_failure)
            known = Known(found.z, found.v, found.iterations)
        return equilibrium(operator, self.activation, rows, solver, on_failure=on_failure, known=known)

    @as_it_is
    def _ready(self) -> tuple[RENWeights, DenseOperator]:
        """The weights and the operator of D11; kept in evaluation without gradients, until a free variable changes."""
        form = self.parameterization
        if self.training or torch.is_grad_enabled() or checks.transformed():
            weights = form.explicit()
            return weights, DenseOperator(weights.D11, weights.lam)
        now = (*form.parameters(), *form.buffers())
        if self._kept is None or not same(self._kept[0], now):
            weights = form.explicit().detach().clone()
            operator = DenseOperator(weights.D11, weights.lam)
            self._kept = tuple(tensor.detach().clone() for tensor in now), weights, operator
        return self._kept[1:]

    @as_it_is
    def _first(self, x: Tensor | None, batch: torch.Size) -> Tensor:
        like = self.parameterization.bx
        if x is None:
            x = torch.zeros_like(like) if self.start is None else self.start
        checks.features("The state", x, self.state_features, like)
        if x.dim() > 1 and x.shape[:-1] != batch:
            raise InvalidInput(
                f"The state has shape {tuple(x.shape)}, but must have one row for each of {tuple(batch)} samples."
            )
        return checks.finite("The state", x).expand(*batch, self.state_features)

    @as_it_is
    def _fitting_rows(self, u: Tensor) -> torch.Size:
        return checks.features("u", u, self.in_features, self.parameterization.bx).shape[:-1]

    @as_it_is
    def _check_signal(self, u: Tensor) -> None:
        checks.features("u", u, self.in_features, self.parameterization.bx)
        if u.dim() != 3 or len(u) == 0:
            raise InvalidInput(
                f"u must have shape (times, batch, {self.in_features}) with at least one time step, not "
                f"{tuple(u.shape)}; one step alone is .step(u, x)."
            )
        if not checks.transformed():
            checks.finite_in_time(checks.peeled(u))

    def _on_failure(self) -> OnFailure:
        return self.solver.on_failure or ("fallback" if self.training else "raise")


def _fitting(activation: Activation, acyclic: bool) -> Solver:
    """At alpha = 1 an activation is its own prox, which saves an equation to solve where it is not so elsewhere."""
    if acyclic:
        return BackSubstitution()
    return PeacemanRachford() if getattr(activation, "own_prox", False) else PeacemanRachford(alpha=1.0)


@as_it_is
def _checked(found: Simulation) -> Simulation:
    """The simulation, if no state has overflowed."""
    if checks.transformed():
        return found
    lost = ~torch.isfinite(found.states.detach()).flatten(1).all(dim=1)
    if bool(lost.any()):
        t = int(lost.nonzero()[0, 0])
        raise NotConverged(f"The state overflows at time step {t} of {len(found.y)}: nothing bounds it.", 0.0)
    return found


def _sizes_of(weights: RENWeights) -> tuple[int, int, int, int]:
    return weights.in_features, weights.state_features, weights.hidden_features, weights.out_features
