"""What a network can do around given inputs, where every unit has a sector of its own.

Relative to an equilibrium (z, v), dz = a dv + w with w_i between 0 and kappa_i dv_i, where a_i and a_i + kappa_i are
the least and the largest slope of unit i. So with G = (I - W a)^-1, P = G W and N = G U,

    dv = P w + N dx,    c'dz = f'w + g'dx,    f = c + P'(a c),    g = N'(a c),

and with k = kappa^(1/2), w = k w', multipliers Lam > 0 and t > 0, the sectors give

    (f'w + g'dx)^2 <= |dx|^2 (|g|^2 + q' S^-1 q),    q = k f + t B g,    S = t M - t^2 B B' > 0,
    M = 2 Lam - k (Lam P + P'Lam) k,    B = k Lam N,

for every c, dv_i itself among them. All of it is computed for many inputs at once, and proved: errors are bounded norm
by norm (Frobenius norms all, which are above the others), with |fl(A B) - A B| <= n u |A| |B|, and taken from S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from lben.errors import InvalidInput
from lben.numerics.enclosed import EPS, Enclosed, balance, definite
from lben.numerics.rounding import norm_bound
from lben.numerics.row_metrics import RowProblem
from lben.weights.dense import Weights

FEW, MANY = (0.1, 0.6), (1e-6, 1e-3, 0.02, 0.08, 0.2, 0.4, 0.65, 0.88)
"""The t that are tried, as shares of the largest for which S > 0."""
_POWERS = 12
_LEAST = 1e-60  # of what t is divided by: no input reaches the units, and any t will do
_RAISED = 1e-10
_MORE = 1 + 1e-8  # what rounding may take from a norm


@dataclass(frozen=True, eq=False)
class Frame:
    """A network as its surroundings need it: in units of z that are powers of two, with inputs of few dimensions.

    W: (n, n). Wo: (p, n). R: (n + p, m), with R R' >= (U, D)(U, D)': what an input does to v and y, one of m entries
    that is no longer does through R; or one for each input, (batch, n + p, m). inputs: (U, D) itself, (n + p, d).
    exponents: of the units, z = 2^exponents z'. shares: those of `within`, where it was asked for.
    """

    W: Tensor
    Wo: Tensor
    inputs: Tensor
    R: Tensor
    lam: Tensor
    exponents: Tensor
    shares: Tensor | None = None

    @staticmethod
    def of(weights: Weights, lam: Tensor) -> Frame:
        """In this metric, of which NaN is an entry that does not matter."""
        lam = torch.where(lam.isnan(), 1.0, lam)
        k = balance(lam)
        past = torch.zeros_like(weights.Wo @ weights.U) if weights.D is None else weights.D
        both = torch.cat([Enclosed.exact(weights.U).shifted(-k[:, None].expand_as(weights.U)).mid, past])
        return Frame(
            W=Enclosed.exact(weights.W).shifted(k - k[:, None]).mid,
            Wo=Enclosed.exact(weights.Wo).shifted(k.expand_as(weights.Wo)).mid,
            inputs=both,
            R=_root_above(both),
            lam=Enclosed.exact(lam).shifted(2 * k).mid,
            exponents=k,
        )

    def within(self, shares: Tensor) -> Frame:
        """For dx with |dx_i| <= eps, in the norm (sum of shares_i dx_i^2)^1/2 <= eps: shares (batch, d), of sum one.

        R R' - (U, D) T^-1 (U, D)' is what is added before the factorisation, less what rounding takes there and in the
        product, norm by norm at most some (d + n + p) units of it: far less for any network that fits into memory.
        """
        rows = self.inputs * (shares / (shares.sum(dim=1, keepdim=True) * (1 + 1e-9))).rsqrt()[:, None, :]
        gram = rows @ rows.mT
        trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None]
        added = torch.diag_embed((_RAISED * trace + 1e-280).expand(-1, gram.shape[1]))
        R, info = torch.linalg.cholesky_ex(gram + added)
        return replace(self, R=R.where((info == 0)[:, None, None], math.nan), shares=shares)

    def some(self, index: Tensor) -> Frame:
        """That of some inputs, where each has its own R."""
        return self if self.shares is None else replace(self, R=self.R[index], shares=self.shares[index])


def _root_above(rows: Tensor) -> Tensor:
    """A square R with R R' >= rows rows': the root of that product, raised by a ten billionth of its trace."""
    gram = Enclosed.exact(rows) @ Enclosed.exact(rows.T)
    trace = float(gram.mid.diagonal().sum())
    values, vectors = torch.linalg.eigh(gram.mid)
    R: Tensor = vectors * (values.clamp(min=0) + _RAISED * trace + 1e-280).sqrt()
    if definite(Enclosed.exact(R) @ Enclosed.exact(R.T) - gram) != "holds":
        raise InvalidInput("The sizes of U and D differ too much for a local bound in double precision: scale them.")
    return R


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The smaller network around each of some inputs: P, N and what they may be off by, and rows c of dz to bound.

    Shapes: a, k and lam (batch, n), P (batch, n, n), N (batch, n, m), errors (batch,).
    """

    a: Tensor
    k: Tensor
    lam: Tensor
    P: Tensor
    N: Tensor
    off_P: Tensor
    off_N: Tensor
    past: Tensor

    @staticmethod
    def of(frame: Frame, lower: Tensor, upper: Tensor) -> Surroundings:
        """With slopes between `lower` and `upper`, in the metric of the frame."""
        n = len(frame.W)
        U, past = frame.R[..., :n, :], frame.R[..., n:, :]
        k = ((upper - lower) * (1 + 4 * EPS)).sqrt() * (1 + 4 * EPS)
        A = torch.eye(n, dtype=lower.dtype) - frame.W * lower[:, None, :]
        G = torch.linalg.inv_ex(A).inverse
        size_G = _norm(G)
        off = _norm(torch.eye(n, dtype=A.dtype) - G @ A) * _MORE + (n + 8) * EPS * size_G * (_norm(A) + n)
        P, N = G @ frame.W, G @ U
        parts = []
        for made, given in ((P, frame.W), (N, U)):
            lost = (n + 8) * EPS * size_G * _norm(given)
            parts.append(torch.where(off < 0.5, off / (1 - off) * (_norm(made) + lost) + lost, math.inf) * _MORE)
        return Surroundings(lower, k, frame.lam.expand_as(lower), P, N, parts[0], parts[1], past)

    def some(self, index: Tensor) -> Surroundings:
        """Those of some inputs, which may come more than once."""
        named = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "past"}
        return Surroundings(past=self.past if self.past.dim() == 2 else self.past[index], **named)

    def problem(self, rows: Rows) -> RowProblem:
        """The search for the best metric of one row for each input."""
        n = self.a.shape[1]
        A = torch.eye(n, dtype=self.a.dtype) - self.k[:, :, None] * self.P * self.k[:, None, :]
        U = self.k[:, :, None] * self.N
        return RowProblem(A, U @ U.mT, rows.f[:, 0], (U @ rows.g.mT)[:, :, 0])

    def rows(self, c: Tensor | None) -> Rows:
        """f k and g of dv itself, for None; or of c'dz, c of shape (batch, q, n + p), the last p for what passes by."""
        n = self.a.shape[1]
        if c is None:
            k = self.k[:, None, :]
            return Rows(self.P * k, self.N, _each(self.off_P, n) + 4 * EPS * norm_bound(self.P), _each(self.off_N, n))
        first, last = c[..., :n], c[..., n:]
        ca = first * self.a[:, None, :]
        size, of_c = norm_bound(ca), norm_bound(first)
        f = (first + ca @ self.P) * self.k[:, None, :]
        g = ca @ self.N + last @ self.past
        terms = (n + 8) * EPS
        off_f = size * self.off_P[:, None] + terms * (of_c + size * _norm(self.P)[:, None])
        off_g = size * self.off_N[:, None] + terms * (
            size * _norm(self.N)[:, None] + norm_bound(last) * _norm(self.past).reshape(-1, 1)
        )
        return Rows(f, g, off_f * _MORE, off_g * _MORE)


@dataclass(frozen=True, eq=False)
class Rows:
    """What is to be bounded: f and g, shapes (batch, q, n) and (batch, q, m), and by how much they may be off."""

    f: Tensor
    g: Tensor
    off_f: Tensor
    off_g: Tensor

    def some(self, inputs: Tensor, rows: Tensor) -> Rows:
        """One row each of some inputs."""
        return Rows(*(getattr(self, f.name)[inputs, rows][:, None] for f in fields(self)))

    def and_(self, others: Rows) -> Rows:
        """These rows, and behind them those."""
        return Rows(*(torch.cat([getattr(part, f.name) for part in (self, others)], dim=1) for f in fields(self)))


@dataclass(frozen=True, eq=False)
class Inequality:
    """M and B, and what they may be off by: all bounds of rows follow from them."""

    M: Tensor
    B: Tensor
    BB: Tensor
    off_M: Tensor
    off_B: Tensor

    @cached_property
    def largest(self) -> Tensor:
        """About the largest eigenvalue of M^-1 B B': t is below its inverse; a guess, for S is checked."""
        return _largest(self.M, self.BB)

    @property
    def sound(self) -> Tensor:
        """Where S seems to be positive definite for t = 1, with some room; shape (batch,)."""
        S = self.M - self.BB
        _, info = torch.linalg.cholesky_ex(S - torch.diag_embed(1e-6 * S.diagonal(dim1=1, dim2=2)))
        return torch.as_tensor(info == 0)

    def steps(self, shares: Sequence[float]) -> list[Tensor]:
        """The t to try."""
        return [share / self.largest for share in shares]

    @staticmethod
    def of(around: Surroundings) -> Inequality:
        k, lam = around.k, around.lam
        half = (k * lam)[:, :, None] * around.P * k[:, None, :]
        M = torch.diag_embed(2 * lam) - half - half.mT
        B = (k * lam)[:, :, None] * around.N
        most = (k * lam).amax(dim=1)
        off_M = (2 * most * around.off_P + 16 * EPS * (_norm(M) + 2 * _norm(half))) * _MORE
        off_B = (most * around.off_N + 8 * EPS * _norm(B)) * _MORE
        return Inequality(M, B, B @ B.mT, off_M, off_B)

    def bounds(self, rows: Rows, t: Tensor) -> Tensor:
        """Proved bounds of |f'w + g'dx|/|dx|, shape (batch, q), for a t of each input."""
        solved = self._solved(rows, t)
        past = (norm_bound(rows.g) + rows.off_g) * _MORE
        total = past.square() + solved.lengths.square() / (1 - solved.taken)[:, None]
        return torch.where(solved.sound[:, None], total.sqrt() * (1 + 1e-12), math.inf).nan_to_num(nan=math.inf)

    def norm(self, rows: Rows, t: Tensor) -> Tensor:
        """A proved bound of the length of all rows together, over |dx|, shape (batch,)."""
        s = self._solved(rows, t)
        whole = torch.cat([rows.g, s.whitened / (1 - s.taken).clamp(min=0.25).sqrt()[:, None, None]], dim=-1)
        whole = torch.where(s.sound[:, None, None], whole, 0.0).nan_to_num(nan=0.0, posinf=0.0)
        values = torch.linalg.matrix_norm(whole, 2) * (1 + 1e-9)
        lost = (rows.off_g + 2 * s.lost).square().sum(dim=1).sqrt() * _MORE + 1e-12 * _norm(whole)
        return torch.where(s.sound, values + lost, math.inf).nan_to_num(nan=math.inf)

    def _solved(self, rows: Rows, t: Tensor) -> _Solved:
        n, m = self.B.shape[1:]
        one, two = t[:, None, None], (t * t)[:, None, None]
        size_B, size_BB = _norm(self.B), _norm(self.B).square()
        S = one * self.M - two * self.BB
        off_S = t * self.off_M + t * t * (2 * size_B * self.off_B + self.off_B.square() + (m + 8) * EPS * size_BB)
        off_S = (off_S + 8 * EPS * (t * _norm(self.M) + t * t * size_BB)) * _MORE
        C, info = torch.linalg.cholesky_ex(S)
        eye = torch.eye(n, dtype=S.dtype).expand_as(S)
        X = torch.linalg.solve_triangular(C, eye, upper=False)
        size_X = _norm(X)
        off_X = (n + 8) * EPS * size_X * _norm(C)
        inverse = size_X / (1 - off_X) * _MORE
        trace = S.diagonal(dim1=1, dim2=2).sum(dim=1)
        taken = (off_S + 2 * (n + 8) * EPS * trace) * inverse.square() * _MORE
        g = norm_bound(rows.g)
        q = rows.f + one * (rows.g @ self.B.mT)
        off_q = rows.off_f + t[:, None] * (
            g * self.off_B[:, None] + rows.off_g * (size_B + self.off_B)[:, None] + (m + 8) * EPS * g * size_B[:, None]
        )
        whitened = q @ X.mT
        lost = inverse[:, None] * (off_q + ((n + 8) * EPS + off_X)[:, None] * norm_bound(q))
        lengths = (norm_bound(whitened) + lost) * _MORE
        sound = (info == 0) & (off_X < 0.1) & (taken < 0.5)
        return _Solved(sound, taken, whitened, lost * _MORE, lengths)


@dataclass(frozen=True, eq=False)
class _Solved:
    sound: Tensor
    taken: Tensor
    whitened: Tensor
    lost: Tensor
    lengths: Tensor


def best_bounds(around: Surroundings, rows: Rows, shares: Sequence[float] = MANY) -> Tensor:
    """For each row the smallest bound that one of some t proves, shape (batch, q)."""
    inequality = Inequality.of(around)
    return torch.stack([inequality.bounds(rows, t) for t in inequality.steps(shares)]).amin(dim=0)


def best_norm(around: Surroundings, rows: Rows) -> Tensor:
    """The smallest bound for all rows together."""
    inequality = Inequality.of(around)
    return torch.stack([inequality.norm(rows, t) for t in inequality.steps(MANY)]).amin(dim=0)


def _largest(M: Tensor, BB: Tensor) -> Tensor:
    C, info = torch.linalg.cholesky_ex(M)
    vector = torch.ones(*BB.shape[:2], 1, dtype=BB.dtype)
    length = torch.ones(len(BB), dtype=BB.dtype)
    for _ in range(_POWERS):
        vector = torch.cholesky_solve(BB @ vector, C)
        length = torch.linalg.vector_norm(vector, dim=(1, 2))
        vector = vector / length[:, None, None].clamp(min=1e-280)
    found: Tensor = torch.where(info == 0, length, 1.0).nan_to_num(nan=1.0).clamp(min=_LEAST)
    return found


def _norm(matrices: Tensor) -> Tensor:
    """A bound on the Frobenius norm of each matrix of a batch, or of one."""
    norms: Tensor = torch.linalg.matrix_norm(matrices)
    return norms * _MORE


def _each(errors: Tensor, count: int) -> Tensor:
    return errors[:, None].expand(-1, count)
