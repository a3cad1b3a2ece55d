"""Radii by local bounds, in double precision and in balls, and by branching, against rational arithmetic on lines.

On a line through x the network is linear between kinks: for every pattern of sides, v is a rational linear function of
the way t gone, the pattern fits on an interval, and differences of outputs are least at its ends. With one input
feature that is all there is; with more, lines along the gradients of all patterns are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import torch
from flint import fmpq
from torch import Tensor

import lben
from tests.adversary import draws, exact
from tests.adversary.claims import known
from tests.adversary.tally import Tally, show

Ends = tuple[float, float] | None
Line = tuple[list[Any], list[Any]]
"""A rational linear function of t for each unit, or output: values at 0, and slopes."""


class Lines:
    """The exact network of ReLUs through x."""

    def __init__(self, w: lben.Weights, x: Tensor) -> None:
        self.network, self.x = exact.Exact.of(w), exact.matrix(x)
        self.bz, self.by = exact.matrix(w.bz), exact.matrix(w.by)
        self.n = w.hidden_features

    def patterns(self, u: Any) -> Iterator[tuple[tuple[int, ...], Line, Line]]:
        """Every pattern of sides, with v and y of it on the line x + t u."""
        N = self.network
        for sides in product((0, 1), repeat=self.n):
            S = exact.diagonal([fmpq(side) for side in sides])
            A = exact.identity(self.n) - N.W * S
            if A.det() == 0:
                raise ArithmeticError("no unique solution")
            inverse = A.inv()
            v0, slope = inverse * (N.U * self.x + self.bz), inverse * N.U * u
            y0, rise = N.Wo * S * v0 + N.D * self.x + self.by, N.Wo * S * slope + N.D * u
            yield sides, (_column(v0), _column(slope)), (_column(y0), _column(rise))

    def keeps(self, u: Any, chosen: int, radius: Any, ends: Ends = None) -> bool:
        """Whether no output is above that of `chosen` on the line, for |t| <= radius, and x + t u between the ends."""
        least, most = -radius, radius
        for a, b in zip(_column(self.x), _column(u), strict=True):
            if ends is not None and b != 0:
                first, last = sorted((exact.rational(end) - a) / b for end in ends)
                least, most = max(least, first), min(most, last)
        for sides, (v0, slope), (y0, rise) in self.patterns(u):
            low, high = least, most
            for side, a, b in zip(sides, v0, slope, strict=True):
                a, b = (a, b) if side else (-a, -b)  # a + b t >= 0
                if b > 0:
                    low = max(low, -a / b)
                elif b < 0:
                    high = min(high, -a / b)
                elif a < 0:
                    high = low - 1
            if low > high:
                continue
            for a, b in zip(y0, rise, strict=True):
                if any(y0[chosen] - a + (rise[chosen] - b) * t < 0 for t in (low, high)):
                    return False
        return True

    def beats(self, point: Tensor, chosen: int) -> bool:
        """Whether at this input some output is above that of `chosen`."""
        u = exact.matrix(point) - self.x
        for sides, (v0, slope), (y0, rise) in self.patterns(u):
            v = [a + b for a, b in zip(v0, slope, strict=True)]
            if all(entry >= 0 if side else entry <= 0 for side, entry in zip(sides, v, strict=True)):
                y = [a + b for a, b in zip(y0, rise, strict=True)]
                return bool(max(y) > y[chosen])
        return False

    def directions(self, chosen: int) -> Iterator[Any]:
        """Rational vectors no longer than one, along the gradients of all differences in all patterns."""
        d = self.network.U.ncols()
        if d == 1:
            yield exact.identity(1)
            return
        for sides in product((0, 1), repeat=self.n):
            J = self.network.jacobian([fmpq(side) for side in sides])
            assert J is not None  # I - W S is regular for every S of a well-posed network
            for j in range(self.network.Wo.nrows()):
                g = torch.tensor([float(J[chosen, k] - J[j, k]) for k in range(d)], dtype=torch.float64)
                if j != chosen and float(g.norm()) > 0 and bool(g.isfinite().all()):
                    yield exact.matrix(g / g.norm() * (1 - 1e-15))


def _column(matrix: Any) -> list[Any]:
    return [row[0] for row in matrix.tolist()]


def true_radius(w: lben.Weights, x: Tensor, chosen: int, radius: float, ends: Ends = None) -> bool:
    """Whether no line shows another class within the radius, and between the ends."""
    lines = Lines(w, x)
    return all(lines.keeps(u, chosen, exact.rational(min(radius, 1e300)), ends) for u in lines.directions(chosen))


def true_verdict(w: lben.Weights, x: Tensor, label: int, found: lben.Verification, ends: Ends = None) -> bool:
    """Whether what is proved is true on all lines, and a counterexample is one, within the radius and the ends."""
    if found.status[0] == "proved":
        return true_radius(w, x, label, found.radius, ends)
    if found.status[0] == "undecided":
        return True
    point = found.counterexample[0]
    if ends is not None and not bool(((point >= ends[0]) & (point <= ends[1])).all()):
        return False
    moved = [a - b for a, b in zip(_column(exact.matrix(point)), _column(exact.matrix(x)), strict=True)]
    return sum((a * a for a in moved), fmpq(0)) <= exact.rational(found.radius) ** 2 and Lines(w, x).beats(point, label)


def around_inputs(r: Random, tally: Tally, where: str) -> None:
    """Radii of one input, and what branching says around them."""
    w = draws.weights(r, largest=3, inputs=r.choice((1, 1, 2)))
    if w.out_features < 2:
        w = lben.Weights(w.W, w.U, w.bz, draws.rough(r, 2, w.hidden_features), draws.rough(r, 1, 2)[0], w.lam)
    x = draws.gaussian(r, 1, w.in_features) * draws.scale(r)
    if not bool(x.isfinite().all()):
        return
    shown, radii = f"{where}: {show(w)}, x={x.tolist()}", []
    for rigorous in (False, True):
        kind = "local radius, rigorous" if rigorous else "local radius"
        ask = lambda s=rigorous: lben.certified_radius(w, x, local=True, rigorous=s)  # noqa: E731

        def true(found: lben.CertifiedRadius) -> bool:
            radii.append(float(found.radius))
            return radii[-1] == 0 or true_radius(w, x[0], int(found.predicted), radii[-1])

        known(tally, kind, shown, ask, true)
    if not (radii and 0 < radii[0] < 1e100):
        return
    label = lben.enclose(w, x).y.argmax(dim=-1)
    for share in (1 - 1e-13, 1 + 10.0 ** r.uniform(-12, 0.5)):
        size = radii[0] * share
        far = float(x.abs().max()) + size * r.uniform(0, 1)
        for ends in (None, (min(float(x.min()), far - 2 * size * r.random()), far)):
            verified = lambda size=size, e=ends: lben.verify(w, x, label, size, seconds=2.0, bounds=e)  # noqa: E731
            kind = "branching" if ends is None else "branching in a range"
            true_of = lambda f, e=ends: true_verdict(w, x[0], int(label), f, e)  # noqa: E731
            known(tally, kind, f"{shown}, radius={size!r}, ends={ends}", verified, true_of)
