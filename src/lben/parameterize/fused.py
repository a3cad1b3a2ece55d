"""The training step's layer in one autograd function: parameterization, bias and equilibrium.

It computes what `direct_weight` and `implicit` compute, with fewer calls and fewer copies: at 80 units the time goes
into calls, not into arithmetic. Second derivatives are left to those two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.implicit import Known, adjoint_equilibrium, equilibrium
from lben.numerics.transforms import backward_rule
from lben.operators.dense import DenseOperator
from lben.parameterize.dense import Monotone
from lben.parameterize.direct import Direct, direct_weight
from lben.solvers.base import OnFailure, Problem, Solver
from lben.solvers.loop import solve


@dataclass(frozen=True, eq=False)
class _Layer:
    """Everything that carries no gradient."""

    gamma: float | None
    epsilon: Tensor
    activation: Activation
    solver: Solver
    on_failure: OnFailure


@dataclass(frozen=True, eq=False)
class _Trace:
    """What the forward pass leaves for the backward pass."""

    layer: _Layer
    direct: Direct
    operator: DenseOperator
    v: Tensor
    iterations: int


class _FusedEquilibrium(torch.autograd.Function):
    """z with z = sigma(W z + U x + bz + bias), W from V, N, d, U and Wo."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        V: Tensor,
        N: Tensor,
        d: Tensor | None,
        U: Tensor,
        Wo: Tensor,
        bz: Tensor,
        layer: _Layer,
    ) -> Tensor:
        direct = Direct.build(V, N, d, U, Wo, layer.gamma, layer.epsilon)
        b = torch.addmm(bz, x, U.T)
        if bias is not None:
            b.add_(bias)
        least = float(layer.epsilon) * (1.0 if direct.psi is None else float(direct.psi.min()))
        lam = None if direct.psi is None else direct.psi.reciprocal()
        operator = DenseOperator(direct.W, lam, monotonicity_bound=least)
        checks.finite_sum(b, x=x, V=V, N=N, d=d, U=U, Wo=Wo, bz=bz, bias=bias)
        problem = Problem(operator, layer.activation, b)
        solution = solve(layer.solver, problem, on_failure=layer.on_failure)
        ctx.trace = _Trace(layer, direct, operator, solution.v, solution.iterations)
        ctx.save_for_backward(x, bias, V, N, d, U, Wo, bz, solution.z)
        return solution.z

    @staticmethod
    @backward_rule
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, V, _, _, U, Wo, _, z = ctx.saved_tensors
        trace: _Trace = ctx.trace
        if torch.is_grad_enabled():
            return *_differentiable_grads(ctx, grads[0]), None
        q = _adjoint(trace, grads[0])
        grad_V, grad_N, grad_d, grad_U, grad_Wo = trace.direct.pullback(q.T @ z, V, U, Wo, trace.layer.gamma)
        if grad_U is None or checks.transformed():
            grad_U = q.T @ x if grad_U is None else grad_U + q.T @ x
        else:
            grad_U.addmm_(q.T, x)
        grad_x = q @ U if ctx.needs_input_grad[0] else None
        grad_bias = None if bias is None else q
        return grad_x, grad_bias, grad_V, grad_N, grad_d, grad_U, grad_Wo, q.sum(0), None


def _adjoint(trace: _Trace, g: Tensor) -> Tensor:
    """The q with q = J (W' q + g)."""
    layer, slope = trace.layer, trace.layer.activation.gain(trace.v)
    if checks.transformed():
        return adjoint_equilibrium(trace.operator, slope, g, layer.solver, on_failure=layer.on_failure)
    burst = trace.iterations if layer.solver.backward is None else None
    problem = Problem(trace.operator.transpose(), slope, g)
    return solve(layer.solver.adjoint, problem, on_failure=layer.on_failure, first_burst=burst).z


def _differentiable_grads(ctx: Any, g: Tensor) -> list[Tensor | None]:
    """The gradients as differentiable functions of the inputs, through the layer in its separate parts."""
    x, bias, V, N, d, U, Wo, bz, z = ctx.saved_tensors
    trace: _Trace = ctx.trace
    layer = trace.layer
    with torch.enable_grad():
        W = direct_weight(V, N, d, U, Wo, layer.gamma, layer.epsilon)
        b = F.linear(x, U, bz)
        b = b if bias is None else b + bias
        operator = trace.operator.rebind(W)
        known = Known(z, trace.v, trace.iterations)
        z = equilibrium(operator, layer.activation, b, layer.solver, on_failure=layer.on_failure, known=known)
        wanted = [t for t in (x, bias, V, N, d, U, Wo, bz) if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(z, wanted, g, create_graph=True, allow_unused=True))
        return [next(found) if t is not None and t.requires_grad else None for t in (x, bias, V, N, d, U, Wo, bz)]


def fused_equilibrium(
    parameterization: Monotone,
    x: Tensor,
    bias: Tensor | None,
    activation: Activation,
    solver: Solver,
    on_failure: OnFailure,
) -> Tensor:
    """The equilibria of a network with a direct parameterization, differentiable in x, bias and all free variables.

    Shapes: x (batch, d), bias (batch, n) or None, z (batch, n).
    """
    p = parameterization
    d = p.exponents()
    layer = _Layer(p.gamma, p.epsilon, activation, solver, on_failure)
    z: Tensor = _FusedEquilibrium.apply(x, bias, p.V, p.N, d, p.U, p.Wo, p.bz, layer)  # type: ignore[no-untyped-call]
    return z
