"""The linear half of an equilibrium: W and I - W as an operator, with its transpose, resolvent and norms.

Everything is meant in the metric Lambda: with A = Lam^(1/2) (I - W) Lam^(-1/2),
m is the smallest eigenvalue of the symmetric part of A, L its largest singular value, and c the smallest
eigenvalue of the symmetric part of A^-1 (the cocoercivity of I - W).

Here is what every operator offers, and W as a dense matrix; convolutions are in `fourier.py` and `pixelwise.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from lben import checks

Affine = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(offset, w, out) -> offset + C w for rows, written to `out` if that is given."""


class Facts(ABC):
    """What is computed once for an operator and its transpose."""

    lam: Tensor | None
    monotonicity_bound: float | None

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

    @abstractmethod
    def rebind(self, *tensors: Tensor) -> Operator:
        """The same operator and everything known of it, with `tensors` replaced by others of equal value."""

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

    @abstractmethod
    def cayley(self, alpha: float) -> Affine:
        """(offset, w, out) -> offset + C w, with C = 2 (I + alpha (I - W))^-1 - I.

        C is computed once for the operator and its transpose.
        """

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
        """Whether the metric proves that there is one equilibrium for every input."""
        bound = self.facts.monotonicity_bound
        return bound > 0 if bound is not None else self.monotonicity > 0

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


@dataclass
class _DenseFacts(Facts):
    W: Tensor
    lam: Tensor | None
    monotonicity_bound: float | None
    cayleys: dict[float, Tensor] = field(default_factory=dict)

    @cached_property
    def scaled(self) -> Tensor:
        """A, in double precision, on the CPU since some devices have none."""
        W = checks.finite("W", self.W).to("cpu", torch.float64)
        A = torch.eye(W.shape[0], dtype=W.dtype) - W
        if self.lam is not None:
            root = self.lam.to("cpu", torch.float64).sqrt()
            A = root[:, None] * A / root
        checks.bounded("I - W in its metric", A)
        return A

    @cached_property
    def quick(self) -> tuple[float, float]:
        """m lies between its lower bound and the smallest diagonal entry of A, and |A - I| between the largest norm of
        a column and the Frobenius norm: the geometric mean of either pair, and c = 1/L with L = 1 + |A - I|.
        """
        highest = 1 - float(self.W.diagonal().max())
        scaled = self.W
        if self.lam is not None:
            root = self.lam.sqrt()
            scaled = (scaled / root).mul_(root[:, None])
        columns = torch.linalg.vector_norm(scaled, dim=0)
        norm = 1 + math.sqrt(float(columns.max()) * float(torch.linalg.vector_norm(columns)))
        return math.sqrt(max(self.monotonicity_bound or 0.0, 0.0) * max(highest, 0.0)), 1 / norm

    @cached_property
    def monotonicity(self) -> float:
        return float(torch.linalg.eigvalsh(self.scaled + self.scaled.T)[0]) / 2

    @cached_property
    def norm(self) -> float:
        return float(torch.linalg.matrix_norm(self.scaled, 2))

    @cached_property
    def layers(self) -> tuple[tuple[int, int], ...] | None:
        reads = torch.where(self.W != 0, torch.arange(len(self.W), device=self.W.device), -1)
        starts = [0]
        for unit, last in enumerate(reads.amax(dim=1).tolist()):
            if last >= unit:
                return None
            if last >= starts[-1]:
                starts.append(unit)
        return tuple(zip(starts, [*starts[1:], len(self.W)], strict=True))

    @cached_property
    def cocoercivity(self) -> float:
        inverse, info = torch.linalg.inv_ex(self.scaled)
        if int(info) != 0 or not bool(torch.isfinite(inverse).all()):
            return -math.inf
        return float(torch.linalg.eigvalsh(inverse + inverse.T)[0]) / 2


class DenseOperator(Operator):
    """W as a dense matrix.

    `lam` is the diagonal of the metric, or None where none is known. `monotonicity_bound` is a lower bound on m,
    from a parameterization that has one at no cost.
    """

    def __init__(self, W: Tensor, lam: Tensor | None = None, *, monotonicity_bound: float | None = None) -> None:
        self.W = W
        self.transposed = False
        self._facts = _DenseFacts(W.detach(), None if lam is None else lam.detach(), monotonicity_bound)

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def size(self) -> int:
        return self.W.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.W,)

    def rebind(self, *tensors: Tensor) -> DenseOperator:
        return self._share(tensors[0], self.transposed)

    def transpose(self) -> DenseOperator:
        return self._share(self.W, not self.transposed)

    def exact(self) -> DenseOperator:
        other = DenseOperator(self._facts.W, self._facts.lam)
        return other.transpose() if self.transposed else other

    def _share(self, W: Tensor, transposed: bool) -> DenseOperator:
        other = object.__new__(DenseOperator)
        other.W, other.transposed, other._facts = W, transposed, self._facts
        return other

    @property
    def layers(self) -> tuple[tuple[int, int], ...] | None:
        return self._facts.layers

    def matrix(self) -> Tensor:
        return self.W.T if self.transposed else self.W

    def affine(self, z: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(b, z, self.W if self.transposed else self.W.T)

    def pullback(self, q: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return (z.T @ q,) if self.transposed else (q.T @ z,)

    def cayley(self, alpha: float) -> Affine:
        known = self._facts.cayleys
        if alpha not in known:
            W = self._facts.W
            system = W * (-0.5 * alpha)
            system.diagonal().add_(0.5 * (1 + alpha))
            C = torch.linalg.inv_ex(system).inverse
            C.diagonal().sub_(1)
            known[alpha] = C
        return partial(_add_product, known[alpha] if self.transposed else known[alpha].T)


def _add_product(C: Tensor, offset: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
    return torch.addmm(offset, w, C, out=out)
