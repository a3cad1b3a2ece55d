"""Condition `lipschitz` of a layer from images to images: one matrix a frequency, without products of kernels.

    [[2 Lam - Lam W - W' Lam, Lam U, Wo'], [., gamma I, -D'], [., ., gamma I]]

is positive definite if and only if the matrix of `condition_matrix` is, its Schur complement. All parts are
convolutions, and the metric has one entry a channel, so it is block-diagonal in the Fourier domain; its entries are
those of the kernels' transforms, of which rounding is easily bounded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lben.certify.certificate import NO_BOUND
from lben.certify.frequencies import TINY, UNIT, Condition
from lben.certify.verified import norm_above
from lben.errors import NotWellPosed
from lben.numerics.barrier import Quadratic, feasible_start, largest_norm, minimise_rho, smallest_rho
from lben.operators.grid import Grid, real_form
from lben.weights.image import ImageWeights

_GAP = 2e-3  # relative, in rho, at which the search ends
_ROUNDS = 24
_AT_ONCE = 4  # frequencies that a round adds
_HALVINGS = 12  # on the way back to a metric that proves something
_SIZES = (4.0, 0.25, 2.0, 0.5, 1.25, 0.8)  # factors of a metric that are tried, in turn, as long as they help


def symbol(w: ImageWeights, kernel: Tensor) -> Tensor:
    """A kernel at every frequency, shape (frequencies, out, in), complex, in double precision."""
    return torch.complex(*Grid(*w.shape, kernel).symbol(kernel))


def sums(kernel: Tensor) -> Tensor:
    """The sums of the absolute values of all taps, which bound every entry of the symbol: shape (out, in)."""
    return kernel.abs().sum(dim=(2, 3))


def condition(w: ImageWeights, lam: Tensor, gamma: float | None) -> Condition:
    """The matrix at the head of this file, lam one entry a channel; its corner, Condition `W`, for gamma None."""
    grid = Grid(*w.shape, w.U)
    C, longest = w.channels, max(k.shape[2] * k.shape[3] for k in (w.W, w.U, w.Wo, w.D) if k is not None)
    eye = torch.eye(C, dtype=lam.dtype)
    half, size = (lam[:, None] * eye).to(torch.complex128)[None].repeat(grid.frequencies, 1, 1), lam[:, None] * eye
    if w.W is not None:
        half, size = half - lam[:, None] * symbol(w, w.W), size + lam[:, None] * sums(w.W)
    matrix, terms = half + half.mH, size + size.T
    if gamma is not None:
        into, c, p = lam[:, None] * symbol(w, w.U), w.in_shape[0], w.out_channels
        past = w.U.new_zeros(p, c, 1, 1) if w.D is None else w.D
        side = torch.cat([into, symbol(w, w.Wo).mH], dim=2)
        corner = _corner(gamma, -symbol(w, past))
        matrix = torch.cat([torch.cat([matrix, side], dim=2), torch.cat([side.mH, corner], dim=2)], dim=1)
        flat = torch.cat([lam[:, None] * sums(w.U), sums(w.Wo).T], dim=1)
        ends = _corner(gamma, sums(past)[None])[0]
        terms = torch.cat([torch.cat([terms, flat], dim=1), torch.cat([flat.T, ends], dim=1)])
    # a factor that underflows is off by TINY, and what multiplies it is among these
    under = 4 + float(lam.max()) + sum(float(sums(k).max()) for k in (w.W, w.U, w.Wo, w.D) if k is not None)
    lost = (2 * longest + 128) * (UNIT * terms + TINY * under)
    empty = matrix.new_zeros(*matrix.shape[:2], 0)
    return Condition(matrix, empty, lam.new_zeros(0, 0), terms, 0.0, lost, grid)


def _corner(gamma: float, past: Tensor) -> Tensor:
    """[[gamma I, past'], [past, gamma I]] of a stack of matrices."""
    count, p, c = past.shape
    into, out = (gamma * torch.eye(n, dtype=past.dtype).expand(count, n, n) for n in (c, p))
    return torch.cat([torch.cat([into, past.mH], dim=2), torch.cat([past, out], dim=2)], dim=1)


def norm_of(w: ImageWeights, kernel: Tensor, left: Tensor, right: Tensor) -> float:
    """A proved upper bound on the norm of a convolution between two diagonal matrices with one entry a channel."""
    found = left[:, None] * symbol(w, kernel) * right
    terms = left[:, None] * sums(kernel) * right
    under = 1 + float(left.max()) + float(right.max()) + float(terms.max())
    lost = 4 * (kernel[0, 0].numel() + 64) * (UNIT * terms + TINY * under)
    return norm_above(real_form(found.real, found.imag), 2 * float(torch.linalg.matrix_norm(lost)))


def smallest_gamma(w: ImageWeights) -> tuple[Tensor, float, bool]:
    """The entries of the metric, gamma, and whether no metric with one entry a channel does better by 0.1 %.

    With rho = gamma^2 and the metric scaled by gamma, the program is `Quadratic`: in the units of z and y together,
    A = [[I - W, 0], [Wo, I/2]] and K = V V' with V = [U; -D], where outputs have the entry 1 in the metric. Few
    frequencies matter: it is solved for those that were the worst at the metrics seen so far, and is then a lower bound
    of what all of them allow.
    """
    own, into, out, past = w.metric_entries(), *(_norm(w, part) for part in (w.U, w.Wo, w.D))
    if into == 0 or out == 0:
        return _independent(w, into, out, past)
    problem = _program(w, into, out)
    whole = torch.cat([own, own.new_ones(w.out_channels)])
    best, most = _best_multiple(problem, feasible_start(problem, own) if _monotone(problem, whole) else None, own)
    chosen, finished = worst(problem, best), False
    for _ in range(_ROUNDS):
        part = _part(problem, chosen)
        start = smallest_rho(part, best)
        lam, rho, solved = minimise_rho(part, best, 1.01 * start)
        tried, reached, seen = _towards(problem, best, lam)
        if reached < most:
            best, most = tried, reached
        finished = solved and most <= (1 + _GAP) * rho
        fresh = torch.tensor(sorted({*chosen.tolist(), *worst(problem, lam).tolist(), *seen.tolist()}))
        if finished or len(fresh) == len(chosen):
            break
        chosen = fresh
    root = math.sqrt(most)
    return best[: w.channels] * (out / into / root), root * into * out, finished


def _norm(w: ImageWeights, kernel: Tensor | None) -> float:
    return 0.0 if kernel is None else largest_norm(symbol(w, kernel))


def _program(w: ImageWeights, into: float, out: float) -> Quadratic:
    """The program for U and Wo of norm one: D is divided by both norms, and so is gamma."""
    U, Wo = symbol(w, w.U) / into, symbol(w, w.Wo) / out
    frequencies, C, c = U.shape
    p = w.out_channels
    A = torch.eye(C + p, dtype=torch.complex128).repeat(frequencies, 1, 1)
    A[:, C:, C:] *= 0.5
    A[:, C:, :C] = Wo
    if w.W is not None:
        A[:, :C, :C] -= symbol(w, w.W)
    past = U.new_zeros(frequencies, p, c) if w.D is None else symbol(w, w.D) / (into * out)
    V = torch.cat([U, -past], dim=1)
    return Quadratic(A, V @ V.mH, min(c, C + p) * frequencies, C, _GAP / 4)


def _part(problem: Quadratic, chosen: Tensor) -> Quadratic:
    """The program at some frequencies alone."""
    each = problem.rank // len(problem.A)
    return Quadratic(problem.A[chosen], problem.K[chosen], each * len(chosen), problem.count, problem.gap)


def _monotone(problem: Quadratic, lam: Tensor) -> bool:
    """Whether 2 Lam - Lam W - W' Lam is positive definite."""
    C = problem.free
    M = problem.matrix(lam, math.inf)[:, :C, :C]
    return not bool(torch.linalg.cholesky_ex(M).info.any())


def _best_multiple(problem: Quadratic, start: Tensor | None, own: Tensor) -> tuple[Tensor, float]:
    """The multiple of a metric for which rho is smallest, about, with that rho."""
    best, most = start, math.inf if start is None else smallest_rho(problem, start)
    if best is None or not most < math.inf:
        raise NotWellPosed("The metric of these weights does not prove them well-posed beyond rounding.", 0.0)
    ones = own.new_ones(len(best) - len(own))
    for factor in _SIZES:
        while True:
            other = torch.cat([factor * best[: len(own)], ones])
            reached = smallest_rho(problem, other)
            if not reached < most:
                break
            best, most = other, reached
    return best, most


def _towards(problem: Quadratic, inside: Tensor, lam: Tensor) -> tuple[Tensor, float, Tensor]:
    """lam, or the first point on the way back to `inside` that proves something; its rho and worst frequencies."""
    for _ in range(_HALVINGS):
        rho = smallest_rho(problem, lam)
        if rho < math.inf:
            return lam, rho, worst(problem, lam)
        lam = (lam + inside) / 2
    return inside, smallest_rho(problem, inside), worst(problem, inside)


def worst(problem: Quadratic, lam: Tensor) -> Tensor:
    """The frequencies that ask for the largest rho, those first that have none."""
    matrix = problem.matrix(lam, math.inf)
    least = torch.linalg.eigvalsh(matrix)[:, 0]
    V = lam[:, None] * problem.K * lam
    factor, info = torch.linalg.cholesky_ex(matrix)
    inner = torch.linalg.solve_triangular(factor, V, upper=False)
    inner = torch.linalg.solve_triangular(factor, inner.mH, upper=False)
    bad = (info != 0) | (least <= 0)
    inner[bad] = 0.0
    asked = torch.linalg.eigvalsh((inner + inner.mH) / 2)[:, -1]
    asked = torch.where(bad, 1e300 * (2 - least / least.abs().max().clamp(min=TINY)), asked)
    return asked.argsort(descending=True)[:_AT_ONCE]


def _independent(w: ImageWeights, into: float, out: float, past: float) -> tuple[Tensor, float, bool]:
    """U or Wo is zero: D alone decides, in a metric so large, or small, that the one that is not does not matter."""
    own = w.metric_entries()
    gamma = max(past * (1 + 1e-6), NO_BOUND)
    margin = condition(w, own, None).margin()
    if not margin > 0:
        raise NotWellPosed("The metric of these weights does not prove them well-posed beyond rounding.", margin)
    if into == 0 and out == 0:
        return own, gamma, True
    if into == 0:
        return own * (1e12 * out**2 / (gamma * margin)), gamma, True
    return own * (1e-12 * gamma * margin / (into * float(own.max())) ** 2), gamma, True
