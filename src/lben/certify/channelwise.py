"""The smallest Lipschitz bound of a convolutional network over the metrics with one entry a channel.

X = Lam A + A' Lam - Lam U U' Lam / rho - O'O is a convolution plus a matrix of rank 2p, F M F' with F = [Lam s, q],
q = Wo' and s q' the part of A that is no convolution. With D the convolution and S = M^-1 + F' D^-1 F, log det X is
log det D + log |det S|, and X is positive definite if D is and S has as many negative eigenvalues as M.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.certify.barrier import minimise_rho
from lben.certify.certificate import Certificate, Domain
from lben.certify.circulant import Circulant
from lben.certify.convolution import Condition, ConvSubject, check_convolution
from lben.errors import BoundNotMet, InvalidInput, NotWellPosed
from lben.grid import complex_form
from lben.spectrum import inner

_NO_BOUND = 1e-30  # what is reported where outputs do not depend on inputs at all
_FACTOR = 4.0  # by which a start is made larger or smaller until it is feasible
_TRIALS = 80
_INFLATIONS = 28  # from a billionth, doubled each time, to a quarter


@dataclass(frozen=True, eq=False)
class ChannelPoint:
    """A strictly feasible point: the inverse blocks of D, D^-1 F, S, and log det X."""

    lam: Tensor
    rho: float
    factor: Tensor
    solved: Tensor
    small: Tensor
    logarithm: float

    def log_det(self) -> float:
        return self.logarithm


@dataclass(frozen=True, eq=False)
class ChannelProgram:
    """Minimise rho, over one entry of lam a channel.

    Shapes: A and K (frequencies, C, C); q and s (frequencies, C, p), s None where A is a convolution; N (p, p), the
    matrix with O'O = q N q'. Without s, q has the columns of O' and N is not used.
    """

    A: Tensor
    K: Tensor
    q: Tensor
    s: Tensor | None
    N: Tensor
    multiplicity: Tensor
    rank: int
    gap: float = 1e-4

    @property
    def free(self) -> int:
        return self.A.shape[1]

    @property
    def size(self) -> int:
        return self.free * int(self.multiplicity.sum())

    def feasible(self, lam: Tensor, rho: float) -> ChannelPoint | None:
        if not (rho > 0 and bool((lam > 0).all())):
            return None
        half = lam[:, None] * (self.A - self.K * (lam / (2 * rho)))
        factor, info = torch.linalg.cholesky_ex(half + half.mH)
        if bool((info != 0).any()):
            return None
        columns, inverse_middle = self._low_rank(lam)
        solved = torch.cholesky_solve(columns, factor)
        small = inverse_middle + inner(columns, solved)
        values = torch.linalg.eigvalsh((small + small.T) / 2)
        if int((values < 0).sum()) != self.q.shape[-1] or not bool((values != 0).all()):
            return None
        pivots = factor.diagonal(dim1=1, dim2=2).real.log().sum(dim=1)
        logarithm = 2 * float((pivots * self.multiplicity).sum()) + float(values.abs().log().sum())
        return ChannelPoint(lam, rho, factor, solved, small, logarithm)

    def _low_rank(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """F and M^-1; M has as many negative eigenvalues as q has columns, with s or without."""
        p = self.q.shape[-1]
        eye = torch.eye(p, dtype=torch.float64)
        if self.s is None:
            return self.q, -eye
        middle = torch.cat([torch.cat([self.N, eye], 1), torch.cat([eye, 0 * eye], 1)])
        return torch.cat([lam[:, None] * self.s, self.q], dim=-1), middle

    def derivatives(self, point: ChannelPoint, t: float, pull: Tensor) -> tuple[Tensor, Tensor]:
        """The formulas of `barrier.py`, summed over the pixels of a channel."""
        lam, rho, f = point.lam, point.rho, self.free
        K = self.K / rho
        scaled = lam[:, None] * K
        left = -point.solved @ torch.linalg.inv(point.small).to(point.solved.dtype)
        G = Circulant(torch.cholesky_inverse(point.factor), left, point.solved, self.multiplicity)
        B = Circulant.of(self.A.mH - scaled, self.multiplicity)
        if self.s is not None:
            B = Circulant(B.blocks, self.q, self.s, self.multiplicity)
        Y = G @ B
        Z = (B.T @ Y).plus(K)
        GC = G @ Circulant.of(scaled * lam, self.multiplicity)
        hessian = torch.empty(f + 1, f + 1, dtype=torch.float64)
        hessian[:f, :f] = 2 * (G.entrywise_sums(Z) + Y.entrywise_sums(Y.T))
        trace = float(GC.diagonal_sums().sum())
        through = G.entrywise_sums(Circulant.of(scaled.mH, self.multiplicity))
        cross = (GC.entrywise_sums(Y.T) - through).sum(dim=1)
        hessian[:f, f] = hessian[f, :f] = 2 * cross / rho
        hessian[f, f] = (float(GC.entrywise_sums(GC.T).sum()) + 2 * trace + self.rank) / rho**2
        last = lam.new_tensor([t - (trace + self.rank) / rho])
        return torch.cat([pull - 2 * Y.diagonal_sums(), last]), (hessian + hessian.T) / 2


def tightest_convolution(subject: ConvSubject, *, rigorous: bool, domain: Domain) -> Certificate:
    """The certificate of the smallest gamma, to about four digits, over all metrics with one entry a channel."""
    subject = subject.with_metric()
    w, scale = subject.weights, subject.scale_of(domain)
    if w.metric == "pixel":
        raise InvalidInput(
            'tightest_bound has no method for metric="pixel": lben.certify(net, gamma) checks a gamma, '
            'lben.product_bound(net) needs none, and metric="channel" or "identity" can be searched.'
        )
    entries, gamma, finished = _search(subject)
    growth = 1e-9
    for _ in range(_INFLATIONS):
        certificate = check_convolution(subject, entries, gamma / scale, rigorous=rigorous, domain=domain)
        if certificate.holds:
            name = "barrier method over metrics with one entry a channel"
            name += "" if finished else ", stopped by rounding before it knew this to be the smallest"
            return replace(certificate, method=f"{name}, checked by {certificate.method}")
        gamma *= 1 + growth
        growth *= 2
    raise BoundNotMet(
        f"No bound near {gamma:.6g} could be confirmed in double precision: the smallest eigenvalue stays at "
        f"{certificate.margin:.3g}.",
        certificate.margin,
    )


def _search(subject: ConvSubject) -> tuple[Tensor, float, bool]:
    """The entries of the metric, gamma at the network's input, and whether it is known to be the smallest.

    U and O are first brought to norm one: the bound scales with both.
    """
    w = subject.weights
    own = w.metric_entries()
    T, U, grid = w.symbols()
    into = float(torch.linalg.matrix_norm(U, 2).max())
    combined = subject.mix @ w.output
    out = math.sqrt(max(float(torch.linalg.eigvalsh(combined @ combined.T)[-1]), 0.0))
    if into == 0 or out == 0:
        return _independent(subject, into, out)
    G = U @ U.mH
    A = T / own[:, None] + w.rho * G * own
    columns = complex_form(grid.forward((w.output if w.rho else combined / out).T.contiguous()))
    rest = w.rho * columns / own[:, None] if w.rho else None
    N = subject.mix.T @ subject.mix / out**2
    rank = w.geometry.pixels * min(w.channels, w.U.shape[1])
    problem = ChannelProgram(A, G / into**2, columns, rest, N, grid.multiplicity, rank)
    lam, rho = _start(problem, own)
    found, rho, finished = minimise_rho(problem, lam, rho)
    root = math.sqrt(rho)
    return found * (out / into / root), root * into * out, finished


def _start(problem: ChannelProgram, own: Tensor) -> tuple[Tensor, float]:
    """A multiple of the network's own metric and a rho at which X is positive definite, with room."""
    size = _smallest(lambda size: problem.feasible(size * own, math.inf) is not None)
    lam = 2 * size * own
    return lam, _FACTOR * _smallest(lambda rho: problem.feasible(lam, rho) is not None)


def _smallest(feasible: Callable[[float], bool]) -> float:
    """About the smallest power of `_FACTOR` that is feasible, where all above it are."""
    value = 1.0
    for _ in range(_TRIALS):
        if feasible(value):
            break
        value *= _FACTOR
    else:
        raise NotWellPosed("The metric of these weights does not prove them well-posed beyond rounding.", 0.0)
    for _ in range(_TRIALS):
        if not feasible(value / _FACTOR):
            break
        value /= _FACTOR
    return value


def _independent(subject: ConvSubject, into: float, out: float) -> tuple[Tensor, float, bool]:
    """U or O is zero: every gamma holds, in a metric so large, or small, that the one that is not does not matter."""
    entries = subject.weights.metric_entries()
    margin = Condition.of(subject, entries, None).margin()
    if into == 0 and out == 0:
        return entries, _NO_BOUND, True
    if into == 0:
        return entries * (1e12 * out**2 / (_NO_BOUND * margin)), _NO_BOUND, True
    return entries * (1e-12 * _NO_BOUND * margin / (into * float(entries.max())) ** 2), _NO_BOUND, True
