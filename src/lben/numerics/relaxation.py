"""Bounds on what rectifiers can do in a ball of inputs, by all that multipliers make of what is true of a rectifier.

For v = z - s with z = max(v, 0), s = max(-v, 0) it holds that z >= 0, s >= 0, z s = 0, and where l <= v <= u,
z <= u, s <= -l and the chord u s - l z <= -l u. With s = A z - U x - p for inputs |x| <= r, low <= x <= high, a linear
function of z, s and x is at most itself plus any sum of these, each times a number that is at least 0 (any for z s = 0)
and the maximum of such a sum over all z and x is known where it is concave: t = k + g'H^-1 g / 4. The least t is
convex programming, and is searched for by a barrier method with Newton steps whose systems have the size of z: inputs
and the multipliers of everything linear are eliminated by hand. What is searched need not be exact: `proved` bounds
the t of given multipliers, with what rounding may have done to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from lben.numerics.enclosed import EPS

_STEPS = 100
_INNER = 1.0  # of Newton's decrement, below which the barrier is lowered
_TRUST = 0.4  # of what a multiplier holds on the path, where it is far from it
_LOWER = 0.2  # times the barrier
_LEAST = 1e-9  # of the first barrier, where a search ends
_BACK = 0.97  # of the way to where a multiplier would be 0
_HALVINGS = 25
_SLOPE = 1e-4
_HOPELESS = 3.0  # barriers by which t is above 0 where it stays so
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


def _left(rows: Tensor, matrices: Tensor) -> Tensor:
    found: Tensor = (rows[:, None, :] @ matrices)[:, 0]
    return found


def _right(matrices: Tensor, rows: Tensor) -> Tensor:
    found: Tensor = (matrices @ rows[:, :, None])[:, :, 0]
    return found


def _parts(k: Rectifiers, ask: Question, m: Multipliers) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """k, g and H of t = k + g'H^-1 g / 4, and what multiplies s and x."""
    _, of_z, of_s = ask.chord(k.fixed)
    on_s = m.s - m.chord * of_s + ask.e
    on_z = ask.c + m.z + m.square * ask.top - m.chord * of_z
    on_x = ask.h - _left(on_s, k.U) + m.low - m.high
    ball = m.ball[:, None]
    g = on_z + _left(on_s, k.A) + m.both * k.p + m.both * _right(k.U, on_x) / (2 * ball)
    slope = m.both[:, :, None] * k.A
    H = (slope + slope.mT) / 2 - m.both[:, :, None] * k.G * m.both[:, None, :] / (4 * ball[:, :, None])
    H = H + torch.diag_embed(m.square)
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
    x = (_left(m.both * z, k.U) + on_x) / (2 * m.ball[:, None])
    t = base + (g * z).sum(dim=1) / 2
    return Most(t, z, _right(k.A, z) - _right(k.U, x) - k.p, x, L, (info == 0) & t.isfinite())


def proved(k: Rectifiers, ask: Question, m: Multipliers) -> Tensor:
    """A true bound, whatever the multipliers, with all rounding: infinite where H is not proved positive, (batch,).

    What is computed stands for exact numbers that differ by little, and what that changes of the sum is bounded where
    the truth is: 0 <= z <= top, |x| <= r.
    """
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
    parts_x = ask.h.abs() + _left(parts_s, absolute) + m.low + m.high
    sizes = sizes + k.r * torch.linalg.vector_norm(parts_x, dim=1) + (parts_s * k.p.abs()).sum(dim=1)
    reached = m.both.abs() * ask.top
    parts_z = ask.c.abs() + m.z + m.square * ask.top + m.chord * of_z + _left(parts_s, k.A.abs())
    parts_z = parts_z + m.both.abs() * (k.p.abs() + _right(absolute, on_x.abs()) / (2 * ball))
    sizes = sizes + (parts_z * ask.top).sum(dim=1) + (m.square * ask.top.square()).sum(dim=1)
    sizes = sizes + (reached * _right(k.A.abs(), ask.top)).sum(dim=1)
    sizes = sizes + _left(reached, absolute).square().sum(dim=1) / (4 * m.ball)
    unsure = ((reached + on_s.abs()) * k.lost).sum(dim=1)
    bound = value + 2 * unit * sizes + unsure * (1 + 1e-9) + 1e-280
    return torch.where(signs & (info == 0) & bound.isfinite(), bound, torch.inf)


Found = TypeVar("Found", Multipliers, Most)


@dataclass(frozen=True, eq=False)
class _Newton:
    """One point of a search: what Newton's step is made of. barrier: its weight, (batch,)."""

    k: Rectifiers
    ask: Question
    m: Multipliers
    at: Most
    barrier: Tensor

    def step(self) -> tuple[Multipliers, Tensor]:
        """The step, and by how much it would lower a quadratic, twice."""
        m, ask, k, weight = self.m, self.ask, self.k, self.barrier[:, None]
        z, s, x = self.at.z, self.at.s, self.at.x
        mask_low, mask_high, free = k.below.to(z.dtype), k.above.to(z.dtype), (~k.fixed).to(z.dtype)
        most_chord, chord_z, chord_s = ask.chord(k.fixed)
        low, high = (torch.where(known, value, 0.0) for known, value in ((k.below, k.low), (k.above, k.high)))
        gradient = Multipliers(
            both=-z * s,
            z=(z - weight / m.z.clamp(min=1e-300)) * free,
            s=s - weight / m.s,
            square=z * (ask.top - z) - weight / m.square,
            chord=most_chord - chord_s * s - chord_z * z - weight / m.chord,
            ball=k.r**2 - x.square().sum(dim=1) - self.barrier / m.ball,
            low=(x - low - weight / m.low.clamp(min=1e-300)) * mask_low,
            high=(high - x - weight / m.high.clamp(min=1e-300)) * mask_high,
        )
        of_z, of_s, of_square, of_chord = (self._soft(name, gradient) for name in ("z", "s", "square", "chord"))
        of_ball, of_low, of_high = (self._soft(name, gradient) for name in ("ball", "low", "high"))
        curve, gradient = self._determinant(gradient)
        curve = curve + torch.diag_embed(torch.cat([torch.zeros_like(z), 1 / of_square, 1 / of_ball], dim=1))
        spread = 2 * m.ball[:, None] + of_low + of_high
        K = (k.U / spread[:, None, :]) @ k.U.mT
        w = of_s + chord_s.square() * of_chord
        C = m.both + chord_z * chord_s * of_chord
        root = w.sqrt()
        inner = torch.eye(z.shape[1], dtype=z.dtype) + root[:, :, None] * K * root[:, None, :]
        Y = root[:, :, None] * torch.cholesky_inverse(torch.linalg.cholesky_ex(inner).L) * root[:, None, :]
        B = k.A - K * C[:, None, :]
        YB = Y @ B
        slope = C[:, :, None] * k.A
        Z = torch.diag_embed(2 * m.square + of_z + chord_z.square() * of_chord) + slope + slope.mT
        Z = Z - C[:, :, None] * K * C[:, None, :] + B.mT @ YB
        LZ, info = torch.linalg.cholesky_ex(Z)

        def solved(rz: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Changes of z, what U' is applied to, and changes of s; rho: U applied to what stands on x's side."""
            dz = torch.cholesky_solve(rz + C[:, :, None] * rho + YB.mT @ rho, LZ)
            y = Y @ rho - C[:, :, None] * dz - YB @ dz
            return dz, y, k.A @ dz - rho + K @ y

        scaled = _right(k.U, x / spread)
        first, (rz, on_x) = z.shape[1], self._eliminated(gradient, of_z, of_s, of_chord, of_low, of_high)
        bend = torch.diag_embed(ask.top - 2 * z)
        zero = torch.zeros_like(z)[:, :, None]
        RZ = torch.cat([-torch.diag_embed(s) - k.A.mT * z[:, None, :], bend, zero], dim=2)
        RHO = torch.cat([K * z[:, None, :], torch.zeros_like(bend), -2 * scaled[:, :, None]], dim=2)
        dz, y, ds = solved(RZ, RHO)
        last = 2 * (scaled[:, None, :] @ y)
        last[:, 0, :first] -= 2 * scaled * z
        last[:, 0, -1] += 4 * (x.square() / spread).sum(dim=1)
        rows = torch.cat([-s[:, :, None] * dz - z[:, :, None] * ds, (ask.top - 2 * z)[:, :, None] * dz, last], dim=1)
        S = (rows + rows.mT) / 2 + curve
        dz, y, ds = solved(rz[:, :, None], _right(k.U, on_x / spread)[:, :, None])
        dx = (on_x - _left(y[:, :, 0], k.U)) / spread
        at_rest = [-s * dz[:, :, 0] - z * ds[:, :, 0], (ask.top - 2 * z) * dz[:, :, 0]]
        at_rest.append(-2 * (x * dx).sum(dim=1, keepdim=True))
        right = torch.cat([gradient.both, gradient.square, gradient.ball[:, None]], dim=1) + torch.cat(at_rest, dim=1)
        kept = torch.cat([free, free, torch.ones_like(m.ball[:, None])], dim=1)
        S, right = kept[:, :, None] * S * kept[:, None, :] + torch.diag_embed(1 - kept), right * kept
        size = S.diagonal(dim1=1, dim2=2).clamp(min=1e-300).rsqrt()
        S = size[:, :, None] * S * size[:, None, :]
        S = S + 1e-13 * torch.eye(S.shape[1], dtype=S.dtype)
        LS, failed = torch.linalg.cholesky_ex(S)
        moves = -size * torch.cholesky_solve((size * right)[:, :, None], LS)[:, :, 0]
        both, square, ball = moves[:, :first], moves[:, first:-1], moves[:, -1]
        rz = rz + (RZ @ moves[:, :, None])[:, :, 0]
        on_x = on_x + _left(z * both, k.U) - 2 * x * ball[:, None]
        dz, y, ds = (part[:, :, 0] for part in solved(rz[:, :, None], _right(k.U, on_x / spread)[:, :, None]))
        dx = (on_x - _left(y, k.U)) / spread
        step = Multipliers(
            both=both,
            z=-of_z * (gradient.z + dz),
            s=-of_s * (gradient.s + ds),
            square=square,
            chord=-of_chord * (gradient.chord - chord_s * ds - chord_z * dz),
            ball=ball,
            low=-of_low * (gradient.low + dx),
            high=-of_high * (gradient.high - dx),
        )
        fall = -sum(
            (getattr(gradient, field.name) * getattr(step, field.name)).reshape(len(z), -1).sum(dim=1)
            for field in fields(step)
        )
        return step, torch.where((info == 0) & (failed == 0), fall, torch.nan)

    def _soft(self, name: str, gradient: Multipliers) -> Tensor:
        """How much a multiplier gives way: its share of what it multiplies, as on the path to the solution, where the
        product of both is the barrier's weight; Newton's own share lets it no more than double."""
        theta = getattr(self.m, name).reshape(len(self.barrier), -1)
        held = self.barrier[:, None] / theta.clamp(min=1e-300)
        slack = getattr(gradient, name).reshape(len(self.barrier), -1) + held
        found: Tensor = theta / slack.clamp(_TRUST * held, held / _TRUST)
        return found

    def _eliminated(
        self, gradient: Multipliers, of_z: Tensor, of_s: Tensor, of_chord: Tensor, of_low: Tensor, of_high: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the multipliers that are eliminated leave on the right, for z and for x."""
        ask, k = self.ask, self.k
        _, chord_z, chord_s = ask.chord(k.fixed)
        on_s = of_s * gradient.s - chord_s * of_chord * gradient.chord
        rz = -(of_z * gradient.z + _left(on_s, k.A) - chord_z * of_chord * gradient.chord)
        return rz, _left(on_s, k.U) - of_low * gradient.low + of_high * gradient.high

    def _determinant(self, gradient: Multipliers) -> tuple[Tensor, Multipliers]:
        """The Hessian of -log det H in `both`, `square` and `ball`, with the barrier's weight; the gradient with it."""
        m, k, weight = self.m, self.k, self.barrier[:, None]
        n, ball = m.both.shape[1], m.ball[:, None, None]
        H = torch.cholesky_inverse(self.at.L)
        lamG = k.G * m.both[:, None, :]
        P = m.both[:, :, None] * lamG / (4 * ball * ball)
        A = k.A - lamG / (2 * ball)
        AH = A @ H
        HP = H @ P @ H
        curve = torch.zeros(len(H), 2 * n + 1, 2 * n + 1, dtype=H.dtype)
        curve[:, :n, :n] = (AH * AH.mT + H * (AH @ A.mT)) / 2 + k.G * H / (2 * ball)
        curve[:, :n, n:-1] = AH * H
        curve[:, n:-1, :n] = (AH * H).mT
        curve[:, n:-1, n:-1] = H * H
        across = (A * HP).sum(dim=2) - (lamG * H).sum(dim=2) / (2 * ball[:, :, 0] ** 2)
        curve[:, :n, -1] = curve[:, -1, :n] = across
        curve[:, n:-1, -1] = curve[:, -1, n:-1] = HP.diagonal(dim1=1, dim2=2)
        trace = (H * P).sum(dim=(1, 2))
        curve[:, -1, -1] = (HP * P).sum(dim=(1, 2)) + 2 * trace / m.ball
        changed = replace(
            gradient,
            both=gradient.both - weight * AH.diagonal(dim1=1, dim2=2),
            square=gradient.square - weight * H.diagonal(dim1=1, dim2=2),
            ball=gradient.ball - self.barrier * trace,
        )
        return weight[:, :, None] * curve, changed


def begun(k: Rectifiers, ask: Question, lam: Tensor, z: Tensor, s: Tensor) -> tuple[Multipliers, Multipliers, Tensor]:
    """Multipliers that prove what the metrics lam, (batch, n), prove of the change of the function everywhere.

    z and s: what they are at x = 0. The second are within the cone, to begin a search with,
    at the third, a weight of the barrier. Multiples of lam and of the
    ball's are the best for how far the function rises.
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
    row, pull = ask.c + _left(ask.e, k.A), ask.h - _left(ask.e, k.U)
    for room in _ROOMS:
        tried = least * room
        M, info = torch.linalg.cholesky_ex(Q - K / (4 * tried[:, None, None]))
        h = row + lam * _right(k.U, pull) / (2 * tried[:, None])
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


def searched(k: Rectifiers, ask: Question, m: Multipliers, weight: Tensor, enough: float = 0.0) -> Multipliers:
    """Multipliers whose t is nearly the least, or below `enough`, or likely to stay above it.

    m: where to begin, with H positive. weight: of the barrier at first, (batch,).
    """
    terms, at = k.terms, most(k, ask, m)
    best, record = m.moved(m, torch.zeros_like(m.ball)), at.t.clone()
    least = weight * _LEAST
    open_ = (at.fine & (at.t >= enough)).nonzero()[:, 0]
    k, ask, m, at = k.some(open_), ask.some(open_), m.some(open_), _of(at, open_)
    weight, least = weight[open_], least[open_]
    for _ in range(_STEPS):
        if len(open_) == 0:
            break
        step, fall = _Newton(k, ask, m, at, weight).step()
        value = _total(k, m, at, weight)
        length, found, tried = m.room(step), m, at
        moved = torch.zeros_like(fall, dtype=torch.bool)
        for _ in range(_HALVINGS):
            trial = m.moved(step, length)
            there = most(k, ask, trial)
            good = ~moved & there.fine & (_total(k, trial, there, weight) <= value - _SLOPE * length * fall)
            found, tried = _choose(good, trial, found), _choose(good, there, tried)
            moved = moved | good
            if bool((moved | ~(fall > 0)).all()):
                break
            length = torch.where(moved, length, length / 2)
        m, at = found, tried
        better = at.t < record[open_]
        best.put(open_[better], m.some(better.nonzero()[:, 0]))
        record[open_[better]] = at.t[better]
        central = (fall < _INNER * weight) | ~moved
        weight = torch.where(central, weight * _LOWER, weight)
        hopeless = central & (at.t - _HOPELESS * terms * weight / _LOWER > enough) & (enough > -math.inf)
        left = (at.t >= enough) & ~hopeless & (weight > least) & fall.isfinite()
        index = left.nonzero()[:, 0]
        if len(index) < len(open_):
            open_, k, ask, m, at = open_[index], k.some(index), ask.some(index), m.some(index), _of(at, index)
            weight, least = weight[index], least[index]
    return best


def _total(k: Rectifiers, m: Multipliers, at: Most, weight: Tensor) -> Tensor:
    logs = m.barrier(k) + 2 * at.L.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    return torch.where(at.fine, at.t - weight * logs, torch.inf).nan_to_num(nan=torch.inf)


def _of(at: Most, index: Tensor) -> Most:
    return Most(*(getattr(at, field.name)[index] for field in fields(at)))


def _choose(which: Tensor, one: Found, other: Found) -> Found:
    def chosen(name: str) -> Tensor:
        a, b = getattr(one, name), getattr(other, name)
        return torch.where(which.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    return type(one)(*(chosen(field.name) for field in fields(one)))
