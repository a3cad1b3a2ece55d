"""Trajectories of a recurrent equilibrium network in one autograd function.

    x+ = A x + B1 w + drive_x,   w = sigma(C1 x + D11 w + drive_w)

at every step of a signal. Hidden units start from where they were a step before. Backwards, with l the gradient of x+
and g that of w, q = J (D11' q + B1' l + g) is an equilibrium again, and the gradient of x is A' l + C1' q. What is kept
are states and hidden units; gradients of all weights are products over all steps at once. A second derivative goes
through the steps one by one, each by `implicit.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.errors import NotConverged
from lben.implicit import equilibrium
from lben.numerics.transforms import as_it_is, backward_rule
from lben.operators.base import Operator
from lben.solvers.base import OnFailure, Problem, Solved, Solver
from lben.solvers.loop import attempt, solve, within_rounding
from lben.weights.recurrent import RENWeights

_PATIENCE = 128  # iterations, after which a closer look is taken at what is left


@dataclass(frozen=True, eq=False)
class Method:
    """How hidden units are found: all that carries no gradient."""

    operator: Operator
    activation: Activation
    solver: Solver
    on_failure: OnFailure


def run(weights: RENWeights, method: Method, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, states and hidden units, of shapes (times, batch, p), (times + 1, batch, n) and (times, batch, q).

    u: inputs, of shape (times, batch, d). x: the states to begin with, (batch, n). Differentiable in all tensors.
    """
    drive_x, drive_w = F.linear(u, weights.B2, weights.bx), F.linear(u, weights.D12, weights.bv)
    states, hidden = _follow(method, x, drive_x, drive_w, weights.A, weights.B1, weights.C1, weights.D11)
    return outputs(weights, states[:-1], hidden, u), states, hidden


def outputs(weights: RENWeights, x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """C2 x + D21 w + D22 u + by."""
    y = F.linear(x, weights.C2, weights.by) + F.linear(w, weights.D21)
    return y if weights.D22 is None else y + F.linear(u, weights.D22)


def _follow(method: Method, x: Tensor, drive_x: Tensor, drive_w: Tensor, *matrices: Tensor) -> tuple[Tensor, Tensor]:
    """States and hidden units, of shapes (times + 1, batch, n) and (times, batch, q), from the states x.

    drive_x, drive_w: what does not depend on states, of shapes (times, batch, n) and (times, batch, q).
    matrices: A, B1, C1 and D11.
    """
    if checks.transformed():
        return _step_by_step(method, x, drive_x, drive_w, *matrices)
    found: tuple[Tensor, Tensor] = _Trajectory.apply(method, x, drive_x, drive_w, *matrices)  # type: ignore[no-untyped-call]
    return found


class _Trajectory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, method: Method, x: Tensor, drive_x: Tensor, drive_w: Tensor, *matrices: Tensor) -> Any:
        states, hidden = _run(method, x, drive_x, drive_w, *matrices)
        ctx.method = method
        ctx.save_for_backward(x, drive_x, drive_w, *matrices, states, hidden)
        return states, hidden

    @staticmethod
    @backward_rule
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *given, states, hidden = ctx.saved_tensors
        if torch.is_grad_enabled() or checks.transformed():
            return None, *_differentiable_grads(ctx.method, given, grads)
        return None, *_grads(ctx.method, given, states, hidden, *grads)


@as_it_is
def _run(
    method: Method, x: Tensor, drive_x: Tensor, drive_w: Tensor, A: Tensor, B1: Tensor, C1: Tensor, D11: Tensor
) -> tuple[Tensor, Tensor]:
    states, hidden = x.new_empty(len(drive_x) + 1, *x.shape), torch.empty_like(drive_w)
    states[0] = x
    before, rows = _Warm(method.solver, method.on_failure), (A.T, B1.T, C1.T)
    for t, (now, b) in enumerate(zip(drive_x.unbind(), drive_w.unbind(), strict=True)):
        b = torch.addmm(b, x, rows[2])
        if not math.isfinite(b.sum().item()):
            raise NotConverged(f"The state overflows at time step {t} of {len(drive_x)}: nothing bounds it.", 0.0)
        w = before.solve(Problem(method.operator, method.activation, b)).z
        x = torch.addmm(torch.addmm(now, x, rows[0]), w, rows[1], out=states[t + 1])
        hidden[t] = w
    return states, hidden


def _grads(
    method: Method, given: list[Tensor], states: Tensor, hidden: Tensor, grad_x: Tensor, grad_w: Tensor
) -> tuple[Tensor, ...]:
    """Of x, both drives, A, B1, C1 and D11."""
    _, _, drive_w, A, B1, C1, D11 = given
    v = drive_w + states[:-1] @ C1.T + hidden @ D11.T
    transposed, adjoint = method.operator.transpose(), method.solver.adjoint
    before = _Warm(adjoint, method.on_failure)
    down, across = torch.empty_like(grad_x[1:]), torch.empty_like(grad_w)
    back = grad_x[-1]
    for t in reversed(range(len(grad_w))):
        down[t] = back
        g = torch.addmm(grad_w[t], back, B1)
        q = before.solve(Problem(transposed, method.activation.gain(v[t]), g)).z
        across[t] = q
        back = torch.addmm(torch.addmm(grad_x[t], back, A), q, C1)
    rows, before_rows, units = across.flatten(0, 1), states[:-1].flatten(0, 1), hidden.flatten(0, 1)
    below = down.flatten(0, 1)
    return back, down, across, below.T @ before_rows, below.T @ units, rows.T @ before_rows, rows.T @ units


class _Warm:
    """A solver that begins where it last ended, and looks at its residual when it last was small enough.

    Among thousands of solves some have answers so small that their precision cannot resolve the tolerance, which is
    relative to them. Those are taken where all that is left is the rounding of their pre-activations.
    """

    def __init__(self, solver: Solver, on_failure: OnFailure) -> None:
        self.solver, self.on_failure = solver, on_failure
        self.quick = replace(solver, max_iterations=min(solver.max_iterations, _PATIENCE))
        self.last: Solved | None = None
        self.burst: int | None = None

    def solve(self, problem: Problem) -> Solved:
        with torch.no_grad():
            found, success = attempt(self.quick, problem, self.last, False, self.burst)
        if not problem.operator.proved or not (success or within_rounding(found)):
            found = solve(self.solver, problem, on_failure=self.on_failure)
        easily = found.iterations > 1 and bool((found.residual < 0.2 * self.solver.tolerance).all())
        self.burst = min(found.iterations - easily, _PATIENCE // 2)
        self.last = found if found.state is not None else None
        return found


def _step_by_step(
    method: Method, x: Tensor, drive_x: Tensor, drive_w: Tensor, A: Tensor, B1: Tensor, C1: Tensor, D11: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by calls that every transform of torch knows, and that can be differentiated again."""
    operator, states, hidden = method.operator.rebind(D11), [x], []
    for now, b in zip(drive_x.unbind(), drive_w.unbind(), strict=True):
        found = equilibrium(operator, method.activation, b + x @ C1.T, method.solver, on_failure=method.on_failure)
        x = now + x @ A.T + found @ B1.T
        states.append(x)
        hidden.append(found)
    return torch.stack(states), torch.stack(hidden)


def _differentiable_grads(method: Method, given: list[Tensor], grads: tuple[Tensor, ...]) -> list[Tensor | None]:
    with torch.enable_grad():
        found = _step_by_step(method, *given)
        wanted = [tensor for tensor in given if tensor.requires_grad]
        results = iter(torch.autograd.grad(found, wanted, grads, create_graph=True, allow_unused=True))
        return [next(results) if tensor.requires_grad else None for tensor in given]
