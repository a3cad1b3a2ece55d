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

_FEW, _TRIAL = 4, 12  # iterations that steps of their own, and one for all units, are given: the first ones say little
_PATIENCE, _MOST = 20, 300  # iterations more beyond which one step for all is tried, and all that it may take


@dataclass(frozen=True, kw_only=True)
class PeacemanRachford(Splitting):
    """Peaceman-Rachford splitting, the default solver: ``u+ = C_A C_B u`` with two Cayley operators.

    A(z) = (I - W) z - b, and B is the subdifferential of the activation's f. With w = 2 prox(u) - u and R = (I + alpha
    (I - W))^-1 one iteration is ``u+ = (2R - I) w + 2 alpha R b``. It converges for every alpha > 0 if the metric
    proves m > 0. I + alpha (I - W) is factored once for all iterations. With alpha="auto" and an activation that is its
    own prox, such as ReLU, every unit may get a step of its own.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.
        alpha: the step, a number above 0; "auto" chooses it from the weights.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        A tolerance decides how close to the equilibrium an output is.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, dtype=torch.float64)
        >>> x = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
        >>> for tolerance in (1e-2, 1e-10):
        ...     net.solver = lben.PeacemanRachford(tolerance=tolerance)
        ...     print(float(net.solve(x).residual) <= tolerance)
        True
        True
    """

    @property
    def needs_resolvent(self) -> bool:
        return True

    def automatic_alpha(self, operator: Operator) -> float:
        """sqrt(c/m), the best for what m and c tell.

        That is 1/sqrt(m L) if I - W is symmetric in the metric, and about 1/L if its skew part rules. With m <= 0
        nothing is proved and 1/L is a guess.

        Args:
            operator: that of W.

        Returns:
            A step above 0.
        """
        return operator.balanced_step()

    def first_burst(self, problem: Problem) -> int:
        """A fit to what trained networks need: a look too early costs as much as three iterations too many.

        With steps of their own units need fewer, and a look costs less than one iteration.

        Args:
            problem: what is to be solved.

        Returns:
            A number from 1 to 64.
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
        operator = problem.operator
        own = operator.own_steps() if self._takes_own_steps(problem) else None
        if own is None:
            return _PeacemanRachford(problem, self.step_size(operator), start)
        found = operator.facts.single
        if found is not None:
            return _PeacemanRachford(problem, found[0], start, _Rival(found[1]))
        return UnitSteps(problem, own, start, self.tolerance)

    def reconsider(
        self, problem: Problem, iteration: Iteration, z: Tensor, worst: float, pace: float, steps: int
    ) -> Iteration | None:
        """One step for all units, where steps of their own are slow; another if it is slower, and back if all are.

        Which of them is quick depends on the inputs as well: of trained networks of the same m and L one needed 10
        iterations with steps of their own and 17 with one for all, the other 81 and 26. All are proved to converge.

        Args:
            problem: what is to be solved.
            iteration: the one at work.
            z: what it has come to.
            worst: the largest residual of the batch.
            pace: the logarithm of what each of its steps has shrunk that by.
            steps: how many it has made.

        Returns:
            None, to go on with the one at work.
        """
        operator = problem.operator
        if isinstance(iteration, UnitSteps) and not iteration.settled:
            singles = operator.single_steps() if steps >= _FEW and worst < 1 else ()
            if not singles or math.log(self.tolerance / worst) / pace <= _PATIENCE:
                return None
            slowest = math.log(min(self.tolerance, 0.5)) / _MOST
            return self._tried(problem, singles[0], z, _Rival(min(pace, slowest), singles[1:]))
        rival = iteration.rival if isinstance(iteration, _PeacemanRachford) else None
        if rival is None or steps < _TRIAL or not (pace > rival.pace and worst < math.inf):
            return None
        if rival.singles:
            return self._tried(problem, rival.singles[0], z, _Rival(rival.pace, rival.singles[1:]))
        own = operator.own_steps()
        operator.remember_single(None)
        return None if own is None else UnitSteps(problem, own, z, self.tolerance, settled=True)

    def _tried(self, problem: Problem, alpha: float, z: Tensor, rival: _Rival) -> Iteration:
        problem.operator.remember_single((alpha, rival.pace))
        return _PeacemanRachford(problem, alpha, z, rival)


@dataclass(frozen=True, kw_only=True)
class DouglasRachford(PeacemanRachford):
    """Douglas-Rachford splitting, ``u+ = (u + C_A C_B u)/2``: slower than Peaceman-Rachford, and safer.

    It is safe also where I - W is barely monotone.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.
        alpha: the step, a number above 0; "auto" chooses it from the weights.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> net = lben.MON(2, 4, 1, solver=lben.DouglasRachford(tolerance=1e-5))
        >>> net.solve(torch.tensor([[1.0, -1.0]])).converged
        tensor([True])
    """

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        return _DouglasRachford(problem, self.step_size(problem.operator), start)


@dataclass(frozen=True)
class _Rival:
    """The pace to keep, that of steps of their own or better, and the steps for all units that were not tried yet."""

    pace: float
    singles: tuple[float, ...] = ()


class _PeacemanRachford(SplittingIteration):
    """With one step for all units; `rival`: what it took the place of, if anything."""

    def __init__(
        self, problem: Problem, alpha: float, start: Tensor | Solved | None, rival: _Rival | None = None
    ) -> None:
        super().__init__(problem, alpha)
        self.rival = rival
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
