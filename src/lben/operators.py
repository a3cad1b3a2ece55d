"""The linear half of an equilibrium: W and I - W as an operator, with its transpose, resolvent and norms.

Everything is meant in the metric Lambda: with A = Lam^(1/2) (I - W) Lam^(-1/2),
m is the smallest eigenvalue of the symmetric part of A, L its largest singular value, and c the smallest
eigenvalue of the symmetric part of A^-1 (the cocoercivity of I - W).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lben import checks


@dataclass
class _Facts:
    """What is computed once for an operator and its transpose."""

    W: Tensor
    lam: Tensor | None
    monotonicity_bound: float | None
    cayleys: dict[float, Tensor] = field(default_factory=dict)

    @cached_property
    def scaled(self) -> Tensor:
        """A, in double precision, on the CPU since some devices have none."""
        W = checks.finite("W", self.W).to("cpu", torch.float64)
        A = torch.eye(W.shape[0], dtype=W.dtype) - W
        if self.lam is None:
            return A
        root = self.lam.to("cpu", torch.float64).sqrt()
        return root[:, None] * A / root

    @cached_property
    def quick(self) -> tuple[float, float]:
        """Estimates of m and c in a few cheap calls, good to a factor that the choice of a step forgives.

        m lies between its lower bound and the smallest diagonal entry of A, and |A - I| between the largest norm of
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
        return float(torch.linalg.eigvalsh(inverse + inverse.T)[0]) / 2 if int(info) == 0 else -math.inf


class DenseOperator:
    """W as a dense matrix, applied to rows: z of shape (batch, n) becomes z W'.

    `lam` is the diagonal of the metric, or None where none is known. `monotonicity_bound` is a lower bound on m,
    from a parameterization that has one at no cost.
    """

    def __init__(self, W: Tensor, lam: Tensor | None = None, *, monotonicity_bound: float | None = None) -> None:
        self.W = W
        self.transposed = False
        self._facts = _Facts(W.detach(), None if lam is None else lam.detach(), monotonicity_bound)

    @property
    def size(self) -> int:
        return self.W.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that gradients flow to."""
        return (self.W,)

    def rebind(self, W: Tensor) -> DenseOperator:
        """The same operator and everything known of it, with W replaced by a tensor of equal value."""
        return self._share(W, self.transposed)

    def transpose(self) -> DenseOperator:
        """The operator of W', whose metric is the inverse of Lambda; m, L, c and factors are shared."""
        return self._share(self.W, not self.transposed)

    def exact(self) -> DenseOperator:
        """The same operator without estimates: m and c are computed."""
        other = DenseOperator(self._facts.W, self._facts.lam)
        return other.transpose() if self.transposed else other

    def _share(self, W: Tensor, transposed: bool) -> DenseOperator:
        other = object.__new__(DenseOperator)
        other.W, other.transposed, other._facts = W, transposed, self._facts
        return other

    @property
    def lam(self) -> Tensor | None:
        """The metric in which this operator is monotone."""
        lam = self._facts.lam
        return lam.reciprocal() if self.transposed and lam is not None else lam

    @property
    def proved(self) -> bool:
        """Whether the metric proves that there is one equilibrium for every input."""
        bound = self._facts.monotonicity_bound
        return bound > 0 if bound is not None else self.monotonicity > 0

    @property
    def monotonicity(self) -> float:
        """m; nothing is proved unless it is positive."""
        return self._facts.monotonicity

    @property
    def norm(self) -> float:
        """L."""
        return self._facts.norm

    @property
    def sure_monotonicity(self) -> float:
        """m less what rounding in double precision may have added."""
        return self.monotonicity - 16 * self.size * torch.finfo(torch.float64).eps * self.norm

    @property
    def cocoercivity(self) -> float:
        """c; forward-backward converges for alpha < 2c."""
        return self._facts.cocoercivity

    @property
    def layers(self) -> tuple[tuple[int, int], ...] | None:
        """Where W is strictly block lower triangular, the first unit of each block and the first after it; else None.

        No unit of a block reads from its own or a later one (for W', from its own or an earlier one).
        """
        return self._facts.layers

    def matrix(self) -> Tensor:
        """W, or W' if this is a transpose."""
        return self.W.T if self.transposed else self.W

    def affine(self, z: Tensor, b: Tensor) -> Tensor:
        """W z + b, row by row."""
        return torch.addmm(b, z, self.W if self.transposed else self.W.T)

    def pullback(self, q: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        """The gradient of <q, W z>, summed over the batch, with respect to `tensors`."""
        return (z.T @ q,) if self.transposed else (q.T @ z,)

    def cayley(self, alpha: float) -> Tensor:
        """C = 2 (I + alpha (I - W))^-1 - I as it is applied to rows: w times this matrix is C w.

        It is computed once for the operator and its transpose.
        """
        known = self._facts.cayleys
        if alpha not in known:
            W = self._facts.W
            system = W * (-0.5 * alpha)
            system.diagonal().add_(0.5 * (1 + alpha))
            C = torch.linalg.inv_ex(system).inverse
            C.diagonal().sub_(1)
            known[alpha] = C
        return known[alpha] if self.transposed else known[alpha].T

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
        if self._facts.monotonicity_bound is not None:
            m, c = self._facts.quick
            if 0 < m < math.inf and 0 < c < math.inf:
                return m, c
        return self.monotonicity, self.cocoercivity

    def forward_step(self) -> float:
        """c, or 1/L where m <= 0."""
        return self.cocoercivity if self.monotonicity > 0 and self.cocoercivity > 0 else self._guess()

    def _guess(self) -> float:
        """1/L, or 1 where W = I."""
        return 1 / self.norm if self.norm > 0 else 1.0
