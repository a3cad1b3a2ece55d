"""How far inputs may move before a class can change, by local bounds: guesses of radius and moves, proved together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.certify.locality import ROOM, Locality, Nearby
from lben.certify.surroundings import FEW, Inequality, Rows, Surroundings
from lben.numerics.row_metrics import improved_metrics

_ROUNDS = 8
_FIRST = 0.4  # where between the radius so far and that of a linear network to begin, in logarithms
_SLOPE = -0.7  # of what is allowed over what is tried, before two were tried; in logarithms
_A_LITTLE_LESS = 0.999
_CLOSE = 0.02  # how near what is tried must be to what it allows
_WIDE, _NEAR = 1.25, 1.05
"""Pairs of classes that allow at most this many times the least are given a metric of their own, and a search."""
_MORE = 1.002  # of what is proved, what is worth trying
_BEYOND = 0.25  # how far moves go on in the direction in which they changed
_UNPROVED = 0.99  # of a radius at which moves were not within their guess, what is tried next
_SEARCH, _LATE = 2, 5  # rounds: metrics are searched for, before that they would be those of another radius
_STAGES, _AGAIN = (6.0, 36.0, 150.0), (150.0,)
_SHARES = (0.2, 0.5, 0.8)  # of the largest multiple of a metric, to begin a search with
_INSIDE, _TOWARDS = 0.93, (1.0, 0.8, 0.4, 0.0)
_Places = tuple[Tensor, Tensor]  # numbers of inputs, and of their pairs
_OPEN = 1e-6  # the square root of a width of slopes below which a unit is linear, for a search


@dataclass(eq=False)
class Reach:
    """The search for some inputs: all tensors by input, and replaced round by round.

    pairs: what decides, rows of y, shape (batch, p, n + p). gap: how much each may change, infinite where it may at
    will. begin: a metric for each pair, (batch, p, n), that proves a global bound. best: what is proved so far.
    What proves it stands beside it: moves, (batch, n), within which units stay, infinite where a global bound is the
    best, and own, the metrics of pairs that were better than that of the frame, (batch, p, n), NaN where none was.
    """

    locality: Locality
    near: Nearby
    pairs: Tensor
    gap: Tensor
    begin: Tensor
    best: Tensor

    def __post_init__(self) -> None:
        self.moves = torch.full_like(self.near.v, math.inf)
        self.own = torch.full_like(self.begin, math.nan)
        self._own = self.own.clone()
        self.begin = self.begin.clone()
        self.metrics = self.begin.clone()
        self.seen, self.searched = (torch.zeros(self.gap.shape, dtype=torch.bool) for _ in range(2))

    def run(self) -> Tensor:
        """The radii that are proved in the end, at least those that were known."""
        open_ = (self.best > 0).nonzero()[:, 0]
        moves, trial = self._begin(open_)
        before: tuple[Tensor, Tensor] | None = None
        for k in range(_ROUNDS):
            if len(open_) == 0:
                break
            found, allowed, holds = self._tried(open_, moves, trial, k)
            proved = torch.minimum(trial, allowed).where(holds, 0.0)
            self._keep(open_, proved, torch.minimum(moves * ROOM, self.near.most) * trial[:, None])
            best = self.best[open_]
            now = trial.log(), allowed.clamp(min=1e-280).log()
            after = _next_trial(now, before)
            if k >= _LATE:  # better a smaller radius than none
                after = torch.minimum(after, trial * _UNPROVED).where(~holds, after)
            after = torch.maximum(after, best * _MORE)
            left = torch.ones_like(holds)
            if k > _SEARCH:
                left = ~(holds & (allowed < trial * (1 + _CLOSE))) & ~((best >= after) & holds)
            before = None if k == _SEARCH else (now[0][left], now[1][left])
            guess = found * (found / moves).clamp(0.5, 2.0) ** _BEYOND * (after / trial)[:, None].clamp(0.5, 2.0)
            moves = torch.minimum(guess, self.near.most)[left]
            open_, trial = open_[left], after[left]
        return self.best

    def _keep(self, index: Tensor, proved: Tensor, moves: Tensor) -> None:
        """What is proved, where it is more than before, and what proves it."""
        more = proved > self.best[index]
        where = index[more]
        self.best[where], self.moves[where], self.own[where] = proved[more], moves[more], self._own[where]

    def _begin(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Moves and radii to try first, between what is true everywhere and what a linear network would allow."""
        near, start = self.near.some(index), self.best[index].clamp(min=1e-280)
        at_inputs = self.locality.slopes(near)
        g = torch.linalg.vector_norm(at_inputs.rows(self.pairs[index]).g, dim=2)
        linear = _least(self.gap[index], g).clamp(max=1e280)
        return self.locality.guess(at_inputs, near), torch.maximum(start, start ** (1 - _FIRST) * linear**_FIRST)

    def _tried(self, index: Tensor, moves: Tensor, r: Tensor, round_: int) -> tuple[Tensor, Tensor, Tensor]:
        """The moves that this guess of them makes possible, the radius that follows, and whether it is proved."""
        near, gap = self.near.some(index), self.gap[index]
        tried = torch.minimum(moves * ROOM, near.most)
        around, _, _ = self.locality.around(near, tried * r[:, None])
        asked, inequality = around.rows(self.pairs[index]), Inequality.of(around)
        rows = around.rows(None).and_(asked)
        bounds = torch.stack([inequality.bounds(rows, t) for t in inequality.steps(FEW)]).amin(dim=0)
        count = moves.shape[1]
        found = torch.minimum(self.locality.real(bounds[:, :count]) * (1 + 1e-12), near.most)
        pairs = bounds[:, count:]
        if round_ >= _SEARCH:
            pairs = self._sharpened(index, around, asked, pairs)
        return found, _least(gap, pairs) * (1 - 1e-12), (found <= tried).all(dim=1)

    def _sharpened(self, index: Tensor, around: Surroundings, asked: Rows, bounds: Tensor) -> Tensor:
        """The bounds, those of pairs that may decide in a metric of their own, and of those that do in a better one."""
        close, seen = self._deciding(index, bounds, _WIDE), self.seen[index]
        self._own[index] = math.nan
        for image, row in (part.nonzero(as_tuple=True) for part in (close & ~seen, close & seen)):
            some, rows, where = around.some(image), asked.some(image, row), (index[image], row)
            if not bool(self.seen[where].any()):
                self.begin[where] = self.metrics[where] = _scaled(some, rows, self.begin[where])
            else:
                self.metrics[where] = _feasible(some, self.metrics[where], self.begin[where])
            self.seen[where] = True
            bounds = self._with_own(bounds, some, rows, self.metrics[where], (image, row), where)
        close, searched = self._deciding(index, bounds, _NEAR), self.searched[index]
        for part, stages in ((close & ~searched, _STAGES), (close & searched, _AGAIN)):
            image, row = part.nonzero(as_tuple=True)
            some, rows, where = around.some(image), asked.some(image, row), (index[image], row)
            found = _improved(some, rows, self.metrics[where], stages)
            bounds = self._with_own(bounds, some, rows, found, (image, row), where)
            self.metrics[where] = self.begin[where] + _INSIDE * (found - self.begin[where])
            self.searched[where] = True
        return bounds

    def _deciding(self, index: Tensor, bounds: Tensor, near: float) -> Tensor:
        """The pairs that allow at most so many times what the least allows."""
        allowed = self.gap[index] / bounds
        return (allowed <= allowed.amin(dim=1, keepdim=True) * near) & (allowed > 0) & allowed.isfinite()

    def _with_own(
        self, bounds: Tensor, around: Surroundings, rows: Rows, lam: Tensor, at: _Places, where: _Places
    ) -> Tensor:
        """The bounds, some of them in these metrics where that is better."""
        own = Inequality.of(replace(around, lam=lam))
        found = own.bounds(rows, torch.ones(len(lam), dtype=torch.float64))[:, 0]
        self._own[where] = lam.where((found < bounds[at])[:, None], self._own[where])
        return bounds.index_put(at, torch.minimum(bounds[at], found))


def _least(gap: Tensor, bounds: Tensor) -> Tensor:
    return (gap / bounds).nan_to_num(nan=0.0, posinf=math.inf).amin(dim=1)


def _next_trial(last: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor] | None) -> Tensor:
    """Where what is allowed would be what is tried: on the line through the last two, both in logarithms.

    What is allowed falls with what is tried, so that between the two lies the answer; a little less is proved at once.
    """
    r, allowed = last
    slope = torch.full_like(r, _SLOPE)
    if before is not None:
        slope = ((allowed - before[1]) / (r - before[0])).nan_to_num(nan=_SLOPE).clamp(-4.0, -0.2)
    return ((allowed - slope * r) / (1 - slope)).exp() * _A_LITTLE_LESS


def _scaled(around: Surroundings, rows: Rows, lam: Tensor) -> Tensor:
    """Multiples of metrics to begin with, for one row each."""
    own = Inequality.of(replace(around, lam=lam))
    steps = torch.stack(own.steps(_SHARES))
    values = torch.stack([own.bounds(rows, t)[:, 0] for t in steps])
    return lam * steps.gather(0, values.argmin(dim=0)[None])[0][:, None]


def _feasible(around: Surroundings, lam: Tensor, sure: Tensor) -> Tensor:
    """Metrics as near to `lam` as sectors that have changed since allow, on the way to those that were sure before."""
    found, open_ = sure / 2, torch.arange(len(lam))
    for share in _TOWARDS:
        trial = sure[open_] + share * (lam[open_] - sure[open_])
        sound = Inequality.of(replace(around.some(open_), lam=trial)).sound
        found[open_[sound]] = trial[sound]
        open_ = open_[~sound]
    return found


def _improved(around: Surroundings, rows: Rows, lam: Tensor, stages: tuple[float, ...]) -> Tensor:
    """Better metrics, for one row each, by a search over the units that are not linear."""
    if len(lam) == 0:
        return lam
    most = int((around.k > _OPEN).sum(dim=1).max())
    units = around.k.topk(max(most, 1), dim=1).indices
    found = improved_metrics(around.problem(rows).part(units), lam.gather(1, units), stages)
    return lam.scatter(1, units, found)
