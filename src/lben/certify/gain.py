"""The incremental L2 gain of the neural ODE, from input signals to output signals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain, Judged, place
from lben.certify.condition import root_of
from lben.certify.contraction import best_multiplier, first_multipliers, scaled_metric, single_units, unit_margin
from lben.certify.recurrent import Dissipation, Recurrent, recurrent_of
from lben.certify.rigorous import decide_gain
from lben.certify.subject import Examined
from lben.numerics.angles import largest_eigenvalue, phase
from lben.numerics.barrier import Quadratic, minimise_rho, smallest_rho
from lben.numerics.centres import scaled
from lben.numerics.enclosed import Enclosed, Verdict, balance, definite, stacked
from lben.numerics.riccati import between_solutions
from lben.numerics.rounding import at_most, undisturbed
from lben.weights.dense import Weights
from lben.weights.recurrent import RENWeights

_FIRST = 6  # frequencies between zero and infinity at which the search for T begins
_ROUNDS = 12
_SHARES = (1.0, 0.9, 0.5)  # of the way to a T that is best at some angles and may fail at others
_ENOUGH = 1e-3  # relative distance between the gain at all angles and the best at those used, at which the search ends
_SHARP = 1e-4  # relative accuracy of the largest squared gain over all angles
_PEAKS = 50
_LITTLE = 1e-3
_GAPS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # shares by which the gain is raised, until the check succeeds


@dataclass(frozen=True, eq=False)
class IncrementalGain(Judged):
    """A bound on the L2 norm of y1(.) - y2(.) relative to that of x1(.) - x2(.), from equal initial states.

    `incremental_gain` returns it, and it is true if it is proved.

    Attributes:
        verdict: "holds", or "fails" where none was found.
        gain: the proved bound, in `domain`; None if none was found.
        P: of shape (n, n), what proves it, or None.
        T: of shape (n,), the diagonal of the multiplier, or None.
        margin: the smallest eigenvalue of the matrix that must be positive definite, scaled to a unit diagonal; NaN
            without a P.
        domain: where distances between inputs are measured: "input" or "pixels".
        method: how the verdict was reached.
        rigorous: whether it was reached in ball arithmetic.

    Examples:
        >>> found = lben.incremental_gain(lben.ContractingODE(1, 2, 1, rate=0.5, gain=2.0))
        >>> found.holds, found.gain <= 2.0
        (True, True)
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
            f"Output signals move at most {at_most(self.gain)} times as far as input signals, in L2 and measured at "
            f"{place(self.domain)}: {self.status} (margin {self.margin:.3g}, {self.method})."
        )


@overload
def incremental_gain(  # type: ignore[overload-overlap]  # a RENWeights is a Record, too
    net: Recurrent | RENWeights, *, rigorous: bool = False, activation: Activation | None = None
) -> Dissipation: ...


@overload
def incremental_gain(
    net: Examined, *, rigorous: bool = False, domain: Domain = "input", activation: Activation | None = None
) -> IncrementalGain: ...


@undisturbed
def incremental_gain(
    net: Examined,
    *,
    rigorous: bool = False,
    domain: Domain = "input",
    activation: Activation | None = None,
) -> IncrementalGain | Dissipation:
    """The smallest incremental L2 gain g from x(.) to y(.) that is proved of a network's neural ODE, or none.

    P > 0 and T > 0 diagonal prove it if [[2 P, -(P W + T), -P U], [., 2 T - Wo'Wo, 0], [., ., g^2 I]] >= 0. It is not
    gamma, which bounds the steady state: at theta = 0 the test over angles is Condition `lipschitz`, and the gain is
    the largest over all of them. T is found by the barrier method, at more and more angles; P from a Riccati equation;
    then the inequality is checked from the weights, P and T alone.

    Args:
        net: a dense network or weights, with an activation of single units; or a recurrent network.
        rigorous: whether to check by ball arithmetic, which needs the extra `sdp`.
        domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
            before it. They are the same without one.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        An `IncrementalGain`; of a recurrent network, the smallest gain in l2 that is found, with P and the multiplier,
        as a `Dissipation`.

    Raises:
        InvalidInput: for other weights, activations of blocks, or a feed-through.

    Examples:
        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(2.0))
        >>> lben.incremental_gain(ren).gain <= 2.0
        True
    """
    checks.flag("rigorous", rigorous)
    recurrent = recurrent_of(net, activation)
    if recurrent is not None:
        return recurrent.gain(rigorous)
    subject = single_units(net, activation)
    weights, scale = subject.matrices, subject.scale_of(domain)
    starts = first_multipliers(weights)
    T, rate, _ = best_multiplier(weights, starts)
    if rate > 0:
        into, out = (float(torch.linalg.matrix_norm(part, 2)) or 1.0 for part in (weights.U, weights.Wo))
        unit = replace(weights, U=weights.U / into, Wo=weights.Wo / out)
        T, rho = _minimise(unit, [(rate, T), *starts])
        for gap in _GAPS if rho < math.inf else ():
            found = _prove(weights, T * (out * out), math.sqrt(rho) * into * out, gap, scale, domain, rigorous)
            if found.holds:
                return found
    return _nothing("fails", domain, "angles and the barrier method")


def _nothing(verdict: Verdict, domain: Domain, method: str) -> IncrementalGain:
    return IncrementalGain(verdict, None, None, None, math.nan, domain, method, False)


def _minimise(weights: Weights, starts: list[tuple[float, Tensor]]) -> tuple[Tensor, float]:
    """The T with the least squared gain, found at some angles, and its squared gain over all of them.

    A start proves the rate beside it, so that a multiple of it has room for Wo'Wo at every angle. The set of all
    (T, rho) that satisfy the inequality is convex, so that points between two T are worth a look. The barrier method
    keeps close to where it starts, and begins again where it ended until that changes little.
    """
    if not bool((weights.U != 0).any()) or not bool((weights.Wo != 0).any()):
        return _nearly_nothing(weights, *max(starts, key=lambda pair: pair[0]))
    angles = _first_angles(weights)
    least, best = min(
        ((_squared_gain(weights, lam, angles), lam) for lam in (_with_room(weights, *s) for s in starts if s[0] > 0)),
        key=lambda pair: pair[0],
    )
    for _ in range(_ROUNDS):
        before = least
        problem = _problem(weights, angles)
        lowest = smallest_rho(problem, best)
        if not lowest < math.inf:
            break
        found, rho, _ = minimise_rho(problem, best, 2 * lowest)
        between = [torch.lerp(best, found, share) for share in _SHARES]
        reached, lam = min(((_squared_gain(weights, lam, angles), lam) for lam in between), key=lambda pair: pair[0])
        if reached < least:
            best, least = lam, reached
        if least <= rho * (1 + _ENOUGH) ** 2 and before <= least * (1 + _ENOUGH) ** 2:
            break
    return best[: weights.hidden_features], least


def _nearly_nothing(weights: Weights, rate: float, T: Tensor) -> tuple[Tensor, float]:
    """U or Wo is zero, and so is the gain: T is so large, or so small, that the one that is not does not matter."""
    rho, root = torch.finfo(T.dtype).eps, T.sqrt()
    into, out = (float(torch.linalg.matrix_norm(part, 2)) for part in (root[:, None] * weights.U, weights.Wo / root))
    return T * (_LITTLE * rate * rho / into**2 if into > 0 else out**2 / (_LITTLE * rate) if out > 0 else 1.0), rho


def _with_room(weights: Weights, rate: float, T: Tensor) -> Tensor:
    """The multiple of T with 2 rate T >= 2 Wo'Wo, and ones for the outputs."""
    out = float(torch.linalg.matrix_norm(weights.Wo / T.sqrt(), 2))
    return torch.cat([T * (out * out / rate), T.new_ones(weights.out_features)])


def _first_angles(weights: Weights) -> list[float]:
    """Those of frequencies from zero to infinity; beyond |W| there is little to see."""
    fastest = 1 + 3 * float(torch.linalg.matrix_norm(weights.W, 2))
    between = torch.logspace(-0.5, math.log10(fastest), _FIRST, dtype=torch.float64)
    return [0.0, *(2 * torch.atan(between)).tolist(), math.pi]


def _squared_gain(weights: Weights, lam: Tensor, angles: list[float]) -> float:
    """The smallest rho that T, the first entries of lam, proves over all angles; infinite if there is none.

    Angles at which more is needed than at those known are found by a search over all, and added to them.
    """
    T = lam[: weights.hidden_features]
    excess, worst = _excess(weights, T, math.inf)
    if excess >= 0:
        angles.append(worst)
        return math.inf
    for _ in range(_PEAKS):
        rho = (1 + _SHARP) * smallest_rho(_problem(weights, angles), lam)
        excess, worst = _excess(weights, T, rho)
        if excess < 0 or worst in angles:
            break
        angles.append(worst)
    return rho


def _excess(weights: Weights, T: Tensor, rho: float) -> tuple[float, float]:
    """The largest eigenvalue of -X over all angles, in the coordinates in which T = I, and the angle that has it."""
    root = T.sqrt()
    M, out, into = scaled(weights.W, T), weights.Wo / root, root[:, None] * weights.U
    through = into @ into.T / (2 * rho)
    identity = torch.eye(len(T), dtype=T.dtype)
    _, excess, worst = largest_eigenvalue(out.T @ out - 2 * identity + (M + M.T) / 2 + through, M + through)
    return excess, worst


def _problem(weights: Weights, angles: list[float]) -> Quadratic:
    """One X for each angle: T (I - phi W) + its adjoint - Wo'Wo - |phi|^2 T U U' T/rho, the outputs as more units."""
    n, p = weights.hidden_features, weights.out_features
    phi = phase(torch.tensor(angles, dtype=torch.float64))
    A = torch.zeros(len(angles), n + p, n + p, dtype=phi.dtype)
    A[:, :n, :n] = torch.eye(n, dtype=phi.dtype) - phi * weights.W
    A[:, n:, :n] = weights.Wo.to(phi.dtype)
    A[:, n:, n:] = torch.eye(p, dtype=phi.dtype) / 2
    K = torch.zeros_like(A)
    K[:, :n, :n] = phi.abs() ** 2 * (weights.U @ weights.U.T)
    return Quadratic(A, K, len(angles) * min(weights.U.shape), n)


def _prove(
    weights: Weights, T: Tensor, gain: float, gap: float, scale: float, domain: Domain, rigorous: bool
) -> IncrementalGain:
    """The certificate for a gain above what T allows by the share `gap`; a larger T then has room at every angle."""
    T = T * (1 + gap / 4)
    in_domain = gain * (1 + gap) / scale
    proved = in_domain * scale
    root = T.sqrt()
    M, out, side = scaled(weights.W, T), weights.Wo / root, root[:, None] * weights.U / proved
    identity = torch.eye(len(T), dtype=T.dtype)
    through = torch.linalg.solve_ex(2 * identity - out.T @ out, torch.cat([identity, M.T], dim=1)).result
    R, RM = through[:, : len(T)], through[:, len(T) :]
    P = between_solutions(M @ R - identity, M @ RM + side @ side.T, R) * torch.outer(root, root)
    if not bool(torch.isfinite(P).all()):
        return _nothing("undecided", domain, "no solution of the Riccati equation")
    X, exponents = _inequality(weights, P, T, in_domain, scale)
    if not X.finite():
        return _nothing("undecided", domain, "the matrix of the inequality overflows")
    margin = unit_margin(X.mid)
    if rigorous:
        verdict = decide_gain(weights, P, T, in_domain, scale, X, exponents)
        return IncrementalGain(verdict, in_domain, P, T, margin, domain, "ball arithmetic", True)
    return IncrementalGain(definite(X), in_domain, P, T, margin, domain, "Cholesky in double precision", False)


def _inequality(weights: Weights, P: Tensor, T: Tensor, gain: float, scale: float) -> tuple[Enclosed, Tensor]:
    """[[2 P - P U U' P/g^2, -(P W + T)], [., 2 T - Wo'Wo]] with g = gain times scale, and how its rows are scaled."""
    k = balance(T)
    metric, D, W = scaled_metric(P, T, weights.W, k)
    g, e = root_of(gain, scale)
    into = metric @ (Enclosed.exact(weights.U).shifted((-k - 2 * e)[:, None]) * g.inverse())
    out = Enclosed.exact(weights.Wo).shifted(k.expand_as(weights.Wo))
    side = -(metric @ W + D)
    X = stacked([[metric + metric - into @ into.T, side], [side.T, D + D - out.T @ out]])
    return X, torch.cat([k, k])
