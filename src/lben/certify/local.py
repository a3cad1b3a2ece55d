"""Bounds that hold around given inputs: how far each unit can move decides how steep it can be, and so on in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.sectors import sectors
from lben.certify.certificate import Domain, NoVerdict, known
from lben.certify.dense import DenseSubject
from lben.certify.evaluator import PRECISE, Evaluator, placed
from lben.certify.subject import Examined, Subject
from lben.certify.surroundings import FEW, Frame, Inequality, Rows, Surroundings, best_bounds, best_norm
from lben.errors import InvalidInput
from lben.numerics.rounding import undisturbed
from lben.numerics.row_metrics import improved_metrics
from lben.progress import track
from lben.solvers.base import Solver, check_solver

_ROUNDS = 8
_SETTLED = 0.99  # of a move, above which another round is not worth its time
_TRIALS = 4
_FIRST = 1.15  # of the global radius
_A_LITTLE_LESS = 0.999
_NEAR = 1.1  # pairs of classes that allow at most this many times the least are given a metric of their own
_ENTRIES = 2**19  # of the matrices of a batch
_FIXED = 1e-12  # the width of a sector below which a unit is linear, but for rounding


@dataclass(frozen=True, eq=False)
class LocalBound(NoVerdict):
    """Around each input, a bound on |y(x') - y(x)|/|x' - x| for all x' within `radius`, and what it rests on.

    gamma: shape of the batch, in `domain`. radius: as it was given, in `domain`.
    fixed: how many units are linear there. width: the mean width of the others' slopes.
    lower, upper: for each unit the slopes between which it stays, relative to its value at x, shape (batch, n).
    """

    gamma: Tensor
    radius: float
    lower: Tensor
    upper: Tensor
    domain: Domain

    @property
    def fixed(self) -> Tensor:
        """How many units are linear within the radius, but for rounding; shape of the batch."""
        return (self.upper - self.lower < _FIXED).sum(dim=-1)

    @property
    def width(self) -> Tensor:
        """The mean width of the others' sectors; 0 where there are none."""
        wide = self.upper - self.lower
        others = wide >= _FIXED
        return (wide * others).sum(dim=-1) / others.sum(dim=-1).clamp(min=1)

    def __str__(self) -> str:
        units = self.lower.shape[-1]
        return (
            f"Within {self.radius:g} ({self.domain}), {self.gamma.numel()} local bounds from "
            f"{float(self.gamma.min()):.6g} to {float(self.gamma.max()):.6g}; of {units} units "
            f"{float(self.fixed.double().mean()):.1f} are fixed on average."
        )


@undisturbed
def local_bound(
    net: Examined,
    x: Tensor,
    radius: float,
    *,
    domain: Domain = "input",
    solver: Solver | None = None,
    progress: bool | None = None,
    activation: Activation | None = None,
) -> LocalBound:
    """For each x a bound on |y(x') - y(x)|/|x' - x| for all x' within `radius`, never above the tightest global one.

    x: as the network takes it, shape (..., d). radius: above 0, in `domain`. For dense networks, networks read by
    `from_sequential` and dense stacks, with activations of the table; others raise InvalidInput.
    progress: whether to show a bar; None: on a terminal, where it takes longer than some seconds.
    """
    evaluator = Evaluator.of(net, activation)
    evaluator.require_proof()
    subject = evaluator.subject
    scale = subject.scale_of(domain)
    reach = checks.positive("radius", radius) / scale * (1 + 1e-15)
    rows, batch = evaluator.inputs(x), evaluator.flat(x).shape[:-1]
    if len(rows) == 0:
        raise InvalidInput("A local bound needs at least one input, but x is empty.")
    locality = Locality.of(subject)
    method = PRECISE if solver is None else check_solver(solver)
    found = []
    for part in locality.parts(len(rows), progress):
        v, off = locality.subject.located(rows[part], method)
        around, lower, upper = locality.narrowed(v, off, torch.full((len(v),), reach, dtype=torch.float64))
        gamma = best_norm(around, around.rows(locality.outputs.expand(len(v), -1, -1)))
        found.append((gamma.clamp(max=locality.most), lower, upper))
    gamma, lower, upper = (torch.cat(parts) for parts in zip(*found, strict=True))
    gamma = gamma / scale if scale == 1 else gamma / scale * (1 + 1e-15)
    n = lower.shape[1]
    bound = LocalBound(gamma.reshape(batch), radius, lower.reshape(*batch, n), upper.reshape(*batch, n), domain)
    return placed(bound, x.device)


@dataclass(frozen=True, eq=False)
class Locality:
    """A network as local bounds see it: its frame in the best global metric, and how far units move per length of dx.

    most: the tightest global bound. moves: |dv_i| <= moves_i |dx| everywhere, shape (1, n).
    outputs: the rows of y, shape (p, n + p).
    """

    subject: DenseSubject
    most: float
    frame: Frame
    moves: Tensor
    outputs: Tensor

    @staticmethod
    def of(subject: Subject) -> Locality:
        """Raises InvalidInput for what has no dense weights, or activations of which no slopes are known."""
        own = subject.dense().settled()
        assert isinstance(own, DenseSubject)
        nothing = torch.zeros(1, own.weights.hidden_features, dtype=torch.float64)
        sectors(own.activation, nothing, nothing, nothing + 1)
        tightest = own.tightest()
        frame = Frame.of(own.weights, tightest.lam)
        lower = own.linear.to(torch.float64)[None]
        around = Surroundings.of(frame, lower, torch.ones_like(lower))
        moves = best_bounds(around, around.rows(None))
        outputs = torch.cat([frame.Wo, torch.eye(len(frame.Wo), dtype=torch.float64)], dim=1)
        return Locality(own, known(tightest), frame, moves, outputs)

    def parts(self, count: int, progress: bool | None) -> Iterator[slice]:
        """So many inputs, a few at a time."""
        size = max(1, _ENTRIES // (self.frame.R.shape[1] * len(self.frame.W)))
        starts = range(0, count, size)
        for start in track(list(starts), "Local bounds", len(starts), show=progress):
            yield slice(start, start + size)

    def narrowed(self, v: Tensor, off: Tensor, r: Tensor) -> tuple[Surroundings, Tensor, Tensor]:
        """The surroundings within r of each input, and the slopes between which units stay, once nothing moves more."""
        d = self._real(self.moves) * r[:, None]
        lower, upper = sectors(self.subject.activation, v, off, d)
        around = Surroundings.of(self.frame, lower, upper)
        for _ in range(_ROUNDS):
            moves = best_bounds(around, around.rows(None), FEW)
            narrower = torch.minimum(d, self._real(moves) * r[:, None] * (1 + 1e-12))
            change = float((narrower / d.clamp(min=1e-290)).mean(dim=1).min())
            d = narrower
            lower, upper = sectors(self.subject.activation, v, off, d)
            around = Surroundings.of(self.frame, lower, upper)
            if change > _SETTLED:
                break
        return around, lower, upper

    def radii(self, rows: Tensor, solver: Solver, chosen: Tensor, gap: Tensor, start: Tensor) -> Tensor:
        """Radii within which no other output overtakes the chosen one, at least those to start from, which are proved.

        gap: by how much the chosen output is above each, less what is not known of it, shape (batch, p).
        """
        v, off = self.subject.located(rows, solver)
        pairs = self.outputs[chosen][:, None] - self.outputs
        gap = gap.clone()
        gap[torch.arange(len(gap)), chosen] = math.inf
        best, trial = start.clone(), start.clamp(min=1e-280) * _FIRST
        tried: list[tuple[Tensor, Tensor]] = []
        for _ in range(_TRIALS):
            around, _, _ = self.narrowed(v, off, trial)
            asked = around.rows(pairs)
            bounds = _sharpened(around, asked, best_bounds(around, asked, FEW), gap)
            allowed = (gap / bounds).nan_to_num(nan=0.0, posinf=math.inf).amin(dim=1) * (1 - 1e-12)
            best = torch.maximum(best, torch.minimum(trial, allowed).where(start > 0, 0.0))
            tried.append((trial.log(), allowed.clamp(min=1e-280).log()))
            trial = _next_trial(tried)
        return best

    def _real(self, moves: Tensor) -> Tensor:
        return torch.ldexp(moves, self.frame.exponents)


def _next_trial(tried: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Where what is allowed would be what is tried: on the line through the last two, both in logarithms.

    What is allowed falls with what is tried, so that between the two lies the answer; a little less is proved at once.
    """
    (r, allowed), slope = tried[-1], torch.tensor(-1.0, dtype=torch.float64)
    if len(tried) > 1:
        before, then = tried[-2]
        slope = ((allowed - then) / (r - before)).nan_to_num(nan=-1.0).clamp(-4.0, 0.0)
    return ((allowed - slope * r) / (1 - slope)).exp() * _A_LITTLE_LESS


def _sharpened(around: Surroundings, asked: Rows, bounds: Tensor, gap: Tensor) -> Tensor:
    """The bounds, with those of the pairs that decide in a metric of their own."""
    allowed = gap / bounds
    close = (allowed <= allowed.amin(dim=1, keepdim=True) * _NEAR) & (allowed > 0) & allowed.isfinite()
    image, row = close.nonzero(as_tuple=True)
    if len(image) == 0:
        return bounds
    some = around.some(image)
    rows = asked.some(image, row)
    lam = improved_metrics(*some.problem(rows))
    own = Inequality.of(replace(some, lam=lam))
    better = own.bounds(rows, torch.ones(len(image), dtype=torch.float64))[:, 0]
    bounds = bounds.clone()
    bounds[image, row] = torch.minimum(bounds[image, row], better)
    return bounds
