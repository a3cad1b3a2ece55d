"""The implicit layer: an equilibrium as a differentiable function of its bias and its operator.

The gradient of z = sigma(W z + b) (Equation `gradient`) is itself an equilibrium, of the transposed operator and of
the linear activation v -> j*v with j = sigma'(W z + b). So one autograd function, calling itself, serves for every
derivative of every order, and the solver, the step and the factor of the forward pass serve the backward pass too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lben.activations import Activation
from lben.gain import Gain
from lben.operators import Operator
from lben.solvers.base import OnFailure, Problem, Solver
from lben.solvers.loop import solve


class Known(NamedTuple):
    """An equilibrium that is known already: z, its pre-activation v, and the iterations it took."""

    z: Tensor
    v: Tensor
    iterations: int


@dataclass(frozen=True)
class _Method:
    """How an equilibrium is found: everything that carries no gradient."""

    operator: Operator
    activation: Activation
    solver: Solver
    on_failure: OnFailure
    first_burst: int | None = None

    def adjoint(self, operator: Operator, iterations: int) -> _Method:
        """How the adjoint is found: by as many iterations as the equilibrium took, if by the same method."""
        solver, own = self.solver.adjoint, self.solver.backward is None
        return replace(self, operator=operator, solver=solver, first_burst=iterations if own else None)


class _Equilibrium(torch.autograd.Function):
    """z = sigma(W z + b), or z = j*(W z + b) where j is given.

    Nothing that is kept for the backward pass refers to the output but through `save_for_backward`: that would be a
    cycle of references, and the memory of a graph that is never walked back would not be freed.
    """

    @staticmethod
    def forward(
        ctx: Any, b: Tensor, j: Tensor | None, method: _Method, known: Known | None, *tensors: Tensor
    ) -> Tensor:
        if known is None:
            activation = method.activation if j is None else Gain(j, method.activation.own_prox)
            problem = Problem(method.operator, activation, b)
            found = solve(method.solver, problem, on_failure=method.on_failure, first_burst=method.first_burst)
            z, v, iterations = found.z, found.v, found.iterations
        else:
            z, v, iterations = known.z.detach(), known.v, known.iterations
        ctx.method, ctx.v, ctx.iterations = method, v, iterations
        ctx.save_for_backward(b, j, z, *tensors)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        b, j, z, *tensors = ctx.saved_tensors
        operator = ctx.method.operator.rebind(*tensors)
        v = operator.affine(z, b) if torch.is_grad_enabled() else ctx.v
        slope = ctx.method.activation.derivative(v) if j is None else j
        adjoint = operator.transpose()
        q = _apply(ctx.method.adjoint(adjoint, ctx.iterations), grads[0], slope)
        grad_j = adjoint.affine(q, grads[0]) * v if ctx.needs_input_grad[1] else None
        wanted = any(ctx.needs_input_grad[4:])
        return q, grad_j, None, None, *(operator.pullback(q, z) if wanted else [None] * len(tensors))


def _apply(method: _Method, b: Tensor, j: Tensor | None, known: Known | None = None) -> Tensor:
    result: Tensor = _Equilibrium.apply(b, j, method, known, *method.operator.tensors)  # type: ignore[no-untyped-call]
    return result


def equilibrium(
    operator: Operator,
    activation: Activation,
    b: Tensor,
    solver: Solver,
    *,
    on_failure: OnFailure = "raise",
    known: Known | None = None,
) -> Tensor:
    """The z with z = sigma(W z + b), differentiable in b and in the operator, to any order.

    What is known already is made differentiable without solving again.
    Shapes: b (batch, n), z (batch, n).
    """
    return _apply(_Method(operator, activation, solver, on_failure), b, None, known)
