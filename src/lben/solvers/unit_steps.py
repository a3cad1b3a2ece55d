"""Peaceman-Rachford splitting with one step a unit, and as few products as can be."""

from __future__ import annotations

import torch
from torch import Tensor

from lben.operators.base import OwnSteps
from lben.solvers.base import Problem, Solved
from lben.solvers.splitting import SplittingIteration, starting_z


class UnitSteps(SplittingIteration):
    """u+ = D b + C (w + D b) with w = 2 sigma(u) - u, C = 2 (I + D (I - W))^-1 - I and D the steps.

    D (I - W) is monotone in the metric Lam D^-1 where I - W is in Lam, and where sigma is its own prox it is that of
    D f, too: so this is Peaceman-Rachford in that metric and converges with it. No product is made but those of the
    steps: it starts near D b, the fixed point if W were diagonal, and W c + b comes free of charge.
    Where C is given as D^-1 C D, all this is done in u/D, which a homogeneous sigma does not mind.
    settled: whether one step for all units was tried, and is slower.
    """

    gives_away = True

    def __init__(
        self, problem: Problem, own: OwnSteps, start: Tensor | Solved | None, tolerance: float, *, settled: bool = False
    ) -> None:
        super().__init__(problem, float(own.steps.mean()))
        self.settled = settled
        self.own = own
        self.cheap_look = 10 * own.rounding <= tolerance
        self.mirror = problem.activation.mirror()
        self.shift = problem.b if own.conjugate else problem.b * own.steps
        self.u = self._cold_u() if start is None else self._warm_u(start)
        self.w = self.u

    def _cold_u(self) -> Tensor:
        """D b, or less of it where W is far from diagonal: a fit that saves half an iteration of trained networks."""
        return self.shift if self.own.conjugate else self.shift * (1 - self.own.rate**2)

    def _warm_u(self, start: Tensor | Solved) -> Tensor:
        """z + D (v - z) with v = W z + b: at an equilibrium z this is the fixed point."""
        z = starting_z(self.problem, start)
        if isinstance(start, Solved) and start.state is not None and start.alpha == self.alpha:
            return start.state
        u = torch.lerp(z, self.product(z, self.problem.b), self.own.steps)
        return u / self.own.steps if self.own.conjugate else u

    def advance(self, steps: int) -> None:
        u, w, own = self.u, torch.empty_like(self.u), None
        for _ in range(steps):
            self.mirror(u, w).add_(self.shift)
            u = own = self.own.cayley(self.shift, w, own)
        self.u, self.w = u, w.sub_(self.shift)

    def candidate(self) -> Tensor:
        """R (w + D b), the mean of w and its reflection."""
        half = torch.lerp(self.w, self.u, 0.5)
        return half.mul_(self.own.steps) if self.own.conjugate else half

    def look(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """W c + b = c + (c - w)/D in the memory of w, unless the tolerance is so small that rounding shows in it."""
        if not self.cheap_look:
            return super().look(problem)
        half = torch.lerp(self.w, self.u, 0.5)
        step = torch.sub(half, self.w, out=self.w)
        if self.own.conjugate:
            c = half.mul_(self.own.steps)
            return c, step.add_(c)
        return half, torch.addcdiv(half, step, self.own.steps, out=step)
