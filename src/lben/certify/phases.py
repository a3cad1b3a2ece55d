"""Parts of a ball of inputs in each of which some units stay on one side of their kink, and bounds on each part.

Units are v = z - s, above and below 0, and what they do in a part is bounded by multipliers of all that is true there
(`numerics/relaxation.py`): how far units move at most, which of z and s is 0, and where inputs are. With no unit left
to divide all of that is convex, and the best multipliers give the least difference of outputs exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lben.activations.sectors import slopes_below
from lben.certify.ascent import Ball
from lben.certify.locality import Locality, Nearby
from lben.numerics.enclosed import EPS
from lben.numerics.multipliers import searched
from lben.numerics.relaxation import Question, Rectifiers, begun, most, proved, right

_SLIT = 1e-9  # of a unit's move, what a side has at least, so that the inside of a part is not empty


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
    """Of each part: whether the class is proved there; which unit to divide, -1 where none is open; and a step from the
    middle, in lengths of the ball, to where the bound is nearly reached, (batch, d)."""

    proved: Tensor
    unit: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Divided:
    """The ball of one input, and the class it has.

    metrics: one for each pair of classes, (p, p, n), that proves a global bound. top, bottom: how far units get above
    and below 0 in the ball, (n,). moves: how far they move, (n,). v: what they are in the middle.
    """

    locality: Locality
    ball: Ball
    metrics: Tensor
    below: Tensor
    v: Tensor
    top: Tensor
    bottom: Tensor
    moves: Tensor

    @staticmethod
    def of(locality: Locality, ball: Ball, near: Nearby, r: float, metrics: Tensor) -> Divided:
        """near: the middle. r: a length at the network's input within which the ball is, in the norm of near."""
        subject = locality.subject
        moves = locality.within(near, torch.tensor([r], dtype=torch.float64))[0] * (1 + 1e-12)
        v, off = near.v[0], near.off[0]
        top, bottom = (v + off + moves).clamp(min=0) * (1 + 1e-12), (moves + off - v).clamp(min=0) * (1 + 1e-12)
        below = slopes_below(subject.activation, len(v), "Dividing a ball")
        return Divided(locality, ball, metrics, below, v, top, bottom, moves)

    def judged(self, parts: Parts) -> Judged:
        """Bounds on every part."""
        on, off = (parts.signs > 0) | (self.bottom == 0), (parts.signs < 0) | (self.top == 0)
        k, ask = self._rectifiers(on, off & ~on), self._asked(parts, on, off & ~on)
        z, s = (torch.where(k.fixed, 0.0, part) for part in (self.v.clamp(min=0), (-self.v).clamp(min=0)))
        everywhere, inside, weight = begun(k, ask, self.metrics[self.ball.chosen, parts.other], z, s)
        sure = proved(k, ask, everywhere) < 0
        rest = (~sure).nonzero()[:, 0]
        steps = torch.zeros_like(ask.h)
        unit = torch.full((len(sure),), -1)
        if len(rest):
            k, ask = k.some(rest), ask.some(rest)
            found = searched(k, ask, inside.some(rest), weight[rest])
            sure[rest] = proved(k, ask, found) < 0
            at = most(k, ask, found)
            torn = (found.both.abs() * torch.minimum(at.z.abs(), at.s.abs())).nan_to_num(nan=0.0, posinf=1e300)
            torn = torch.where(k.fixed, 0.0, torn + 1e-280)
            unit[rest] = torch.where(k.fixed.all(dim=1), -1, torn.argmax(dim=1))
            steps[rest] = at.x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return Judged(sure, unit, steps)

    def _asked(self, parts: Parts, on: Tensor, off: Tensor) -> Question:
        """How far the other class is above the chosen one: a unit's output is z less its slope times s.

        Of units that are `on`, z stands in the place of s, which is 0.
        """
        weights, chosen = self.locality.subject.weights, self.ball.chosen
        rows = weights.Wo[parts.other] - weights.Wo[chosen]
        const = weights.by[parts.other] - weights.by[chosen]
        h = torch.zeros(len(rows), weights.in_features, dtype=torch.float64)
        if weights.D is not None:
            past = weights.D[parts.other] - weights.D[chosen]
            x, sizes = self.locality.subject.scaled(self.ball.x), self.locality.subject.sizes(self.ball.x)
            count = weights.in_features + 8
            const = const + (past * x).sum(dim=1) + count * EPS * (const.abs() + (past.abs() * sizes).sum(dim=1))
            h = past / _lengths(self.locality, self.ball)
        rows, const, h = _scaled(rows, const, h)
        least = _SLIT * (self.moves + self.moves.amax()) + 1e-200
        return Question(
            const,
            torch.where(on | off, 0.0, rows),
            torch.where(on, rows, -rows * self.below),
            h,
            torch.where(on | off, 0.0, self.top.maximum(least)),
            torch.where(on, self.top, self.bottom).maximum(least),
        )

    def _rectifiers(self, on: Tensor, off: Tensor) -> Rectifiers:
        """(I - W) z - (I - W diag(below)) s = U x + p, solved for s, and for z of units that are `on`.

        What is solved is multiplied by an inverse, and what that is not exact by is bounded.
        """
        W, (U, p, unsure, r, low, high) = self.locality.subject.weights.W, self._shared
        n = len(W)
        eye = torch.eye(n, dtype=torch.float64)
        A = eye - W
        free = (~(on | off)).to(torch.float64)
        B = torch.where(on[:, None, :], -A, eye - W * self.below)
        back = torch.linalg.inv_ex(B).inverse
        terms = torch.where(on[:, None, :], A.abs(), eye + W.abs() * self.below)  # of B, before they cancel
        wrong = (eye - B @ back).abs() + (n + 8) * EPS * (terms @ back.abs())
        worst = wrong.sum(dim=2).amax(dim=1)
        sizes = (self.top * free) @ A.abs().T + torch.linalg.vector_norm(U, dim=1) * r + p.abs()
        sizes = sizes + right(terms, torch.where(on, self.top, self.bottom))
        lost = right(back.abs(), unsure + (2 * n + 16) * EPS * sizes)
        share = torch.where(worst < 0.5, 2 * worst, torch.inf)
        lost = lost + back.abs().sum(dim=2) * (share * (sizes + unsure).amax(dim=1))[:, None]
        inputs = back @ U
        return Rectifiers(
            back @ (A * free[:, None, :]),
            inputs,
            inputs @ inputs.mT,
            (back @ p[:, None])[:, :, 0],
            lost * (1 + 1e-9),
            free == 0,
            r,
            low,
            high,
        )

    @cached_property
    def _shared(self) -> tuple[Tensor, Tensor, Tensor, float, Tensor, Tensor]:
        """What all parts share: U in lengths of the ball, p and what it may be off by, and where x is."""
        subject, ball = self.locality.subject, self.ball
        nothing = torch.zeros(1, len(self.v), dtype=torch.float64)
        p, unsure = subject.injected(nothing, ball.x, torch.zeros(1, dtype=torch.float64))
        U = subject.weights.U / _lengths(self.locality, ball)
        return U, p[0], unsure[0], ball.reach()[0] * (1 + 1e-14), *ball.sides()


def _scaled(rows: Tensor, const: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The questions times powers of two that make them of size one: whether they are below 0 stays, and nothing of
    them, nor of what multiplies them, underflows."""
    size = torch.cat([rows, const[:, None], h], dim=1).abs().amax(dim=1)
    exponents = -torch.frexp(torch.where(size > 0, size, 1.0)).exponent
    return (torch.ldexp(rows, exponents[:, None]), torch.ldexp(const, exponents), torch.ldexp(h, exponents[:, None]))


def _lengths(locality: Locality, ball: Ball) -> Tensor:
    """What a change of a feature at the network's input is multiplied by to be a length of the ball, (d,)."""
    normalize = locality.subject.normalize
    return ball.unit if normalize is None else ball.unit * normalize.std
