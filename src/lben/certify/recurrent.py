"""What is proved of the signals of a recurrent network: contraction, gain, and dissipation of any supply.

P and the multiplier are those that the weights carry, or are found by the barrier method of `numerics/storage.py`; what
they prove is checked again from the weights alone (`inequality.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, check_activation, refuse_blocks
from lben.activations.scalar import ReLU
from lben.certify.certificate import Judged
from lben.certify.inequality import Claim, enclosed, refuted
from lben.certify.rigorous import decide_inequality
from lben.certify.subject import Certifiable
from lben.certify.wellposed import best_metric
from lben.errors import InvalidInput
from lben.numerics.enclosed import Verdict, definite
from lben.numerics.rounding import at_most
from lben.numerics.storage import Storage, best_rho, best_tau
from lben.weights.recurrent import RENWeights, Supply

_MOST_STATES = 80  # for which the Hessian in P, of the square of n (n + 1)/2 entries, is made
_GAP = 1e-4  # relative, of a rate or of a gain, at which a search ends
_GAPS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # shares that are given up, until the check succeeds
_SEARCHED = "found by the barrier method"


class Recurrent(Certifiable, Protocol):
    """A network of recurrent weights."""

    @property
    def activation(self) -> Activation: ...

    def weights(self) -> RENWeights: ...


@dataclass(frozen=True, eq=False)
class Dissipation(Judged):
    """A verdict on ``V(x+) - rate^2 V(x) <= s(du, dy)`` along any two trajectories of a recurrent network, V = dx'P dx.

    `certify`, `contraction`, `incremental_gain` and `dissipation` return it for a `REN`; it is true if it holds.

    Attributes:
        verdict: "holds"; "fails", where it is proved that these P and lam do not prove it, or that none do; or
            "undecided".
        rate: the factor by which distances shrink at least, in the norm of P and under equal inputs; None if none is
            known.
        gain: output signals move at most so many times as far as input signals, in l2 and from equal states; None where
            that is not the claim.
        supply: Q, S and R of s; None where inputs are equal, or s is that of the gain.
        P: of shape (n, n), what proves it, or the best that was found; None where nothing was.
        lam: of shape (q,), the same for the hidden units.
        margin: the smallest eigenvalue of the matrix that must be positive definite, scaled to a unit diagonal.
        method: how the verdict was reached.
        rigorous: whether it was reached in ball arithmetic.

    Examples:
        >>> found = lben.certify(lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(2.0)))
        >>> found.verdict, round(found.gain, 6), found.P.shape
        ('holds', 2.0, torch.Size([2, 2]))
    """

    verdict: Verdict
    rate: float | None
    gain: float | None
    supply: Supply | None
    P: Tensor | None
    lam: Tensor | None
    margin: float
    method: str
    rigorous: bool

    def __str__(self) -> str:
        if self.gain is not None:
            claim = f"Output signals move at most {at_most(self.gain)} times as far as input signals, in l2"
        elif self.supply is not None:
            claim = f"Any two trajectories keep V(x+) - {_factor(self.rate)}V(x) <= s(du, dy) for this supply"
        elif self.rate is not None:
            claim = f"Under equal inputs states are at most {at_most(self.rate)} times as far apart a step later, in P"
        else:
            claim = "Under equal inputs states approach each other"
        status = {"holds": self.status, "fails": "not so by any P and lam", "undecided": "neither proved nor refuted"}
        if self.verdict == "fails" and self.P is not None:
            status["fails"] = "not proved by these P and lam"
        return f"{claim}: {status[self.verdict]} (margin {self.margin:.3g}, {self.method})."


def _factor(rate: float | None) -> str:
    return "" if rate is None or rate == 1 else f"{rate:g}^2 "


@dataclass(frozen=True, eq=False)
class RecurrentSubject:
    """Recurrent weights under examination, in double precision on the CPU."""

    weights: RENWeights
    activation: Activation

    # --- verbs

    def claimed(self, gamma: float | None, rigorous: bool) -> Dissipation:
        """The certificate of what the weights claim, or of a gain: with their own P and lam, else with some found.

        Where nothing is claimed, whether states approach each other at all.
        """
        w = self.weights
        gain = w.gamma if gamma is None else gamma
        rate = 1.0 if w.rate is None else w.rate
        claim: Claim = gain if gain is not None else w.supply
        first = None
        if w.P is not None and w.lam is not None:
            scale = self._scale(gain)
            first = self.check(scale * w.P, scale * w.lam, rate, claim, "its own P and lam", rigorous)
            if first.holds:
                return first
        found = self.search(rate, claim, rigorous)
        return found if first is None or found.holds else replace(first, verdict=_weaker(first, found))

    def _scale(self, gain: float | None) -> float:
        """Of the weights' own P and lam, for gain^2 |du|^2 - |dy|^2, where their own supply has c |dy|^2."""
        supply = self.weights.supply
        if gain is None:
            return 1.0
        return gain if supply is None or self.weights.gamma is None else -1 / float(supply.Q[0, 0])

    def contraction(self, rigorous: bool) -> Dissipation:
        """The smallest rate that is found, with P and lam."""
        start = self._start()
        if start is None:
            return self._nothing(1.0, None, rigorous)
        P, lam, rho = best_rho(self._storage(None, 1.0), *start, _GAP)
        if abs(rho - 1) < 10 * _GAP:  # whether it contracts at all hangs on more digits
            P, lam, rho = best_rho(self._storage(None, 1.0), P, lam, _GAP**2)
        for gap in _GAPS:
            rate = math.sqrt(max(rho, 0.0)) * (1 + gap) + 1e-12
            if not rate <= 1:
                break
            found = self.check(P, lam, rate, None, _SEARCHED, rigorous)
            if found.holds:
                return found
        return self._nothing(1.0, None, rigorous)

    def gain(self, rigorous: bool) -> Dissipation:
        """The smallest gain that is found, with P and lam."""
        found = self._feasible(1.0, 1.0)
        if found is not None:
            P, lam, tau = best_tau(*found, _GAP, -math.inf)
            for gap in _GAPS:
                gain = math.sqrt(max(tau, 1e-30)) * (1 + gap) + 1e-15
                proved = self.check(P * (1 + gap / 4), lam * (1 + gap / 4), 1.0, gain, _SEARCHED, rigorous)
                if proved.holds:
                    return proved
        contracts = found is not None or not refuted(self.weights, 1.0, None)
        return replace(self._nothing(1.0, None, rigorous), verdict="undecided" if contracts else "fails")

    def search(self, rate: float, claim: Claim, rigorous: bool) -> Dissipation:
        """The certificate of a claim, with P and lam that are looked for."""
        if claim is None:
            start = self._start()
            if start is not None:
                P, lam, rho = best_rho(self._storage(None, 1.0), *start, _GAP, 0.999 * rate**2)
                if rho < rate**2:
                    return self._or_refuted(self.check(P, lam, rate, None, _SEARCHED, rigorous))
            return self._nothing(rate, None, rigorous)
        found = self._feasible(rate, claim)
        if found is not None:
            enough = claim**2 if isinstance(claim, float) else 0.0
            P, lam, tau = best_tau(*found, _GAP, enough - 0.01 * max(enough, 1e-2))
            if tau < enough:
                return self._or_refuted(self.check(P, lam, rate, claim, _SEARCHED, rigorous))
        return self._nothing(rate, claim, rigorous)

    def check(self, P: Tensor, lam: Tensor, rate: float, claim: Claim, method: str, rigorous: bool) -> Dissipation:
        """The inequality for these P and lam, from the weights alone."""
        P = (P + P.T) / 2
        X, M = enclosed(self.weights, P, lam, rate, claim)
        gain, supply = (claim, None) if isinstance(claim, float) else (None, claim)
        how = "ball arithmetic" if rigorous else "Cholesky in double precision"
        if rigorous:
            verdict = decide_inequality(self.weights, P, lam, rate, claim, (X, M))
        else:
            verdict = definite(X)
            if verdict == "holds" and M is not None:
                verdict = definite(M)
        return Dissipation(verdict, rate, gain, supply, P, lam, _margin(X.mid), f"{method}, {how}", rigorous)

    # --- searches

    def _or_refuted(self, found: Dissipation) -> Dissipation:
        """What a search found may fail by rounding: then nothing is known."""
        return found if found.holds else replace(found, verdict="undecided")

    def _nothing(self, rate: float, claim: Claim, rigorous: bool) -> Dissipation:
        verdict: Verdict = "fails" if refuted(self.weights, rate, claim) else "undecided"
        gain, supply = (claim, None) if isinstance(claim, float) else (None, claim)
        method = "constant slopes" if verdict == "fails" else "no P and lam were found by the barrier method"
        kept = None if claim is None else rate
        return Dissipation(verdict, kept, gain, supply, None, None, math.nan, method, rigorous)

    def _start(self) -> tuple[Tensor, Tensor] | None:
        """A P and a lam that prove some rate, maybe above one: those that are carried, or P of the linear part."""
        w = self.weights
        if w.state_features > _MOST_STATES:
            raise InvalidInput(
                f"P is looked for with at most {_MOST_STATES} states, not {w.state_features}: give weights with one."
            )
        if w.P is not None and w.lam is not None:
            P = (w.P + w.P.T) / 2
            if self._storage(None, 1.0).least_rho(P, w.lam) < math.inf:
                return P, w.lam
        posed = best_metric(w.D11, None)
        if not posed.holds:
            return None
        P = _linear_metric(w.A)
        half = torch.diag(posed.lam) - posed.lam[:, None] * w.D11
        factor = torch.linalg.cholesky(half + half.T)
        reach = torch.linalg.solve_triangular(factor, w.B1.T @ torch.linalg.cholesky(P), upper=False)
        largest = float(torch.linalg.matrix_norm(reach, 2)) ** 2 if reach.numel() else 0.0
        return P * (0.5 / largest if largest > 0 else 1.0), posed.lam

    def _storage(self, claim: Claim, rate: float) -> Storage:
        """The inequality without inputs, or with the supply of a claim; a gain is that of tau |du|^2 - |dy|^2."""
        w = self.weights
        n, q = w.state_features, w.hidden_features
        eye = torch.eye(q, dtype=w.A.dtype)
        if claim is None:
            K, rows = torch.cat([w.A, w.B1], dim=1), torch.cat([-w.C1, eye - w.D11], dim=1)
            return Storage(rate**2, K, rows, K.new_zeros(n + q, n + q))
        d = w.in_features
        K, rows = torch.cat([w.A, w.B1, w.B2], dim=1), torch.cat([-w.C1, eye - w.D11, -w.D12], dim=1)
        out = torch.cat([w.C2, w.D21, w.feedthrough()], dim=1)
        into = torch.cat([K.new_zeros(d, n + q), torch.eye(d, dtype=K.dtype)], dim=1)
        if isinstance(claim, float):
            return Storage(rate**2, K, rows, -out.T @ out)
        cross = into.T @ claim.S @ out
        return Storage(rate**2, K, rows, out.T @ claim.Q @ out + cross + cross.T + into.T @ claim.R @ into)

    def _feasible(self, rate: float, claim: Claim) -> tuple[Storage, Tensor, Tensor] | None:
        """The inequality of a claim with a P and a lam for which some tau satisfies it; None if none is found.

        They prove the rate without inputs, and a multiple of them has room for the outputs.
        """
        start = self._start()
        if start is None:
            return None
        P, lam, rho = best_rho(self._storage(None, 1.0), *start, _GAP, 0.9 * rate**2)
        if not rho < rate**2:
            return None
        storage = self._storage(claim, rate)
        n, q, _ = storage.sizes
        bare = self._storage(None, rate).matrix(P, lam, 0.0)
        factor, info = torch.linalg.cholesky_ex(bare)
        if int(info):
            return None
        inner = torch.linalg.solve_triangular(factor, -storage.C[: n + q, : n + q], upper=False)
        inner = torch.linalg.solve_triangular(factor, inner.T, upper=False)
        alike = float(torch.linalg.matrix_norm(storage.C) / torch.linalg.matrix_norm(bare))
        scale = max(2 * float(torch.linalg.eigvalsh((inner + inner.T) / 2)[-1]), alike)
        return storage, scale * P, scale * lam


def _weaker(first: Dissipation, found: Dissipation) -> Verdict:
    """What is known where neither proves it: "fails" if no P and lam do, or if those that are carried do not."""
    return "fails" if "fails" in (first.verdict, found.verdict) else "undecided"


def _linear_metric(A: Tensor) -> Tensor:
    """P = sum of (A'/r)^k (A/r)^k for an r above the spectral radius of A, by doubling."""
    n = len(A)
    if n == 0:
        return torch.zeros_like(A)
    r = 1.05 * float(torch.linalg.eigvals(A).abs().max()) + 1e-3 * (1 + float(A.abs().max()))
    P, power = torch.eye(n, dtype=A.dtype), A / r
    for _ in range(12):
        P = P + power.T @ P @ power
        power = power @ power
    return (P + P.T) / 2


def _margin(X: Tensor) -> float:
    """The smallest eigenvalue after scaling to a unit diagonal; NaN where it overflows."""
    scale = X.diagonal().abs().rsqrt()
    scaled = scale[:, None] * X * scale
    return float(torch.linalg.eigvalsh(scaled)[0]) if bool(torch.isfinite(scaled).all()) else math.nan


def recurrent_of(net: Any, activation: Activation | None) -> RecurrentSubject | None:
    """The subject of a recurrent network, or of bare recurrent weights, ReLU if no activation is given; else None."""
    if isinstance(net, RENWeights):
        sigma = ReLU() if activation is None else activation
        weights = net
    else:
        make = getattr(net, "weights", None)
        if not isinstance(net, torch.nn.Module) or not callable(make) or not hasattr(net, "state_features"):
            return None
        if activation is not None:
            raise InvalidInput("activation is for bare weights: a network has its own.")
        checks.untouched_within(f"The network, {type(net).__name__},", net)
        with torch.no_grad():
            weights = make()
        sigma = net.activation  # type: ignore[assignment]
    check_activation(sigma, weights.hidden_features)
    refuse_blocks(sigma.groups(weights.hidden_features))
    return RecurrentSubject(weights.precise(), sigma)
