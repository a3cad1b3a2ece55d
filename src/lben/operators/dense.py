"""W as a dense matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from lben import checks
from lben.operators.base import Affine, Facts, Operator


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
        self._constants: tuple[Tensor, ...] = () if self._facts.lam is None else (self._facts.lam,)

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def size(self) -> int:
        return self.W.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.W,)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        return self._constants

    def rebind(self, *tensors: Tensor, constants: tuple[Tensor, ...] | None = None) -> DenseOperator:
        return self._share(tensors[0], self.transposed, self._constants if constants is None else constants)

    def remake(self, *tensors: Tensor) -> DenseOperator:
        other = DenseOperator(*tensors, monotonicity_bound=self._facts.monotonicity_bound)
        return other.transpose() if self.transposed else other

    def transpose(self) -> DenseOperator:
        return self._share(self.W, not self.transposed, self._constants)

    def exact(self) -> DenseOperator:
        other = DenseOperator(self._facts.W, self._facts.lam)
        return other.transpose() if self.transposed else other

    def _share(self, W: Tensor, transposed: bool, constants: tuple[Tensor, ...]) -> DenseOperator:
        other = object.__new__(DenseOperator)
        other.W, other.transposed, other._facts, other._constants = W, transposed, self._facts, constants
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
