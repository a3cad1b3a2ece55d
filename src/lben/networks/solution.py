"""An equilibrium as a network returns it: arranged as its inputs were, and with a proved error."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lben.activations.base import Activation
from lben.certify.evaluator import hidden_error
from lben.certify.subject import Examined
from lben.solvers.base import Solved


@dataclass(frozen=True, eq=False)
class Solution(Solved):
    """An equilibrium, with what is known of its quality, sample by sample.

    `z` is sigma(v) with the pre-activation v = W c + b of the solver's last candidate c, `defect` is c - z, and
    `residual` the norm of the defect relative to that of z (where z is zero, relative to min(1, |b|)). `history`, if
    asked for, holds the residuals after every iteration, shape (iterations, batch). True if all have converged.
    """

    @staticmethod
    def of(found: Solved, z: Tensor, batch: torch.Size) -> Solution:
        """What a solver found, with a differentiable z, its samples arranged as the batch was."""
        own = {field.name: getattr(found, field.name) for field in fields(found)}
        rows = {name: own[name].reshape(*batch, z.shape[-1]) for name in ("v", "defect")}
        return Solution(
            **{
                **own,
                **rows,
                "z": z.reshape(*batch, z.shape[-1]),
                "residual": found.residual.reshape(batch),
                "refuted": None if found.refuted is None else found.refuted.reshape(batch),
                "history": None if found.history is None else found.history.reshape(len(found.history), *batch),
            }
        )

    def error_bound(
        self, net: Examined, x: Tensor, *, bias: Tensor | None = None, activation: Activation | None = None
    ) -> Tensor:
        """A proved bound on |z - z*| in the norm of Lambda, per sample, for the z* of this network at this x.

        z* is meant in real numbers, for the weights as they are stored; everything is computed again in double
        precision, with every rounding bounded (`certify/equilibria.py`). Infinite where no metric proves m > 0.
        `bias` is what `solve` was given besides x, and `activation` is for bare weights: ReLU if not given.
        """
        return hidden_error(self, net, x, bias, activation)
