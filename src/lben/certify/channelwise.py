"""The smallest Lipschitz bound of a convolutional network over the metrics with one entry a channel.

With X = Lam A + A' Lam - O'O the bound is gamma^2 = rho, the largest eigenvalue of U' Lam X^-1 Lam U, and this is a
convex function of lam: the largest value of 2 x'U' Lam z - z'X z over all z and all x of norm one. X is a convolution
D plus a matrix of low rank, so at a given lam rho is exact and cheap: blocks of D, then blocks of the size of a pixel's
colours, and a small matrix (`Measure`). The best lam is found from few x and z, those that are largest at the lams
looked at so far: for these alone it is a small semidefinite program (`Restricted`), whose rho is a lower bound of what
all x and z allow. When the two bounds meet, no metric does better.

A barrier for all x and z at once would be simpler, but it would have as many terms as there are hidden units, of which
a handful matter: at 40,960 of them it creeps along the boundary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lben.certify.certificate import NO_BOUND
from lben.certify.frequencies import Condition
from lben.errors import NotWellPosed
from lben.numerics.barrier import Point, Program, minimise_rho
from lben.numerics.spectrum import inner, lowest_eigenvalue, quadratic_factors
from lben.operators.grid import Grid, complex_form
from lben.weights.convolutional import ConvWeights

_GAP = 1e-2  # relative, in rho, at which the search ends
_LOOSEST = 0.1  # of the first small program
_ROUNDS = 60
_FARTHEST = 1e6  # times the best rho: where a small program may start
_LANCZOS = 40  # steps that look for the largest x
_DIRECTIONS = 12  # taken of them at one lam
_KEPT = 90  # directions that a round leaves to the next
_HALVINGS = 12  # on the way back to a metric that proves something


@dataclass(frozen=True, eq=False)
class Measure:
    """rho at one lam, and, if they are asked for, the x and z that show it.

    U' Lam X^-1 Lam U is core - edge inverse edge', and solved is D^-1 [Lam U, F] (see `Channels.measure`).
    """

    lam: Tensor
    rho: float
    core: Tensor
    edge: Tensor
    inverse: Tensor
    solved: Tensor
    grid: Grid

    @cached_property
    def x(self) -> Tensor:
        """Eigenvectors of its largest eigenvalues, about, by Lanczos' method: (frequencies, c, r), orthonormal."""
        grid = self.grid
        size = grid.height * grid.width * self.core.shape[-1]
        start = torch.randn(size, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        v = complex_form(grid.forward(start))
        basis, images = [v / torch.linalg.vector_norm(v)], []
        for _ in range(min(_LANCZOS, size)):
            images.append(self.core @ basis[-1] - self.edge @ self._through(basis[-1]))
            known, v = torch.cat(basis, dim=-1), images[-1]
            for _ in range(2):
                v = v - known @ inner(known, v).to(v.dtype)
            length = torch.linalg.vector_norm(v)
            if float(length) <= 1e-10 * float(torch.linalg.vector_norm(images[-1])):
                break
            basis.append(v / length)
        known = torch.cat(basis[: len(images)], dim=-1)
        vectors = torch.linalg.eigh(inner(known, torch.cat(images, dim=-1))).eigenvectors
        steepest: Tensor = known @ vectors[:, -_DIRECTIONS:].to(known.dtype)
        return steepest

    @property
    def z(self) -> Tensor:
        """X^-1 Lam U x, of shape (frequencies, C, r)."""
        colours = self.core.shape[-1]
        return self.solved[..., :colours] @ self.x - self.solved[..., colours:] @ self._through(self.x)

    def _through(self, x: Tensor) -> Tensor:
        return (self.inverse @ inner(self.edge, x)).to(self.edge.dtype)


@dataclass(frozen=True, eq=False)
class Channels:
    """The problem: A = `blocks` + s q', U and O, at every frequency.

    Shapes: blocks (frequencies, C, C), U (frequencies, C, c); q and s (frequencies, C, p), s None where A is a
    convolution; N (p, p), the matrix with O'O = q N q'.
    """

    blocks: Tensor
    U: Tensor
    q: Tensor
    s: Tensor | None
    N: Tensor
    grid: Grid

    def measure(self, lam: Tensor) -> Measure | None:
        """rho at one lam; None where X is not positive definite, or D is not."""
        half = lam[:, None] * self.blocks
        factor, info = torch.linalg.cholesky_ex(half + half.mH)
        if not bool((lam > 0).all()) or bool((info != 0).any()):
            return None
        columns, middle = self._low_rank(lam)
        into = lam[:, None] * self.U
        solved = torch.cholesky_solve(torch.cat([into, columns], dim=-1), factor)
        colours = into.shape[-1]
        small = middle + inner(columns, solved[..., colours:])
        small = (small + small.T) / 2
        if int((torch.linalg.eigvalsh(small) < 0).sum()) != self.q.shape[-1]:
            return None
        inverse, singular = torch.linalg.inv_ex(small)
        if int(singular):
            return None
        inverse = (inverse + inverse.T) / 2
        core, edge = into.mH @ solved[..., :colours], into.mH @ solved[..., colours:]
        core = (core + core.mH) / 2
        rho = -lowest_eigenvalue(-core, *quadratic_factors(edge, inverse), self.grid.multiplicity)
        return Measure(lam, rho, core, edge, inverse, solved, self.grid)

    def _low_rank(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """F and M^-1 with X = D + F M F'; M has as many negative eigenvalues as q has columns."""
        p = self.q.shape[-1]
        eye = torch.eye(p, dtype=torch.float64)
        if self.s is None:
            return self.q, -torch.linalg.inv(self.N)
        middle = torch.cat([torch.cat([self.N, eye], 1), torch.cat([eye, 0 * eye], 1)])
        return torch.cat([lam[:, None] * self.s, self.q], dim=-1), middle

    def restrict(self, x: Tensor, z: Tensor, gap: float) -> Restricted:
        """The program for the span of these x and z alone, each orthonormal, to be solved to `gap`."""
        Az = self.blocks @ z
        if self.s is not None:
            Az = Az + self.s @ inner(self.q, z).to(z.dtype)
        own = _channel_products(z, Az)
        out = inner(self.q, z)
        return Restricted(own + own.mT, _channel_products(z, self.U @ x), out.T @ self.N @ out, gap)


@dataclass(frozen=True, eq=False)
class Restricted(Program):
    """Minimise rho with [[sum lam_c Z_c - O, sum lam_c L_c], [., rho I]] positive definite.

    Shapes: Z (C, m, m), L (C, m, k), O (m, m).
    """

    Z: Tensor
    L: Tensor
    O: Tensor  # noqa: E741
    gap: float
    rank: int = 0
    groups: Tensor | None = None

    @property
    def free(self) -> int:
        return len(self.Z)

    @property
    def size(self) -> int:
        return sum(self.L.shape)

    def matrix(self, lam: Tensor, rho: float) -> Tensor:
        k = self.L.shape[2]
        side = torch.tensordot(lam, self.L, 1)
        top = torch.cat([torch.tensordot(lam, self.Z, 1) - self.O, side], dim=1)
        return torch.cat([top, torch.cat([side.T, rho * torch.eye(k, dtype=torch.float64)], dim=1)])

    def log_det(self, point: Point) -> float:
        return super().log_det(point) + float(point.lam.log().sum())

    def active(self, lam: Tensor, rho: float) -> Tensor:
        """The directions in which the matrix, scaled to a unit diagonal, is nearest to singular, as columns."""
        matrix = self.matrix(lam, rho)
        scale = matrix.diagonal().rsqrt()
        vectors = torch.linalg.eigh(scale[:, None] * matrix * scale).eigenvectors[:, :_KEPT]
        kept: Tensor = scale[:, None] * vectors
        return kept

    def derivatives(self, point: Point, t: float, pull: Tensor) -> tuple[Tensor, Tensor]:
        f, m = self.free, self.Z.shape[1]
        G = torch.cholesky_inverse(point.factor)
        high, side, low = G[:m, :m], G[:m, m:], G[m:, m:]
        # G times the matrix that multiplies each lam, then the one that multiplies rho
        top = torch.cat([high @ self.Z + side @ self.L.mT, high @ self.L], dim=2)
        bottom = torch.cat([side.T @ self.Z + low @ self.L.mT, side.T @ self.L], dim=2)
        last = torch.zeros_like(G)
        last[:, m:] = G[:, m:]
        products = torch.cat([torch.cat([top, bottom], dim=1), last[None]])
        gradient = -products.diagonal(dim1=1, dim2=2).sum(dim=1)
        hessian = products.flatten(1) @ products.mT.flatten(1).T
        gradient[:f] += pull - 1 / point.lam
        gradient[f] += t
        hessian.diagonal()[:f] += point.lam**-2
        return gradient, (hessian + hessian.T) / 2


def smallest_gamma(w: ConvWeights, mix: Tensor, multiples_of: Tensor | None) -> tuple[Tensor, float, bool]:
    """The entries of the metric, gamma at the network's input, and whether it is known to be the smallest.

    mix: which outputs are meant, as combinations of the network's own, shape (p', p).
    multiples_of: one metric, shape (C,); only its multiples are searched then, in a tenth of the time.
    U and O are first brought to norm one: the bound scales with both.
    """
    own = w.metric_entries()
    T, U, grid = w.symbols()
    into = float(torch.linalg.matrix_norm(U, 2).max())
    combined = mix @ w.output
    out = math.sqrt(max(float(torch.linalg.eigvalsh(combined @ combined.T)[-1]), 0.0))
    if into == 0 or out == 0:
        return _independent(w, mix, into, out)
    A = T / own[:, None] + w.rho * (U @ U.mH) * own
    columns = complex_form(grid.forward((w.output if w.rho else combined / out).T.contiguous()))
    rest = w.rho * columns / own[:, None] if w.rho else None
    N = mix.T @ mix / out**2 if w.rho else torch.eye(len(combined), dtype=torch.float64)
    problem = Channels(A, U / into, columns, rest, N, grid)
    best = _best_multiple(problem, own if multiples_of is None else multiples_of)
    lam, rho, finished = _minimise(problem, best) if multiples_of is None else (best.lam, best.rho, False)
    root = math.sqrt(rho)
    return lam * (out / into / root), root * into * out, finished


def _minimise(problem: Channels, best: Measure) -> tuple[Tensor, float, bool]:
    """The best lam, its rho, and whether no other does better by more than the gap; from one to start with.

    Each round looks at the best lam for what is known so far and half-way to it, where the program has no illusions;
    the program is solved a little better than the two bounds are apart, and what it does not lean on is forgotten.
    """
    x, z, gap, low = best.x, best.z, _LOOSEST, 0.0
    for _ in range(_ROUNDS):
        x, z = _orthonormal(x), _orthonormal(z)
        program = problem.restrict(x, z, gap)
        start = 1.01 * best.rho
        while program.feasible(best.lam, start) is None:  # as it is at 1.01, but for rounding
            start *= 4
            if not start < _FARTHEST * best.rho:
                return best.lam, best.rho, False
        lam, reached, solved = minimise_rho(program, best.lam, start)
        if solved:
            low = max(low, (1 - gap) * reached)
        if best.rho <= (1 + _GAP) * low:
            return best.lam, best.rho, True
        gap = min(max(0.5 * (best.rho / max(low, 1e-3 * best.rho) - 1), _GAP / 4), gap)
        seen = [_towards(problem, best.lam, lam), _towards(problem, best.lam, (lam + best.lam) / 2)]
        best = min(best, *seen, key=lambda one: one.rho)
        active = program.active(lam, reached).to(x.dtype)
        x = torch.cat([x @ active[z.shape[-1] :], *(one.x for one in seen)], dim=-1)
        z = torch.cat([z @ active[: z.shape[-1]], *(one.z for one in seen)], dim=-1)
    return best.lam, best.rho, False


def _best_multiple(problem: Channels, metric: Tensor) -> Measure:
    """The metric times the number for which rho is smallest, about: rho is convex in it."""
    size = 1.0
    while (best := problem.measure(size * metric)) is None:
        size *= 4
        if size > 1e24:
            raise NotWellPosed("The metric of these weights does not prove them well-posed beyond rounding.", 0.0)
    for factor in (4.0, 0.25, 2.0, 0.5, 1.25, 0.8):
        while (other := problem.measure(factor * best.lam)) is not None and other.rho < best.rho:
            best = other
    return best


def _towards(problem: Channels, inside: Tensor, lam: Tensor) -> Measure:
    """What is measured at lam, or at the first point on the way back to `inside` that proves something."""
    for _ in range(_HALVINGS):
        measured = problem.measure(lam)
        if measured is not None:
            return measured
        lam = (lam + inside) / 2
    measured = problem.measure(inside)
    assert measured is not None
    return measured


def _orthonormal(columns: Tensor) -> Tensor:
    """A basis of what the columns span, as transforms of real images."""
    stacked = torch.view_as_real(columns).permute(0, 1, 3, 2)
    basis, values, _ = torch.linalg.svd(stacked.reshape(-1, columns.shape[-1]), full_matrices=False)
    basis = basis[:, values > 1e-8 * values[0]]
    parts = basis.reshape(*columns.shape[:2], 2, -1)
    return torch.complex(parts[:, :, 0].contiguous(), parts[:, :, 1].contiguous())


def _channel_products(one: Tensor, other: Tensor) -> Tensor:
    """Inner products over the pixels of every channel, shape (C, r, s)."""
    first = torch.view_as_real(one.transpose(0, 1)).permute(0, 2, 1, 3).flatten(2)
    second = torch.view_as_real(other.transpose(0, 1)).permute(0, 2, 1, 3).flatten(2)
    return first @ second.mT


def _independent(w: ConvWeights, mix: Tensor, into: float, out: float) -> tuple[Tensor, float, bool]:
    """U or O is zero: every gamma holds, in a metric so large, or small, that the one that is not does not matter."""
    entries = w.metric_entries()
    margin = Condition.of(w, mix, entries, None).margin()
    if into == 0 and out == 0:
        return entries, NO_BOUND, True
    if into == 0:
        return entries * (1e12 * out**2 / (NO_BOUND * margin)), NO_BOUND, True
    return entries * (1e-12 * NO_BOUND * margin / (into * float(entries.max())) ** 2), NO_BOUND, True
