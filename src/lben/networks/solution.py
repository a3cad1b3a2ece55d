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
    """An equilibrium, with what is known of its quality, sample by sample: ``net.solve(x)`` returns it.

    It is true if all samples have converged. Its tensors, but for `state`, are arranged as the batch was.

    Attributes:
        z: the hidden units, sigma(v), of shape (..., n); differentiable.
        v: the pre-activations W c + b of the solver's last candidate c, of shape (..., n).
        iterations: how many were made.
        residual: of every sample, the norm of the defect relative to that of z (where z is zero, to min(1, ``|b|``)).
        defect: c - z, of shape (..., n).
        method: the name of the solver, and of what took over where it failed.
        tolerance: what the residual was to be within.
        refuted: which samples only look like equilibria; None where there was no reason to look again.
        alpha: the step; None for a method without one.
        state: what another call can start from; None where there is nothing.
        history: the residuals after every iteration, of shape (iterations, ...); None if they were not asked for.
        recent: how many iterations were made since the solver last changed how it goes on.
        converged: which samples are within the tolerance, and not refuted.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> solution = net.solve(torch.randn(3, 2), keep_history=True)
        >>> bool(solution), solution.z.shape, solution.converged
        (True, torch.Size([3, 4]), tensor([True, True, True]))
        >>> solution.history.shape == (solution.iterations, 3)
        True
    """

    @staticmethod
    def of(found: Solved, z: Tensor, batch: torch.Size) -> Solution:
        """What a solver found, with a differentiable z, its samples arranged as the batch was.

        Args:
            found: what the solver found, in rows.
            z: its z, differentiable, in rows.
            batch: the shape of the batch.

        Returns:
            A `Solution`.
        """
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
        """A proved bound on ``|z - z*|`` in the norm of Lambda, per sample, for the z* of this network at this x.

        z* is meant in real numbers, for the weights as they are stored; everything is computed again in double
        precision, with every rounding bounded (`certify/equilibria.py`).

        Args:
            net: the network, or bare weights, that this is an equilibrium of.
            x: what `solve` was given.
            bias: what `solve` was given besides x.
            activation: sigma of bare weights; ReLU if not given. A network has its own.

        Returns:
            Of the shape of the batch, in double precision; infinite where no metric proves m > 0.

        Examples:
            >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
            >>> x = torch.randn(3, 2)
            >>> bool((net.solve(x).error_bound(net, x) < 1e-2).all())
            True
        """
        return hidden_error(self, net, x, bias, activation)
