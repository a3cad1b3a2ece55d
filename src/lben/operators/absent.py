"""W = 0: a layer without an equilibrium to find, as every explicit layer is."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lben.operators.base import Affine, Facts, Operator


class _AbsentFacts(Facts):
    """A = I in every metric."""

    monotonicity_bound = None

    def __init__(self, lam: Tensor | None) -> None:
        self.lam = lam

    @property
    def quick(self) -> tuple[float, float]:
        return 1.0, 1.0

    @property
    def monotonicity(self) -> float:
        return 1.0

    @property
    def norm(self) -> float:
        return 1.0

    @property
    def cocoercivity(self) -> float:
        return 1.0


class AbsentOperator(Operator):
    """W = 0, of n units: one step of Peaceman-Rachford, at the step 1 that it chooses, is exact.

    lam: the diagonal of the metric, shape (n,), or None.
    """

    def __init__(self, n: int, lam: Tensor | None = None) -> None:
        self.transposed = False
        self._n, self._facts = n, _AbsentFacts(None if lam is None else lam.detach())

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def size(self) -> int:
        return self._n

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    @property
    def constants(self) -> tuple[Tensor, ...]:
        return ()

    def rebind(self, *tensors: Tensor, constants: tuple[Tensor, ...] | None = None) -> AbsentOperator:
        return self

    def remake(self, *tensors: Tensor) -> AbsentOperator:
        return self

    def transpose(self) -> AbsentOperator:
        other = AbsentOperator(self._n)
        other.transposed, other._facts = not self.transposed, self._facts
        return other

    def exact(self) -> AbsentOperator:
        return self

    def matrix(self) -> Tensor | None:
        return None

    def affine(self, z: Tensor, b: Tensor) -> Tensor:
        return b.expand_as(z)

    def pullback(self, q: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return ()

    def cayley(self, alpha: float) -> Affine:
        return partial(_add_multiple, (1 - alpha) / (1 + alpha))


def _add_multiple(factor: float, offset: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
    return torch.add(offset, w, alpha=factor, out=out)
