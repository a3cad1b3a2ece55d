"""Explicit weights at work in double precision, with the proved error of what they compute."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.certify.distance import distance, sizes_of
from lben.certify.kinds import subject_of
from lben.certify.subject import Examined, Subject
from lben.errors import ConvergenceWarning, InvalidInput
from lben.implicit import equilibrium
from lben.numerics.enclosed import EPS
from lben.numerics.rounding import norm_bound, undisturbed
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Problem, Solved, Solver
from lben.solvers.fista import FISTA
from lben.solvers.loop import solve
from lben.solvers.newton import Newton
from lben.solvers.peaceman_rachford import PeacemanRachford

PRECISE = PeacemanRachford(tolerance=1e-12)
_ROUGH = PeacemanRachford(tolerance=1e-4)
_SLOW_STEPS = 20_000
_MOST_UNITS = 2**23  # hidden units that are solved for at once


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Outputs y, with proved bounds on their errors and those of hidden layers z, as rows.

    hidden_error: on |z - z*| in the Lambda norm, shape (batch,); infinite where no metric proves one.
    rounding: on each entry of y from its last product.
    converged: whether z is an equilibrium to the tolerance; without a metric there may be none.
    """

    y: Tensor
    hidden_error: Tensor
    rounding: Tensor
    converged: Tensor

    @property
    def predicted(self) -> Tensor:
        """The class of each row; -1 where there is no equilibrium to give one."""
        return torch.where(self.converged, self.y.argmax(dim=-1), -1)


class Evaluator(nn.Module):
    """A subject at work. Where its weights carry no metric, one is looked for.

    Calling it returns y for x of shape (..., d), differentiable in x, by its `solver`, which may be assigned.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject.settled()
        self.weights = self.subject.weights
        self.operator = self.weights.operator()
        self.output = self.subject.output
        self.solver: Solver = PRECISE

    @staticmethod
    def of(net: Examined, activation: Activation | None = None) -> Evaluator:
        return Evaluator(subject_of(net, activation))

    @property
    def proved(self) -> bool:
        """Whether a metric proves that there is one equilibrium for every input."""
        return self.subject.proved

    def require_proof(self) -> None:
        """Refuse weights of which nothing is proved."""
        if not self.proved:
            raise self.subject.refusal()

    def flat(self, x: Tensor) -> Tensor:
        """A user's inputs with their features in one dimension, the last."""
        return self.subject.flat(x)

    def inputs(self, x: Tensor) -> Tensor:
        """A user's inputs as rows of doubles."""
        flat = checks.finite("x", self.flat(x))
        return flat.to("cpu", torch.float64, copy=True).reshape(-1, flat.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        rows = self._scaled(x.reshape(-1, x.shape[-1]))
        on_failure = self.solver.on_failure or "raise"
        z = equilibrium(self.operator, self.subject.activation, self._bias(rows), self.solver, on_failure=on_failure)
        return self.weights.readout(z, rows).reshape(*x.shape[:-1], len(self.weights.by))

    def _scaled(self, x: Tensor) -> Tensor:
        """x at the network's input."""
        normalize = self.subject.normalize
        return x if normalize is None else normalize(x)

    def _bias(self, x: Tensor) -> Tensor:
        """U x + bz, for x at the network's input."""
        b = self.weights.inject(x)
        checks.finite_sum(b, x=x, **self.weights.tensors())
        return b

    @torch.no_grad()
    def evaluate(self, x: Tensor, solver: Solver = PRECISE) -> Evaluation:
        """Outputs for rows x, with the errors that the solver and rounding leave; many rows are taken in parts."""
        size = max(1, _MOST_UNITS // self.weights.hidden_features)
        parts = [self._evaluate(rows, solver) for rows in x.split(size)]
        names = [field.name for field in fields(Evaluation)]
        return Evaluation(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        found = self._solve(x, solver)
        y = self.weights.readout(found.z, self._scaled(x))
        terms, length = F.linear(found.z.abs(), self.output.abs(), self.weights.by.abs()), self.weights.hidden_features
        if self.subject.feedthrough is not None:
            terms = terms + F.linear(sizes_of(self.subject, x), self.subject.feedthrough.abs())
            length += self.weights.in_features + 8
        rounding = (length + 8) * (EPS * terms + torch.finfo(y.dtype).tiny)
        return Evaluation(y, distance(self.subject, found.z, found.v, x), rounding, found.converged)

    def _solve(self, x: Tensor, solver: Solver) -> Solved:
        """Equilibria as good as they can be had; what is left open shows in the residual, and raises nothing."""
        problem = Problem(self.operator, self.subject.activation, self._bias(self._scaled(x)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = solve(self.suitable(solver), problem, on_failure="warn")
            failed = (~found.converged).nonzero()[:, 0]
            if len(failed) == 0 or isinstance(solver, Newton) or not self.operator.has_resolvent:
                return found
            other = solve(Newton(tolerance=solver.tolerance), problem.rows(failed), on_failure="warn")
        better = ~(found.residual[failed] <= other.residual)
        for name in ("z", "v", "defect", "residual", "refuted"):
            whole, part = getattr(found, name), getattr(other, name)
            if whole is not None and part is not None:
                whole[failed[better]] = part[better]
        return found

    def classify(self, x: Tensor) -> Tensor:
        """The class of each row, -1 where there is no equilibrium; most show theirs long before machine precision."""
        if not self.proved:
            return self.evaluate(x).predicted
        rough = self.evaluate(x, _ROUGH)
        first, second = rough.y.topk(2, dim=-1).values.unbind(dim=-1)
        reach = float(self.reach(self.output[:, None] - self.output).max())
        unclear = ~(first - second > reach * rough.hidden_error + 2 * rough.rounding.amax(dim=-1))
        predicted = rough.y.argmax(dim=-1)
        if bool(unclear.any()):
            predicted[unclear] = self.evaluate(x[unclear]).predicted
        return predicted

    def suitable(self, solver: Solver) -> Solver:
        """The solver; one sweep where the weights are those of a feed-forward network, or FISTA where the solver needs
        a resolvent that the metric does not have, to the same tolerance.
        """
        if self.operator.layers is not None:
            return BackSubstitution(tolerance=solver.tolerance, on_failure=solver.on_failure)
        if self.operator.has_resolvent or not solver.needs_resolvent:
            return solver
        return FISTA(tolerance=solver.tolerance, max_iterations=_SLOW_STEPS, on_failure=solver.on_failure)

    def reach(self, rows: Tensor) -> Tensor:
        """By how much an error of one in the Lambda norm of z can move rows z: |rows Lam^(-1/2)|, row by row."""
        return norm_bound(rows / self.subject.diagonal.sqrt())


@undisturbed
def hidden_error(
    found: Solved, net: Examined, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None
) -> Tensor:
    """A proved bound on |z - z*| in the norm of Lambda, per sample: `Solution.error_bound`."""
    evaluator = Evaluator.of(net, activation)
    inputs, batch, n = evaluator.inputs(x), evaluator.flat(x).shape[:-1], evaluator.weights.hidden_features
    if found.z.shape != (*batch, n):
        raise InvalidInput(
            f"For these inputs a hidden layer has shape {(*batch, n)}, but that of the solution is "
            f"{tuple(found.z.shape)}."
        )
    z, v = (part.detach().to("cpu", torch.float64).reshape(-1, n) for part in (found.z, found.v))
    outside = None
    if bias is not None:
        checks.finite("bias", checks.width("bias", checks.floating("bias", bias), n))
        try:
            outside = bias.detach().to("cpu", torch.float64).expand(*batch, n).reshape(-1, n)
        except RuntimeError as wrong:
            raise InvalidInput(f"bias of shape {tuple(bias.shape)} does not fit shape {(*batch, n)}.") from wrong
    with torch.no_grad():
        return distance(evaluator.subject, z, v, inputs, outside).reshape(batch)
