"""Parts of a ball of inputs in each of which some units stay on one side of their kink, and bounds on each part.

A unit of slope s below 0 and 1 above it that is on a given side is linear there: z = s v or z = v. Let such units be
linear everywhere: that is another network, as well-posed as the first, whose equilibria are those of the first for all
inputs for which these units are on their sides. So what is true of it within the ball, by its own equilibrium at the
middle and local bounds around that, is true of the first on the part; and there sign_k v_k >= 0, so that for every
mu >= 0 a difference of outputs is at least itself less sum mu_k sign_k v_k, whose least over the whole ball is bounded.
With no unit left to divide, the other network is linear, and the best mu give the least exactly (strong duality).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.activations.sectors import slopes_below
from lben.certify.locality import Locality, Nearby
from lben.certify.reaching import STAGES, improved
from lben.certify.surroundings import MANY, Frame, Inequality, Rows, Surroundings
from lben.numerics.enclosed import EPS
from lben.numerics.multipliers import multipliers

_NEWTON = 30
_OPEN = 1e-9  # the width of a sector above which a unit is worth dividing
_TINY = 1e-290
_ROUNDS = 2  # of a metric for given multipliers, and multipliers for a given metric


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of the ball of one input: for each unit the side that it is on, 1, -1 or 0 for both, (batch, n), and the
    number of the other class that is looked at, (batch,)."""

    signs: Tensor
    other: Tensor

    def some(self, index: Tensor) -> Parts:
        """Some of them."""
        return Parts(self.signs[index], self.other[index])

    def divided(self, units: Tensor) -> Parts:
        """Two of each, with one unit on either side."""
        signs = self.signs.repeat(2, 1)
        signs[torch.arange(len(signs)), units.repeat(2)] = torch.tensor([1, -1]).repeat_interleave(len(units))
        return Parts(signs, self.other.repeat(2))


@dataclass(frozen=True, eq=False)
class Judged:
    """Of each part: whether the class is proved there; which unit to divide, -1 where none is open; and where in the
    ball, relative to its radius, the bound is nearly reached, in units of the frame's R, (batch, m)."""

    proved: Tensor
    unit: Tensor
    towards: Tensor


@dataclass(frozen=True, eq=False)
class Divided:
    """The ball of one input, x of shape (1, d), of radius r at the network's input, and the class it has.

    frame: in whose norm the ball is one. most: how far units move per length of that at most, (1, n).
    """

    locality: Locality
    x: Tensor
    chosen: int
    r: float
    frame: Frame
    most: Tensor

    def judged(self, parts: Parts) -> Judged:
        """Bounds on every part."""
        batch = len(parts.other)
        near, margin = self._placed(parts)
        moves = self.locality.within(near, torch.full((batch,), self.r, dtype=torch.float64))
        around, lower, upper = self.locality.around(near, moves)
        outputs = self.locality.outputs
        pairs = (outputs[self.chosen] - outputs)[parts.other][:, None]
        rows = around.rows(None).and_(around.rows(pairs))
        bounded = _Bounded(around, rows, self._heights(near, parts), margin, parts.signs.double(), self.r)
        proved, row, towards = bounded.best()
        width = torch.where(parts.signs == 0, upper - lower, 0.0)
        influence = row.abs() * around.k * torch.ldexp(moves, -self.locality.frame.exponents)
        influence = torch.where(width > _OPEN, influence.nan_to_num(nan=0.0, posinf=1e300) + 1e-280, 0.0)
        unit = torch.where((width > _OPEN).any(dim=1), influence.argmax(dim=1), -1)
        return Judged(proved, unit, towards)

    def _heights(self, near: Nearby, parts: Parts) -> Tensor:
        """Upper bounds of sign_k v_k at the middle, in units of the frame."""
        heights = parts.signs * near.v + near.off * (1 + 4 * EPS)
        return torch.ldexp(heights, -self.locality.frame.exponents)

    def _placed(self, parts: Parts) -> tuple[Nearby, Tensor]:
        """The equilibria of the other networks at the middle, and lower bounds of what decides there."""
        subject, batch = self.locality.subject, len(parts.other)
        below = slopes_below(subject.activation, parts.signs.shape[1], "Dividing a ball")
        fixed = torch.where(parts.signs > 0, 1.0, torch.where(parts.signs < 0, below, torch.nan))
        x = self.x.expand(batch, -1)
        bias = subject.injection(x if subject.normalize is None else subject.normalize(x), absolute=False)
        v, eye = bias, torch.eye(len(below), dtype=torch.float64)
        slopes = torch.where(fixed.isnan(), subject.activation.derivative(v), fixed)
        for _ in range(_NEWTON):
            A = eye - subject.weights.W * slopes[:, None, :]
            v = torch.linalg.solve_ex(A, bias[:, :, None]).result[:, :, 0]
            before, slopes = slopes, torch.where(fixed.isnan(), subject.activation.derivative(v), fixed)
            if bool((slopes == before).all()):
                break
        z = torch.where(fixed.isnan(), subject.activation(v), fixed * v)
        off = subject.activation.rounding * EPS * (z.abs() + v.abs()) + 4 * EPS * z.abs() + _TINY
        distance = subject.distance(z, v, x, off=off)
        at = torch.arange(batch)
        found = subject.outputs_of(z, x, distance, torch.ones(batch, dtype=torch.bool))
        chosen = torch.full((batch,), self.chosen)
        gap = found.y[at, chosen] - found.y[at, parts.other] - found.pair_error(chosen)[at, parts.other]
        gap = gap - 4 * EPS * (found.y[at, chosen].abs() + found.y[at, parts.other].abs())
        here, error = subject.injected(z, x, distance)
        return Nearby(here, error, self.frame.some(torch.zeros(batch, dtype=torch.int64)), self.most, fixed), gap


@dataclass(frozen=True, eq=False)
class _Bounded:
    """Rows of dv, and last that of the difference; heights and margin at the middle; signs of the half-spaces."""

    around: Surroundings
    rows: Rows
    heights: Tensor
    margin: Tensor
    signs: Tensor
    r: float

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """Whether the least is proved to be above 0; and of the last bound, f of its row, and where it is reached."""
        lam, weights = self._multiple(), self._weights(torch.zeros_like(self.signs))
        one, proved = torch.ones(len(lam), dtype=torch.float64), torch.zeros(len(lam), dtype=torch.bool)
        for k in range(_ROUNDS + 1):
            inequality = Inequality.of(replace(self.around, lam=lam))
            vectors, _ = inequality.embedded(self.rows, one)
            vectors = vectors.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            G = self.signs[:, :, None] * vectors[:, :-1]
            mu = multipliers(vectors[:, -1], self.heights, G, self.r, self.signs != 0)
            tried = self._weights(mu)
            values = [self._value(inequality, w) for w in (weights, tried)]
            weights = torch.where((values[1] > values[0])[:, None, None], tried, weights)
            proved = proved | (torch.maximum(*values) > 0)
            if k == _ROUNDS or bool(proved.all()):
                break
            lam = improved(self.around, self.rows.summed(weights), lam, STAGES)
        row = self.rows.summed(weights)
        _, towards = inequality.embedded(row, one)
        return proved, row.f[:, 0], towards[:, 0]

    def _multiple(self) -> Tensor:
        """The frame's metric, times what is best for the difference alone."""
        inequality = Inequality.of(self.around)
        last = Rows(self.rows.f[:, -1:], self.rows.g[:, -1:], self.rows.off_f[:, -1:], self.rows.off_g[:, -1:])
        steps = torch.stack(inequality.steps(MANY))
        values = torch.stack([inequality.bounds(last, t)[:, 0] for t in steps])
        return self.around.lam * steps.gather(0, values.argmin(dim=0)[None])[0][:, None]

    def _weights(self, mu: Tensor) -> Tensor:
        """Of the rows, (batch, 1, n + 1), for multipliers mu."""
        return torch.cat([-mu * self.signs, torch.ones_like(mu[:, :1])], dim=1)[:, None]

    def _value(self, inequality: Inequality, weights: Tensor) -> Tensor:
        """A proved lower bound of the difference on the part."""
        one = torch.ones(len(weights), dtype=torch.float64)
        change = inequality.bounds(self.rows.summed(weights), one)[:, 0] * self.r
        terms = weights[:, 0, :-1].abs() * self.heights
        sizes = terms.abs().sum(dim=1) + self.margin.abs() + change
        return self.margin - terms.sum(dim=1) - change - (weights.shape[2] + 8) * EPS * sizes
