"""Positive definiteness of a convolution plus a matrix of low rank, with every rounding error bounded beforehand.

A Cholesky factorisation that runs to its end in floating-point arithmetic proves that the matrix it was given, plus a
small multiple of I, is positive semidefinite: the multiple is at most k u/(1 - k u) times the trace, k = size + 2 and u
the unit roundoff, for every order of summation (Demmel 1989; Rump 2006). So a matrix from which a little more than that
was subtracted is proved.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lben.certify.frequencies import FAINT, TINY, UNIT, Condition
from lben.numerics.enclosed import Verdict
from lben.operators.grid import real_form

_LOW = 1e-6  # of the largest eigenvalue of all blocks; what lies below is lifted
_MOST_LIFTED = 64
_MOST_TRIED = 8  # eigenvectors of D that are tried against it


def decide(condition: Condition) -> Verdict:
    """Whether D + F M F' is positive definite, proved; "undecided" where neither it nor its contrary is."""
    if exceeds(condition, 0.0):
        return "holds"
    return "fails" if refuted(condition) else "undecided"


def exceeds(condition: Condition, least: Tensor | float) -> bool:
    """Whether D + F M F' - diag(least), one entry a channel, is proved positive definite.

    With F M F' = P P' - R R' and floor a proved lower bound of D: the sum is positive definite if I - R' H^-1 R is,
    H = D + P P'. For any Y, R' H^-1 R = R'Y + Y'r + r' H^-1 r with r = R - H Y, and the last is at most |r|^2/floor.
    Where D alone is not positive definite, it is lifted by some u u', which are subtracted again among R R'.
    """
    if not bool((condition.terms.diagonal() > 0).all()):
        return False  # a zero on the diagonal: at best D is singular
    condition, S = condition.scaled()
    lost, (D, columns, J, _) = condition.error(), _real(condition)
    taken = (S * (least * (1 + 4 * UNIT) + TINY) * S).repeat(2)
    if not (math.isfinite(lost) and _finite(D, columns, taken)):
        return False
    D = D - torch.diag(taken + lost + 8 * UNIT * (float(D.abs().max()) + taken))
    P, R = columns[:, :, J > 0], columns[:, :, J < 0]
    if R.shape[-1] == 0 and _proved(D, 0.0):
        return True
    D, added = _lift(D)
    R, floor = torch.cat([R, added], dim=-1), _floor(D)
    return floor > 0 and (R.shape[-1] == 0 or _schur_holds(D, P, R, floor))


def refuted(condition: Condition) -> bool:
    """Whether a vector v is found with v'(D + F M F')v below zero, beyond every error of that number.

    It is the best of a small space: the eigenvector of an eigenvalue mu lies in that of (D - mu)^-1 F, unless it is one
    of D alone.
    """
    condition, _ = condition.scaled()
    lost, (D, columns, J, own) = condition.error(), _real(condition)
    if not (math.isfinite(lost) and _finite(D, columns)):
        return False
    values, vectors = torch.linalg.eigh(D)
    gap = values - condition.margin()
    smallest = UNIT * float(values.abs().max()) + FAINT
    gap = torch.where(gap.abs() < smallest, smallest, gap)
    low = torch.zeros(*values.shape, min(_MOST_TRIED, values.numel()), dtype=D.dtype)
    for column, place in enumerate(values.flatten().argsort()[: low.shape[-1]].tolist()):
        low[place // values.shape[1], place % values.shape[1], column] = 1.0
    basis = vectors @ torch.cat([low, (vectors.mT @ columns) / gap[:, :, None]], dim=-1)
    basis[own, D.shape[-1] // 2 :] = 0.0
    flat = torch.nn.functional.normalize(basis.flatten(0, 1), dim=0)
    if not _finite(flat):
        return False
    space = torch.linalg.qr(flat).Q.reshape(*values.shape, -1)
    seen = _product(columns, space)
    small = _product(space, D @ space) + seen.T @ (J[:, None] * seen)
    v = space @ torch.linalg.eigh((small + small.T) / 2).eigenvectors[:, :1]
    v[own, D.shape[-1] // 2 :] = 0.0  # there is no such part
    quotient = float(_product(v, D @ v)) + float((J[:, None] * _product(columns, v).square()).sum())
    sizes = float(torch.linalg.matrix_norm(D).max()) + float(torch.linalg.vector_norm(columns)) ** 2
    error = lost + 2 * (v.numel() + D.shape[-1] + len(J) + 8) * UNIT * sizes
    return bool(quotient + 1.01 * error * float(_product(v, v)) + FAINT < 0)


def norm_above(matrices: Tensor, off: float) -> float:
    """A proved upper bound on the norms of real matrices that differ from these, in norm, by at most `off`."""
    largest = float(matrices.abs().max())
    if not math.isfinite(largest):
        return math.inf
    unit = 2.0 ** max(-1000, min(1000, math.frexp(largest)[1]))
    B = matrices / unit
    gram, count = B @ B.mT, B.shape[-1] + 16
    whole = float(torch.linalg.matrix_norm(B).max()) ** 2 * (1 + 4 * B[0].numel() * UNIT) + FAINT
    spare = 4 * count * UNIT * whole
    top = float(torch.linalg.eigvalsh(gram)[:, -1].max())
    square = whole
    for share in (1e-12, 1e-9, 1e-6):
        bound = top * (1 + share) + spare
        if _proved(bound * torch.eye(gram.shape[-1], dtype=B.dtype) - gram, 0.0):
            square = min(bound + spare, whole)
            break
    return (math.sqrt(square) * unit + off) * (1 + 8 * UNIT)


def _finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _real(condition: Condition) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """D in its real form, columns and signs J of F M F', and the frequencies that are their own conjugates."""
    columns, J = condition.factors()
    D, real = _independent(condition, torch.cat([columns.real, columns.imag], dim=1))
    return D, real, J, condition.grid.independent()[2]


def _independent(condition: Condition, columns: Tensor) -> tuple[Tensor, Tensor]:
    """D in its real form and the columns, at frequencies of which none is the conjugate of another.

    A frequency that is its own conjugate has no imaginary part, in whose place stands a multiple of I.
    """
    kept, count, own = condition.grid.independent()
    D, C = real_form(condition.D.real, condition.D.imag)[kept], condition.D.shape[-1]
    D = (D + D.mT) / 2
    scale = float(D.diagonal(dim1=1, dim2=2).max()) or 1.0
    D[own, C:], D[own, :, C:] = 0.0, 0.0
    D[own, C:, C:] = scale * torch.eye(C, dtype=D.dtype)
    columns = columns[kept] * count[:, None, None].to(D.dtype).sqrt()
    columns[own, C:] = 0.0
    return D, columns


def _lift(D: Tensor) -> tuple[Tensor, Tensor]:
    """D plus u u' for every eigenvector of an eigenvalue that is not well above zero, and the u, one a column.

    From D a bound on the rounding of this sum is subtracted. Without such eigenvalues, or with too many, D stays.
    """
    values = torch.linalg.eigvalsh(D)
    top = float(values.max())
    low = (values < _LOW * top).nonzero()
    if not (top > 0 and 0 < len(low) <= _MOST_LIFTED):
        return D, D.new_zeros(*D.shape[:2], 0)
    values, vectors = torch.linalg.eigh(D)
    added = D.new_zeros(*D.shape[:2], len(low))
    for column, (block, place) in enumerate(low.tolist()):
        added[block, :, column] = math.sqrt(max(top - float(values[block, place]), 0.0)) * vectors[block, :, place]
    sums = added @ added.mT
    spare = 4 * (len(low) + 2) * UNIT * float(torch.linalg.matrix_norm(D.abs() + added.abs() @ added.abs().mT).max())
    return D + sums - spare * torch.eye(D.shape[-1], dtype=D.dtype), added


def _floor(D: Tensor) -> float:
    """A proved lower bound of the smallest eigenvalue of all blocks; 0 if none above 0 is proved."""
    guess = float(torch.linalg.eigvalsh(D)[:, 0].min())
    for share in (0.5, 1e-2, 0.0):
        if guess > 0 and _proved(D, share * guess):
            return share * guess if share else math.ulp(0.0)
    return 0.0


def _proved(D: Tensor, least: float) -> bool:
    """Whether all blocks are proved positive definite by more than `least`."""
    size = D.shape[-1]
    trace = float(D.diagonal(dim1=1, dim2=2).abs().sum(dim=1).max())
    needed = 2 * (size + 2) * UNIT * trace + FAINT
    _, info = torch.linalg.cholesky_ex(D - (least + needed) * torch.eye(size, dtype=D.dtype))
    return not bool((info != 0).any())


def _schur_holds(D: Tensor, P: Tensor, R: Tensor, floor: float) -> bool:
    """Whether I - R' (D + P P')^-1 R is proved positive definite."""
    factor = torch.linalg.cholesky(D)
    inside = torch.cholesky_solve(P, factor)
    small = torch.eye(P.shape[-1], dtype=D.dtype) + _product(P, inside)
    Y = torch.cholesky_solve(R, factor)
    Y = Y - inside @ torch.linalg.solve(small, _product(P, Y))
    back = _product(P, Y)
    rest = R - D @ Y - P @ back
    norm = [float(torch.linalg.vector_norm(part)) for part in (Y, P, R, rest)]
    count = Y[..., 0].numel() + P.shape[-1] + 8
    sizes = float(torch.linalg.matrix_norm(D).max()) * norm[0] + norm[1] ** 2 * norm[0] + norm[2]
    rest_norm = norm[3] + 2 * count * UNIT * sizes
    product = _product(R, Y)
    wrong = norm[0] * rest_norm + 2 * count * UNIT * norm[2] * norm[0]
    if not floor > FAINT:
        return False
    wrong += rest_norm**2 / floor
    matrix = torch.eye(R.shape[-1], dtype=D.dtype) - (product + product.T) / 2
    return _floor((matrix - 1.01 * wrong * torch.eye(len(matrix), dtype=D.dtype))[None]) > 0


def _product(L: Tensor, R: Tensor) -> Tensor:
    """L'R over all frequencies."""
    return L.flatten(0, 1).T @ R.flatten(0, 1)
