"""Bounds in the units of features each of which `Normalize` divides by a number of its own.

`domain="pixels"` divides a bound by the smallest of these numbers, as if every feature had it. Here they become a part
of U, and bounds are searched for the product, which are smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.activations.base import Activation
from lben.certify.lipschitz import product_bound, tightest_bound
from lben.certify.radius import certified_radius
from lben.normalize import Normalize
from lben.weights.dense import Weights

_SQRT2 = math.nextafter(math.sqrt(2), 2)


@dataclass(frozen=True, eq=False)
class OwnUnits:
    """Dense weights whose inputs are those before `Normalize`, but for a shift, which no bound depends on.

    slack: what the rounding of U/std may add to a bound. Each entry is off by 2^-53 of itself, or by an underflow, and
        y moves by at most so much times the norm of all that, as the bound of y by U x + bz says.
    """

    weights: Weights
    activation: Activation
    slack: float

    @staticmethod
    def of(weights: Weights, activation: Activation, normalize: Normalize | None) -> OwnUnits:
        """The units before this stage; with None, those of the network's input."""
        assert weights.D is None  # which would have to be divided, too
        plain = replace(weights.precise(), gamma=None)
        if normalize is None:
            return OwnUnits(plain, activation, 0.0)
        own = replace(plain, U=plain.U / normalize.validate().std.to(plain.U))
        at_sum = replace(plain, U=torch.eye(plain.hidden_features, dtype=torch.float64))
        off = 2.0**-52 * float(torch.linalg.matrix_norm(own.U)) + 1e-300
        return OwnUnits(own, activation, product_bound(at_sum, activation=activation) * off)

    def bound(self) -> float:
        """The smallest bound of all outputs together that is proved, in the l2 norm."""
        gamma = tightest_bound(self.weights, activation=self.activation).gamma
        assert gamma is not None
        return math.nextafter(gamma + self.slack, math.inf)

    def pairs(self) -> Tensor:
        """Bounds of the differences of two outputs, shape (p, p)."""
        somewhere = torch.zeros(1, self.weights.in_features, dtype=torch.float64)
        bounds = certified_radius(self.weights, somewhere, activation=self.activation).bounds
        return torch.nextafter(bounds + _SQRT2 * self.slack, torch.full_like(bounds, math.inf))
