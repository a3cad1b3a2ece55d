"""Whether some diagonal metric proves that every input has exactly one equilibrium (Condition `W`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.activations import Activation, ReLU, check_activation
from lben.certify.barrier import grouped_direction
from lben.certify.certificate import Certifiable, Subject
from lben.certify.numerics import undisturbed
from lben.errors import InvalidInput
from lben.weights import Weights

_STAGES = 200
_NEWTON_STEPS = 100
_CENTRED = 1e-6  # half the squared Newton decrement: diag((A - s I) G) = 1 / (2 r) must hold well for a good ceiling
_STRETCH = 0.1  # share of the way back from the largest provable m at which the next centre is looked for
_ENOUGH = 0.5  # share of the best possible m that is good enough to stop at
_LARGEST = 1e100
_SHARP = 1e-9  # m is known to zero within this times the size of I - W: Condition W is on its boundary


@dataclass(frozen=True, eq=False)
class WellPosedness:
    """What is known of the equation z = sigma(W z + b), for every b and every admissible sigma.

    holds: whether a diagonal metric satisfies Condition `W`. If not, `witness` proves that none does; rarely, where
        m is within rounding of zero, neither is found.
    lam: the best metric found, shape (n,).
    monotonicity: m in that metric, positive if and only if it satisfies the condition.
    best_monotonicity: no diagonal metric has a larger m than this.
    witness: a positive semidefinite Y with every entry of diag((I - W) Y) <= 0, or None: for every diagonal Lam > 0
        the trace of (2 Lam - Lam W - W' Lam) Y is then <= 0, which a positive definite matrix forbids. Where units act
        in blocks, on which Lam is constant, the entries are summed over each block.
    monotone: whether Lam = I satisfies it (Winston & Kolter 2020).
    norm: whether the largest absolute row sum of W is below 1 (El Ghaoui et al. 2021).
    perron_frobenius: whether the spectral radius of |W| is below 1 (El Ghaoui et al. 2021). This and `norm` prove
        something only where units act alone.
    """

    holds: bool
    lam: Tensor
    monotonicity: float
    best_monotonicity: float
    witness: Tensor | None
    monotone: bool
    norm: bool
    perron_frobenius: bool

    def __str__(self) -> str:
        if self.holds:
            first = f"Well-posed: a diagonal metric gives I - W a strong monotonicity of {self.monotonicity:.3g}."
        elif self.witness is not None:
            first = (
                "No diagonal metric satisfies Condition W, so nothing is proved of these weights: over all metrics the "
                f"strong monotonicity of I - W is at most {self.best_monotonicity:.3g}, and it must be positive."
            )
        else:
            first = (
                "No diagonal metric was found that satisfies Condition W, nor a proof that there is none: the best "
                f"strong monotonicity of I - W is between {self.monotonicity:.3g} and {self.best_monotonicity:.3g}."
            )
        older = {
            "monotone in the Euclidean metric": self.monotone,
            "largest row sum of |W| below 1": self.norm,
            "spectral radius of |W| below 1": self.perron_frobenius,
        }
        return f"{first} Older tests: {', '.join(f'{name}: {_yes(value)}' for name, value in older.items())}."


@undisturbed
def well_posed(net: Certifiable | Weights | Tensor, *, activation: Activation | None = None) -> WellPosedness:
    """Search all diagonal metrics for one that satisfies Condition `W`; takes W itself, weights or a network.

    `activation` is for W and bare weights; it matters only where units act in blocks, on which a metric is constant.
    """
    if isinstance(net, Tensor):
        W = _square(net)
        sigma = ReLU() if activation is None else check_activation(activation, len(W))
        return search_metric(W, sigma.groups(len(W)))
    subject = Subject.of(net, activation)
    return search_metric(subject.weights.W, subject.groups)


def search_metric(W: Tensor, groups: Tensor | None) -> WellPosedness:
    """The best metric for W in double precision among those that are constant on every block of `groups`."""
    if float(W.abs().max()) > _LARGEST:
        raise InvalidInput(
            f"W has an entry of {float(W.abs().max()):.3g}: beyond {_LARGEST:g} nothing can be computed."
        )
    A = torch.eye(len(W), dtype=W.dtype) - W
    radius = float(torch.linalg.eigvals(W.abs()).abs().max())
    lam, m, best, Y = _search(A, _averaged(_perron(W.abs(), radius), groups), groups)
    holds = m > 0
    return WellPosedness(
        holds=holds,
        lam=lam / lam.max(),
        monotonicity=m,
        best_monotonicity=max(best, m),
        witness=Y / Y.diagonal().max() if best <= 0 else None,
        monotone=_monotonicity(A, torch.ones_like(lam)) > 0,
        norm=float(W.abs().sum(dim=1).max()) < 1,
        perron_frobenius=radius < 1,
    )


def _averaged(lam: Tensor, groups: Tensor | None) -> Tensor:
    """The geometric mean of a metric on every block."""
    if groups is None:
        return lam
    means = lam.new_zeros(int(groups.max()) + 1).scatter_reduce(0, groups, lam.log(), "mean", include_self=False)
    return means.exp()[groups]


def _search(A: Tensor, start: Tensor, groups: Tensor | None) -> tuple[Tensor, float, float, Tensor]:
    """The metric with the largest m, as far as it is needed; an upper bound on m, and the Y that proves the bound.

    The method of centres: for a shift s < m(lam), minimise -log det(Lam (A - s I) + its transpose) + sum(lam / r), r
    the lam it starts from; then m at the new lam allows a larger s. It stops at half of what is possible, or where m
    is known to be at most zero. It begins at I or at `start`, whichever is better.
    """
    identity = torch.eye(len(A), dtype=A.dtype)
    quotients = _traces(A, groups) / _traces(identity, groups)
    lowest = torch.arange(len(A)) if groups is None else groups
    bound, Y = float(quotients.min()), torch.diag((lowest == quotients.argmin()).to(A.dtype))
    m, lam = max(((_monotonicity(A, lam), lam) for lam in (torch.ones_like(start), start)), key=lambda pair: pair[0])
    centre = lam
    size = float(torch.linalg.matrix_norm(_scaled(A, lam), 2))
    shift = m - size
    for _ in range(_STAGES):
        if m >= _ENOUGH * bound or bound <= 0 or bound - m <= _SHARP * size:
            break
        found = _centre(A - shift * identity, centre, groups)
        if found is None:
            break
        centre, G = found
        at_centre, restricted = _ceiling(A, G, groups)
        if at_centre < bound:
            bound, Y = at_centre, restricted
        reached = _monotonicity(A, centre)
        if reached > m:
            m, lam = reached, centre
        shift = reached - _STRETCH * (reached - shift)
    return lam, m, bound, Y


def _ceiling(A: Tensor, G: Tensor, groups: Tensor | None) -> tuple[float, Tensor]:
    """An upper bound on m over all metrics, and the Y >= 0 that proves it, from the inverse G at a centre.

    No metric has m above max (A Y)_ii / Y_ii, i where Y_ii > 0; on blocks, both are summed over each block. Y is G
    restricted to the units, or blocks, with its largest diagonal entries, as many as give the least bound: where G_ii
    is small, the quotient says little.
    """
    products, sizes = _summed(A * G, groups), _traces(G, groups)
    order = sizes.argsort(descending=True)
    sums = torch.cumsum(products[order][:, order], dim=1)  # (A Y)_ii for Y restricted to the first 1, 2, .. units
    quotients = sums / sizes[order][:, None]
    ceilings = quotients.masked_fill(torch.ones_like(sums).tril(-1).bool(), -torch.inf).amax(dim=0)
    chosen = order[: int(ceilings.argmin()) + 1]
    if groups is not None:
        chosen = torch.isin(groups, chosen).nonzero()[:, 0]
    Y = torch.zeros_like(G)
    Y[chosen[:, None], chosen] = G[chosen[:, None], chosen]
    return float(ceilings.min()), Y


def _summed(matrix: Tensor, groups: Tensor | None) -> Tensor:
    """A matrix with its entries summed over pairs of blocks."""
    if groups is None:
        return matrix
    count = int(groups.max()) + 1
    rows = matrix.new_zeros(count, len(matrix)).index_add(0, groups, matrix)
    return matrix.new_zeros(count, count).index_add(1, groups, rows)


def _traces(G: Tensor, groups: Tensor | None) -> Tensor:
    """The diagonal of a matrix, summed over each block."""
    if groups is None:
        return G.diagonal()
    return G.new_zeros(int(groups.max()) + 1).index_add(0, groups, G.diagonal())


def _centre(B: Tensor, lam: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The minimiser of -log det(Lam B + B' Lam) + sum(lam / r), r = lam at the start, and the inverse there.

    None where rounding has taken the start out of the feasible set.
    """
    pull = 1 / lam
    factor, info = torch.linalg.cholesky_ex(_double(lam, B))
    if int(info) != 0:
        return None
    for _ in range(_NEWTON_STEPS):
        G = torch.cholesky_inverse(factor)
        Y = G @ B.T
        hessian = 2 * (G * (B @ Y) + Y * Y.T)
        step, decrement = grouped_direction(pull - 2 * Y.diagonal(), hessian, groups)
        if not decrement > _CENTRED:
            break
        length, found = 1.0, False
        value = -2 * factor.diagonal().log().sum()
        while not found and length > 1e-9:
            moved = lam + length * step
            trial, info = torch.linalg.cholesky_ex(_double(moved, B))
            fall = length * (pull @ step) - 2 * trial.diagonal().log().sum() - value
            found = int(info) == 0 and bool((moved > 0).all()) and float(fall) <= -0.2 * length * decrement
            length *= 0.5
        if not found:
            break
        lam, factor = moved, trial
    return lam, torch.cholesky_inverse(factor)


def _double(lam: Tensor, B: Tensor) -> Tensor:
    half = lam[:, None] * B
    return half + half.T


def _scaled(A: Tensor, lam: Tensor) -> Tensor:
    root = lam.sqrt()
    return root[:, None] * A / root


def _monotonicity(A: Tensor, lam: Tensor) -> float:
    """m, the smallest eigenvalue of the symmetric part of Lam^(1/2) A Lam^(-1/2), less what rounding may have added."""
    scaled = _scaled(A, lam)
    rounding = 16 * len(A) * torch.finfo(A.dtype).eps * float(torch.linalg.matrix_norm(scaled))
    return float(torch.linalg.eigvalsh(scaled + scaled.T)[0]) / 2 - rounding


def _perron(B: Tensor, radius: float) -> Tensor:
    """The metric u / v with u = (I - B')^-1 1 and v = (I - B)^-1 1, where B = |W|, made smaller if it must be.

    It satisfies Condition `W` wherever `radius`, the spectral radius of |W|, is below one, and balances W where not.
    """
    system = torch.eye(len(B), dtype=B.dtype) - B * min(1.0, 0.9 / max(radius, 1e-300))
    ones = torch.ones(len(B), 1, dtype=B.dtype)
    u, v = torch.linalg.solve_ex(system.T, ones).result, torch.linalg.solve_ex(system, ones).result
    lam = (u / v)[:, 0]
    return lam if bool((torch.isfinite(lam) & (lam > 0)).all()) else ones[:, 0]


def _square(W: Tensor) -> Tensor:
    checks.floating("W", W)
    if W.layout != torch.strided:
        raise InvalidInput("W is sparse: make it dense first.")
    if W.dim() != 2 or W.shape[0] != W.shape[1] or W.numel() == 0:
        raise InvalidInput(f"W must be a square matrix, but its shape is {tuple(W.shape)}.")
    return checks.finite("W", W.detach().to("cpu", torch.float64, copy=True))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
