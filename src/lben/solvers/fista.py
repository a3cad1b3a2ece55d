"""FISTA (Equation `fista`), with the guard it needs where W is not symmetric in the metric."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.numerics.norms import row_norm, row_scale
from lben.operators.base import Operator
from lben.solvers.base import Iteration, Problem, Solved
from lben.solvers.splitting import Splitting, SplittingIteration, starting_z


@dataclass(frozen=True, kw_only=True)
class FISTA(Splitting):
    """Forward-backward steps with Nesterov's momentum; the default where the metric has one entry a pixel.

    It is proved to converge for S = 0 only, that is, where Lambda W is symmetric. Elsewhere momentum can diverge, so
    each sample watches its own steps: where a step grows or turns against the momentum, the momentum is dropped, and
    what is left is forward-backward splitting, which converges at the step c.

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
        A convolutional network with one entry of the metric a pixel has no resolvent, and FISTA needs none.

        >>> net = lben.ConvLBEN((1, 8, 8), 2, 3, gamma=1.0, metric="pixel")
        >>> isinstance(net.solver, lben.FISTA)
        True
        >>> net.solver = lben.FISTA(tolerance=1e-6)
        >>> bool(net.solve(torch.rand(2, 1, 8, 8)))
        True
    """

    def automatic_alpha(self, operator: Operator) -> float:
        """1/L where Lambda W is symmetric, else c, which is at most 1/L; with m <= 0 1/L is a guess.

        Args:
            operator: that of W.

        Returns:
            A step above 0.
        """
        return operator.forward_step()

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        return _Fista(problem, self.step_size(problem.operator), start)


class _Fista(SplittingIteration):
    def __init__(self, problem: Problem, alpha: float, start: Tensor | Solved | None) -> None:
        super().__init__(problem, alpha)
        self.z = starting_z(problem, start)
        self.u = self.z
        self.t = torch.ones_like(self.z[:, :1])
        self.length = torch.full_like(self.t, torch.inf)
        lam = problem.operator.lam
        self.root = torch.ones_like(self.z[:1]) if lam is None else lam.sqrt()

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        """u is the sequence of the paper, z the extrapolated point."""
        forward = torch.lerp(self.z, self.product(self.z, self.problem.b), self.alpha)
        u = self.problem.activation.prox(forward, self.alpha)
        step = u - self.u
        along, back = step * self.root, (self.z - u) * self.root
        length = row_norm(along)[:, None]
        against = (along / row_scale(along) * (back / row_scale(back))).sum(-1, keepdim=True) > 0
        restart = against | (length > self.length)
        t = torch.where(restart, 1.0, (1 + torch.sqrt(1 + 4 * self.t**2)) / 2)
        momentum = torch.where(restart, 0.0, (self.t - 1) / t)
        self.u, self.z = u, u + momentum * step
        self.t, self.length = t, torch.where(restart, torch.inf, length)

    def candidate(self) -> Tensor:
        return self.u
