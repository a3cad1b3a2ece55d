"""Lipschitz-margin training (Tsuzuku, Sato and Sugiyama 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben.certify.certificate import Domain
from lben.certify.lipschitz import product_bound
from lben.errors import InvalidInput
from lben.experiments.feedforward import FeedForward


class LMT(FeedForward):
    """A network with one hidden layer that knows the product of its spectral norms, by power iteration.

    The two vectors of each iteration are buffers: a step refines them once, and a checkpoint keeps them.
    """

    into: Tensor
    out: Tensor

    def _prepare(self) -> None:
        for name, layer in (("into", self.hidden), ("out", self.output)):
            start = torch.randn(layer.in_features, dtype=layer.weight.dtype)
            self.register_buffer(name, F.normalize(start, dim=0))

    def lipschitz(self) -> Tensor:
        """|Wo| |U| by one more step of power iteration for each: differentiable, and from below."""
        return self._norm(self.hidden.weight, self.into) * self._norm(self.output.weight, self.out)

    def _norm(self, matrix: Tensor, vector: Tensor) -> Tensor:
        with torch.no_grad():
            left = F.normalize(matrix @ vector, dim=0)
            vector.copy_(F.normalize(matrix.T @ left, dim=0))
        norm: Tensor = left @ matrix @ vector.clone()
        return norm

    def bound(self, domain: Domain = "input") -> float:
        """The product of the exact norms: a true upper bound, as training ends with it."""
        return product_bound(self, domain=domain)


@dataclass(frozen=True)
class LipschitzMargin:
    """Cross-entropy after sqrt(2) c L is added to every logit but the true one's, L the network's product of norms.

    So the true class must lead by what a perturbation of length c could take away.
    """

    c: float

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        if not isinstance(net, LMT):
            raise InvalidInput(f"Lipschitz-margin training needs an LMT network, not {type(net).__name__}.")
        needed = math.sqrt(2) * self.c * net.lipschitz()
        return F.cross_entropy(logits - needed * F.one_hot(labels, logits.shape[-1]), labels)
