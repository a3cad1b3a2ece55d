"""The implicit layer: an equilibrium as a differentiable function of its bias and its operator.

The gradient of z = sigma(W z + b) (Equation `gradient`) is itself an equilibrium, of the transposed operator and of
the linear activation v -> J v with J = sigma'(W z + b). So one autograd function, calling itself, serves for every
derivative of every order, and the solver, the step and the factor of the forward pass serve the backward pass too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, Jacobian
from lben.numerics.transforms import backward_rule, forward_rule
from lben.operators.base import Operator
from lben.solvers.base import OnFailure, Problem, Solver
from lben.solvers.loop import solve


@dataclass(frozen=True, eq=False)
class Known:
    """An equilibrium that is known already: z, its pre-activation v, and the iterations it took."""

    z: Tensor
    v: Tensor
    iterations: int


class _Trace:
    """What finding an equilibrium leaves for its derivatives: all None where it was found slice by slice.

    `v` is that of the plain tensors within all transforms.
    """

    operator: Operator | None = None
    v: Tensor | None = None
    iterations: int | None = None


@dataclass(frozen=True)
class _Method:
    """How an equilibrium is found: everything that carries no gradient.

    `operator` says of what kind W is, and `made` is a W of plain tensors, which the solver takes; without one it is
    made of the arguments. `kind` is the kind of Jacobian where the activation is one; the tensors it is made of are
    arguments.
    """

    operator: Operator
    activation: Activation
    solver: Solver
    on_failure: OnFailure
    made: Operator | None
    first_burst: int | None = None
    kind: Jacobian | None = None
    trace: _Trace = field(default_factory=_Trace)

    @property
    def rows(self) -> int:
        """How many of the tensors are the Jacobian's, with one row a sample."""
        return 0 if self.kind is None else len(self.kind.tensors)

    def jacobian(self, tensors: Sequence[Tensor]) -> Jacobian | None:
        """That made of the first tensors."""
        return None if self.kind is None else self.kind.rebind(*tensors[: self.rows])

    def bound(self, tensors: Sequence[Tensor]) -> Operator:
        """The operator of the others, which are its own and its constants."""
        count = self.rows + len(self.operator.tensors)
        return self.operator.rebind(*tensors[self.rows : count], constants=tuple(tensors[count:]))

    def again(self, operator: Operator, made: Operator | None, solver: Solver) -> _Method:
        """How a derivative is found: by as many iterations as the equilibrium took, if by the same method."""
        burst = self.trace.iterations if solver is self.solver else None
        return replace(self, operator=operator, made=made, solver=solver, first_burst=burst, trace=_Trace())

    def adjoint(self, operator: Operator) -> _Method:
        """How the gradient is found, with the transposed operator."""
        made = self.trace.operator
        return self.again(operator, None if made is None else made.transpose(), self.solver.adjoint)

    def tangent(self, operator: Operator) -> _Method:
        """How the derivative in a direction is found, with the same operator."""
        return self.again(operator, self.trace.operator, self.solver)


def _find(b: Tensor, method: _Method, known: Known | None, tensors: Sequence[Tensor]) -> Tensor:
    """z, of plain tensors."""
    trace = method.trace
    trace.operator = method.operator.remake(*tensors[method.rows :]) if method.made is None else method.made
    if known is not None:
        trace.v, trace.iterations = known.v, known.iterations
        return known.z.detach()
    problem = Problem(trace.operator, method.jacobian(tensors) or method.activation, b)
    found = solve(method.solver, problem, on_failure=method.on_failure, first_burst=method.first_burst)
    trace.v, trace.iterations = found.v, found.recent or found.iterations
    return found.z


def _keep(ctx: Any, b: Tensor, method: _Method, tensors: Sequence[Tensor], z: Tensor) -> None:
    """Nothing that is kept refers to the output but through `save_for_backward`: that would be a cycle of references,
    and the memory of a graph that is never walked back would not be freed.
    """
    ctx.method = method
    ctx.v = None if torch._C._are_functorch_transforms_active() else method.trace.v
    ctx.save_for_backward(b, z, *tensors)
    ctx.save_for_forward(b, z, *tensors)


class _Equilibrium(torch.autograd.Function):
    """z = sigma(W z + b), or z = J (W z + b) where the method is of a kind."""

    @staticmethod
    def forward(ctx: Any, b: Tensor, method: _Method, known: Known | None, *tensors: Tensor) -> Tensor:
        z = _find(b, method, known, tensors)
        _keep(ctx, b, method, tensors, z)
        return z

    @staticmethod
    @backward_rule
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        b, z, *tensors = ctx.saved_tensors
        method: _Method = ctx.method
        operator, jacobian, count = method.bound(tensors), method.jacobian(tensors), 3 + method.rows
        moves = ctx.v is None or torch.is_grad_enabled() or checks.transformed()
        v = operator.affine(z, b) if moves else ctx.v
        slope = method.activation.gain(v) if jacobian is None else jacobian
        adjoint = operator.transpose()
        q = _apply(method.adjoint(adjoint), grads[0], slope)
        grads_slope: tuple[Tensor | None, ...] = (None,) * method.rows
        if jacobian is not None and any(ctx.needs_input_grad[3:count]):
            grads_slope = jacobian.pullback(adjoint.affine(q, grads[0]), v)
        own: tuple[Tensor | None, ...] = (None,) * len(operator.tensors)
        if any(ctx.needs_input_grad[count:]):
            own = operator.pullback(q, z)
        return q, None, None, *grads_slope, *own, *(None for _ in operator.constants)

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, saved: Sequence[Tensor], *tangents: Any) -> Tensor:
        """dz = J (W dz + dW z + db), an equilibrium too; and where the method is of a kind, dz = J (W dz + ..) + dJ v,
        of which the part besides dJ v is one.
        """
        b, z, *tensors = saved
        method: _Method = ctx.method
        operator, jacobian = method.bound(tensors), method.jacobian(tensors)
        v = operator.affine(z, b)
        slope = method.activation.gain(v) if jacobian is None else jacobian
        db, moved = tangents[0], _defined(tangents[3:], tensors)
        drive = operator.push(z, moved[method.rows : method.rows + len(operator.tensors)])
        drive = drive if db is None else drive + db
        if jacobian is None:
            return _apply(method.tangent(operator), drive, slope)
        besides = jacobian.rebind(*moved[: method.rows])(v)
        return _apply(method.tangent(operator), operator.affine(besides, drive), slope) + besides


class _Transformed(torch.autograd.Function):
    """The same within transforms of torch.func: every rule gets the tensors of one level of them.

    `setup_context`, which they need, takes several times as long as the rest of a call.
    """

    @staticmethod
    def forward(b: Tensor, method: _Method, known: Known | None, *tensors: Tensor) -> Tensor:
        return _find(b, method, known, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        b, method, _, *tensors = inputs
        _keep(ctx, b, method, tensors, output)

    backward = _Equilibrium.backward
    jvp = _Equilibrium.jvp

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], b: Tensor, method: _Method, known: Known | None, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        """Samples are rows: slices of one W are more of them. With a W a slice, one problem a slice."""
        size, places, first = info.batch_size, (in_dims[0], *in_dims[3:]), 1 + method.rows
        every = (b, *tensors)
        if all(place is None for place in places[first:]):
            rows = [_slices(t, place, size).flatten(0, 1) for t, place in zip(every[:first], places, strict=False)]
            z = _call(rows[0], method, None, *rows[1:], *tensors[method.rows :])
            return z.unflatten(0, (size, len(b) if in_dims[0] is None else -1)), 0
        sliced = [_slices(t, place, size) for t, place in zip(every, places, strict=True)]
        alone = [replace(method, made=None, trace=_Trace()) for _ in range(size)]
        found = [_call(s[0], one, None, *s[1:]) for one, *s in zip(alone, *sliced, strict=True)]
        return torch.stack(found), 0


def _slices(tensor: Tensor, place: int | None, size: int) -> Tensor:
    """The slices along the first dimension."""
    return tensor.expand(size, *tensor.shape) if place is None else tensor.movedim(place, 0)


def _defined(tangents: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) if dt is None else dt for dt, t in zip(tangents, tensors, strict=True))


def _call(b: Tensor, method: _Method, known: Known | None, *tensors: Tensor) -> Tensor:
    function = _Transformed if torch._C._are_functorch_transforms_active() else _Equilibrium
    z: Tensor = function.apply(b, method, known, *tensors)  # type: ignore[no-untyped-call]
    return z


def _apply(method: _Method, b: Tensor, jacobian: Jacobian | None, known: Known | None = None) -> Tensor:
    own: tuple[Tensor, ...] = ()
    if jacobian is not None:
        own = jacobian.tensors
        method = replace(method, kind=jacobian.rebind(*(tensor.detach() for tensor in own)))
    return _call(b, method, known, *own, *method.operator.tensors, *method.operator.constants)


def equilibrium(
    operator: Operator,
    activation: Activation,
    b: Tensor,
    solver: Solver,
    *,
    on_failure: OnFailure = "raise",
    known: Known | None = None,
) -> Tensor:
    """The z with z = sigma(W z + b), differentiable in b and in the operator, to any order and in every mode of torch.

    What is known already is made differentiable without solving again.
    Shapes: b (batch, n), z (batch, n).
    """
    made = None if torch._C._are_functorch_transforms_active() else operator
    return _apply(_Method(operator, activation, solver, on_failure, made), b, None, known)


def adjoint_equilibrium(
    operator: Operator, jacobian: Jacobian, g: Tensor, solver: Solver, *, on_failure: OnFailure = "raise"
) -> Tensor:
    """The q with q = J (W' q + g), differentiable as `equilibrium` is, for an operator of W that is made already."""
    adjoint = operator.transpose()
    return _apply(_Method(adjoint, jacobian, solver.adjoint, on_failure, adjoint), g, jacobian)
