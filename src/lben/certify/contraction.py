"""Whether the neural ODE of a network contracts, how fast, and in which metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import overload

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Judged
from lben.certify.condition import highest_monotonicity
from lben.certify.dense import diagonal
from lben.certify.kinds import subject_of
from lben.certify.recurrent import Dissipation, Recurrent, recurrent_of
from lben.certify.rigorous import decide_contraction
from lben.certify.subject import Examined, Subject
from lben.certify.wellposed import square
from lben.errors import InvalidInput
from lben.numerics.angles import largest_eigenvalue, largest_kappa, phase
from lben.numerics.centres import Effort, scaled, search_metric
from lben.numerics.enclosed import EPS, Enclosed, Verdict, balance, definite, stacked
from lben.numerics.riccati import between_solutions
from lben.numerics.rounding import at_least, at_most, undisturbed
from lben.weights.dense import Weights
from lben.weights.recurrent import RENWeights

_ANGLES = (0.0, 0.35 * math.pi, 0.7 * math.pi)  # at which the search for T begins
_NORMS = (1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9)  # of W in multipliers that need no search
_ROUNDS = 8
_GAP = 1e-3  # distance from the best rate that any T proves at which the search ends
_EFFORT = Effort(share=1.0, gap=_GAP / 2, stages=60)
_GAPS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # shares of 1 - rate or rate that are given up, until the check succeeds


@dataclass(frozen=True, eq=False)
class Contraction(Judged):
    """Whether, and how fast, trajectories of the neural ODE under the same input approach each other.

    `contraction` returns it. It is true if it is proved: ``|v1(t) - v2(t)|_P`` falls at least as fast as e^(-rate t),
    for every input signal and every activation with slopes in [0, 1].

    Attributes:
        verdict: "holds", or "fails" where no metric was found.
        rate: the proved rate, below 1; None if no metric was found.
        best_rate: no diagonal T, and so no P, proves more by this inequality; not positive where it can prove nothing.
        P: the metric, of shape (n, n), or None.
        T: the diagonal of the multiplier, or the best one found, of shape (n,).
        margin: the smallest eigenvalue of [[2 (1 - rate) P, -(P W + T)], [., 2 T]], scaled to a unit diagonal, as
            computed; NaN without a P. (Without the scaling, rounding disturbs it far more: P and T may spread over many
            decades.)
        method: how the verdict was reached.
        rigorous: whether it was reached in ball arithmetic.

    Examples:
        >>> found = lben.contraction(lben.ContractingODE(1, 2, 1, rate=0.5))
        >>> found.holds, 0.5 <= found.rate <= found.best_rate
        (True, True)
    """

    verdict: Verdict
    rate: float | None
    best_rate: float
    P: Tensor | None
    T: Tensor
    margin: float
    method: str
    rigorous: bool

    def __str__(self) -> str:
        if self.rate is None:
            more = "and none exists" if self.best_rate <= 0 else "nor a proof that there is none"
            return f"No metric was found in which the ODE contracts, {more}: nothing is proved of it."
        return (
            f"Trajectories under the same input approach each other at the rate {at_least(self.rate)}: {self.status} "
            f"(margin {self.margin:.3g}, {self.method}; no multiplier proves more than {at_most(self.best_rate)})."
        )


@dataclass(frozen=True)
class FrequencyTest:
    """The outcome of Condition `freq_cond` of Lemma `iqc`: `frequency_test` returns it, and it is true if it holds.

    Attributes:
        margin: the smallest eigenvalue, over all frequencies, of ``2 I - M/(1 + i omega) - M'/(1 - i omega)``, with
            ``M = Lam^(1/2) W Lam^(-1/2)``, rounded down; the ODE contracts at every rate below half of it, if that is
            positive.
        frequency: the omega at which it is attained; infinity is one of them.

    Examples:
        >>> found = lben.frequency_test(torch.tensor([[0.5]]))
        >>> bool(found), round(found.margin, 3), found.frequency
        (True, 1.0, 0.0)
    """

    margin: float
    frequency: float

    @property
    def holds(self) -> bool:
        return self.margin > 0

    def __bool__(self) -> bool:
        return self.holds


@overload
def contraction(  # type: ignore[overload-overlap]  # a RENWeights is a Record, too
    net: Recurrent | RENWeights, *, rigorous: bool = False, activation: Activation | None = None
) -> Dissipation: ...


@overload
def contraction(net: Examined, *, rigorous: bool = False, activation: Activation | None = None) -> Contraction: ...


@undisturbed
def contraction(
    net: Examined, *, rigorous: bool = False, activation: Activation | None = None
) -> Contraction | Dissipation:
    """The best rate of contraction that is proved of a network's neural ODE, with the metric that proves it.

    For P > 0 and T > 0 diagonal, [[2 (1 - rate) P, -(P W + T)], [., 2 T]] >= 0 proves the rate. Such a P exists for T
    if and only if 1 - rate is at least the largest eigenvalue, over theta, of Herm((1 + e^(-i theta)) M/2), with
    ``M = T^(1/2) W T^(-1/2)``. T is found by the method of centres, at more and more angles, from the metric of the
    weights; P from a Riccati equation; then the inequality is checked from W, P and T alone. Proposition `contraction`
    claims this for every W of Condition `W`; that is false, and "no metric" is an answer.

    Args:
        net: a dense network or weights, with an activation of single units; or a recurrent network.
        rigorous: whether to check by ball arithmetic, which needs the extra `sdp`.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `Contraction`; of a recurrent network, the smallest factor a step, with P and the multiplier, as a
        `Dissipation`.

    Raises:
        InvalidInput: for other weights, activations of blocks, or a feed-through.

    Examples:
        >>> found = lben.contraction(lben.MON(1, 2, 1))
        >>> bool(found), found.rate > 0
        (True, True)
        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Contracting(0.9))
        >>> lben.contraction(ren).rate <= 0.9
        True
    """
    checks.flag("rigorous", rigorous)
    recurrent = recurrent_of(net, activation)
    if recurrent is not None:
        return recurrent.contraction(rigorous)
    weights = single_units(net, activation).matrices
    T, rate, best = best_multiplier(weights, first_multipliers(weights))
    if rate > 0:
        for gap, share in product(_GAPS, (1 - rate, rate)):
            found = _prove(weights, T, rate, gap * min(share, rate), best, rigorous)
            if found.holds:
                return found
    return Contraction("fails", None, best, None, T, math.nan, "angles and the method of centres", False)


def single_units(net: Examined, activation: Activation | None) -> Subject:
    """What is examined, if it is dense and its activation acts on single units: T is free in every entry only then."""
    subject = subject_of(net, activation)
    if subject.activation.groups(len(subject.matrices.W)) is not None:
        sigma = subject.activation
        raise InvalidInput(f"This needs an activation of single units, and {sigma!r} acts on several at once.")
    if subject.matrices.D is not None:
        raise InvalidInput("These weights have a feed-through D, which the output of the neural ODE has not.")
    return subject


def best_multiplier(weights: Weights, starts: list[tuple[float, Tensor]]) -> tuple[Tensor, float, float]:
    """The diagonal T with the largest rate, that rate, and a bound on what any T reaches, from `first_multipliers`.

    Angles at which the best T for those so far is worst are added until both agree.
    """
    W, best = weights.W, 1.0
    identity = torch.eye(len(W), dtype=W.dtype)
    angles = list(_ANGLES)
    rate, T = max(starts, key=lambda pair: pair[0])
    start = T
    for _ in range(_ROUNDS):
        family = identity - phase(torch.tensor(angles, dtype=W.dtype)) * W
        start, _, _, Y = search_metric(family, start, _EFFORT)
        best = min(best, _highest_rate(W, angles, Y))
        M = scaled(W, start)
        kappa, _, worst = largest_eigenvalue((M + M.T) / 4, M / 2)
        if 1 - kappa > rate:
            T, rate = start, min(1 - kappa, 1.0)
        if best - rate <= _GAP or best <= 0 or min(abs(worst - angle) for angle in angles) < 1e-6:
            break
        angles.append(worst)
    return T / T.max(), rate, max(best, rate)


def _highest_rate(W: Tensor, angles: list[float], Y: Tensor) -> float:
    """A bound on the rate that any T proves, from the Y >= 0 of `search_metric`: real and imaginary parts apart."""
    turns = phase(torch.tensor(angles, dtype=W.dtype))[:, 0, 0]
    identity, weights = Enclosed.exact(torch.eye(len(W), dtype=W.dtype)), Enclosed.exact(W)
    family = []
    for turn in turns:
        re, im = (Enclosed(part, torch.full_like(part, 8 * EPS)) for part in (turn.real, turn.imag))
        real, imaginary = identity - weights * re, -(weights * im)
        family.append(stacked([[real, -imaginary], [imaginary, real]]))
    witnesses = [torch.cat([torch.cat([y.real, -y.imag], 1), torch.cat([y.imag, y.real], 1)]) for y in Y]
    return highest_monotonicity(family, witnesses, torch.arange(len(W)).repeat(2))


def first_multipliers(weights: Weights) -> list[tuple[float, Tensor]]:
    """Multipliers to begin with, each after the rate it proves: the metric of the weights, and some by formula.

    Where r is above the spectral radius of |W|, u = (r - |W|)^-1 1 and w = (r - |W|')^-1 1 are positive, and T = w/u
    makes |T^(1/2) W T^(-1/2)| <= r (Schur's test), so that the rate is at least 1 - r. Feed-forward networks have a
    radius of zero, and need a T that spreads over many decades, which a search from ones does not find.
    """
    size, ones = weights.W.abs(), torch.ones_like(weights.bz)
    multipliers = [weights.metric()]
    for r in _NORMS:
        system = r * torch.diag(ones) - size
        u, w = (torch.linalg.solve_ex(part, ones).result for part in (system, system.T))
        T = w / u
        if bool(((u > 0) & (w > 0) & (T > 0) & T.isfinite()).all()):
            multipliers.append(T)
    return [(min(1 - largest_kappa(scaled(weights.W, T)), 1.0), T) for T in multipliers]


def _prove(weights: Weights, T: Tensor, rate: float, given_up: float, best: float, rigorous: bool) -> Contraction:
    """The certificate for a rate below what T allows by `given_up`."""
    proved = rate - given_up
    kappa = 1 - proved
    M, root = scaled(weights.W, T), T.sqrt()
    identity = torch.eye(len(M), dtype=M.dtype)
    P = between_solutions(M - 2 * kappa * identity, M @ M.T, identity) * torch.outer(root, root)
    if not bool(torch.isfinite(P).all()):
        return Contraction("undecided", None, best, None, T, math.nan, "no solution of the Riccati equation", False)
    k = balance(T)
    metric, D, W = scaled_metric(P, T, weights.W, k)
    least = Enclosed.exact(torch.tensor(1.0, dtype=T.dtype)) - Enclosed.exact(torch.tensor(proved, dtype=T.dtype))
    first = metric * least
    X = stacked([[first + first, -(metric @ W + D)], [-(metric @ W + D).T, D + D]])
    margin = unit_margin(X.mid)
    if rigorous:
        verdict = decide_contraction(weights, P, T, proved, X, torch.cat([k, k]))
        return Contraction(verdict, proved, best, P, T, margin, "ball arithmetic", True)
    return Contraction(definite(X), proved, best, P, T, margin, "Cholesky in double precision", False)


def scaled_metric(P: Tensor, T: Tensor, W: Tensor, k: Tensor) -> tuple[Enclosed, Enclosed, Enclosed]:
    """P, T and W in units of the states that are powers of two: 2^k P 2^k, 2^k T 2^k as a matrix, 2^-k W 2^k."""
    both = k[:, None] + k
    metric, D = Enclosed.exact(P).shifted(both), Enclosed.exact(torch.diag(T)).shifted(both)
    return metric, D, Enclosed.exact(W).shifted(k - k[:, None])


@undisturbed
def frequency_test(net: Examined | Tensor, *, lam: Tensor | None = None) -> FrequencyTest:
    """The test of Theorem `iqc` at every frequency, for the ODE of a W or of a network.

    ``[G; I]* [[0, Lam], [Lam, -2 Lam]] [G; I] < 0`` with G = W/(1 + i omega). Lemma `iqc` claims this for every Lam of
    Condition `W`; that is false in general, and true where Lam W is symmetric.

    Args:
        net: W itself, of shape (n, n); or a dense network or weights, with an activation of single units.
        lam: the diagonal of Lam, of shape (n,); else the metric the weights carry; else ones, which is the theorem's
            own multiplier for the sector [0, 1].

    Returns:
        A `FrequencyTest`.

    Raises:
        InvalidInput: if W or lam does not fit.

    Examples:
        A W that is well-posed, and fails the test: the lemma does not hold in general.

        >>> W = torch.tensor([[0.0, 6.0], [-6.0, 0.0]])
        >>> bool(lben.well_posed(W)), bool(lben.frequency_test(W))
        (True, False)
    """
    if isinstance(net, Tensor):
        W = square(net)
        metric = torch.ones(len(W), dtype=W.dtype)
    else:
        weights = single_units(net, None).matrices
        W, metric = weights.W, weights.metric()
    if lam is not None:
        metric = diagonal(lam, len(W), torch.zeros(len(W), dtype=torch.bool))
    M = scaled(W, metric)
    bound, _, theta = largest_eigenvalue((M + M.T) / 4, M / 2)
    return FrequencyTest(2 - 2 * bound, math.tan(theta / 2) if theta < math.pi else math.inf)


def unit_margin(matrix: Tensor) -> float:
    """The smallest eigenvalue of a matrix scaled to a unit diagonal; NaN where it overflows."""
    scale = matrix.diagonal().abs().rsqrt()
    scaled_matrix = scale[:, None] * matrix * scale
    if not bool(torch.isfinite(scaled_matrix).all()):
        return math.nan
    return float(torch.linalg.eigvalsh(scaled_matrix)[0])
