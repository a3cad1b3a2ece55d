"""The implicit layer: an equilibrium as a differentiable function of its bias and its operator.

The gradient of z = sigma(W z + b) (Equation `gradient`) is itself an equilibrium, of the transposed operator and of
the linear activation v -> j*v with j = sigma'(W z + b). So one autograd function, calling itself, serves for every
derivative of every order, and the solver, the step and the factor of the forward pass serve the backward pass too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lben.activations import Activation
from lben.operators import DenseOperator
from lben.solvers.base import OnFailure, Problem, Solution, Solver, solve


class Gain(Activation):
    """The linear activation v -> j*v with 0 <= j <= 1, entry by entry of a batch.

    `binary` says that every j is 0 or 1, which makes its prox the same for every alpha.
    """

    def __init__(self, j: Tensor, binary: bool = False) -> None:
        self.j = j
        self.binary = binary

    def __call__(self, v: Tensor) -> Tensor:
        return self.j * v

    def derivative(self, v: Tensor) -> Tensor:
        return self.j

    def potential(self, z: Tensor) -> Tensor:
        return torch.where(z == 0, 0.0, (1 / self.j - 1) / 2 * z**2)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return u * self._prox_gain(alpha)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        gain = self._prox_gain(alpha)
        return partial(torch.mul, gain + (gain - 1))

    def _prox_gain(self, alpha: float) -> Tensor:
        return self.j if self.binary else self.j / torch.lerp(self.j, torch.ones_like(self.j), alpha)

    def rows(self, index: Tensor) -> Activation:
        return Gain(self.j[index], self.binary)


@dataclass(frozen=True)
class _Method:
    """How an equilibrium is found: everything that carries no gradient."""

    operator: DenseOperator
    activation: Activation
    solver: Solver
    on_failure: OnFailure
    first_burst: int | None = None
    solution: Solution | None = None

    def adjoint(self, operator: DenseOperator, iterations: int) -> _Method:
        """How its adjoint is found: it needs about as many iterations."""
        return _Method(operator, self.activation, self.solver, self.on_failure, first_burst=iterations)


class _Equilibrium(torch.autograd.Function):
    """z = sigma(W z + b), or z = j*(W z + b) where j is given."""

    @staticmethod
    def forward(ctx: Any, b: Tensor, j: Tensor | None, method: _Method, *tensors: Tensor) -> Tensor:
        solution = method.solution
        if solution is None:
            activation = method.activation if j is None else Gain(j, method.activation.own_prox)
            problem = Problem(method.operator, activation, b)
            solution = solve(method.solver, problem, on_failure=method.on_failure, first_burst=method.first_burst)
        ctx.method, ctx.v, ctx.iterations = method, solution.v, solution.iterations
        ctx.save_for_backward(b, j, solution.z, *tensors)
        return solution.z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        b, j, z, *tensors = ctx.saved_tensors
        operator = ctx.method.operator.rebind(*tensors)
        v = operator.affine(z, b) if torch.is_grad_enabled() else ctx.v
        slope = ctx.method.activation.derivative(v) if j is None else j
        transposed = operator.transpose()
        q = _apply(ctx.method.adjoint(transposed, ctx.iterations), grads[0], slope)
        grad_j = transposed.affine(q, grads[0]) * v if ctx.needs_input_grad[1] else None
        return q, grad_j, None, *operator.pullback(q, z)


def _apply(method: _Method, b: Tensor, j: Tensor | None) -> Tensor:
    result: Tensor = _Equilibrium.apply(b, j, method, *method.operator.tensors)  # type: ignore[no-untyped-call]
    return result


def equilibrium(
    operator: DenseOperator,
    activation: Activation,
    b: Tensor,
    solver: Solver,
    *,
    on_failure: OnFailure = "raise",
    solution: Solution | None = None,
) -> Tensor:
    """The z with z = sigma(W z + b), differentiable in b and in the operator, to any order.

    A solution that is known already is made differentiable without solving again.
    Shapes: b (batch, n), z (batch, n).
    """
    return _apply(_Method(operator, activation, solver, on_failure, solution=solution), b, None)
