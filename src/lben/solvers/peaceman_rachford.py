"""Peaceman-Rachford and Douglas-Rachford splitting (Equations `peaceman-rachford` and `douglas-rachford`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lben.operators.base import Operator
from lben.solvers.base import Iteration, Problem, Solved
from lben.solvers.splitting import Splitting, SplittingIteration, starting_z
from lben.solvers.unit_steps import UnitSteps


@dataclass(frozen=True, kw_only=True)
class PeacemanRachford(Splitting):
    """u+ = C_A C_B u, with the Cayley operators of A(z) = (I - W) z - b and of the subdifferential of f.

    With w = 2 prox(u) - u and R = (I + alpha (I - W))^-1 one iteration is u+ = (2R - I) w + 2 alpha R b.
    It converges for every alpha > 0 if the metric proves m > 0.
    """

    @property
    def needs_resolvent(self) -> bool:
        return True

    def automatic_alpha(self, operator: Operator) -> float:
        """sqrt(c/m), the best for what m and c tell: 1/sqrt(m L) if I - W is symmetric in the metric, and
        about 1/L if its skew part rules. With m <= 0 nothing is proved and 1/L is a guess.
        """
        return operator.balanced_step()

    def first_burst(self, problem: Problem) -> int:
        """A fit to what trained networks need: a look too early costs as much as three iterations too many.

        With steps of their own units need fewer, and a look costs less than one iteration.
        """
        own = problem.operator.own_rate() if self._takes_own_steps(problem) else None
        if own is not None:
            return min(int(self._needed(own) + 1.5), 64)
        return min(int(0.7 * self._needed(problem.operator.expected_rate() if self.alpha == "auto" else 0.5) + 3), 64)

    def _needed(self, rate: float) -> float:
        """The iterations to the tolerance at this rate."""
        return math.log(min(self.tolerance, 0.5)) / math.log(rate) if 0 < rate < 1 else 1.0

    def _takes_own_steps(self, problem: Problem) -> bool:
        """Whether a step a unit is allowed: none was given, and the activation is its own prox for all of them."""
        activation, operator = problem.activation, problem.operator
        alone = activation.own_prox and activation.groups(operator.size) is None
        return self.alpha == "auto" and alone and (activation.homogeneous or not operator.transposed)

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        own = problem.operator.own_steps() if self._takes_own_steps(problem) else None
        if own is not None:
            return UnitSteps(problem, own, start, self.tolerance)
        return _PeacemanRachford(problem, self.step_size(problem.operator), start)


@dataclass(frozen=True, kw_only=True)
class DouglasRachford(PeacemanRachford):
    """u+ = (u + C_A C_B u)/2: slower than Peaceman-Rachford, and safe also where I - W is barely monotone."""

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        return _DouglasRachford(problem, self.step_size(problem.operator), start)


class _PeacemanRachford(SplittingIteration):
    def __init__(self, problem: Problem, alpha: float, start: Tensor | Solved | None) -> None:
        super().__init__(problem, alpha)
        self.reflect = problem.activation.reflection(alpha)
        self.cayley = problem.operator.cayley(alpha)
        scaled = alpha * problem.b
        self.offset = self.cayley(scaled, scaled, None)
        self.u = self.offset if start is None else self._warm_u(start)
        self.w = self.u

    def _warm_u(self, start: Tensor | Solved) -> Tensor:
        """alpha*v + (1 - alpha)*z with v = W z + b: at an equilibrium z this is the fixed point."""
        if isinstance(start, Solved) and start.state is not None and start.alpha == self.alpha:
            return start.state
        z = starting_z(self.problem, start)
        return torch.lerp(z, self.product(z, self.problem.b), self.alpha)

    def advance(self, steps: int) -> None:
        u, w, own = self.u, self.w, None
        for _ in range(steps):
            w = self.reflect(u)
            u = own = self.cayley(self.offset, w, own)
        self.u, self.w = u, w

    def candidate(self) -> Tensor:
        """z(k+1/2) = R (w + alpha b), the mean of w and its reflection."""
        return torch.lerp(self.w, self.u, 0.5)


class _DouglasRachford(_PeacemanRachford):
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.w = self.reflect(self.u)
            self.reflection = self.cayley(self.offset, self.w, None)
            self.u = torch.lerp(self.u, self.reflection, 0.5)

    def candidate(self) -> Tensor:
        return torch.lerp(self.w, self.reflection, 0.5)
