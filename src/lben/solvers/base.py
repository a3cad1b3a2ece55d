"""What all solvers share: the problem, the solution, the options, and how a residual is measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.described import describe_record
from lben.errors import InvalidInput
from lben.numerics.norms import plain_norm, row_norm, row_ratio
from lben.operators.base import Operator

OnFailure = Literal["raise", "warn", "fallback"]
_SQUARES = 1e5  # a norm of so many roots of the smallest number keeps its digits, for up to a million entries


@dataclass(frozen=True, eq=False)
class Problem:
    """Find z with z = sigma(W z + b), for every row b of shape (batch, n)."""

    operator: Operator
    activation: Activation
    b: Tensor

    def rows(self, index: Tensor) -> Problem:
        """The problem of some samples alone."""
        return replace(self, activation=self.activation.rows(index), b=self.b[index])


@dataclass(frozen=True, eq=False)
class Solved:
    """What a solver found, row by row: an equilibrium, with what is known of its quality.

    `z` is sigma(v) with the pre-activation v = W c + b of the solver's last candidate c, `defect` is c - z, and
    `residual` the norm of the defect relative to that of z (see `Yardstick` for z = 0). `history`, if asked for, holds
    the residuals after every iteration, shape (iterations, batch). `recent` of the iterations were made since the
    solver last changed how it goes on.
    """

    z: Tensor
    v: Tensor
    iterations: int
    residual: Tensor
    defect: Tensor
    method: str
    tolerance: float
    refuted: Tensor | None = None
    alpha: float | None = None
    state: Tensor | None = None
    history: Tensor | None = None
    recent: int | None = None

    @property
    def converged(self) -> Tensor:
        """Which samples are within the tolerance, and not refuted as equilibria by a closer look."""
        within = self.residual <= self.tolerance
        return within if self.refuted is None else within & ~self.refuted

    def __bool__(self) -> bool:
        """Whether every sample has converged."""
        return bool(self.converged.all())


class Iteration(ABC):
    """A solver at work on one problem: `advance` makes some steps, `candidate` is the z it has come to."""

    alpha: float | None = None
    u: Tensor | None = None
    gives_away: bool = False
    """Whether the candidate of a `look` is nobody else's and may be overwritten."""
    cheap_look: bool = False
    """Whether a `look` costs less than an iteration, so that one too early is better than two iterations too many."""

    @abstractmethod
    def advance(self, steps: int) -> None: ...

    @abstractmethod
    def candidate(self) -> Tensor: ...

    def look(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The candidate c and its pre-activation W c + b."""
        candidate = self.candidate()
        return candidate, problem.operator.affine(candidate, problem.b)


@dataclass(frozen=True, kw_only=True)
class Solver(ABC):
    """What every solver is: a method that finds ``z = sigma(W z + b)``, as a frozen record of its options.

    Give one to a network when it is made, or assign it to ``net.solver`` at any time. Solvers differ in speed alone:
    each returns a z whose residual is within the tolerance, or says that it has none.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        Every solver finds the same equilibrium.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> isinstance(net.solver, lben.Solver)
        True
        >>> x = torch.tensor([[1.0, -1.0]])
        >>> z = net.solve(x).z
        >>> net.solver = lben.Newton(tolerance=1e-6)
        >>> torch.allclose(net.solve(x).z, z, atol=1e-3)
        True
    """

    tolerance: float = 1e-4
    max_iterations: int = 2000
    on_failure: OnFailure | None = None
    backward: Solver | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", checks.positive("tolerance", self.tolerance))
        object.__setattr__(self, "max_iterations", checks.count("max_iterations", self.max_iterations))
        known = isinstance(self.on_failure, str) and self.on_failure in get_args(OnFailure)
        if self.on_failure is not None and not known:
            raise InvalidInput(f'on_failure must be "raise", "warn", "fallback" or None, not {self.on_failure!r}.')
        if self.backward is not None:
            check_solver(self.backward)

    def describe(self) -> dict[str, Any]:
        """Its name and its options.

        Returns:
            Plain values, as a file keeps them.
        """
        return describe_record(self)

    @property
    def adjoint(self) -> Solver:
        """The solver of the adjoint problem."""
        return self if self.backward is None else self.backward

    @property
    def needs_resolvent(self) -> bool:
        """Whether it inverts I + alpha (I - W), which not every metric of a convolution allows."""
        return False

    @abstractmethod
    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        """The iteration at its first point; networks call it, users do not.

        Args:
            problem: the operator of W, the activation, and b of shape (batch, n).
            start: a z, or the solution of an earlier problem, to start from; None: from nothing.

        Returns:
            An iteration, which the loop of all solvers advances.
        """

    def first_burst(self, problem: Problem) -> int:
        """How many iterations to make before the residual is looked at.

        Args:
            problem: what is to be solved.

        Returns:
            A number of at least 1.
        """
        return 8

    def next_burst(self, worst: float, taken: int) -> int:
        """How many more iterations, if the residual goes on to fall as it has from 1.

        Args:
            worst: the largest residual of the batch.
            taken: the iterations made so far.

        Returns:
            A number of at least 1.
        """
        if not worst < 1:
            return max(4, taken // 2)
        needed = taken * math.log(self.tolerance / worst) / math.log(worst)
        return max(1, min(math.ceil(needed), taken, 64))

    def reconsider(
        self, problem: Problem, iteration: Iteration, z: Tensor, worst: float, pace: float, steps: int
    ) -> Iteration | None:
        """Another iteration to go on with from z, where the one at work has turned out slow: the loop asks.

        Args:
            problem: what is to be solved.
            iteration: the one at work.
            z: what it has come to.
            worst: the largest residual of the batch.
            pace: the logarithm of what each of its steps has shrunk that by.
            steps: how many it has made.

        Returns:
            None, to go on with the one at work.
        """
        return None


def check_solver(solver: Solver) -> Solver:
    """`solver` if it is one."""
    if not isinstance(solver, Solver):
        raise InvalidInput(f"solver must be one of lben's, such as lben.PeacemanRachford(), not {solver!r}.")
    return solver


class Yardstick:
    """Measures a defect c - z relative to |z|; where z is zero to rounding, relative to min(1, |b|).

    The second case matters: if z* = 0, candidate and z shrink together and their ratio tells nothing, and an
    absolute measure would call any z of a network with tiny inputs converged.
    """

    def __init__(self, b: Tensor) -> None:
        self.b = b
        self.given: Tensor | None = None

    def residual(self, defect: Tensor, z: Tensor) -> Tensor:
        """The residual of each row."""
        return self._choose(row_norm(z), row_norm(defect), row_ratio(defect, z))

    def _choose(self, size: Tensor, length: Tensor, ratio: Tensor) -> Tensor:
        """|defect|/|z|, or the other where z is zero to rounding."""
        limits = torch.finfo(size.dtype)
        if self.given is None:
            given = plain_norm(self.b)
            trusted = (given >= _SQUARES * math.sqrt(limits.tiny)) & (given < math.inf)
            self.given = given if bool(trusted.all()) else row_norm(self.b)
        absolute = length / self.given.clamp(limits.tiny, 1)
        return torch.where(size > 64 * limits.eps * self.given, ratio, absolute)

    def measure(self, defect: Tensor, z: Tensor, tolerance: float) -> tuple[Tensor, float, bool]:
        """All residuals, the largest finite one, and whether some sample has overflowed.

        A sample that has overflowed is lost and does not keep the others waiting. Norms are the plain ones, which cost
        a third, unless one is so small or so large that squares may have been lost from it.
        """
        size, length = plain_norm(z), plain_norm(defect)
        ratio = length / size
        if ratio.numel() == 0:
            return ratio, 0.0, False
        worst, low, high = torch.stack([ratio.max(), *size.aminmax()]).tolist()
        floor = _SQUARES * math.sqrt(torch.finfo(size.dtype).tiny) / tolerance
        plain = low >= floor and high < math.inf and worst < math.inf
        if plain and worst <= tolerance:  # then no z is zero, and the plain ratio is the residual
            return ratio, worst, False
        residual = self._choose(size, length, ratio) if plain else self.residual(defect, z)
        finite = residual[torch.isfinite(residual)]
        return residual, float(finite.max()) if finite.numel() else 0.0, finite.numel() < residual.numel()
