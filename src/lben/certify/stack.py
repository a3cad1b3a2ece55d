"""Stacks under examination: the product of what bounds their stages, and one metric over stages that can be joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import BoundSolver, Domain, Factor, StackCertificate
from lben.certify.dense import DenseSubject
from lben.certify.evaluation import Evaluation
from lben.certify.joined import joined, units_of
from lben.certify.links import Applied, Link, Solved, evaluate_chain, links_of, product
from lben.certify.subject import Bound, Subject
from lben.errors import BoundNotMet, InvalidInput, LbenError
from lben.normalize import Normalize
from lben.numerics.enclosed import Verdict
from lben.solvers.base import Solver
from lben.weights.dense import Weights
from lben.weights.linear import Standardize
from lben.weights.stages import Stack

_MOST_UNITS = 1500  # of stages that are joined: a search over more takes minutes
_MOST_INPUTS = 20_000
_LABOUR = 8
_SQRT2 = math.nextafter(math.sqrt(2), 2)


@dataclass(frozen=True, eq=False)
class Segment:
    """Links in a row, and the one subject that they are together where they can be joined; or that of a `part` of it,
    some outputs and features.
    """

    links: tuple[Link, ...]
    subject: Subject | None
    part: bool = False

    @property
    def name(self) -> str:
        names = ", ".join(link.name for link in self.links)
        if len(self.links) == 1:
            return names
        first, last = _place(self.links[0].name), _place(self.links[-1].name)
        return f"{f'stage {first}' if first == last else f'stages {first} to {last}'} joined: {names}"

    def tightest(self, *, rigorous: bool) -> list[Factor]:
        """Of all links together, or of each, whichever is less."""
        alone = [link.tightest_factor(rigorous=rigorous) for link in self.links]
        if self.subject is None or (len(self.links) == 1 and not self.part):
            return alone
        try:
            found = self.subject.tightest(solver="barrier", rigorous=rigorous, domain="input")
        except LbenError:
            return alone
        if found.gamma is None or found.gamma >= product(alone):
            return alone
        return [Factor(self.name, found.gamma, found.method)]


def _place(name: str) -> str:
    """Where a stage stands, of its name, such as "1.0 Linear" or "3 LBEN, its Normalize"."""
    return name.partition(",")[0].rpartition(" ")[0]


@dataclass(frozen=True, eq=False)
class StackSubject(Subject):
    """Stages one after another; of a `pair` of outputs, what is examined is their difference."""

    weights: Stack
    links: tuple[Link, ...]
    pair: tuple[int, int] | None = None

    @classmethod
    def of(cls, weights: Stack, activation: Activation, normalize: Normalize | None) -> StackSubject:
        own = weights.precise()
        return cls(own, activation, normalize, links_of(own.stages))

    def flat(self, x: Tensor) -> Tensor:
        """Samples of the shape the stack takes become rows."""
        shape = self.weights.in_shape
        checks.floating("x", x)
        if len(shape) > 1 and tuple(x.shape[-len(shape) :]) == shape:
            x = x.reshape(*x.shape[: -len(shape)], self.weights.in_features)
        elif x.dim() == 0 or x.shape[-1] != self.weights.in_features:
            raise InvalidInput(f"x has shape {tuple(x.shape)}, but this stack is made for samples of shape {shape}.")
        return super().flat(x)

    # --- proofs

    def check(self, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain) -> StackCertificate:
        """Of the product of the stages' own bounds, or, where gamma is less, of their tightest ones."""
        if lam is not None:
            raise InvalidInput("lam cannot be chosen for a stack: every stage has a metric of its own.")
        found = self._certificate([link.proved_factor(rigorous=rigorous) for link in self.links], rigorous, domain)
        if gamma is None:
            return found
        if found.gamma is None or found.gamma > gamma:
            found = self._tightest(rigorous=rigorous, domain=domain)
        if found.gamma is None or found.gamma > gamma:
            return replace(found, verdict="undecided", gamma=gamma, factors=found.factors)
        return replace(found, gamma=gamma)

    def _certificate(self, factors: Sequence[Factor], rigorous: bool, domain: Domain) -> StackCertificate:
        total = product(factors)
        verdict: Verdict = "holds" if math.isfinite(total) else "undecided"
        scale = self.scale_of(domain)
        bound = max(total, math.ulp(0.0)) / scale
        bound = math.nextafter(bound, math.inf) if domain == "pixels" else bound
        if scale != 1:
            factors = [Factor("Normalize", 1 / scale * (1 + 1e-15), "its smallest std"), *factors]
        parts = [part for link in self.links if (part := link.metric()) is not None]
        lam = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
        method = "the product of what bounds its stages"
        return StackCertificate(verdict, bound, math.nan, lam, domain, method, rigorous, tuple(factors))

    def tightest(self, *, solver: BoundSolver, rigorous: bool, domain: Domain) -> StackCertificate:
        if solver != "barrier":
            raise InvalidInput(f'solver must be "barrier" for a stack, not {solver!r}.')
        found = self._tightest(rigorous=rigorous, domain=domain)
        if not found.holds:
            raise self.refusal()
        return found

    def _tightest(self, *, rigorous: bool, domain: Domain) -> StackCertificate:
        factors = [factor for segment in self.segments for factor in segment.tightest(rigorous=rigorous)]
        return self._certificate(factors, rigorous, domain)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Runs of links that can be joined, as long as they may be, and the others alone; the last run first, since
        radii need the outputs' own bounds.
        """
        found: list[Segment] = []
        end = len(self.links)
        while end > 0:
            first, units = end, 0
            while first > 0:
                added = units_of(self.links[first - 1])
                inputs = self.links[first - 1].stage.in_features
                if added is None or units + added > _MOST_UNITS or inputs > _MOST_INPUTS:
                    break
                first, units = first - 1, units + added
            first = min(first, end - 1)
            found.append(self._segment(first, end))
            end = first
        return tuple(reversed(found))

    def _segment(self, first: int, end: int) -> Segment:
        links = self.links[first:end]
        if len(links) == 1 and isinstance(links[0], Solved):
            return Segment(links, links[0].subject)
        if sum(units_of(link) or 0 for link in links) == 0 or not all(units_of(link) is not None for link in links):
            return Segment(links, None)
        return Segment(links, joined(links))

    def product_bound(self) -> float:
        factors = [link.factor for link in self.links]
        if not math.isfinite(product(factors)):
            raise self.refusal()
        return max(product(factors), math.ulp(0.0))

    def bound(self, near: Bound | None = None) -> Bound:
        front, last = self._front, self.segments[-1]
        if self.pair is None or last.subject is None:
            whole = product([front, *self._whole_tail])
            gamma = whole if self.pair is None else _SQRT2 * whole * (1 + 4e-16)
            return Bound(gamma, None)
        tail = last.subject.difference(*self.pair).bound(self._tail_bound)
        return Bound(product([front, Factor("", tail.gamma, "")]), None)

    @cached_property
    def _front(self) -> Factor:
        """All segments but the last."""
        factors = [factor for segment in self.segments[:-1] for factor in segment.tightest(rigorous=False)]
        return Factor("", product(factors), "")

    @cached_property
    def _whole_tail(self) -> list[Factor]:
        return self.segments[-1].tightest(rigorous=False)

    @cached_property
    def _tail_bound(self) -> Bound | None:
        subject = self.segments[-1].subject
        return None if subject is None else subject.bound()

    def difference(self, i: int, j: int) -> StackSubject:
        other = replace(self, pair=(i, j))
        for name in ("segments", "_front", "_whole_tail", "_tail_bound"):
            vars(other)[name] = getattr(self, name)  # found once for all pairs
        return other

    def restricted(self, outputs: list[int] | None, features: list[int] | None) -> StackSubject:
        """Of stages that are joined all together; else this one."""
        whole = self.segments[0].subject
        if len(self.segments) > 1 or not isinstance(whole, DenseSubject):
            return self
        normalize = self.normalize
        if normalize is not None and features is not None:
            normalize = normalize.selected(features)
        other = replace(self, normalize=normalize)
        vars(other)["segments"] = (replace(self.segments[0], subject=whole.restricted(outputs, features), part=True),)
        return other

    @property
    def matrices(self) -> Weights:
        raise InvalidInput("This is for dense weights, and a stack has stages: ask it of a stage.")

    def dense(self) -> Subject:
        whole = self.segments[0].subject
        if len(self.segments) > 1 or whole is None:
            return super().dense()
        found = whole.dense()
        assert isinstance(found, DenseSubject)
        found = replace(found, normalize=self.normalize)
        if found.has_metric and not found.monotonicity > 0:  # a metric that proves a bound need not prove equilibria
            return replace(found, weights=replace(found.weights, lam=None))
        return found

    # --- well-posedness

    def settled(self) -> StackSubject:
        return self

    @property
    def proved(self) -> bool:
        return all(math.isfinite(link.factor.bound) for link in self.links)

    def refusal(self) -> BoundNotMet:
        unbounded = next((link for link in self.links if not math.isfinite(link.factor.bound)), None)
        if unbounded is None:
            return BoundNotMet("The product of what bounds the stages lies beyond the range of double precision.", 0.0)
        return BoundNotMet(f"Of stage {unbounded.name} no bound is proved, since {unbounded.factor.method}.", 0.0)

    # --- evaluation

    @cached_property
    def chain(self) -> tuple[Link, ...]:
        """The links, behind the normalisation where there is one."""
        if self.normalize is None:
            return self.links
        stage = Standardize("Normalize", self.weights.in_shape, self.normalize.mean, self.normalize.std)
        return (Applied(stage), *self.links)

    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        for link in self.chain:
            x = link.outputs(x, solver)
        return x

    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        return evaluate_chain(self.chain, x, solver)

    def suitable(self, solver: Solver) -> Solver:
        return solver

    @property
    def labour(self) -> int:
        """All features on the way and all hidden units, each several times over: stages are evaluated one by one."""
        return _LABOUR * (self.weights.hidden_features + sum(link.stage.out_features for link in self.links))
