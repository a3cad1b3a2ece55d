"""Bounds that hold around given inputs: how far each unit can move decides how steep it can be, and so on in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.sectors import sectors
from lben.certify.certificate import Domain, NoVerdict, known
from lben.certify.dense import DenseSubject
from lben.certify.evaluator import PRECISE, Evaluator
from lben.certify.metrics import smallest_gamma
from lben.certify.subject import Examined, Subject
from lben.certify.surroundings import Frame, Inequality, Rows, Surroundings, best_bounds, best_norm
from lben.errors import InvalidInput, LbenError
from lben.numerics.rounding import undisturbed
from lben.progress import track
from lben.solvers.base import Solver
from lben.weights.dense import Weights

_ROUNDS = 8
_SETTLED = 0.99  # of a move, above which another round is not worth its time
_TRIALS = 5
_NEAR = 1.15  # pairs of classes that fail by less are given a metric of their own
_ENTRIES = 2**19  # of the matrices of a batch
_FIXED = 1e-12  # the width of a sector below which a unit is linear, but for rounding


@dataclass(frozen=True, eq=False)
class LocalBound(NoVerdict):
    """Around each input, a bound on |y(x') - y(x)|/|x' - x| for all x' within `radius`, and what it rests on.

    gamma: shape of the batch, in `domain`. radius: as it was given, in `domain`.
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
    most = known(locality.subject.tightest())
    method = PRECISE if solver is None else solver
    found = []
    for part in locality.parts(rows, progress):
        v, off = locality.subject.located(rows[part], method)
        around, lower, upper = locality.narrowed(v, off, torch.full((len(v),), reach, dtype=torch.float64))
        gamma = best_norm(around, around.rows(locality.outputs.expand(len(v), -1, -1)))
        found.append((gamma.clamp(max=most), lower, upper))
    gamma, lower, upper = (torch.cat(parts) for parts in zip(*found, strict=True))
    gamma = gamma / scale * (1 + 1e-15)
    n = lower.shape[1]
    return LocalBound(gamma.reshape(batch), radius, lower.reshape(*batch, n), upper.reshape(*batch, n), domain)


@dataclass(frozen=True, eq=False)
class Locality:
    """A network as local bounds see it: its frame in the best global metric, and how far units move per length of dx.

    moves: |dv_i| <= moves_i |dx| everywhere, shape (1, n). outputs: the rows of y, shape (p, n + p).
    """

    subject: DenseSubject
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
        frame = Frame.of(own.weights, own.tightest().lam)
        lower = own.linear.to(torch.float64)[None]
        around = Surroundings.of(frame, lower, torch.ones_like(lower))
        (moves,) = best_bounds(around, around.rows(None))
        outputs = torch.cat([frame.Wo, torch.eye(len(frame.Wo), dtype=torch.float64)], dim=1)
        return Locality(own, frame, moves, outputs)

    def parts(self, rows: Tensor, progress: bool | None) -> Iterator[slice]:
        """A few rows at a time."""
        size = max(1, _ENTRIES // (self.frame.R.shape[1] * len(self.frame.W)))
        starts = range(0, len(rows), size)
        for start in track(list(starts), "Local bounds", len(starts), show=progress):
            yield slice(start, start + size)

    def narrowed(self, v: Tensor, off: Tensor, r: Tensor) -> tuple[Surroundings, Tensor, Tensor]:
        """The surroundings within r of each input, and the slopes between which units stay, when nothing moves any more."""
        d = self._real(self.moves) * r[:, None]
        lower, upper = sectors(self.subject.activation, v, off, d)
        around = Surroundings.of(self.frame, lower, upper)
        for _ in range(_ROUNDS):
            (moves,) = best_bounds(around, around.rows(None))
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
        best, trial = start.clone(), start * _NEAR
        for k in range(_TRIALS + 2):
            if k >= _TRIALS:
                trial = best * (1 + 0.5 ** (k - _TRIALS + 4))
            around, _, _ = self.narrowed(v, off, trial)
            asked = around.rows(pairs)
            (bounds,) = best_bounds(around, asked)
            if k >= _TRIALS:
                bounds = _sharpened(around, asked, bounds, gap, trial)
            allowed = (gap / bounds).nan_to_num(nan=0.0, posinf=math.inf).amin(dim=1) * (1 - 1e-12)
            best = torch.maximum(best, torch.minimum(trial, allowed).where(start > 0, 0.0))
            trial = (trial * allowed).sqrt().clamp(min=1e-280)
        return best

    def _real(self, moves: Tensor) -> Tensor:
        return torch.ldexp(moves, self.frame.exponents)


def _sharpened(around: Surroundings, asked: Rows, bounds: Tensor, gap: Tensor, trial: Tensor) -> Tensor:
    """The bounds, with those of pairs that fail by little in the best metric of their own."""
    allowed = gap / bounds / trial[:, None]
    close = (allowed < 1) & (allowed.amin(dim=1) * _NEAR > 1)[:, None]
    bounds = bounds.clone()
    for image, row in close.nonzero().tolist():
        item = slice(image, image + 1)
        found = _own_metric(around, asked, image, row)
        if found is None:
            continue
        lam, gamma = found
        own = Surroundings(*(getattr(around, name)[item] for name in ("a", "k")), lam[None], *_rest(around, item))
        one = Rows(*(part[item, row : row + 1] for part in (asked.f, asked.g, asked.off_f, asked.off_g)))
        better = Inequality.of(own).bounds(one, torch.tensor([1 / gamma], dtype=torch.float64))
        bounds[image, row] = torch.minimum(bounds[image, row], better[0, 0])
    return bounds


def _rest(around: Surroundings, item: slice) -> tuple[Tensor, ...]:
    return around.P[item], around.N[item], around.off_P[item], around.off_N[item], around.past


def _own_metric(around: Surroundings, asked: Rows, image: int, row: int) -> tuple[Tensor, float] | None:
    """The metric in which one row of one input has its smallest bound, which is that of an equilibrium network."""
    k = around.k[image]
    free = k > math.sqrt(_FIXED)
    if not bool(free.any()):
        return None
    W = (k[:, None] * around.P[image] * k)[free][:, free]
    count = len(W)
    nothing = W.new_zeros(count)
    weights = Weights(
        W,
        (k[:, None] * around.N[image])[free],
        nothing,
        asked.f[image, row : row + 1][:, free],
        nothing[:1],
        around.lam[image][free],
        None,
        asked.g[image, row : row + 1],
    )
    try:
        lam, gamma, _ = smallest_gamma(weights, torch.zeros(count, dtype=torch.bool), None, "barrier")
    except LbenError:
        return None
    whole = around.lam[image].clone()
    whole[free] = lam
    return whole, gamma
