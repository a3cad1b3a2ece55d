"""The incremental L2 gain of the neural ODE, from input signals to output signals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from lben.activations import Activation
from lben.certify.angles import phase
from lben.certify.barrier import Quadratic, minimise_rho
from lben.certify.certificate import Certifiable, Domain, Judged, Verdict, judge, place
from lben.certify.contraction import best_multiplier, blocks, single_units
from lben.certify.numerics import undisturbed
from lben.certify.riccati import solve_riccati
from lben.certify.sdp import feasible_start, smallest_rho
from lben.weights import Weights

_FIRST = tuple(k * math.pi / 8 for k in range(8))  # angles at which the search for T begins
_FINE = 64  # angles among which the worst for a T is looked for
_ROUNDS = 6
_SHARES = (1.0, 0.9, 0.5)  # of the way to a T that is best at some angles and may fail at others
_ENOUGH = 1e-3  # relative distance between the gain at all angles and the best at those used, at which the search ends
_GAPS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # shares by which the gain is raised, until the check succeeds
_ROOMS = (1e-1, 1e-3, 1e-5)  # shares of it left in the Riccati equation, or its Schur complement would be singular


@dataclass(frozen=True, eq=False)
class IncrementalGain(Judged):
    """A bound on the L2 norm of y1(.) - y2(.) relative to that of x1(.) - x2(.), from equal initial states.

    gain: the proved bound, in `domain`; None if none was found. P, T: shapes (n, n) and (n,), what proves it, or None.
    margin: the smallest eigenvalue of the matrix that must be positive definite, as computed; NaN without a P. The
        verdict is about the same matrix scaled to a unit diagonal.
    rigorous: whether the verdict accounts for every rounding error.
    """

    verdict: Verdict
    gain: float | None
    P: Tensor | None
    T: Tensor | None
    margin: float
    domain: Domain
    method: str
    rigorous: bool

    def __str__(self) -> str:
        if self.gain is None:
            return "No gain was found: this inequality proves none, or the search for one failed."
        return (
            f"Output signals move at most {self.gain:.6g} times as far as input signals, in L2 and measured at "
            f"{place(self.domain)}: {self.status} (margin {self.margin:.3g}, {self.method})."
        )


@undisturbed
def incremental_gain(
    net: Certifiable | Weights,
    *,
    rigorous: bool = False,
    domain: Domain = "input",
    activation: Activation | None = None,
) -> IncrementalGain:
    """The smallest incremental L2 gain g from x(.) to y(.) that is proved of a network's neural ODE, or none.

    P > 0 and T > 0 diagonal prove it if [[2 P, -(P W + T), -P U], [., 2 T - Wo'Wo, 0], [., ., g^2 I]] >= 0. It is not
    gamma, which bounds the steady state: at theta = 0 the test over angles is Condition `lipschitz`, and the gain is
    the largest over all of them. T is found by the barrier method, at more and more angles; P from a Riccati equation;
    then the inequality is checked from the weights, P and T alone.
    """
    subject = single_units(net, activation)
    weights, scale = subject.weights, subject.scale_of(domain)
    start, rate, _ = best_multiplier(weights)
    if rate > 0:
        T, rho = _minimise(weights, start)
        for gap, room in product(_GAPS, _ROOMS):
            found = _prove(weights, T, math.sqrt(rho), gap, room, scale, domain, rigorous)
            if found.holds:
                return found
    return _nothing("fails", domain, "angles and the barrier method")


def _nothing(verdict: Verdict, domain: Domain, method: str) -> IncrementalGain:
    return IncrementalGain(verdict, None, None, None, math.nan, domain, method, False)


def _minimise(weights: Weights, start: Tensor) -> tuple[Tensor, float]:
    """The T with the least squared gain, found at some angles, and its squared gain over all of them.

    The set of all (T, rho) that satisfy the inequality is convex, so that points between two T are worth a look.
    """
    fine = torch.linspace(0, math.pi, _FINE + 1, dtype=torch.float64)[:-1]
    everywhere = _problem(weights, fine)
    safe = feasible_start(everywhere, start)
    tiny = torch.finfo(start.dtype).eps
    if float(safe[0]) == 0 or float(everywhere.K.abs().max()) == 0:  # Wo or U is zero, and so is the gain
        return start * (tiny if float(safe[0]) == 0 else 1 / tiny), tiny
    best, least = safe, float(_each(everywhere, safe).max())
    angles = list(_FIRST)
    for _ in range(_ROUNDS):
        problem = _problem(weights, torch.tensor(angles, dtype=torch.float64))
        found, rho, _ = minimise_rho(problem, best, 2 * smallest_rho(problem, best))
        reached = [(lam, _each(everywhere, lam)) for lam in (torch.lerp(best, found, share) for share in _SHARES)]
        lam, each = min(reached, key=lambda pair: float(pair[1].max()))
        if float(each.max()) < least:
            best, least = lam, float(each.max())
        worst = float(fine[int(reached[0][1].argmax())])
        if least <= rho * (1 + _ENOUGH) ** 2 or worst in angles:
            break
        angles.append(worst)
    return best[: weights.hidden_features], least


def _problem(weights: Weights, angles: Tensor) -> Quadratic:
    """One X for each angle: T (I - phi W) + its adjoint - Wo'Wo - |phi|^2 T U U' T/rho, the outputs as more units."""
    n, p = weights.hidden_features, weights.out_features
    phi = phase(angles)
    A = torch.zeros(len(angles), n + p, n + p, dtype=phi.dtype)
    A[:, :n, :n] = torch.eye(n, dtype=phi.dtype) - phi * weights.W
    A[:, n:, :n] = weights.Wo.to(phi.dtype)
    A[:, n:, n:] = torch.eye(p, dtype=phi.dtype) / 2
    K = torch.zeros_like(A)
    K[:, :n, :n] = phi.abs() ** 2 * (weights.U @ weights.U.T)
    return Quadratic(A, K, len(angles) * min(weights.U.shape), n)


def _each(problem: Quadratic, lam: Tensor) -> Tensor:
    """The smallest rho of each angle."""
    single = [Quadratic(A, K, problem.rank, problem.free) for A, K in zip(problem.A, problem.K, strict=True)]
    return torch.tensor([smallest_rho(one, lam) for one in single], dtype=torch.float64)


def _prove(
    weights: Weights, T: Tensor, gain: float, gap: float, room: float, scale: float, domain: Domain, rigorous: bool
) -> IncrementalGain:
    """The certificate for a gain above what T allows by the share `gap`; a larger T then has room at every angle."""
    T = T * (1 + gap / 4)
    in_domain = gain * (1 + gap) / scale
    proved, searched = in_domain * scale, gain * (1 + gap / 2)
    W, U, Wo, D = weights.W, weights.U, weights.Wo, torch.diag(T)
    corner = 2 * D - Wo.T @ Wo
    through = torch.linalg.solve_ex(corner, torch.cat([D, W.T], dim=1)).result
    TRT, WRT, WRW = D @ through[:, : len(T)], W @ through[:, : len(T)], W @ through[:, len(T) :]
    identity = torch.eye(len(T), dtype=T.dtype)
    P = solve_riccati(WRT - identity, WRW + U @ U.T / searched**2, (1 + room * gap) * TRT)
    if not bool(torch.isfinite(P).all()):
        return _nothing("undecided", domain, "no solution of the Riccati equation")
    into = P @ U / proved
    matrix = blocks(2 * P - into @ into.T, -(P @ W + D), corner)
    values, vectors = torch.linalg.eigh(matrix)
    margin = float(values[0])
    if rigorous:
        from lben.certify.rigorous import decide_gain

        verdict = decide_gain(weights, P, T, in_domain, scale, matrix, vectors)
        return IncrementalGain(verdict, in_domain, P, T, margin, domain, "ball arithmetic", True)
    into = P.abs() @ U.abs() / proved
    first = 2 * P.abs() + into @ into.T
    terms = blocks(first, P.abs() @ W.abs() + D, 2 * D + Wo.abs().T @ Wo.abs())
    verdict = judge(matrix, terms, products=len(terms) + U.shape[1] + len(Wo))
    return IncrementalGain(verdict, in_domain, P, T, margin, domain, "eigenvalues in double precision", False)
