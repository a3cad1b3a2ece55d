"""The linear half of an equilibrium: W and I - W as an operator, with its transpose, resolvent and norms.

Everything is meant in the metric Lambda: with A = Lam^(1/2) (I - W) Lam^(-1/2),
m is the smallest eigenvalue of the symmetric part of A, L its largest singular value, and c the smallest
eigenvalue of the symmetric part of A^-1 (the cocoercivity of I - W).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Affine = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(offset, w, out) -> offset + C w for rows, written to `out` if that is given."""


@dataclass(frozen=True, eq=False)
class OwnSteps:
    """A resolvent with one step a unit in place of one for all: C = 2 (I + D (I - W))^-1 - I, D = diag(steps).

    `cayley` applies C; or D^-1 C D where it is `conjugate`, which for W' is the transpose of the C of W. An
    iteration of Peaceman-Rachford shrinks the error by about `rate`; `rounding` is about what is lost, relative to z,
    of W z + b when it is taken from C. Shapes: steps (n,).
    """

    steps: Tensor
    cayley: Affine
    conjugate: bool
    rate: float
    rounding: float


class Facts(ABC):
    """What is computed once for an operator and its transpose.

    single: the step for all units that took the place of steps of their own in this training step, and the logarithm of
    what an iteration must shrink the error by for it to stay; None where none did, and where an operator is kept for
    other inputs.
    """

    lam: Tensor | None
    monotonicity_bound: float | None
    single: tuple[float, float] | None = None

    @property
    @abstractmethod
    def quick(self) -> tuple[float, float]:
        """Estimates of m and c in a few cheap calls, good to a factor that the choice of a step forgives."""

    @property
    @abstractmethod
    def monotonicity(self) -> float: ...

    @property
    @abstractmethod
    def norm(self) -> float: ...

    @property
    @abstractmethod
    def cocoercivity(self) -> float: ...


class Operator(ABC):
    """W, applied to rows: z of shape (batch, n) becomes z W'."""

    transposed: bool

    @property
    @abstractmethod
    def facts(self) -> Facts: ...

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that gradients flow to."""

    @property
    @abstractmethod
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors that decide it besides and get no gradients: the metric, unless W is made of it."""

    @abstractmethod
    def rebind(self, *tensors: Tensor, constants: tuple[Tensor, ...] | None = None) -> Operator:
        """The same operator and everything known of it, with `tensors` replaced by others of equal value."""

    @abstractmethod
    def remake(self, *tensors: Tensor) -> Operator:
        """An operator of the same kind, of which nothing is known yet: of other `tensors`, followed by `constants`."""

    @abstractmethod
    def transpose(self) -> Operator:
        """The operator of W', whose metric is the inverse of Lambda; m, L, c and factors are shared."""

    @abstractmethod
    def exact(self) -> Operator:
        """The same operator without estimates: m and c are computed."""

    @abstractmethod
    def matrix(self) -> Tensor | None:
        """W, or W' if this is a transpose; None if it is never formed."""

    @abstractmethod
    def affine(self, z: Tensor, b: Tensor) -> Tensor:
        """W z + b, row by row."""

    @abstractmethod
    def pullback(self, q: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        """The gradient of <q, W z>, summed over the batch, with respect to `tensors`."""

    def push(self, z: Tensor, tangents: tuple[Tensor, ...]) -> Tensor:
        """How W z moves with `tensors`: the derivative in the direction of these tangents, for a z that stands still.

        The gradient of `tensors` is linear in q, and this is its transpose.
        """
        pull = torch.func.vjp(lambda q: self.pullback(q, z), torch.zeros_like(z))[1]
        moved: Tensor = pull(tangents)[0]
        return moved

    @abstractmethod
    def cayley(self, alpha: float) -> Affine:
        """(offset, w, out) -> offset + C w, with C = 2 (I + alpha (I - W))^-1 - I.

        C is computed once for the operator and its transpose.
        """

    def own_steps(self) -> OwnSteps | None:
        """The resolvent with one step a unit, where that is better than one step for all; else None."""
        return None

    def own_rate(self) -> float | None:
        """About how much an iteration of Peaceman-Rachford with `own_steps` shrinks the error; None without them."""
        return None

    def single_steps(self) -> tuple[float, ...]:
        """Steps for all units that are worth a trial where `own_steps` turn out slow."""
        return ()

    def remember_single(self, found: tuple[float, float] | None) -> None:
        """Keep, for the adjoint of the same training step, what took the place of steps of their own; None: nothing."""
        if self.facts.monotonicity_bound is not None:
            self.facts.single = found

    has_resolvent: bool = True
    """Whether there is a `cayley`."""

    @property
    def layers(self) -> tuple[tuple[int, int], ...] | None:
        """Where W is strictly block lower triangular, the first unit of each block and the first after it; else None.

        No unit of a block reads from its own or a later one (for W', from its own or an earlier one).
        """
        return None

    @property
    def lam(self) -> Tensor | None:
        """The metric in which this operator is monotone, shape (n,)."""
        lam = self.facts.lam
        return lam.reciprocal() if self.transposed and lam is not None else lam

    @property
    def proved(self) -> bool:
        """Whether the metric, or the order of the units, proves that there is one equilibrium for every input."""
        bound = self.facts.monotonicity_bound
        return bound > 0 if bound is not None else self.monotonicity > 0 or self.layers is not None

    @property
    def monotonicity(self) -> float:
        """m; nothing is proved unless it is positive."""
        return self.facts.monotonicity

    @property
    def norm(self) -> float:
        """L."""
        return self.facts.norm

    @property
    def sure_monotonicity(self) -> float:
        """m less what rounding in double precision may have added."""
        return self.monotonicity - 16 * self.size * torch.finfo(torch.float64).eps * self.norm

    @property
    def cocoercivity(self) -> float:
        """c; forward-backward converges for alpha < 2c."""
        return self.facts.cocoercivity

    def balanced_step(self) -> float:
        """sqrt(c/m), or 1/L where m <= 0."""
        m, c = self._pace()
        return math.sqrt(c / m) if m > 0 and c > 0 else self._guess()

    def expected_rate(self) -> float:
        """About how much a Peaceman-Rachford iteration at the balanced step shrinks the error; 1 if unknown.

        (1 - sqrt(c m))/(1 + sqrt(c m)) is exact for a symmetric operator and close to what trained networks show.
        """
        m, c = self._pace()
        root = math.sqrt(min(c * m, 1.0)) if m > 0 and c > 0 else 0.0
        return (1 - root) / (1 + root)

    def _pace(self) -> tuple[float, float]:
        """m and c: estimates for an operator of one training step, else the exact numbers."""
        if self.facts.monotonicity_bound is not None:
            m, c = self.facts.quick
            if 0 < m < math.inf and 0 < c < math.inf:
                return m, c
        return self.monotonicity, self.cocoercivity

    def forward_step(self) -> float:
        """c, or 1/L where m <= 0."""
        return self.cocoercivity if self.monotonicity > 0 and self.cocoercivity > 0 else self._guess()

    def _guess(self) -> float:
        """1/L, or 1 where W = I."""
        return 1 / self.norm if self.norm > 0 else 1.0
