"""What is minimised: numbers from a network, its outputs and the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.data import samples
from lben.errors import InvalidInput

_LEAST = 0.01  # share of the radius that a class is raised by even where it wins


class Loss(Protocol):
    """What is minimised: a number from the network, its outputs and the targets, averaged over the batch.

    Any function of these three will do; `CrossEntropy`, `Emma` and `MeanSquare` are such losses.

    Examples:
        >>> def absolute(net, outputs, targets):
        ...     return (outputs - targets).abs().mean()
        >>> recipe = lben.train.TrainConfig(epochs=1, loss=absolute)
        >>> net, x = lben.LBEN(2, 4, 1, gamma=1.0), torch.randn(16, 2)
        >>> history = lben.train.fit(net, (x, x[:, :1]), recipe, progress=False)
        >>> len(history)
        1
    """

    def __call__(self, net: nn.Module, outputs: Tensor, targets: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy, which may ask for a margin.

    Args:
        margin: is subtracted from the logit of the true class, which asks for that much distance; finite.

    Raises:
        InvalidInput: for another margin; and, when it is called, for targets that are no classes.

    Examples:
        >>> logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
        >>> round(float(lben.train.CrossEntropy()(None, logits, labels)), 3)
        0.127
        >>> round(float(lben.train.CrossEntropy(margin=2.0)(None, logits, labels)), 3)
        0.693
    """

    margin: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(checks.number("margin", self.margin)):
            raise InvalidInput(f"margin must be a finite number, not {self.margin}.")

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point():
            raise InvalidInput("Cross-entropy is for classes; for regression give loss=lben.train.MeanSquare().")
        try:
            if self.margin:
                logits = logits - self.margin * F.one_hot(labels, logits.shape[-1])
            return F.cross_entropy(logits, labels)
        except (IndexError, RuntimeError):
            samples.check_classes(logits, labels)
            raise

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The same for each sample.

        Args:
            logits: of shape (batch, p).
            labels: integers of shape (batch,).

        Returns:
            A tensor of shape (batch,).
        """
        asked = logits - self.margin * F.one_hot(labels, logits.shape[-1])
        return F.cross_entropy(asked, labels, reduction="none")


@dataclass(frozen=True)
class Emma:
    """Cross-entropy with every wrong class as near as the radius to certify may bring it (EMMA, Hu et al. 2023).

    With t the true class, K_tj a bound of the slope of y_t - y_j, and ``r_j = (y_t - y_j) / K_tj``, the radius that the
    sample has against class j already, the logits that count are ``y_j + e_j K_tj`` for j != t, where ``e_j =
    min(max(r_j, epsilon / 100), epsilon)`` is taken as a constant. So a class that the sample is safe from keeps the
    distance that is left, one that it is not safe from stands level with the true class, and one that wins stays.

    Args:
        epsilon: the radius, above 0.
        bound: K, in the units of epsilon: a number above 0 for all pairs, or a function of the network that gives a
            number or a matrix of shape (p, p), through which gradients flow.

    Raises:
        InvalidInput: for values outside these ranges.

    Examples:
        A network with gamma = 1 moves the difference of two outputs by at most sqrt(2) for each unit of its input.

        >>> net = lben.LBEN(2, 4, 2, gamma=1.0)
        >>> loss = lben.train.Emma(epsilon=0.1, bound=2**0.5)
        >>> logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
        >>> float(loss(net, logits, labels)) > float(lben.train.CrossEntropy()(net, logits, labels))
        True
    """

    epsilon: float
    bound: float | Callable[[nn.Module], Tensor]

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        if not callable(self.bound):
            checks.positive("bound", self.bound)

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        try:
            return F.cross_entropy(self.raised(net, logits, labels), labels)
        except (IndexError, RuntimeError):
            samples.check_classes(logits, labels)
            raise

    def raised(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        """The logits that count, less the true one.

        Args:
            net: the network.
            logits: of shape (batch, p).
            labels: integers of shape (batch,).

        Returns:
            A tensor of shape (batch, p), 0 for the true class.
        """
        slopes = torch.as_tensor(self.bound(net) if callable(self.bound) else self.bound).to(logits)
        slopes = slopes[labels] if slopes.dim() == 2 else slopes.expand_as(logits)
        behind = logits - logits.gather(-1, labels[:, None])
        wrong = F.one_hot(labels, logits.shape[-1]) == 0
        radii = (-behind / slopes.masked_fill(~wrong, 1.0)).detach()
        return behind + radii.clamp(_LEAST * self.epsilon, self.epsilon) * slopes * wrong


@dataclass(frozen=True)
class MeanSquare:
    """The mean square of the differences between outputs and targets.

    Raises:
        InvalidInput: when it is called, if targets do not have the shape of the outputs.

    Examples:
        >>> float(lben.train.MeanSquare()(None, torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [0.0]])))
        5.0
    """

    def __call__(self, net: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
        samples.check_targets(outputs, targets)
        return F.mse_loss(outputs, targets)

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same for each sample.

        Args:
            outputs: of shape (batch, p).
            targets: of shape (batch, p).

        Returns:
            A tensor of shape (batch,).
        """
        return (outputs - targets).square().mean(dim=-1)
