"""Local radii proved again in the ball arithmetic of python-flint, from what the search for them hands out.

The inequality is that of `surroundings.py`, for dx whose effect on v and y has the Gram matrix K = (U, D)(U, D)': with
G = (I - W a)^-1, P = G W, H = G K and a row of y or v that is (base + E P) w + (E N + L D) dx, all that is needed is

    q = k (base + E P) + k Lam (E H G' + L H'),    S = 2 Lam - k (Lam P + P'Lam) k - k Lam (H G') Lam k,

a positive definite S, and |g|^2 + q'S^-1 q, for which q'S^-1 q <= |X q|^2/(1 - e) where X S X' is within e of I.
Nothing is taken over from double precision but guesses: v, moves, slopes, metrics and X.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lben.activations.sectors import sectors, slopes_below
from lben.certify.locality import Locality, Nearby
from lben.certify.rigorous import BITS, balls, definite_balls, identity
from lben.certify.surroundings import FEW, MANY, Inequality, Surroundings
from lben.checks import need
from lben.errors import InvalidInput
from lben.numerics.enclosed import Enclosed, balance

_LESS = 0.999  # of m, what is proved


@dataclass(frozen=True, eq=False)
class Witness:
    """What proves the radius of one input, all in units of the frame.

    moves: shape (n,), which no unit exceeds within the radius; infinite where none is claimed.
    metrics: of single pairs, (p, n), NaN where that of the frame serves.
    """

    radius: float
    moves: Tensor
    metrics: Tensor


class BallProof:
    """A network in balls, in units of the frame, which are powers of two: what all its inputs share."""

    def __init__(self, locality: Locality) -> None:
        self.locality, self.flint = locality, need("flint", "rigorous=True", extra="sdp")
        subject, frame = locality.subject, locality.frame
        w, e = subject.weights, frame.exponents
        self.below = slopes_below(subject.activation, len(e), "A radius in ball arithmetic")
        self.bz, self.lam = torch.ldexp(w.bz, -e), torch.ldexp(subject.diagonal, 2 * e)
        back = [(frame.W, e[:, None] - e, w.W), (frame.Wo, -e, w.Wo), (self.bz, e, w.bz)]
        back += [(frame.inputs[: len(e)], e[:, None], w.U), (self.lam, -2 * e, subject.diagonal)]
        if not all(torch.equal(torch.ldexp(made, k), given) for made, k, given in back):
            raise InvalidInput("The sizes of the weights differ too much for a radius in ball arithmetic: scale them.")
        with self.flint.ctx.workprec(BITS):
            self.W, self.inputs = (balls(self.flint, part) for part in (frame.W, frame.inputs))

    @cached_property
    def gram(self) -> Any:
        """K, for dx in the Euclidean norm."""
        return self.inputs * self.inputs.transpose()

    @cached_property
    def monotonicity(self) -> float:
        """An m with Lam (I - W) + (I - W)'Lam - 2 m Lam > 0, proved; 0 where none is."""
        m, lam = self.locality.subject.monotonicity * _LESS, self.lam
        half = lam[:, None] * ((1 - m) * torch.eye(len(lam), dtype=lam.dtype) - self.locality.frame.W)
        rows = balls(self.flint, torch.diag(lam)) * (identity(self.flint, len(lam)) * (1 - self.flint.arb(m)) - self.W)
        k = balance(lam)
        suggested = Enclosed.exact(half + half.T).shifted(k[:, None] + k)
        return m if definite_balls(self.flint, rows + rows.transpose(), suggested, k) == "holds" else 0.0

    def proves(self, x: Tensor, near: Nearby, chosen: int, witness: Witness) -> bool:
        """Whether no input within the radius of x has an output above that of the class `chosen`.

        x: one row as the network takes it. near: of this one input.
        """
        with self.flint.ctx.workprec(BITS):
            if not self.monotonicity > 0:
                return False
            point = _Point.of(self, x, near.v[0])
            slopes = self._slopes(point, witness.moves)
            if slopes is None:
                return False
            lower, upper = slopes
            guess = Inequality.of(Surroundings.of(near.frame, lower[None], upper[None]))
            around = _Around.of(self, lower, upper, chosen, self._gram(near))
            common = [around.squares(near.frame.lam * step) for step in guess.steps(FEW)]
            r = self.flint.arb(witness.radius)
            stays = self._stay(common, witness.moves.tolist(), r)
            if not stays:  # units that follow the input need a small step
                common += [around.squares(near.frame.lam * step) for step in guess.steps(MANY[:1])]
                stays = self._stay(common, witness.moves.tolist(), r)
            return stays and self._keep(around, common, witness, r, point.gaps(chosen))

    def _gram(self, near: Nearby) -> Any:
        """K; where features are bounded one by one, for dx in the norm that their shares make."""
        if near.frame.shares is None:
            return self.gram
        shares = [self.flint.arb(share) for share in near.frame.shares[0].tolist()]
        total = sum(shares, self.flint.arb(0))
        rows = [
            [entry * total / share for entry, share in zip(row, shares, strict=True)] for row in self.inputs.tolist()
        ]
        return self.flint.arb_mat(rows) * self.inputs.transpose()

    def _slopes(self, point: _Point, moves: Tensor) -> tuple[Tensor, Tensor] | None:
        """Slopes between which units stay while they move by at most `moves`; None where that is not sure.

        With slopes s below 0 and 1 above it, the least is s + (1 - s) v/d and the largest s + (1 - s) (1 + v/d), the
        quotients clipped to [0, 1]; both rise with v.
        """
        arb = self.flint.arb
        lower, upper = (
            part[0] for part in sectors(self.locality.subject.activation, point.v[None], point.off[None], moves[None])
        )
        lines = zip(*(part.tolist() for part in (point.v, point.off, moves, lower, upper, self.below)), strict=True)
        for v, off, d, least, most, s in lines:
            low, high = arb(0), arb(1)
            if d < math.inf:
                low = ((arb(v) - arb(off)) / arb(d)).max(arb(0)).min(arb(1))
                high = (1 + (arb(v) + arb(off)) / arb(d)).max(arb(0)).min(arb(1))
            sure = arb(s) + (1 - arb(s)) * low >= arb(least) and arb(s) + (1 - arb(s)) * high <= arb(most)
            if not (sure or (s == 1 and least <= 1 <= most)):
                return None
        return lower, upper

    def _stay(self, common: list[list[Any] | None], moves: list[float], r: Any) -> bool:
        """Whether every move is at most what was assumed."""
        return all(
            d == math.inf
            or any(squares is not None and squares[i] * r**2 <= self.flint.arb(d) ** 2 for squares in common)
            for i, d in enumerate(moves)
        )

    def _keep(
        self, around: _Around, common: list[list[Any] | None], witness: Witness, r: Any, gaps: list[Any | None]
    ) -> bool:
        """Whether no difference of outputs can change by what it is."""
        n = len(witness.moves)
        for j, gap in enumerate(gaps):
            if gap is None:
                continue
            if not gap > 0:
                return False
            tried = [squares[n + j] for squares in common if squares is not None]
            if not any(square * r**2 < gap**2 for square in tried):
                own = None if bool(witness.metrics[j].isnan().any()) else around.squares(witness.metrics[j])
                if own is None or not own[n + j] * r**2 < gap**2:
                    return False
        return True


@dataclass(frozen=True, eq=False)
class _Point:
    """The equilibrium of one input: v, doubles, within off of it; z, balls; and `distance` from z, in the metric."""

    proof: BallProof
    v: Tensor
    off: Tensor
    x: Any
    z: Any
    distance: Any

    @staticmethod
    def of(proof: BallProof, x: Tensor, v: Tensor) -> _Point:
        """What v, a guess, leaves of v = W sigma(v) + U x + bz shows how far the equilibrium may be."""
        flint, subject, e = proof.flint, proof.locality.subject, proof.locality.frame.exponents
        v, n = torch.ldexp(v, -e), len(v)
        column = balls(flint, x[:, None])
        if subject.normalize is not None:
            parts = (part.to(x).expand_as(x).tolist() for part in (subject.normalize.mean, subject.normalize.std))
            lines = zip(x.tolist(), *parts, strict=True)
            column = flint.arb_mat([[(flint.arb(a) - flint.arb(b)) / flint.arb(c)] for a, b, c in lines])
        z = flint.arb_mat(
            [
                [flint.arb(a) if a >= 0 else flint.arb(a) * flint.arb(s)]
                for a, s in zip(v.tolist(), proof.below.tolist(), strict=True)
            ]
        )
        into = flint.arb_mat((proof.inputs * column).tolist()[:n])
        rest = (balls(flint, v[:, None]) - proof.W * z - into - balls(flint, proof.bz[:, None])).entries()
        lam = [flint.arb(entry) for entry in proof.lam.tolist()]
        size = sum((a * a * b for a, b in zip(rest, lam, strict=True)), flint.arb(0)).sqrt()
        distance = size / flint.arb(proof.monotonicity)
        off = [
            _above(abs(left) + _length(row, lam) * distance) for left, row in zip(rest, proof.W.tolist(), strict=True)
        ]
        return _Point(proof, v, torch.tensor(off, dtype=torch.float64), column, z, distance)

    def gaps(self, chosen: int) -> list[Any | None]:
        """Lower ends of y_chosen - y_j in balls, for every other j."""
        flint, locality = self.proof.flint, self.proof.locality
        n, by = len(self.v), locality.subject.weights.by.tolist()
        out, past = balls(flint, locality.frame.Wo), (self.proof.inputs * self.x).entries()[n:]
        y = [a + b + flint.arb(c) for a, b, c in zip((out * self.z).entries(), past, by, strict=True)]
        rows, lam = out.tolist(), [flint.arb(entry) for entry in self.proof.lam.tolist()]
        apart = [[a - b for a, b in zip(rows[chosen], row, strict=True)] for row in rows]
        return [
            None if j == chosen else y[chosen] - y[j] - _length(row, lam) * self.distance for j, row in enumerate(apart)
        ]


@dataclass(frozen=True, eq=False)
class _Around:
    """`Surroundings` of one input in balls: f = base + E P of all units and pairs, and g = E N + L D times N and g."""

    flint: Any
    k: list[Any]
    P: Any
    NN: Any
    f: Any
    gN: Any
    gg: list[Any]

    @staticmethod
    def of(proof: BallProof, lower: Tensor, upper: Tensor, chosen: int, gram: Any) -> _Around:
        flint, locality, n = proof.flint, proof.locality, len(lower)
        a = balls(flint, torch.diag(lower))
        k = [
            (flint.arb(most) - flint.arb(least)).sqrt()
            for least, most in zip(lower.tolist(), upper.tolist(), strict=True)
        ]
        G = (identity(flint, n) - proof.W * a).inv()
        P, table = G * proof.W, gram.tolist()
        Kuu, Kud, Kdd = (
            flint.arb_mat([row[columns] for row in table[rows]])
            for rows, columns in ((slice(n), slice(n)), (slice(n), slice(n, None)), (slice(n, None), slice(n, None)))
        )
        NN, NK = G * Kuu * G.transpose(), G * Kud
        out, p = balls(flint, locality.frame.Wo), len(locality.frame.Wo)
        one = flint.arb_mat([[flint.arb((j == chosen) - (j == i)) for j in range(p)] for i in range(p)])
        c = one * out
        base = flint.arb_mat([[flint.arb(0)] * n for _ in range(n)] + c.tolist())
        E = flint.arb_mat(identity(flint, n).tolist() + (c * a).tolist())
        L = flint.arb_mat([[flint.arb(0)] * p for _ in range(n)] + one.tolist())
        gN, gK = E * NN + L * NK.transpose(), E * NK + L * Kdd
        gg = [
            sum((u * v for u, v in zip(left + right, e + last, strict=True)), flint.arb(0))
            for left, right, e, last in zip(gN.tolist(), gK.tolist(), E.tolist(), L.tolist(), strict=True)
        ]
        return _Around(flint, k, P, NN, base + E * P, gN, gg)

    def squares(self, lam: Tensor) -> list[Any] | None:
        """Squares of proved bounds for all rows, over |dx|^2; None where S is not proved positive definite."""
        flint, n = self.flint, len(lam)
        if not bool((lam > 0).all() & lam.isfinite().all()):
            return None
        k, own = _diagonal(flint, self.k), balls(flint, torch.diag(lam))
        both = k * own
        half = both * self.P * k
        S = 2 * own - half - half.transpose() - both * self.NN * both
        factor, info = torch.linalg.cholesky_ex(_middle(S))
        X = torch.linalg.solve_triangular(factor, torch.eye(n, dtype=lam.dtype), upper=False)
        if int(info) != 0 or not bool(X.isfinite().all()):
            return None
        white = balls(flint, X)
        rest = white * S * white.transpose() - identity(flint, n)
        e = flint.arb(0)
        for row in rest.tolist():
            e = e.max(sum((abs(entry) for entry in row), flint.arb(0)))
        if not e < 1:
            return None
        q = (self.f * k + self.gN * both) * white.transpose()
        return [
            g + sum((entry * entry for entry in row), flint.arb(0)) / (1 - e)
            for g, row in zip(self.gg, q.tolist(), strict=True)
        ]


def _length(row: list[Any], lam: list[Any]) -> Any:
    """|Lam^(-1/2) row|."""
    return (sum((a * a / b for a, b in zip(row, lam, strict=True)), 0 * lam[0])).sqrt()


def _diagonal(flint: Any, entries: list[Any]) -> Any:
    zero = flint.arb(0)
    return flint.arb_mat([[a if i == j else zero for j in range(len(entries))] for i, a in enumerate(entries)])


def _middle(matrix: Any) -> Tensor:
    return torch.tensor([[float(entry.mid()) for entry in row] for row in matrix.tolist()], dtype=torch.float64)


def _above(ball: Any) -> float:
    """A double that is surely not below it."""
    return math.nextafter(float(ball.abs_upper()), math.inf) * (1 + 1e-15)
