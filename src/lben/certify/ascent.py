"""A search for inputs of another class within a ball, whose finds are solved again and proved to be such."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lben.certify.evaluator import Evaluator
from lben.certify.locality import Norm
from lben.numerics.enclosed import EPS
from lben.numerics.rounding import norm_bound
from lben.solvers.peaceman_rachford import PeacemanRachford

_STEPS, _STARTS = 24, 3
_LONGEST, _SHORTEST = 0.5, 0.02  # steps, of the radius
_INSIDE = 1 - 1e-9
_ROUGH = PeacemanRachford(tolerance=1e-6, on_failure="warn")


@dataclass(frozen=True, eq=False)
class Ball:
    """All inputs within r of x, (1, d), in lengths of (x' - x) unit, unit of shape (d,); and the class of x.

    range: what features stay between; infinite where that is anything.
    """

    x: Tensor
    unit: Tensor
    r: float
    norm: Norm
    chosen: int
    range: tuple[float, float]

    def within(self, steps: Tensor) -> Tensor:
        """x + steps, those that are too long shortened, for steps in units of length."""
        sizes = steps.abs().amax(dim=1) if self.norm == "inf" else torch.linalg.vector_norm(steps, dim=1)
        if self.norm == "inf":
            steps = steps.clamp(-self.r * _INSIDE, self.r * _INSIDE)
        else:
            steps = steps * (self.r * _INSIDE / sizes.clamp(min=1e-280)).clamp(max=1.0)[:, None]
        return (self.x + steps / self.unit).clamp(*self.range)

    def sides(self) -> tuple[Tensor, Tensor]:
        """Between what steps from x stay, entry by entry and in units of length, rounded outwards; (d,) each."""
        off = 8 * EPS * self.x[0].abs()
        low, high = ((end - self.x[0]) * self.unit for end in self.range)
        low, high = low - off * self.unit - 8 * EPS * low.abs(), high + off * self.unit + 8 * EPS * high.abs()
        if self.norm == "inf":
            low, high = low.clamp(min=-self.r), high.clamp(max=self.r)
        return low, high

    def reach(self) -> tuple[float, float]:
        """How long steps are at most, in the Euclidean norm, and their largest entry: the range may be narrow."""
        low, high = self.sides()
        far = torch.maximum(low.abs(), high.abs())[None]
        most = float(far.max())
        corner = float(norm_bound(far)) if most < math.inf else math.inf
        if self.norm == "2":
            return min(self.r, corner), min(self.r, most)
        return min(self.r * len(low) ** 0.5 * (1 + 1e-14), corner), min(self.r, most)

    def at_edge(self, directions: Tensor) -> Tensor:
        """x + r times directions, scaled to length one."""
        sizes = directions.abs().amax(dim=1) if self.norm == "inf" else torch.linalg.vector_norm(directions, dim=1)
        return self.within(directions / sizes.clamp(min=1e-280)[:, None] * self.r)

    def contains(self, points: Tensor) -> Tensor:
        """Whether points are surely within it; shape (batch,)."""
        steps = (points - self.x) * self.unit
        size = steps.abs().amax(dim=1) if self.norm == "inf" else norm_bound(steps)
        inside = ((points >= self.range[0]) & (points <= self.range[1])).all(dim=1)
        return inside & (size * (1 + 1e-14) <= self.r)


@dataclass(frozen=True, eq=False)
class Ascent:
    """The network to deceive."""

    evaluator: Evaluator

    def found(self, ball: Ball, points: Tensor) -> Tensor | None:
        """One of these points, if one is within the ball, and its class is proved to be another; shape (d,)."""
        result = self.evaluator.evaluate(points)
        chosen = torch.full((len(points),), ball.chosen)
        above = result.y - result.y[:, ball.chosen : ball.chosen + 1] - result.pair_error(chosen)
        above[:, ball.chosen] = -torch.inf
        best = above.amax(dim=1).where(ball.contains(points) & result.converged, -torch.inf)
        winner = int(best.argmax())
        return points[winner].clone() if float(best[winner]) > 0 else None

    def climbed(self, ball: Ball, points: Tensor, other: Tensor) -> Tensor:
        """Where projected gradients of y_other - y_chosen lead from these points, shape (batch, d)."""
        network = copy.copy(self.evaluator)
        network.solver = network.subject.suitable(_ROUGH)
        at = torch.arange(len(points))
        best, record = points, torch.full((len(points),), -torch.inf, dtype=points.dtype)
        for step in range(_STEPS + 1):
            moving = points.clone().requires_grad_()
            y = network(moving)
            height = y[at, other] - y[:, ball.chosen]
            better = height.detach() > record
            best, record = torch.where(better[:, None], points, best), torch.where(better, height.detach(), record)
            (slope,) = torch.autograd.grad(height.sum(), moving)
            slope = (slope / ball.unit).nan_to_num()
            slope = slope.sign() if ball.norm == "inf" else torch.nn.functional.normalize(slope, dim=1)
            length = ball.r * _LONGEST * (_SHORTEST / _LONGEST) ** (step / _STEPS)
            points = ball.within((points - ball.x) * ball.unit + length * slope)
        return best

    def search(self, ball: Ball, classes: int, generator: torch.Generator) -> Tensor | None:
        """From the middle and from random points towards every other class; a find, shape (d,), or None."""
        others = torch.tensor([j for j in range(classes) if j != ball.chosen]).repeat(_STARTS + 1)
        random = torch.randn(len(others), ball.x.shape[1], generator=generator, dtype=ball.x.dtype)
        random[: classes - 1] = 0.0
        return self.found(ball, self.climbed(ball, ball.at_edge(random), others))
