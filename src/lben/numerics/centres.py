"""The method of centres: the diagonal metric in which a family of matrices is most strongly monotone.

For A of shape (k, n, n), real or complex, the largest s for which some Lam > 0 satisfies Lam A_j + A_j* Lam >= 2 s Lam
for every j: Condition `W` with the one matrix A = I - W, the rate of the neural ODE with one for each frequency.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.numerics.barrier import grouped_direction

_NEWTON_STEPS = 100
_CENTRED = 1e-6  # half the squared Newton decrement: diag((A - s I) G) = 1 / (2 r) must hold well for a good ceiling
_STRETCH = 0.1  # share of the way back from the largest provable s at which the next centre is looked for
_SHARP = 1e-9  # s is known to zero within this times the size of A: it is on its boundary


@dataclass(frozen=True)
class Effort:
    """When to stop: at this share of what is possible, this close to it, or after so many stages."""

    share: float
    gap: float
    stages: int


def search_metric(
    A: Tensor, start: Tensor, effort: Effort, groups: Tensor | None = None
) -> tuple[Tensor, float, float, Tensor]:
    """The metric with the largest s, as far as it is needed; an upper bound on s, and the Y that proves the bound.

    For a shift s below what the metric proves, minimise the sum of -log det(Lam (A_j - s I) + its adjoint), and of
    lam / r, r the lam it starts from; the new lam then allows a larger s. It stops where `effort` says, or where s is
    known to be at most zero. It begins at I or at `start`, whichever is better.
    groups: the number of each unit's block, where lam is to be constant on blocks, as `start` is.
    """
    identity = torch.eye(A.shape[-1], dtype=A.dtype)
    own = torch.arange(len(start)) if groups is None else groups
    means = _summed(A.diagonal(dim1=-2, dim2=-1).real, own) / _summed(torch.ones_like(start), own)
    j, lowest = divmod(int(means.argmin()), means.shape[-1])
    bound, Y = float(means[j, lowest]), torch.zeros_like(A)
    Y[j] = torch.diag((own == lowest).to(A.dtype))
    m, lam = max(((monotonicity(A, lam), lam) for lam in (torch.ones_like(start), start)), key=lambda pair: pair[0])
    centre = lam
    size = float(torch.linalg.matrix_norm(scaled(A, lam), 2).max())
    shift = m - size
    for _ in range(effort.stages):
        if m >= effort.share * bound or bound <= 0 or bound - m <= max(_SHARP * size, effort.gap):
            break
        found = _centre(A - shift * identity, centre, groups)
        if found is None:
            break
        centre, G = found
        at_centre, restricted = _ceiling(A, G, own)
        if at_centre < bound:
            bound, Y = at_centre, restricted
        reached = monotonicity(A, centre)
        if reached > m:
            m, lam = reached, centre
        shift = reached - _STRETCH * (reached - shift)
    return lam, m, bound, Y


def _ceiling(A: Tensor, G: Tensor, groups: Tensor) -> tuple[float, Tensor]:
    """An upper bound on s over all metrics, and the Y >= 0 that proves it, from the inverses G at a centre.

    No metric has s above the largest quotient of the sums over j of Re (A_j Y_j)_ii and of (Y_j)_ii, i where the second
    is positive; both summed over the units of a block. Y is G restricted to the blocks with its largest diagonal
    entries, as many as give the least bound: where G_ii is small, the quotient says little.
    """
    weight = _summed(G.diagonal(dim1=-2, dim2=-1).real.sum(dim=0), groups)
    order = weight.argsort(descending=True)
    terms = (A * G.conj()).real.sum(dim=0)  # G_j is Hermitian: (A_j G_j)_ii is the sum of a row of A_j o conj(G_j)
    terms = _summed(_summed(terms, groups).T, groups).T
    sums = torch.cumsum(terms[order][:, order], dim=1)  # for Y restricted to the first 1, 2, .. blocks
    quotients = sums / weight[order][:, None]
    ceilings = quotients.masked_fill(torch.ones_like(sums).tril(-1).bool(), -torch.inf).amax(dim=0)
    chosen = torch.isin(groups, order[: int(ceilings.argmin()) + 1]).nonzero()[:, 0]
    Y = torch.zeros_like(G)
    Y[:, chosen[:, None], chosen] = G[:, chosen[:, None], chosen]
    return float(ceilings.min()), Y


def _summed(values: Tensor, groups: Tensor) -> Tensor:
    """The sums over the blocks of the last dimension."""
    return values.new_zeros(*values.shape[:-1], int(groups.max()) + 1).index_add(-1, groups, values)


def _centre(B: Tensor, lam: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The minimiser of the sum of -log det(Lam B_j + B_j* Lam) and lam / r, r = lam at the start; the inverses there.

    None where rounding has taken the start out of the feasible set.
    """
    pull = 1 / lam
    factor, info = torch.linalg.cholesky_ex(_double(lam, B))
    if bool(info.any()):
        return None
    for _ in range(_NEWTON_STEPS):
        G = torch.cholesky_inverse(factor)
        Y = G @ B.mH
        hessian = 2 * (G.conj() * (B @ Y) + Y * Y.mT).real.sum(dim=0)
        slope = Y.diagonal(dim1=-2, dim2=-1).real.sum(dim=0)
        step, decrement = grouped_direction(pull - 2 * slope, hessian, groups)
        if not decrement > _CENTRED:
            break
        length, found = 1.0, False
        value = -2 * _log(factor)
        while not found and length > 1e-9:
            moved = lam + length * step
            trial, info = torch.linalg.cholesky_ex(_double(moved, B))
            fall = length * (pull @ step) - 2 * _log(trial) - value
            found = not bool(info.any()) and bool((moved > 0).all()) and float(fall) <= -0.2 * length * decrement
            length *= 0.5
        if not found:
            break
        lam, factor = moved, trial
    return lam, torch.cholesky_inverse(factor)


def _log(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).real.log().sum()


def _double(lam: Tensor, B: Tensor) -> Tensor:
    half = lam[:, None] * B
    return half + half.mH


def scaled(A: Tensor, lam: Tensor) -> Tensor:
    """Lam^(1/2) A Lam^(-1/2)."""
    root = lam.sqrt()
    return root[:, None] * A / root


def monotonicity(A: Tensor, lam: Tensor) -> float:
    """The smallest eigenvalue of the Hermitian parts of Lam^(1/2) A_j Lam^(-1/2), less what rounding may have added."""
    B = scaled(A, lam)
    rounding = 16 * B.shape[-1] * torch.finfo(lam.dtype).eps * float(torch.linalg.matrix_norm(B).max())
    return float(torch.linalg.eigvalsh(B + B.mH)[..., 0].min()) / 2 - rounding
