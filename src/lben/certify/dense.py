"""Dense weights under examination."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation, Scalar
from lben.activations.scalar import PerUnit
from lben.certify.certificate import BoundSolver, Certificate, Domain, confirmed, known
from lben.certify.condition import Balanced, Reduced, sure_monotonicity
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.evaluation import Reach
from lben.certify.metrics import smallest_gamma
from lben.certify.pieces import steep_inputs
from lben.certify.rigorous import decide
from lben.certify.subject import Bound
from lben.certify.wellposed import WellPosedness, best_metric, check_size
from lben.errors import InvalidInput, NotWellPosed
from lben.normalize import Normalize
from lben.numerics.enclosed import EPS, definite
from lben.numerics.rounding import norm_bound
from lben.operators.dense import DenseOperator
from lben.solvers.base import Solver
from lben.weights.dense import Weights
from lben.weights.record import Record, check_constant

_STEEP_UNITS = 2560  # in all starts of the search over slopes together
_STEEP_MOST = 640  # in one: beyond that a start takes minutes


@dataclass(frozen=True, eq=False)
class DenseSubject(EquilibriumSubject):
    """Matrices, and a metric of one entry a unit; linear units are eliminated where that helps.

    loose: what the entries of Wo and D may be off by; None where they are exact.
    search: what the search for a metric found, where one was made.
    """

    weights: Weights
    loose: tuple[Tensor, Tensor | None] | None = None
    search: WellPosedness | None = None

    @classmethod
    def of(cls, weights: Record, activation: Activation, normalize: Normalize | None) -> DenseSubject:
        assert isinstance(weights, Weights)
        check_size(weights.hidden_features)
        subject = cls(weights.precise(), activation, normalize)
        if subject.weights.lam is not None:
            check_constant(subject.weights.lam, subject.groups)
        return subject

    @cached_property
    def linear(self) -> Tensor:
        """Which units are the identity, shape (n,)."""
        return torch.tensor(self.activation.linear).expand(self.weights.hidden_features)

    @cached_property
    def groups(self) -> Tensor | None:
        """The number of each unit's block, on which the metric must be constant; None where units act alone."""
        return self.activation.groups(self.weights.hidden_features)

    @property
    def matrices(self) -> Weights:
        return self.weights

    def dense(self) -> DenseSubject:
        return self

    def located(self, x: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
        """The pre-activations for rows x, before `normalize`, and what each may be off by."""
        z, v = (found := self._solve(x, solver)).z, found.v
        return self.injected(z, x, self.distance(z, v, x))

    def injected(self, z: Tensor, x: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
        """The pre-activations of z, at this distance of the equilibrium, and what each may be off by."""
        distance = distance[:, None] * norm_bound(self.weights.W / self.diagonal.sqrt())
        terms = self.product(z.abs(), absolute=True) + self.injection(self.sizes(x), absolute=True)
        here = self.product(z, absolute=False) + self.injection(self.scaled(x), absolute=False)
        return here, (distance + self.longest * EPS * (terms + 1e-290)) * (1 + 1e-12)

    def check(self, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain) -> Certificate:
        weights = self.weights
        if gamma is None and weights.gamma is not None:
            gamma = weights.gamma / self.scale_of(domain)
        if lam is not None:
            metric = check_constant(diagonal(lam, weights.hidden_features, self.linear), self.groups)
        else:
            metric = self._metric(bounded=gamma is not None)
        return self.check_metric(metric, gamma, rigorous=rigorous, domain=domain)

    def _metric(self, *, bounded: bool) -> Tensor:
        """The metric the weights carry; else that of the tightest bound, or, without a bound, the best for W."""
        if self.weights.lam is not None:
            return self.weights.lam
        if bounded:
            try:
                return self.tightest().lam
            except NotWellPosed:
                pass
        return best_metric(self.weights.W, self.groups).lam

    def check_metric(self, lam: Tensor, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
        """The certificate for this metric and this gamma; linear units with NaN are eliminated.

        It is computed from the weights alone, in double precision, or in ball arithmetic where `rigorous`.
        """
        scale = self.scale_of(domain)
        condition = Balanced.of(self.weights, lam, gamma, scale, loose=self.loose)
        margin = self._margin(lam, None if gamma is None else gamma * scale)
        if rigorous:
            verdict = decide(self.weights, lam, gamma, scale, condition)
            return Certificate(verdict, gamma, margin, lam, domain, "ball arithmetic", True)
        verdict = "undecided" if condition.X is None else definite(condition.X)
        return Certificate(verdict, gamma, margin, lam, domain, "Cholesky in double precision", False)

    def _margin(self, lam: Tensor, gamma: float | None) -> float:
        """The smallest eigenvalue of the condition as double precision has it."""
        reduced = Reduced.of(self.weights, torch.isnan(lam))
        matrix = reduced.condition(lam[reduced.kept], gamma) if gamma != 0 else torch.full((1, 1), torch.inf)
        if not bool(torch.isfinite(matrix).all()):
            raise InvalidInput("The matrix of the condition overflows: the weights or lam are too large.")
        return float(torch.linalg.eigvalsh(matrix)[0]) if len(matrix) else math.inf

    def tightest(
        self, *, solver: BoundSolver = "barrier", rigorous: bool = False, domain: Domain = "input"
    ) -> Certificate:
        scale = self.scale_of(domain)
        lam, gamma, finished = smallest_gamma(self.weights, self.linear, self.groups, solver)
        name = {"barrier": "barrier method", "scs": "SCS, made feasible"}[solver]
        name += "" if finished else ", stopped by rounding before it knew this to be the smallest"
        return confirmed(gamma, name, lambda g: self.check_metric(lam, g / scale, rigorous=rigorous, domain=domain))

    def product_bound(self) -> float:
        """Rounded up until Condition `lipschitz` proves it."""
        weights, lam = self.weights, self.weights.lam
        if lam is None:
            found = best_metric(weights.W, self.groups)
            if not found.holds:
                raise NotWellPosed(str(found), 2 * found.monotonicity)
            lam = found.lam
        m = DenseOperator(weights.W, lam).sure_monotonicity
        if not m > 0:
            raise NotWellPosed(
                f"No bound is known for these weights: in their metric I - W is not monotone (m = {m:.6g}).", 2 * m
            )
        root = lam.sqrt()
        out = float(torch.linalg.matrix_norm(weights.Wo / root, 2))
        into = float(torch.linalg.matrix_norm(root[:, None] * weights.U, 2))
        past = 0.0 if weights.D is None else float(torch.linalg.matrix_norm(weights.D, 2))
        if not (bool(weights.Wo.any()) and bool(weights.U.any())):
            return self.tightest().gamma or 0.0 if past > 0 else 0.0
        bound = out * into / m + past
        if not 0 < bound - past < math.inf:
            raise InvalidInput(f"The bound {out:.3g} * {into:.3g} / {m:.3g} lies beyond the range of double precision.")
        metric = lam * (out / into)  # the multiple in which Condition `lipschitz` holds for every larger gamma
        proof = confirmed(bound, "product", lambda g: self.check_metric(metric, g, rigorous=False, domain="input"))
        return known(proof)

    def bound(self, near: Bound | None = None) -> Bound:
        certificate = self.tightest()
        return Bound(known(certificate), certificate.lam)

    def difference(self, i: int, j: int) -> DenseSubject:
        weights = self.weights
        (Wo, off_Wo), (D, off_D) = (
            (None, None) if part is None else _difference(part[i : i + 1], part[j : j + 1])
            for part in (weights.Wo, weights.D)
        )
        assert Wo is not None
        assert off_Wo is not None
        return replace(self, weights=replace(weights, Wo=Wo, D=D, by=weights.by[:1], gamma=None), loose=(off_Wo, off_D))

    def restricted(self, outputs: list[int] | None, features: list[int] | None) -> DenseSubject:
        """Rows of Wo, and columns of U: what other features give is constant, and bz is for constants."""
        assert self.loose is None  # that of a difference, which nobody restricts
        w, normalize = self.weights, self.normalize
        rows = slice(None) if outputs is None else outputs
        columns = slice(None) if features is None else features
        if normalize is not None and features is not None:
            normalize = normalize.selected(features)
        past = None if w.D is None else w.D[rows][:, columns]
        part = replace(w, U=w.U[:, columns], Wo=w.Wo[rows], by=w.by[rows], D=past, gamma=None)
        return replace(self, weights=part, normalize=normalize)

    def settled(self) -> DenseSubject:
        if self.weights.lam is not None:
            return self
        found = best_metric(self.weights.W, self.groups)
        weights = replace(self.weights, lam=found.lam) if found.holds else self.weights
        return replace(self, weights=weights, search=found)

    @cached_property
    def monotonicity(self) -> float:
        estimate = self.operator.sure_monotonicity
        return sure_monotonicity(self.weights.W, self.diagonal, estimate)

    @property
    def has_metric(self) -> bool:
        return self.weights.lam is not None

    def refusal(self) -> NotWellPosed:
        if self.search is not None and not self.search.holds:
            return NotWellPosed(str(self.search), 2 * self.monotonicity)
        return super().refusal()

    @property
    def diagonal(self) -> Tensor:
        return self.weights.metric()

    @cached_property
    def reach(self) -> Reach:
        return Reach(self.weights.Wo / self.diagonal.sqrt())

    @property
    def longest(self) -> int:
        return self.weights.hidden_features + self.weights.in_features + 16

    @property
    def longest_output(self) -> int:
        return self.weights.hidden_features + 8 + (0 if self.weights.D is None else self.weights.in_features + 8)

    def product(self, z: Tensor, *, absolute: bool) -> Tensor:
        return F.linear(z, self.weights.W.abs() if absolute else self.weights.W)

    def injection(self, x: Tensor, *, absolute: bool) -> Tensor:
        U, bz = self.weights.U, self.weights.bz
        return F.linear(x, U.abs(), bz.abs()) if absolute else F.linear(x, U, bz)

    def readout(self, z: Tensor, x: Tensor, *, absolute: bool) -> Tensor:
        w = self.weights
        if not absolute:
            return w.readout(z, x)
        y = F.linear(z, w.Wo.abs(), w.by.abs())
        return y if w.D is None else y + F.linear(x, w.D.abs())

    def steep_inputs(self, starts: int, generator: torch.Generator) -> Tensor:
        """The wider the network, the fewer; none where units act in blocks: slopes of single units are changed."""
        w, normalize = self.weights, self.normalize
        if w.hidden_features > _STEEP_MOST or not isinstance(self.activation, Scalar | PerUnit):
            return super().steep_inputs(starts, generator)
        if normalize is not None:
            scaled, past = w.U / normalize.std, None if w.D is None else w.D / normalize.std
            w = replace(w, U=scaled, bz=w.bz - (scaled * normalize.mean).sum(dim=1), D=past)
        found = steep_inputs(w, self.activation, min(starts, _STEEP_UNITS // w.hidden_features), generator)
        return found[found.isfinite().all(dim=1)]


def diagonal(lam: Tensor, n: int, linear: Tensor) -> Tensor:
    """A user's metric of n units, if it is the diagonal of one; NaN is allowed where the unit is linear."""
    checks.there("lam", checks.floating("lam", lam))
    if lam.shape == (n, n):
        if bool((lam != torch.diag(lam.diagonal())).any()):
            raise InvalidInput(
                "lam must be diagonal: other multipliers prove nothing, since increments of equal activations differ."
            )
        lam = lam.diagonal()
    if lam.shape != (n,):
        raise InvalidInput(f"lam must have shape ({n},), not {tuple(lam.shape)}.")
    lam = lam.detach().to("cpu", torch.float64)
    needed = ~(torch.isnan(lam) & linear)
    checks.finite("lam", lam[needed])
    if not bool((lam[needed] > 0).all()):
        raise InvalidInput(f"lam must be positive in every entry, but its smallest is {float(lam[needed].min()):.6g}.")
    return lam


def _difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a - b, and by how much rounding has changed each entry, which is a double itself."""
    d = a - b
    back = d - a
    return d, ((a - (d - back)) - (b + back)).abs()
