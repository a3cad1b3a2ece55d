"""What the splitting methods share: the step alpha, and how to start."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.operators.base import Operator
from lben.solvers.base import Iteration, Problem, Solved, Solver


@dataclass(frozen=True, kw_only=True)
class Splitting(Solver):
    """A splitting method; `alpha` is its step, "auto" to choose it from the weights."""

    alpha: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, str) and self.alpha != "auto":
            raise InvalidInput(f'alpha must be a number above 0 or "auto", not {self.alpha!r}.')
        if not isinstance(self.alpha, str):
            checks.positive("alpha", self.alpha)

    def step_size(self, operator: Operator) -> float:
        """The alpha in use.

        Args:
            operator: that of W.

        Returns:
            The given alpha, or the automatic one.
        """
        return self.automatic_alpha(operator) if self.alpha == "auto" else float(self.alpha)

    @abstractmethod
    def automatic_alpha(self, operator: Operator) -> float:
        """The alpha that the weights suggest.

        Args:
            operator: that of W.

        Returns:
            A step above 0.
        """


class SplittingIteration(Iteration):
    """An iteration whose whole state is one tensor u, so that it can be warm-started and accelerated."""

    alpha: float
    u: Tensor

    def __init__(self, problem: Problem, alpha: float) -> None:
        self.problem = problem
        self.alpha = alpha
        self.product = problem.operator.affine


def starting_z(problem: Problem, start: Tensor | Solved | None) -> Tensor:
    """The z to start from: zero unless given."""
    if start is None:
        return torch.zeros_like(problem.b)
    z = start.z if isinstance(start, Solved) else start
    flat = checks.features("start", z, problem.b.shape[-1], problem.b).detach().reshape(-1, problem.b.shape[-1])
    if flat.shape != problem.b.shape:
        raise InvalidInput(f"start holds {flat.shape[0]} samples, but the batch has {problem.b.shape[0]}.")
    return checks.finite("start", flat)
