"""The implicit layer: an equilibrium as a differentiable function of its bias and its operator.

The gradient of z = sigma(W z + b) (Equation `gradient`) is itself an equilibrium, of the transposed operator and of
the linear activation v -> J v with J = sigma'(W z + b). So one autograd function, calling itself, serves for every
derivative of every order, and the solver, the step and the factor of the forward pass serve the backward pass too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lben.activations.base import Activation, Jacobian
from lben.operators.base import Operator
from lben.solvers.base import OnFailure, Problem, Solver
from lben.solvers.loop import solve


class Known(NamedTuple):
    """An equilibrium that is known already: z, its pre-activation v, and the iterations it took."""

    z: Tensor
    v: Tensor
    iterations: int


@dataclass(frozen=True)
class _Method:
    """How an equilibrium is found: everything that carries no gradient.

    `kind` is the kind of Jacobian where the activation is one; the tensors it is made of are arguments.
    """

    operator: Operator
    activation: Activation
    solver: Solver
    on_failure: OnFailure
    first_burst: int | None = None
    kind: Jacobian | None = None

    def split(self, tensors: Sequence[Tensor]) -> tuple[Jacobian | None, tuple[Tensor, ...]]:
        """The Jacobian made of the first tensors, and the others, which are the operator's."""
        if self.kind is None:
            return None, tuple(tensors)
        count = len(self.kind.tensors)
        return self.kind.rebind(*tensors[:count]), tuple(tensors[count:])

    def adjoint(self, operator: Operator, iterations: int) -> _Method:
        """How the adjoint is found: by as many iterations as the equilibrium took, if by the same method."""
        solver, own = self.solver.adjoint, self.solver.backward is None
        return replace(self, operator=operator, solver=solver, first_burst=iterations if own else None)


class _Equilibrium(torch.autograd.Function):
    """z = sigma(W z + b), or z = J (W z + b) where the method is of a kind.

    Nothing that is kept for the backward pass refers to the output but through `save_for_backward`: that would be a
    cycle of references, and the memory of a graph that is never walked back would not be freed.
    """

    @staticmethod
    def forward(ctx: Any, b: Tensor, method: _Method, known: Known | None, *tensors: Tensor) -> Tensor:
        if known is None:
            jacobian, _ = method.split(tensors)
            problem = Problem(method.operator, method.activation if jacobian is None else jacobian, b)
            found = solve(method.solver, problem, on_failure=method.on_failure, first_burst=method.first_burst)
            z, v, iterations = found.z, found.v, found.iterations
        else:
            z, v, iterations = known.z.detach(), known.v, known.iterations
        ctx.method, ctx.v, ctx.iterations = method, v, iterations
        ctx.save_for_backward(b, z, *tensors)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        b, z, *tensors = ctx.saved_tensors
        jacobian, own = ctx.method.split(tensors)
        operator = ctx.method.operator.rebind(*own)
        v = operator.affine(z, b) if torch.is_grad_enabled() else ctx.v
        slope = ctx.method.activation.gain(v) if jacobian is None else jacobian
        adjoint = operator.transpose()
        q = _apply(ctx.method.adjoint(adjoint, ctx.iterations), grads[0], slope)
        grads_slope: tuple[Tensor | None, ...] = ()
        if jacobian is not None:
            wanted = any(ctx.needs_input_grad[3 : 3 + len(jacobian.tensors)])
            none = (None,) * len(jacobian.tensors)
            grads_slope = jacobian.pullback(adjoint.affine(q, grads[0]), v) if wanted else none
        wanted = any(ctx.needs_input_grad[3 + len(grads_slope) :])
        return q, None, None, *grads_slope, *(operator.pullback(q, z) if wanted else [None] * len(own))


def _apply(method: _Method, b: Tensor, jacobian: Jacobian | None, known: Known | None = None) -> Tensor:
    own: tuple[Tensor, ...] = ()
    if jacobian is not None:
        own = jacobian.tensors
        method = replace(method, kind=jacobian.rebind(*(tensor.detach() for tensor in own)))
    tensors = (*own, *method.operator.tensors)
    result: Tensor = _Equilibrium.apply(b, method, known, *tensors)  # type: ignore[no-untyped-call]
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
