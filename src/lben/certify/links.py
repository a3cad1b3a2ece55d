"""Stages under examination: what each multiplies distances by, and what it computes, with the error of that."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lben.certify.certificate import Certificate, Factor
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.evaluation import Evaluation, Reach
from lben.certify.frequencies import TINY, UNIT
from lben.certify.norms import linear_norm, pool_norm, scaled_norm
from lben.certify.records import equilibrium_subject
from lben.errors import InvalidInput, LbenError
from lben.solvers.base import Solver
from lben.weights.linear import AveragePool, Convolution, Linear, Scaling, Standardize
from lben.weights.stages import Equilibrium, Pointwise, Stage, Sum

_MORE = 1 + 8 * UNIT  # a product or sum of two numbers, rounded up
_MOST_SEARCHED = 2000  # units of a stage for which a smaller bound than its own is searched: beyond, it takes minutes


@dataclass(frozen=True, eq=False)
class Link(ABC):
    """One stage, in double precision on the CPU."""

    stage: Stage

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def factor(self) -> Factor:
        """The bound the stage has by what it is: gamma of an equilibrium, the norm of a linear map."""
        return self.proved_factor(rigorous=False)

    def proved_factor(self, *, rigorous: bool) -> Factor:
        """That bound, proved once."""
        return self._once(("own", rigorous), lambda: self._prove(rigorous=rigorous))

    def tightest_factor(self, *, rigorous: bool) -> Factor:
        """The smallest bound that can be had of the stage alone."""
        return self._once(("tightest", rigorous), lambda: self._search(rigorous=rigorous))

    def _once(self, what: tuple[str, bool], find: Callable[[], Factor]) -> Factor:
        found = self._found.get(what)
        if found is None:
            found = self._found[what] = find()
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, bool], Factor]:
        return {}

    @abstractmethod
    def _prove(self, *, rigorous: bool) -> Factor: ...

    def _search(self, *, rigorous: bool) -> Factor:
        return self.proved_factor(rigorous=rigorous)

    def metric(self) -> Tensor | None:
        """The metric of an equilibrium, shape (n,); None where there is none."""
        return None

    @abstractmethod
    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        """y for rows x, differentiable in x."""

    @abstractmethod
    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        """y for rows x, with the errors that the solver and rounding leave at this stage."""


@dataclass(frozen=True, eq=False)
class Applied(Link):
    """A stage that is computed as it is written."""

    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        return self.stage.apply(x)

    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        y = self.stage.apply(x)
        lost = torch.zeros_like(y)
        if self.stage.longest:
            lost = self.stage.longest * (UNIT * self.stage.apply(x.abs(), absolute=True) + TINY)
        return Evaluation(y, lost, (), torch.ones(len(y), dtype=torch.bool))

    def _prove(self, *, rigorous: bool) -> Factor:
        """Of all that has no norm of its own, MaxMin, pooling by maxima, and what moves numbers about, it is one."""
        stage = self.stage
        if isinstance(stage, Linear | Convolution):
            return Factor(self.name, *linear_norm(stage))
        if isinstance(stage, AveragePool):
            return Factor(self.name, *pool_norm(stage))
        if isinstance(stage, Scaling):
            return Factor(self.name, float(stage.scale.abs().max()), "its largest factor")
        if isinstance(stage, Standardize):
            return Factor(self.name, float(1 / stage.std.min()) * _MORE, "its smallest std")
        if isinstance(stage, Pointwise):
            steep = stage.outer * stage.inner
            most = max(abs(stage.through), abs(steep + stage.through)) + 4 * UNIT * (abs(steep) + abs(stage.through))
            return Factor(self.name, 1.0 if stage.plain else most, "its slopes")
        return Factor(self.name, 1.0, "by what it is")


@dataclass(frozen=True, eq=False)
class Solved(Link):
    """An equilibrium."""

    stage: Equilibrium

    @cached_property
    def subject(self) -> EquilibriumSubject:
        return equilibrium_subject(self.stage.weights, self.stage.activation, None).settled()

    def _certificate(self, *, rigorous: bool) -> Certificate:
        return self.subject.check(None, None, rigorous=rigorous, domain="input")

    def _prove(self, *, rigorous: bool) -> Factor:
        if self.stage.weights.gamma is None:
            try:
                return Factor(self.name, self.subject.product_bound(), "product bound")
            except LbenError as error:
                return Factor(self.name, math.inf, _reason(error))
        found = self._certificate(rigorous=rigorous)
        bound = found.gamma if found.holds and found.gamma is not None else math.inf
        if found.holds:
            return Factor(self.name, bound, found.method)
        status = "is not proved by its metric" if found.verdict == "fails" else "is neither proved nor refuted"
        return Factor(self.name, bound, f"gamma = {self.stage.weights.gamma:.6g} {status}, {found.method}")

    def _search(self, *, rigorous: bool) -> Factor:
        own = self.proved_factor(rigorous=rigorous)
        if self.stage.weights.hidden_features > _MOST_SEARCHED and math.isfinite(own.bound):
            return own
        try:
            found = self.subject.tightest(solver="barrier", rigorous=rigorous, domain="input")
        except LbenError:
            return own
        if found.gamma is None or own.bound <= found.gamma:
            return own
        return Factor(self.name, found.gamma, found.method)

    def metric(self) -> Tensor:
        return self.subject.diagonal

    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        return self.subject.outputs(x, solver)

    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        return self.subject.evaluate(x, solver)


def _reason(error: LbenError) -> str:
    """The first sentence of an error, to stand within another."""
    first = str(error).partition(". ")[0].removesuffix(".").replace(", so nothing is proved of these weights", "")
    return first[:1].lower() + first[1:]


@dataclass(frozen=True, eq=False)
class Added(Link):
    """A sum of branches."""

    stage: Sum

    @cached_property
    def branches(self) -> tuple[tuple[Link, ...], ...]:
        return tuple(links_of(branch) for branch in self.stage.branches)

    def _prove(self, *, rigorous: bool) -> Factor:
        return self._total([[link.proved_factor(rigorous=rigorous) for link in branch] for branch in self.branches])

    def _search(self, *, rigorous: bool) -> Factor:
        return self._total([[link.tightest_factor(rigorous=rigorous) for link in branch] for branch in self.branches])

    def _total(self, factors: list[list[Factor]]) -> Factor:
        total = 0.0
        for branch in factors:
            total = (total + product(branch)) * _MORE
        shown = " + ".join(f"{product(branch):.4g}" for branch in factors)
        return Factor(self.name, total, f"the sum of its branches, {shown}")

    def metric(self) -> Tensor | None:
        parts = [part for branch in self.branches for link in branch if (part := link.metric()) is not None]
        return torch.cat(parts) if parts else None

    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        total = x.new_zeros(())
        for branch in self.branches:
            y = x
            for link in branch:
                y = link.outputs(y, solver)
            total = total + y
        return total

    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        found = [evaluate_chain(branch, x, solver) for branch in self.branches]
        y, terms = torch.zeros_like(found[0].y), torch.zeros_like(found[0].y)
        for one in found:
            y, terms = y + one.y, terms + one.y.abs()
        lost = len(found) * (UNIT * terms + TINY)
        for one in found:
            lost = lost + one.rounding
        errors = tuple(error for one in found for error in one.errors)
        converged = torch.stack([one.converged for one in found]).all(dim=0)
        return Evaluation(y, lost * _MORE, errors, converged)


@dataclass(frozen=True, eq=False)
class Scaled(Added):
    """A matrix or a convolution and a scaling behind it, such as a batch norm: a sum of one branch, with one norm."""

    @classmethod
    def of(cls, before: Stage, scaling: Scaling) -> Scaled:
        return cls(Sum(f"{before.name}, with {scaling.name}", before.in_shape, ((before, scaling),)))

    @cached_property
    def branches(self) -> tuple[tuple[Link, ...], ...]:
        return (tuple(Applied(stage) for stage in self.stage.branches[0]),)

    def _prove(self, *, rigorous: bool) -> Factor:
        before, scaling = self.stage.branches[0]
        assert isinstance(before, Linear | Convolution)
        assert isinstance(scaling, Scaling)
        return Factor(self.name, scaled_norm(before, scaling), "the norm of both as one")

    def _search(self, *, rigorous: bool) -> Factor:
        return self.proved_factor(rigorous=rigorous)


def links_of(stages: Sequence[Stage]) -> tuple[Link, ...]:
    """The links of stages in double precision."""
    kinds: dict[type[Stage], type[Link]] = {Equilibrium: Solved, Sum: Added}
    found: list[Link] = []
    for stage in stages:
        before = found[-1] if found else None
        if isinstance(stage, Scaling) and type(before) is Applied and _takes_scales(before.stage):
            found[-1] = Scaled.of(before.stage, stage)
        else:
            found.append(kinds.get(type(stage), Applied)(stage))
    return tuple(found)


def _takes_scales(stage: Stage) -> bool:
    """Whether what scales its channels behind it scales rows of its weight."""
    return isinstance(stage, Convolution) or (isinstance(stage, Linear) and len(stage.in_shape) == 1)


def product(factors: Sequence[Factor]) -> float:
    """The product of their bounds, rounded up."""
    total = 1.0
    for factor in factors:
        if 0 in (total, factor.bound):
            return 0.0
        exact = 1 in (total, factor.bound)
        total = total * factor.bound if exact else total * factor.bound * _MORE
    return total


def evaluate_chain(links: Sequence[Link], x: Tensor, solver: Solver) -> Evaluation:
    """y for rows x with all errors on the way: what a stage leaves is multiplied by the bounds of those behind it."""
    found = Evaluation(x, torch.zeros_like(x), (), torch.ones(len(x), dtype=torch.bool))
    for link in links:
        carried, converged = found.norm_error(), found.converged
        found = link.evaluate(found.y, solver)
        if not found.y.isfinite().all():
            raise InvalidInput(f"The outputs of {link.name} overflow: the inputs or the weights are too large.")
        errors = found.errors
        if bool((carried > 0).any()):
            errors = (*errors, (carried, Reach(None, link.factor.bound)))
        found = Evaluation(found.y, found.rounding, errors, found.converged & converged)
    return found
