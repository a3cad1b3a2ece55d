"""What is certified: one protocol, which every kind of weights implements in a file of its own (`kinds.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import BoundSolver, Certificate, Domain
from lben.certify.evaluation import Evaluation
from lben.errors import BoundNotMet, InvalidInput, NotWellPosed
from lben.normalize import Normalize
from lben.solvers.base import Solver
from lben.weights.dense import Weights
from lben.weights.record import Record
from lben.weights.stages import Stack

S = TypeVar("S", bound="Subject")


class Certifiable(Protocol):
    """What can be certified: a module that is an equilibrium network, or a stack, whatever it is made of.

    Its weights are a `Record`, and it has an `activation`; or they are a `Stack`.
    """

    @property
    def normalize(self) -> Normalize | None: ...

    def weights(self) -> Any: ...


Examined = Certifiable | Record | Stack
"""A network, or bare weights."""


class Bound(NamedTuple):
    """A proved bound at the network's input, and the metric behind it, where others may start from that."""

    gamma: float
    lam: Tensor | None


@dataclass(frozen=True, eq=False)
class Subject(ABC):
    """Weights under examination, in double precision on the CPU, and what else a bound depends on.

    What takes a `domain` is meant there: at the network's input, or in pixels, before `normalize`. All else is meant
    at the network's input.
    """

    weights: Record | Stack
    activation: Activation
    normalize: Normalize | None

    @classmethod
    @abstractmethod
    def of(cls: type[S], weights: Any, activation: Activation, normalize: Normalize | None) -> S:
        """The subject of stored weights, which are copied: the tensors of a network change under its name."""

    def scale_of(self, domain: Domain) -> float:
        """What a bound in `domain` is multiplied by to be one at the network's input."""
        if checks.choice("domain", domain, ("input", "pixels")) == "input":
            return 1.0
        if self.normalize is None:
            stack = isinstance(self.weights, Stack)
            what = "stack that begins with lben." if stack else "network made with normalize="
            raise InvalidInput(f"A bound in pixels needs a {what}Normalize(mean, std).")
        return self.normalize.scale

    # --- proofs

    @abstractmethod
    def check(self, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain) -> Certificate:
        """The certificate of gamma; None: of the weights' own, or of Condition `W` where they carry none.

        lam: a user's metric, of full size; None: the one the weights carry, or else one that is found.
        """

    @abstractmethod
    def tightest(self, *, solver: BoundSolver, rigorous: bool, domain: Domain) -> Certificate:
        """The certificate of the smallest gamma that the metrics of this kind prove."""

    @abstractmethod
    def product_bound(self) -> float:
        """|Wo Lam^(-1/2)| |Lam^(1/2) U| / m, proved; raises NotWellPosed where m is not."""

    @abstractmethod
    def bound(self, near: Bound | None = None) -> Bound:
        """The best bound that can be had; `near` is that of the whole network, where this is a `difference` of it."""

    @abstractmethod
    def difference(self: S, i: int, j: int) -> S:
        """The subject whose one output is y_i - y_j."""

    def restricted(self: S, outputs: list[int] | None, features: list[int] | None) -> S:
        """The subject of some outputs alone, and of some features, while others stay; None: of all.

        Or this one, whose bounds hold for these, too.
        """
        return self

    @property
    @abstractmethod
    def matrices(self) -> Weights:
        """Dense weights, for what is only known of those; refused where there are none."""

    def dense(self) -> Subject:
        """The same function as one network of dense weights, on the same inputs; refused where there is none."""
        raise InvalidInput(
            "Local bounds are for dense networks and dense stacks, and this one has convolutions, or stages such as "
            "MaxMin that cannot be joined with others: global bounds serve it, as in certified_radius(local=False)."
        )

    # --- well-posedness

    @abstractmethod
    def settled(self: S) -> S:
        """This subject in the metric that it carries, or in one that is looked for."""

    @property
    @abstractmethod
    def proved(self) -> bool:
        """Whether there is one output for every input."""

    @abstractmethod
    def refusal(self) -> NotWellPosed | BoundNotMet:
        """What is raised where a proof is needed, and there is none."""

    # --- evaluation

    @abstractmethod
    def outputs(self, x: Tensor, solver: Solver) -> Tensor:
        """y for rows x, before `normalize`, differentiable in x."""

    @abstractmethod
    def evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        """y for rows x, before `normalize`, with the errors that the solver and rounding leave."""

    @abstractmethod
    def suitable(self, solver: Solver) -> Solver:
        """The solver, or what must stand in for it."""

    def flat(self, x: Tensor) -> Tensor:
        """A user's inputs with their features in one dimension, the last."""
        return checks.width("x", checks.floating("x", x), self.weights.in_features).detach()

    # --- the search for what would contradict a bound

    @property
    def labour(self) -> int:
        """How much work an input is, in hidden units of one equilibrium."""
        return self.weights.hidden_features

    def searched(self: S) -> Subject:
        """What to search on: this, or the same function in a form that is quicker."""
        return self

    def steep_inputs(self, starts: int, generator: torch.Generator) -> Tensor:
        """Inputs of steep linear pieces, shape (some, d): none where there is no way to find them."""
        return torch.zeros(0, self.weights.in_features, dtype=torch.float64)


def part_of(subject: S, outputs: Sequence[int] | None, features: Sequence[int] | None) -> S:
    """The subject of these outputs and features, if there are such."""
    weights = subject.weights
    asked = _numbers("outputs", outputs, weights.out_features), _numbers("features", features, weights.in_features)
    return subject if asked == (None, None) else subject.restricted(*asked)


def _numbers(name: str, chosen: Sequence[int] | None, count: int) -> list[int] | None:
    if chosen is None:
        return None
    if not isinstance(chosen, Sequence) or isinstance(chosen, str | bytes) or len(chosen) == 0:
        raise InvalidInput(f"{name} must be a list of numbers from 0 to {count - 1}, not {chosen!r}.")
    for number in chosen:
        if isinstance(number, bool) or not isinstance(number, Integral) or not 0 <= number < count:
            raise InvalidInput(f"{name} must be numbers from 0 to {count - 1}, but there is {number!r}.")
    if len(set(chosen)) < len(chosen):
        raise InvalidInput(f"{name} must each be given once, but are {list(chosen)}.")
    return [int(number) for number in chosen]
