"""Radii by local bounds, a few inputs at a time, and, where that is asked for, proved again in ball arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lben.certify.locality import Locality, Norm
from lben.certify.reaching import Reach
from lben.certify.witness import BallProof, Witness
from lben.solvers.base import Solver

Told = Callable[[Tensor, Tensor], None]
"""Is called with numbers of inputs and their radii, as soon as they are known."""
_PAIR = 1.5  # a difference of two outputs is at most sqrt(2) times as steep as all; a little more is quickly proved
_SMALLER = (1.0, 0.999, 0.99)  # of a radius, what is tried to be proved in ball arithmetic


class Known(NamedTuple):
    """What is known before local bounds are asked for: classes, gaps, radii, and bounds of pairs
    with, where there are, their metrics."""

    predicted: Tensor
    gap: Tensor
    radius: Tensor
    bounds: Tensor
    metrics: Tensor | None


@dataclass(frozen=True, eq=False)
class Widening:
    """All inputs, as rows, and what is known of them; `proof`: where radii must be proved in ball arithmetic."""

    locality: Locality
    rows: Tensor
    solver: Solver
    known: Known
    norm: Norm
    proof: BallProof | None

    def run(self, asked: Tensor, told: Told, progress: bool | None) -> Tensor:
        """The radii at the network's input, those that are asked for by local bounds, the others 0."""
        index, found = asked.nonzero()[:, 0], torch.zeros_like(self.known.radius)
        told((~asked).nonzero()[:, 0], found[~asked])
        for part in self.locality.parts(len(index), progress):
            some = index[part]
            searches = self._searches(some)
            if self.proof is None:
                found[some] = searches[0].best
                told(some, found[some])
                continue
            for place, number in enumerate(some.tolist()):
                found[number] = self._proved(self.proof, number, searches, torch.tensor([place]))
                told(some[place : place + 1], found[number][None])
        return found

    def _searches(self, some: Tensor) -> list[Reach]:
        """The search for the radii of some inputs; where features move one by one, before it that for their cubes."""
        locality, known = self.locality, self.known
        chosen, allowed, at = known.predicted[some], known.gap[some], torch.arange(len(some))
        allowed[at, chosen] = math.inf
        pairs = locality.outputs[chosen][:, None] - locality.outputs
        near, begin = locality.near(self.rows[some], self.solver), self._begin()[chosen]
        reach = Reach(locality, near, pairs, allowed, begin, known.radius[some].clone())
        reach.run()
        if self.norm == "2":
            return [reach]
        nearest = (allowed / known.bounds[chosen]).nan_to_num(nan=math.inf).argmin(dim=1)
        corners = locality.cornered(near, pairs[at, nearest][:, None])
        cubes = Reach(locality, corners, pairs, allowed, begin, reach.best / self._root)
        cubes.run()
        return [cubes, reach]

    def _begin(self) -> Tensor:
        """A metric for each pair of classes that proves a global bound, in units of the frame."""
        units, classes, metrics = self.locality.frame.lam, len(self.locality.outputs), self.known.metrics
        if metrics is None or metrics.shape[-1] != len(units):
            return units.expand(classes, classes, -1)
        return self.locality.metric(metrics)

    def _proved(self, proof: BallProof, number: int, searches: list[Reach], place: Tensor) -> float:
        """The largest of a few radii that balls prove: that of the search, a little less, or less by global bounds."""
        known, exponents, chosen = self.known, self.locality.frame.exponents, int(self.known.predicted[number])
        nothing = torch.full_like(searches[-1].moves[0], math.inf)
        tried = [
            (reach, float(reach.best[place]), torch.ldexp(reach.moves[place][0], -exponents), reach.own[place][0])
            for reach in searches
            if bool(reach.moves[place].isfinite().all())
        ]
        gamma, radius = known.bounds[chosen], float(known.radius[number])
        if known.metrics is None:  # of pairs no metric is known: that of all outputs proves somewhat less
            gamma = torch.tensor(self.locality.most, dtype=torch.float64)
            gap = known.gap[number].where(torch.arange(len(self.locality.outputs)) != chosen, math.inf)
            radius = min(radius, float(gap.min()) / (_PAIR * self.locality.most))
        tried.append((searches[-1], radius, nothing, self._begin()[chosen] / gamma.reshape(-1, 1)))
        for reach, radius, moves, metrics in tried:
            near = reach.near.some(place)
            for share in _SMALLER:
                if proof.proves(self.rows[number], near, chosen, Witness(radius * share, moves, metrics)):
                    return radius * share / (1.0 if near.frame.shares is not None else self._root)
        return 0.0

    @property
    def _root(self) -> float:
        """What a ball is larger than the cube in it."""
        return 1.0 if self.norm == "2" else math.sqrt(self.rows.shape[1])
