"""A search for the multipliers of `relaxation.py` with which the least is proved, for many questions at once.

The least t is convex programming: a barrier method, whose Newton systems have the size of z, for the inputs and the
multipliers of everything linear are eliminated by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from lben.numerics.relaxation import Most, Multipliers, Question, Rectifiers, left, most, right

_STEPS = 100
_INNER = 1.0  # of Newton's decrement, below which the barrier is lowered
_TRUST = 0.4  # of what a multiplier holds on the path, where it is far from it
_LOWER = 0.2  # times the barrier
_LEAST = 1e-9  # of the first barrier, where a search ends
_TINY = 1e-300
_HALVINGS = 25
_SLOPE = 1e-4
_HOPELESS = 3.0  # barriers by which t is above 0 where it stays so

Found = TypeVar("Found", Multipliers, Most)


def searched(k: Rectifiers, ask: Question, m: Multipliers, weight: Tensor, enough: float = 0.0) -> Multipliers:
    """Multipliers whose t is nearly the least, or below `enough`, or likely to stay above it.

    m: where to begin, with H positive. weight: of the barrier at first, (batch,).
    """
    terms, at = k.terms, most(k, ask, m)
    best, record = m.some(torch.arange(len(weight))), at.t.clone()  # copies
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


@dataclass(frozen=True, eq=False)
class _Eliminated:
    """The system in z that is left of Newton's: for changes of z and x, with all that is linear eliminated.

    soft: how much multipliers give way, by name. K: U spread^-1 U'. C, Y, B as the elimination makes them, YB = Y B,
    and the Cholesky factor of what is left.
    """

    k: Rectifiers
    soft: Multipliers
    spread: Tensor
    K: Tensor
    C: Tensor
    Y: Tensor
    YB: Tensor
    L: Tensor
    fine: Tensor

    @staticmethod
    def of(k: Rectifiers, ask: Question, m: Multipliers, soft: Multipliers) -> _Eliminated:
        _, chord_z, chord_s = ask.chord(k.fixed)
        spread = 2 * m.ball[:, None] + soft.low + soft.high
        K = (k.U / spread[:, None, :]) @ k.U.mT
        C = m.both + chord_z * chord_s * soft.chord
        root = (soft.s + chord_s.square() * soft.chord).sqrt()
        inner = torch.eye(K.shape[1], dtype=K.dtype) + root[:, :, None] * K * root[:, None, :]
        Y = root[:, :, None] * torch.cholesky_inverse(torch.linalg.cholesky_ex(inner).L) * root[:, None, :]
        B = k.A - K * C[:, None, :]
        YB, slope = Y @ B, C[:, :, None] * k.A
        Z = torch.diag_embed(2 * m.square + soft.z + chord_z.square() * soft.chord) + slope + slope.mT
        L, info = torch.linalg.cholesky_ex(Z - C[:, :, None] * K * C[:, None, :] + B.mT @ YB)
        return _Eliminated(k, soft, spread, K, C, Y, YB, L, info == 0)

    def solved(self, on_z: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Changes of z, what U' is applied to, and changes of s; rho: U spread^-1 times what stands on x's side."""
        dz = torch.cholesky_solve(on_z + self.C[:, :, None] * rho + self.YB.mT @ rho, self.L)
        y = self.Y @ rho - self.C[:, :, None] * dz - self.YB @ dz
        return dz, y, self.k.A @ dz - rho + self.K @ y

    def moved(self, on_z: Tensor, on_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Changes of z, s and x, one of each."""
        dz, y, ds = (part[:, :, 0] for part in self.solved(on_z[:, :, None], self.shadow(on_x)[:, :, None]))
        return dz, ds, (on_x - left(y, self.k.U)) / self.spread

    def shadow(self, on_x: Tensor) -> Tensor:
        return right(self.k.U, on_x / self.spread)


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
        k, ask, z, s, x = self.k, self.ask, self.at.z, self.at.s, self.at.x
        _, chord_z, chord_s = ask.chord(k.fixed)
        gradient = self._gradient()
        soft = self._soft(gradient)
        curve, gradient = self._determinant(gradient)
        curve = curve + torch.diag_embed(
            torch.cat([torch.zeros_like(z), 1 / soft.square, 1 / soft.ball[:, None]], dim=1)
        )
        rest = _Eliminated.of(k, ask, self.m, soft)
        columns, S = self._curved(rest)
        on_s = soft.s * gradient.s - chord_s * soft.chord * gradient.chord
        on_z = -(soft.z * gradient.z + left(on_s, k.A) - chord_z * soft.chord * gradient.chord)
        on_x = left(on_s, k.U) - soft.low * gradient.low + soft.high * gradient.high
        dz, ds, dx = rest.moved(on_z, on_x)
        at_rest = [-s * dz - z * ds, (ask.top - 2 * z) * dz, -2 * (x * dx).sum(dim=1, keepdim=True)]
        slope = torch.cat([gradient.both, gradient.square, gradient.ball[:, None]], dim=1) + torch.cat(at_rest, dim=1)
        moves, sound = self._kept(S + curve, slope)
        both, square, ball = moves.split([z.shape[1], z.shape[1], 1], dim=1)
        dz, ds, dx = rest.moved(on_z + right(columns, moves), on_x + left(z * both, k.U) - 2 * x * ball)
        step = Multipliers(
            both=both,
            z=-soft.z * (gradient.z + dz),
            s=-soft.s * (gradient.s + ds),
            square=square,
            chord=-soft.chord * (gradient.chord - chord_s * ds - chord_z * dz),
            ball=ball[:, 0],
            low=-soft.low * (gradient.low + dx),
            high=-soft.high * (gradient.high - dx),
        )
        parts = [getattr(gradient, field.name) * getattr(step, field.name) for field in fields(step)]
        fall = -torch.stack([part.reshape(len(z), -1).sum(dim=1) for part in parts]).sum(dim=0)
        return step, torch.where(rest.fine & sound, fall, torch.nan)

    def _gradient(self) -> Multipliers:
        """What is multiplied, where the sum is largest, and what the logarithms add."""
        m, ask, k, weight = self.m, self.ask, self.k, self.barrier[:, None]
        z, s, x = self.at.z, self.at.s, self.at.x
        most_chord, chord_z, chord_s = ask.chord(k.fixed)
        low, high = (torch.where(known, value, 0.0) for known, value in ((k.below, k.low), (k.above, k.high)))
        return Multipliers(
            both=-z * s,
            z=(z - weight / m.z.clamp(min=_TINY)) * ~k.fixed,
            s=s - weight / m.s,
            square=z * (ask.top - z) - weight / m.square,
            chord=most_chord - chord_s * s - chord_z * z - weight / m.chord,
            ball=k.r**2 - x.square().sum(dim=1) - self.barrier / m.ball,
            low=(x - low - weight / m.low.clamp(min=_TINY)) * k.below,
            high=(high - x - weight / m.high.clamp(min=_TINY)) * k.above,
        )

    def _soft(self, gradient: Multipliers) -> Multipliers:
        """How much multipliers give way: their share of what they multiply, as on the path to the solution, where the
        product of both is the barrier's weight; Newton's own share lets one no more than double."""

        def of(name: str) -> Tensor:
            theta = getattr(self.m, name)
            held = self.barrier.reshape(-1, *[1] * (theta.dim() - 1)) / theta.abs().clamp(min=_TINY)
            found: Tensor = theta / (getattr(gradient, name) + held).clamp(_TRUST * held, held / _TRUST)
            return found

        return Multipliers(*(of(field.name) for field in fields(gradient)))

    def _curved(self, rest: _Eliminated) -> tuple[Tensor, Tensor]:
        """What `both`, `square` and `ball` put on z's side, and the Hessian of t in them with the others eliminated."""
        z, s, x, n = self.at.z, self.at.s, self.at.x, self.at.z.shape[1]
        shadow, bend = rest.shadow(x), torch.diag_embed(self.ask.top - 2 * z)
        columns = torch.cat(
            [-torch.diag_embed(s) - self.k.A.mT * z[:, None, :], bend, torch.zeros_like(bend[:, :, :1])], dim=2
        )
        rho = torch.cat([rest.K * z[:, None, :], torch.zeros_like(bend), -2 * shadow[:, :, None]], dim=2)
        dz, y, ds = rest.solved(columns, rho)
        last = 2 * (shadow[:, None, :] @ y)
        last[:, 0, :n] -= 2 * shadow * z
        last[:, 0, -1] += 4 * (x.square() / rest.spread).sum(dim=1)
        rows = [-s[:, :, None] * dz - z[:, :, None] * ds, (self.ask.top - 2 * z)[:, :, None] * dz, last]
        S = torch.cat(rows, dim=1)
        return columns, (S + S.mT) / 2

    def _kept(self, S: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The changes of `both`, `square` and `ball`, none of units that are fixed; and whether there were any."""
        free = (~self.k.fixed).to(S.dtype)
        kept = torch.cat([free, free, torch.ones_like(free[:, :1])], dim=1)
        S = kept[:, :, None] * S * kept[:, None, :] + torch.diag_embed(1 - kept)
        size = S.diagonal(dim1=1, dim2=2).clamp(min=_TINY).rsqrt()
        S = size[:, :, None] * S * size[:, None, :] + 1e-13 * torch.eye(S.shape[1], dtype=S.dtype)
        L, info = torch.linalg.cholesky_ex(S)
        return -size * torch.cholesky_solve((size * kept * slope)[:, :, None], L)[:, :, 0], info == 0

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
