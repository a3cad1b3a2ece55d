"""What subjects of one equilibrium share: how z is found, and how far it may be from that of the real numbers.

For any v, the real vector sigma(v) is the exact equilibrium of the bias v - W sigma(v), and the map from bias to
equilibrium is 1/m-Lipschitz in the Lambda norm. So for a z within s of sigma(v), entry by entry,

    |z - z*|_Lam <= |s|_Lam + (|v - W z - U x - bz| + |W| s)_Lam / m,

whoever found z and v, and however.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lben import checks
from lben.certify.evaluation import Evaluation, Reach, joined
from lben.certify.subject import Subject
from lben.errors import ConvergenceWarning, NotWellPosed
from lben.implicit import equilibrium
from lben.numerics.enclosed import EPS
from lben.numerics.rounding import norm_bound
from lben.operators.base import Operator
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Problem, Solved, Solver
from lben.solvers.fista import FISTA
from lben.solvers.loop import solve
from lben.solvers.newton import Newton
from lben.weights.record import Record

_SLOW_STEPS = 20_000
_TINY = torch.finfo(torch.float64).tiny
_MOST_UNITS = 2**23  # hidden units that are solved for at once


@dataclass(frozen=True, eq=False)
class EquilibriumSubject(Subject):
    """z = sigma(W z + U x + bz), y = Wo z + D x + by, by plain sums, whose roundings can be counted."""

    weights: Record

    @property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of Lambda, shape (n,); ones where none is known."""

    @property
    @abstractmethod
    def has_metric(self) -> bool: ...

    @property
    @abstractmethod
    def monotonicity(self) -> float:
        """m in the metric, rounded down; not positive where none is proved."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """How many roundings any term of W z + U x + bz goes through, at most."""

    @property
    @abstractmethod
    def longest_output(self) -> int:
        """How many any term of Wo z + D x + by goes through."""

    @abstractmethod
    def product(self, z: Tensor, *, absolute: bool) -> Tensor:
        """W z for rows z; or a bound on |W| z."""

    @abstractmethod
    def injection(self, x: Tensor, *, absolute: bool) -> Tensor:
        """U x + bz for rows x; or |U| x + |bz|."""

    @abstractmethod
    def readout(self, z: Tensor, x: Tensor, *, absolute: bool) -> Tensor:
        """Wo z + D x + by for rows z and x; or |Wo| z + |D| x + |by|."""

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """By how much an error of one in the Lambda norm of z can move y."""

    @cached_property
    def operator(self) -> Operator:
        return self.weights.operator()

    @property
    def proved(self) -> bool:
        return self.has_metric and self.monotonicity > 0

    def refusal(self) -> NotWellPosed:
        return NotWellPosed(
            "Their metric does not prove these weights well-posed: I - W is not strongly monotone beyond rounding "
            f"(m = {self.operator.monotonicity:.3g}).",
            2 * self.monotonicity,
        )

    def suitable(self, solver: Solver) -> Solver:
        """The solver; one sweep where the weights are those of a feed-forward network, or FISTA where the solver needs
        a resolvent that the metric does not have, to the same tolerance.
        """
        if self.operator.layers is not None:
            return BackSubstitution(tolerance=solver.tolerance, on_failure=solver.on_failure)
        if self.operator.has_resolvent or not solver.needs_resolvent:
            return solver
        return FISTA(tolerance=solver.tolerance, max_iterations=_SLOW_STEPS, on_failure=solver.on_failure)

    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        rows = self.scaled(x)
        method, on_failure = self.suitable(solver), solver.on_failure or "raise"
        z = equilibrium(self.operator, self.activation, self._bias(rows), method, on_failure=on_failure)
        return self.weights.readout(z, rows)

    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        size = max(1, _MOST_UNITS // self.weights.hidden_features)
        return joined([self._evaluate(rows, solver) for rows in x.split(size)])

    def scaled(self, x: Tensor) -> Tensor:
        """x at the network's input."""
        return x if self.normalize is None else self.normalize(x)

    def _bias(self, x: Tensor) -> Tensor:
        """U x + bz, for x at the network's input."""
        b = self.weights.inject(x)
        checks.finite_sum(b, x=x, **self.weights.tensors())
        return b

    def _evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        found = self._solve(x, solver)
        return self.outputs_of(found.z, x, self.distance(found.z, found.v, x), found.converged)

    def outputs_of(self, z: Tensor, x: Tensor, distance: Tensor, converged: Tensor) -> Evaluation:
        """What z, at this distance of the equilibrium, says of the outputs."""
        y = self.readout(z, self.scaled(x), absolute=False)
        terms = self.readout(z.abs(), self.sizes(x), absolute=True)
        rounding = self.longest_output * (EPS * terms + _TINY)
        return Evaluation(y, rounding, ((distance, self.reach),), converged)

    def _solve(self, x: Tensor, solver: Solver) -> Solved:
        """Equilibria as good as they can be had; what is left open shows in the residual, and raises nothing."""
        problem = Problem(self.operator, self.activation, self._bias(self.scaled(x)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = solve(self.suitable(solver), problem, on_failure="warn")
            failed = (~found.converged).nonzero()[:, 0]
            if len(failed) == 0 or isinstance(solver, Newton) or not self.operator.has_resolvent:
                return found
            other = solve(Newton(tolerance=solver.tolerance), problem.rows(failed), on_failure="warn")
        better = ~(found.residual[failed] <= other.residual)
        for name in ("z", "v", "defect", "residual", "refuted"):
            whole, part = getattr(found, name), getattr(other, name)
            if whole is not None and part is not None:
                whole[failed[better]] = part[better]
        return found

    def distance(
        self, z: Tensor, v: Tensor, x: Tensor, bias: Tensor | None = None, off: Tensor | None = None
    ) -> Tensor:
        """A proved bound on |z - z*|_Lam for rows z and v, and inputs x with a bias from outside; shape (batch,).

        off: a bound on |z - sigma(v)| where sigma is not the activation, but as steep.
        """
        if not self.proved:
            return torch.full((len(z),), math.inf, dtype=z.dtype)
        root, off = self.diagonal.sqrt(), self._off(z, v) if off is None else off
        moved = self._residual(z, v, x, bias) + self.product(off, absolute=True)
        error = norm_bound(off * root) + norm_bound(moved * root) / self.monotonicity
        return torch.nan_to_num(error * (1 + 8 * EPS), nan=math.inf, posinf=math.inf)

    def _off(self, z: Tensor, v: Tensor) -> Tensor:
        """A bound on |z - sigma(v)|: torch's functions are not correctly rounded, and `rounding` says what to allow.

        Where units act in blocks, each may have lost what the largest entry of its row has.
        """
        sigma = self.activation
        again = sigma(v)
        sizes = z.abs() + again.abs() + v.abs() + sigma.inner_terms
        if sigma.block_size > 1 or sigma.groups(z.shape[-1]) is not None:
            sizes = sizes.amax(dim=-1, keepdim=True).expand_as(sizes)
        return (z - again).abs() + sigma.rounding * EPS * sizes + _TINY

    def _residual(self, z: Tensor, v: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """A bound on |v - W z - U x - bz|: what is computed, and what rounding may have changed in sums so long."""
        rest = v - self.product(z, absolute=False) - self.injection(self.scaled(x), absolute=False)
        terms = v.abs() + self.product(z.abs(), absolute=True) + self.injection(self.sizes(x), absolute=True)
        if bias is not None:
            rest, terms = rest - bias, terms + bias.abs()
        return rest.abs() + self.longest * EPS * terms + self.longest * _TINY

    def sizes(self, x: Tensor) -> Tensor:
        """A bound on the terms that x at the network's input is the sum of: what rounding is relative to."""
        if self.normalize is None:
            return x.abs()
        return (x.abs() + self.normalize.mean.abs()) / self.normalize.std + _TINY / EPS  # underflow
