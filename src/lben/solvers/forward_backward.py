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
    """z+ = prox^alpha((1 - alpha) z + alpha (W z + b)); it converges for alpha < 2c if the metric proves m > 0."""

    def automatic_alpha(self, operator: Operator) -> float:
        """c, the best for what m and c tell (rate sqrt(1 - c m)); with m <= 0 nothing is proved and 1/L is a guess."""
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
