"""Forward-backward splitting (Equation `forward-backward`): no inverse, many iterations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.operators.base import Operator
from lben.solvers.base import Iteration, Problem, Solved
from lben.solvers.splitting import Splitting, SplittingIteration, starting_z


@dataclass(frozen=True, kw_only=True)
class ForwardBackward(Splitting):
    """Forward-backward splitting: ``z+ = prox^alpha((1 - alpha) z + alpha (W z + b))``, without any inverse.

    It converges for alpha < 2c if the metric proves m > 0; c is the operator's cocoercivity, m its strong monotonicity.
    One product with W an iteration, and many iterations.

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
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, solver=lben.ForwardBackward(tolerance=1e-6))
        >>> solution = net.solve(torch.tensor([[1.0, -1.0]]))
        >>> solution.method, bool(solution)
        ('ForwardBackward', True)
    """

    def automatic_alpha(self, operator: Operator) -> float:
        """c, the best for what m and c tell (rate sqrt(1 - c m)); with m <= 0 nothing is proved and 1/L is a guess.

        Args:
            operator: that of W.

        Returns:
            A step above 0.
        """
        return operator.forward_step()

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        return _ForwardBackward(problem, self.step_size(problem.operator), start)


class _ForwardBackward(SplittingIteration):
    def __init__(self, problem: Problem, alpha: float, start: Tensor | Solved | None) -> None:
        super().__init__(problem, alpha)
        self.u = starting_z(problem, start)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        """Here u is z itself."""
        forward = torch.lerp(self.u, self.product(self.u, self.problem.b), self.alpha)
        self.u = self.problem.activation.prox(forward, self.alpha)

    def candidate(self) -> Tensor:
        return self.u
