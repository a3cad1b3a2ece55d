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

    For Lipschitz-margin training (Tsuzuku, Sato and Sugiyama 2018), with `LipschitzMargin` as the loss. The two vectors
    of each iteration are buffers: a step refines them once, and a checkpoint keeps them.

    Args:
        in_features: the number of inputs d.
        hidden_features: the number of hidden units n.
        out_features: the number of outputs p.
        activation: sigma, one of lben's, of single units.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> net = lben.baselines.LMT(2, 8, 3)
        >>> for _ in range(50):
        ...     estimate = float(net.lipschitz().detach())
        >>> abs(estimate / net.bound() - 1) < 1e-2
        True
    """

    into: Tensor
    out: Tensor

    def _prepare(self) -> None:
        for name, layer in (("into", self.hidden), ("out", self.output)):
            start = torch.randn(layer.in_features, dtype=layer.weight.dtype)
            self.register_buffer(name, F.normalize(start, dim=0))

    def lipschitz(self) -> Tensor:
        """The product of the two norms by one more step of power iteration for each: differentiable, and from below.

        Returns:
            A number, as a tensor.
        """
        return self._norm(self.hidden.weight, self.into) * self._norm(self.output.weight, self.out)

    def _norm(self, matrix: Tensor, vector: Tensor) -> Tensor:
        with torch.no_grad():
            left = F.normalize(matrix @ vector, dim=0)
            vector.copy_(F.normalize(matrix.T @ left, dim=0))
        norm: Tensor = left @ matrix @ vector.clone()
        return norm

    def bound(self, domain: Domain = "input") -> float:
        """The product of the exact norms: a true upper bound, as training ends with it.

        Args:
            domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
                before it. They are the same without one.

        Returns:
            The bound.
        """
        return product_bound(self, domain=domain)


@dataclass(frozen=True)
class LipschitzMargin:
    """Cross-entropy after sqrt(2) c L is added to every logit but the true one's, L the network's product of norms.

    So the true class must lead by what a perturbation of length c could take away.

    Args:
        c: the length.

    Raises:
        InvalidInput: when it is called, for a network that is no `LMT`.

    Examples:
        >>> net, x, y = lben.baselines.LMT(2, 8, 3), torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
        >>> strict, plain = lben.baselines.LipschitzMargin(0.5), lben.train.CrossEntropy()
        >>> bool(strict(net, net(x), y) > plain(net, net(x), y))
        True
    """

    c: float

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        if not isinstance(net, LMT):
            raise InvalidInput(f"Lipschitz-margin training needs an LMT network, not {type(net).__name__}.")
        needed = math.sqrt(2) * self.c * net.lipschitz()
        return F.cross_entropy(logits - needed * F.one_hot(labels, logits.shape[-1]), labels)
