"""Bounds on what rectifiers can do in a ball of inputs, by all that multipliers make of what is true of a rectifier.

For v = z - s with z = max(v, 0), s = max(-v, 0) it holds that z >= 0, s >= 0, z s = 0, and where l <= v <= u,
z <= u, s <= -l and the chord u s - l z <= -l u. With s = A z - U x - p for inputs |x| <= r, low <= x <= high, a linear
function of z, s and x is at most itself plus any sum of these, each times a number that is at least 0 (any for z s = 0)
and the maximum of such a sum over all z and x is known where it is concave: t = k + g'H^-1 g / 4. Multipliers with a
small t are searched for in `multipliers.py`; that need not be exact: `proved` bounds the t of given ones, with what
rounding may have done to it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lben.numerics.enclosed import EPS

_RANGE, _UNDERFLOW = 1e130, 1e-185  # of the ball's multiplier; and what is lost below it when that divides
_BACK = 0.97  # of the way to where a multiplier would be 0
_ROOMS = (1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)  # times the least multiplier of the ball


@dataclass(frozen=True, eq=False)
class Rectifiers:
    """s = A z - U x - p, but for `lost` in each entry, for |x| <= r and low <= x <= high, both infinite where nothing
    is known. Shapes: A and G = U U' (batch, n, n), U (batch, n, d), p, lost and fixed (batch, n), low and high (d,).

    fixed: units with z = 0, of which s alone stays; their columns of A are zero.
    """

    A: Tensor
    U: Tensor
    G: Tensor
    p: Tensor
    lost: Tensor
    fixed: Tensor
    r: float
    low: Tensor
    high: Tensor

    @property
    def below(self) -> Tensor:
        """Where low says more than r."""
        return self.low > -self.r

    @property
    def above(self) -> Tensor:
        """Where high does."""
        return self.high < self.r

    @property
    def terms(self) -> int:
        """How many inequalities there are, with H as n of them."""
        return 5 * self.p.shape[1] + 1 + int(self.below.sum()) + int(self.above.sum())

    def some(self, index: Tensor) -> Rectifiers:
        parts = {name: getattr(self, name)[index] for name in ("A", "U", "G", "p", "lost", "fixed")}
        return replace(self, **parts)


@dataclass(frozen=True, eq=False)
class Question:
    """The most of const + c z + e s + h x, for z <= top and s <= bottom: shapes (batch,), (batch, n), (batch, d).

    Of units with z = 0, c and top are 0.
    """

    const: Tensor
    c: Tensor
    e: Tensor
    h: Tensor
    top: Tensor
    bottom: Tensor

    def some(self, index: Tensor) -> Question:
        return Question(*(getattr(self, field.name)[index] for field in fields(self)))

    def chord(self, fixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """b, f and g of b - f z - g s >= 0: the chord, and of units with z = 0, that s is at most bottom."""
        return (
            torch.where(fixed, self.bottom, self.top * self.bottom),
            torch.where(fixed, 0.0, self.bottom),
            torch.where(fixed, 1.0, self.top),
        )


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Of z s = 0, z, s, z (top - z), the chord: (batch, n); of r^2 - |x|^2: (batch,); x - low and high - x: (batch, d),
    0 where that is implied."""

    both: Tensor
    z: Tensor
    s: Tensor
    square: Tensor
    chord: Tensor
    ball: Tensor
    low: Tensor
    high: Tensor

    def some(self, index: Tensor) -> Multipliers:
        return Multipliers(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: Tensor, others: Multipliers) -> None:
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(others, field.name)

    def moved(self, step: Multipliers, length: Tensor) -> Multipliers:
        def along(name: str) -> Tensor:
            one, by = getattr(self, name), getattr(step, name)
            found: Tensor = one + (length if one.dim() == 1 else length[:, None]) * by
            return found

        return Multipliers(*(along(field.name) for field in fields(self)))

    def room(self, step: Multipliers) -> Tensor:
        """The longest step, at most 1, that leaves what must be positive so."""
        room = torch.ones_like(self.ball)
        for name in ("z", "s", "square", "chord", "ball", "low", "high"):
            one, by = (getattr(part, name).reshape(len(room), -1) for part in (self, step))
            ways = torch.where(by < 0, _BACK * one / -by.clamp(max=-1e-300), torch.inf)
            room = torch.minimum(room, ways.amin(dim=1)) if ways.shape[1] else room
        return room

    def barrier(self, rectifiers: Rectifiers) -> Tensor:
        """The sum of logarithms, -inf where one is not positive."""
        own = [torch.where(rectifiers.fixed, 1.0, part) for part in (self.z, self.square)]
        parts = [*own, self.s, self.chord, self.ball[:, None]]
        parts += [self.low[:, rectifiers.below], self.high[:, rectifiers.above]]
        return torch.cat(parts, dim=1).log().nan_to_num(nan=-torch.inf).sum(dim=1)


@dataclass(frozen=True, eq=False)
class Most:
    """What multipliers prove, but for rounding: t, and where the sum is largest: z, s and x.

    L: the Cholesky factor of H. fine: whether H is positive.
    """

    t: Tensor
    z: Tensor
    s: Tensor
    x: Tensor
    L: Tensor
    fine: Tensor


def left(rows: Tensor, matrices: Tensor) -> Tensor:
    """x'M of each."""
    found: Tensor = (rows[:, None, :] @ matrices)[:, 0]
    return found


def right(matrices: Tensor, rows: Tensor) -> Tensor:
    """M x of each."""
    found: Tensor = (matrices @ rows[:, :, None])[:, :, 0]
    return found


def _parts(k: Rectifiers, ask: Question, m: Multipliers) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """k, g and H of t = k + g'H^-1 g / 4, and what multiplies s and x."""
    _, of_z, of_s = ask.chord(k.fixed)
    on_s = m.s - m.chord * of_s + ask.e
    on_z = ask.c + m.z + m.square * ask.top - m.chord * of_z
    on_x = ask.h - left(on_s, k.U) + m.low - m.high
    ball = m.ball[:, None]
    g = on_z + left(on_s, k.A) + m.both * k.p + m.both * right(k.U, on_x) / (2 * ball)
    slope = m.both[:, :, None] * k.A
    H = (slope + slope.mT) / 2 - m.both[:, :, None] * k.G * m.both[:, None, :] / (4 * ball[:, :, None])
    H = (H + torch.diag_embed(m.square)).tril()
    H = H + H.tril(-1).mT  # which rounding may have made unsymmetric
    return _constant(k, ask, m, on_s, on_x).sum(dim=1), g, H, on_s, on_x


def _constant(k: Rectifiers, ask: Question, m: Multipliers, on_s: Tensor, on_x: Tensor) -> Tensor:
    """The terms of k, shape (batch, 6)."""
    terms = [
        ask.const,
        (m.chord * ask.chord(k.fixed)[0]).sum(dim=1),
        m.ball * k.r**2,
        -(m.low[:, k.below] * k.low[k.below]).sum(dim=1) + (m.high[:, k.above] * k.high[k.above]).sum(dim=1),
        -(on_s * k.p).sum(dim=1),
        on_x.square().sum(dim=1) / (4 * m.ball),
    ]
    return torch.stack(terms, dim=1)


def most(k: Rectifiers, ask: Question, m: Multipliers) -> Most:
    """What these multipliers give."""
    base, g, H, _, on_x = _parts(k, ask, m)
    L, info = torch.linalg.cholesky_ex(H)
    z = torch.cholesky_solve(g[:, :, None], L)[:, :, 0] / 2
    x = (left(m.both * z, k.U) + on_x) / (2 * m.ball[:, None])
    t = base + (g * z).sum(dim=1) / 2
    return Most(t, z, right(k.A, z) - right(k.U, x) - k.p, x, L, (info == 0) & t.isfinite())


def proved(k: Rectifiers, ask: Question, m: Multipliers) -> Tensor:
    """A true bound, whatever the multipliers, with all rounding: infinite where H is not proved positive, (batch,).

    What is computed stands for exact numbers that differ by little, and what that changes of the sum is bounded where
    the truth is: 0 <= z <= top, |x| <= r.
    """
    m = replace(m, low=m.low * k.below, high=m.high * k.above)
    at_least_0 = [m.z, m.s, m.square, m.chord, m.ball[:, None], m.low, m.high]
    signs = torch.cat(at_least_0, dim=1).amin(dim=1) >= 0
    base, g, H, on_s, on_x = _parts(k, ask, m)
    (n, d), ball, absolute = k.U.shape[1:], m.ball[:, None], k.U.abs()
    _, of_z, of_s = ask.chord(k.fixed)
    unit = (n + d + 24) * EPS
    sizes = H.diagonal(dim1=1, dim2=2)
    least = 8 * (n + 4) * n * EPS  # of the eigenvalues of H scaled to a diagonal of ones, what is proved of them
    L, info = torch.linalg.cholesky_ex(H - torch.diag_embed(least * sizes))
    z = torch.cholesky_solve(g[:, :, None], L) / 2
    Hz = H @ z
    rest = (g[:, :, None] - 2 * Hz).abs() + unit * (g.abs()[:, :, None] + 2 * (H.abs() @ z.abs()))
    rest = rest.square() / sizes[:, :, None]
    value = base + (z.mT @ (g[:, :, None] - Hz))[:, 0, 0] + rest.sum(dim=(1, 2)) / (2 * least)
    sizes = _constant(k, ask, m, on_s, on_x).abs().sum(dim=1) + (on_s.abs() * k.p.abs()).sum(dim=1)
    sizes = sizes + m.low @ k.low.abs().nan_to_num(posinf=0.0) + m.high @ k.high.abs().nan_to_num(posinf=0.0)
    sizes = sizes + (z.abs().mT @ (g.abs()[:, :, None] + H.abs() @ z.abs()))[:, 0, 0]
    parts_s = m.s + m.chord * of_s + ask.e.abs()
    parts_x = ask.h.abs() + left(parts_s, absolute) + m.low + m.high
    sizes = sizes + k.r * torch.linalg.vector_norm(parts_x, dim=1) + (parts_s * k.p.abs()).sum(dim=1)
    reached = m.both.abs() * ask.top
    parts_z = ask.c.abs() + m.z + m.square * ask.top + m.chord * of_z + left(parts_s, k.A.abs())
    parts_z = parts_z + m.both.abs() * (k.p.abs() + right(absolute, on_x.abs()) / (2 * ball))
    sizes = sizes + (parts_z * ask.top).sum(dim=1) + (m.square * ask.top.square()).sum(dim=1)
    sizes = sizes + (reached * right(k.A.abs(), ask.top)).sum(dim=1)
    sizes = sizes + left(reached, absolute).square().sum(dim=1) / (4 * m.ball)
    unsure = ((reached + on_s.abs() + unit * parts_s) * k.lost).sum(dim=1)
    lost = _UNDERFLOW * ((1 + m.both.abs().sum(dim=1)) * (1 + ask.top.sum(dim=1))).square()
    bound = value + 2 * unit * sizes + unsure * (1 + 1e-9) + lost
    usual = (m.ball > 1 / _RANGE) & (m.ball < _RANGE)
    return torch.where(signs & usual & (info == 0) & bound.isfinite(), bound, torch.inf)


def begun(k: Rectifiers, ask: Question, lam: Tensor, z: Tensor, s: Tensor) -> tuple[Multipliers, Multipliers, Tensor]:
    """Multipliers that prove what the metrics lam, (batch, n), prove of the change of the function everywhere.

    z and s: what they are at x = 0. The second are within the cone, to begin a search with, at the third, a weight of
    the barrier. Multiples of lam and of the ball's are the best for how far the function rises.
    """
    lam = torch.where(k.fixed, 0.0, lam)
    slope = lam[:, :, None] * k.A
    Q = (slope + slope.mT) / 2 + torch.diag_embed(k.fixed.to(lam.dtype))
    K = lam[:, :, None] * k.G * lam[:, None, :]
    L = torch.linalg.cholesky_ex(Q).L
    whitened = torch.linalg.solve_triangular(L, torch.linalg.solve_triangular(L, K, upper=False).mT, upper=False)
    least = torch.linalg.eigvalsh((whitened + whitened.mT).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) / 2)[:, -1] / 4
    least = torch.where(least > 1e-200, least, 1.0)
    best = scale = ball = torch.full_like(least, torch.inf)
    row, pull = ask.c + left(ask.e, k.A), ask.h - left(ask.e, k.U)
    for room in _ROOMS:
        tried = least * room
        M, info = torch.linalg.cholesky_ex(Q - K / (4 * tried[:, None, None]))
        h = row + lam * right(k.U, pull) / (2 * tried[:, None])
        most_z = (h * torch.cholesky_solve(h[:, :, None], M)[:, :, 0]).sum(dim=1) / 4
        most_z = most_z + pull.square().sum(dim=1) / (4 * tried)
        share = (most_z / (tried * k.r**2)).sqrt().clamp(1e-100, 1e100)
        rise = torch.where(info == 0, 2 * (most_z * tried).sqrt() * k.r, torch.inf).nan_to_num(nan=torch.inf)
        better = rise < best
        best, scale, ball = (
            torch.where(better, new, old) for new, old in ((rise, best), (share, scale), (tried, ball))
        )
    both, ball = lam * scale[:, None], ball * scale
    nothing, fixed = torch.zeros_like(both), k.fixed.to(lam.dtype)
    none = torch.zeros_like(ask.h)
    everywhere = Multipliers(both, both * s, both * z, fixed, nothing, ball, none, none)
    weight = (best / k.terms)[:, None]
    top = torch.where(k.fixed, 1.0, ask.top)
    far = (weight * k.U.shape[2] ** 0.5 / k.r).expand_as(ask.h)
    inside = Multipliers(
        both,
        (both * s + weight / top) * (1 - fixed),
        both * z + weight / ask.bottom,
        torch.where(k.fixed, 1.0, 4 * weight / top.square()),
        weight / (ask.bottom * ask.chord(k.fixed)[2]),  # which takes away what the two of z and s add
        ball,
        far * k.below,
        far * k.above,
    )
    return everywhere, inside, weight[:, 0]
