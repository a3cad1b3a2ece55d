"""Trajectories of the neural ODE, its equilibria, and what is true of it without any promise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.checks import need
from lben.errors import InvalidInput, NotConverged, NotWellPosed
from lben.networks.dense import EquilibriumNetwork
from lben.normalize import Normalize
from lben.operators.dense import DenseOperator
from lben.solvers.base import Problem
from lben.solvers.extragradient import Cut, oracle
from lben.weights.dense import Weights

Signal = Tensor | Callable[[Tensor], Tensor]
_MOST_STEPS = 100_000  # of the integrator, between two times of the grid


class Dynamics:
    """v' = -v + W sigma(v) + U x(t) + bz, y = Wo sigma(v) + by (Equation `neural-ode`) of some `network`.

    x is constant, of shape (batch, d); or given on the time grid, (times, batch, d), and linear in between; or a
    function from a time to a tensor of shape (batch, d). States v have shape (batch, n).
    """

    @property
    @abstractmethod
    def network(self) -> EquilibriumNetwork: ...

    def simulate(self, x: Signal, v0: Tensor, t: Tensor, *, tolerance: float = 1e-6) -> Tensor:
        """The states at given times, by the adaptive Dormand-Prince method of torchdiffeq (extra `ode`).

        Args:
            x: constant, of shape (batch, d); or given at the times, of shape (times, batch, d), and linear in between;
                or a function from a time to a tensor of shape (batch, d).
            v0: the states at t[0], of shape (batch, n).
            t: times, at least two, which must increase.
            tolerance: the local error is at most this, relative to the larger of each sample's size and 1.

        Returns:
            States of shape (times, batch, n), differentiable.

        Raises:
            NotConverged: where a trajectory overflows.
            InvalidInput: if an argument does not fit.
        """
        weights, sigma = self.network.weights(), self.network.activation
        drive = self._drive(x, v0, t)
        return _integrate(lambda time, v: F.linear(sigma(v), weights.W) + drive(time) - v, v0, t, tolerance)

    def simulate_hidden(self, x: Signal, z0: Tensor, t: Tensor, *, tolerance: float = 1e-6) -> Tensor:
        """The other ODE of the paper, ``z' = -z + sigma(W z + U x(t) + bz)``.

        For constant x it is the same one seen through W: v = W z + U x + bz obeys Equation `neural-ode`.

        Args:
            x: as `simulate` takes it.
            z0: the hidden units at t[0], of shape (batch, n).
            t: times, at least two, which must increase.
            tolerance: as that of `simulate`.

        Returns:
            Hidden units of shape (times, batch, n), differentiable.

        Raises:
            NotConverged: where a trajectory overflows.
            InvalidInput: if an argument does not fit.
        """
        weights, sigma = self.network.weights(), self.network.activation
        drive = self._drive(x, z0, t)
        return _integrate(lambda time, z: sigma(F.linear(z, weights.W) + drive(time)) - z, z0, t, tolerance)

    def output(self, v: Tensor) -> Tensor:
        """y = Wo sigma(v) + by.

        Args:
            v: states, of shape (..., n).

        Returns:
            Outputs of shape (..., out_features).

        Raises:
            InvalidInput: if v does not fit, or the network has a feed-through.
        """
        weights = self.network.weights()
        checks.features("v", v, weights.hidden_features, weights.U)
        if weights.D is not None:
            raise InvalidInput("This network has a feed-through D, which the output of the neural ODE has not.")
        return F.linear(self.network.activation(v), weights.Wo, weights.by)

    def equilibrium(self, x: Tensor) -> Tensor:
        """The state v = W z + U x + bz that the ODE rests in under constant x, z by the network's solver.

        Args:
            x: of shape (batch, d).

        Returns:
            States of shape (batch, n), differentiable.

        Raises:
            NotConverged: where there is none.
        """
        z = self.network.solve(x).z
        return F.linear(z, self.network.weights().W) + self.network.drive(x)

    def lyapunov(self, v: Tensor, x: Tensor) -> Tensor:
        """Sum of lam_i times the integral of sigma(s) - z*_i from v*_i to v_i, for constant x.

        It falls along every trajectory if Condition `W` holds, as fast as ``m |sigma(v) - z*|_Lam^2``, and is zero at
        ``v*``. With f the potential of sigma, the integral of sigma is v sigma(v) - sigma(v)^2/2 - f(sigma(v)).

        Args:
            v: states, of shape (..., batch, n).
            x: the constant input, of shape (batch, d).

        Returns:
            A tensor of shape (..., batch).

        Raises:
            NotWellPosed: if the weights carry no metric.
            InvalidInput: if v does not fit x.
        """
        lam, sigma = self._metric(), self.network.activation
        self._check_states(v, x)
        rest = self.equilibrium(x)

        def integral(at: Tensor) -> Tensor:
            z = sigma(at)
            return (lam * (at * z - z**2 / 2)).sum(dim=-1) - sigma.total_potential(z, lam)

        return integral(v) - integral(rest) - (lam * sigma(rest) * (v - rest)).sum(dim=-1)

    def half_space(self, v: Tensor, x: Tensor) -> Cut:
        """Where the equilibrium z* must lie, seen from the states v: ``<z* - z, f(v)>_Lam >= m |z* - z|_Lam^2``.

        z = sigma(v), and f(v) = -v + W z + U x + bz is what the ODE does there.

        Args:
            v: states, of shape (..., batch, n).
            x: the constant input, of shape (batch, d).

        Returns:
            A cut, with the tensors `point` and `normal` of the shape of v, the number `m` and the metric `lam`.

        Raises:
            NotWellPosed: if the weights carry no metric.
            InvalidInput: if v does not fit x.
        """
        lam = self._metric()
        self._check_states(v, x)
        operator = DenseOperator(self.network.weights().W.detach(), lam)
        drive = self.network.drive(checks.finite("x", x)).detach().expand(v.shape)
        problem = Problem(operator, self.network.activation, drive.reshape(-1, len(lam)))
        cut = oracle(problem, v.detach().reshape(-1, len(lam)), operator.sure_monotonicity)
        return replace(cut, point=cut.point.reshape(v.shape), normal=cut.normal.reshape(v.shape))

    def _check_states(self, v: Tensor, x: Tensor) -> None:
        checks.finite("v", checks.features("v", v, self.network.hidden_features, self.network.parameterization.U))
        rows = checks.floating("x", x).shape[:-1]
        if v.shape[v.dim() - 1 - len(rows) : -1] != rows:
            raise InvalidInput(f"v has shape {tuple(v.shape)}, which does not fit x, of {len(rows) and rows[-1]} rows.")

    def _metric(self) -> Tensor:
        weights = self.network.weights().detach()
        if weights.lam is None:
            raise NotWellPosed("These weights carry no metric lam: lben.well_posed(net) looks for one.", 0.0)
        return weights.lam

    def _drive(self, x: Signal, start: Tensor, t: Tensor) -> Callable[[Tensor], Tensor]:
        """U x + bz as a function of the time since t[0]: float32 tells large times apart too badly."""
        network = self.network
        checks.features("the initial state", start, network.hidden_features, network.parameterization.U)
        if start.dim() != 2:
            raise InvalidInput(f"The initial state must have shape (batch, n), not {tuple(start.shape)}.")
        checks.finite("the initial state", start)
        _check_grid(t)
        if not isinstance(x, Tensor):
            if not callable(x):
                raise InvalidInput(f"x must be a tensor or a function of time, not {type(x).__name__}.")
            began = t[0].to(start.device, torch.float64)

            def drive(elapsed: Tensor) -> Tensor:
                now = x((began + elapsed).to(start.dtype))
                return network.drive(checks.finite("x(t)", _check_signal(now, start)))

            return drive
        if x.dim() == 3 and len(x) == len(t):
            along = network.drive(checks.finite("x", x))
            _check_signal(x[0], start)
            return _linear_between(along, _elapsed(t, start))
        constant = network.drive(checks.finite("x", _check_signal(x, start)))
        return lambda time: constant


class ODE(Dynamics, nn.Module):
    """The neural ODE of any dense network, with no promise: ``v' = -v + W sigma(v) + U x(t) + bz``.

    y = Wo sigma(v) + by (Equation `neural-ode`). `lben.contraction` says whether it contracts, and `incremental_gain`
    how far output signals move. Calling it with x, of shape (..., d), gives the output at rest, which is the network's.

    Args:
        net: a dense equilibrium network, which trains with it.

    Raises:
        InvalidInput: for another network.

    Examples:
        Under constant input it comes to rest where the network's equilibrium is.

        >>> ode = lben.ODE(lben.LBEN(1, 2, 1, gamma=1.0, activation=lben.Tanh()))
        >>> x = torch.ones(1, 1)
        >>> v = ode.simulate(x, torch.zeros(1, 2), torch.linspace(0, 9, 4))
        >>> v.shape, torch.allclose(v[-1], ode.equilibrium(x), atol=1e-3)
        (torch.Size([4, 1, 2]), True)
        >>> bool((ode.lyapunov(v, x)[-1] < ode.lyapunov(v, x)[0]).all())
        True
    """

    def __init__(self, net: EquilibriumNetwork) -> None:
        super().__init__()
        if not isinstance(net, EquilibriumNetwork):
            raise InvalidInput(f"lben.ODE takes a dense equilibrium network, not {type(net).__name__}.")
        self.net = net

    @property
    def network(self) -> EquilibriumNetwork:
        return self.net

    @property
    def activation(self) -> Activation:
        return self.net.activation

    @property
    def normalize(self) -> Normalize | None:
        return self.net.normalize

    def weights(self) -> Weights:
        """The explicit weights of the network.

        Returns:
            A `Weights`.
        """
        return self.net.weights()

    def forward(self, x: Tensor) -> Tensor:
        """The output at rest under constant x, which is the network's.

        Args:
            x: of shape (..., d).

        Returns:
            Outputs of shape (..., out_features).
        """
        y: Tensor = self.net(x)
        return y


def _integrate(field: Callable[[Tensor, Tensor], Tensor], start: Tensor, t: Tensor, tolerance: float) -> Tensor:
    """Dormand-Prince steps that end at every time of the grid, where inputs may have kinks."""
    torchdiffeq = need("torchdiffeq", "simulate", extra="ode")
    finest = 4 * torch.finfo(start.dtype).eps
    if not checks.positive("tolerance", tolerance) >= finest:
        raise InvalidInput(f"tolerance must be at least {finest:.2g} in {str(start.dtype)[6:]}, not {tolerance:g}.")
    if len(start) == 0:
        return start.expand(len(t), *start.shape)
    times = _elapsed(t, start)
    options: dict[str, Any] = {"norm": _worst_sample, "step_t": times[1:], "max_num_steps": _MOST_STEPS}
    try:
        path: Tensor = torchdiffeq.odeint(
            field, start, times, rtol=tolerance, atol=tolerance, method="dopri5", options=options
        )
    except AssertionError as error:  # torchdiffeq's way to say that steps became too small or too many
        raise NotConverged(
            f"The ODE could not be integrated to t = {float(t[-1]):.6g} ({str(error)[:80]}): the trajectory "
            f"overflows, or the tolerance {tolerance:g} is too small for {str(start.dtype)[6:]}.",
            float("inf"),
        ) from error
    if not bool(torch.isfinite(path).all()):
        raise NotConverged(f"The trajectory overflows before t = {float(t[-1]):.6g}.", float("inf"))
    return path


def _elapsed(t: Tensor, start: Tensor) -> Tensor:
    times = t.to(start.device, torch.float64)
    return times - times[0]


def _worst_sample(error: Tensor) -> Tensor:
    """The largest root-mean-square of a row: every sample is as accurate as if it were alone."""
    rows = error.reshape(-1, error.shape[-1])
    return rows.square().mean(dim=-1).max().sqrt()


def _linear_between(values: Tensor, t: Tensor) -> Callable[[Tensor], Tensor]:
    """The function that is linear between values[k] at t[k], and constant outside."""

    def at(time: Tensor) -> Tensor:
        k = int(torch.searchsorted(t, time.to(t.dtype)).clamp(1, len(t) - 1))
        share = ((time - t[k - 1]) / (t[k] - t[k - 1])).clamp(0, 1).to(values.dtype)
        return torch.lerp(values[k - 1], values[k], share)

    return at


def _check_signal(x: Tensor, start: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.shape[:-1] != start.shape[:-1] or x.dim() != start.dim():
        shape = tuple(x.shape) if isinstance(x, Tensor) else x
        raise InvalidInput(
            f"x must have shape ({len(start)}, d), one row for each initial state, or (times, {len(start)}, d) with "
            f"as many times as t has, not {shape}."
        )
    return x


def _check_grid(t: Tensor) -> None:
    checks.floating("t", t)
    if t.dim() != 1 or len(t) < 2:
        raise InvalidInput(f"t must hold at least two times in one dimension, but its shape is {tuple(t.shape)}.")
    checks.finite("t", t)
    falls = (t[1:] <= t[:-1]).nonzero()[:, 0]
    if len(falls):
        k = int(falls[0])
        raise InvalidInput(f"t must increase, but t[{k + 1}] = {t[k + 1].item():g} does not exceed {t[k].item():g}.")
