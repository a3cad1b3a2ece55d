"""A network as its explicit weights define it, in double precision, with the proved error of what it computes."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations import Activation, ReLU
from lben.certify.certificate import Certifiable, Subject
from lben.certify.condition import sure_monotonicity
from lben.certify.convolution import ConvSubject
from lben.certify.distance import Hidden
from lben.certify.enclosed import EPS
from lben.certify.numerics import norm_bound, undisturbed
from lben.certify.wellposed import WellPosedness, best_metric
from lben.convolutional import ConvExplicit, ConvNetwork
from lben.convweights import ConvWeights
from lben.equilibrium import BaseNetwork
from lben.errors import ConvergenceWarning, InvalidInput, NotWellPosed
from lben.networks import EquilibriumNetwork
from lben.normalize import Normalize
from lben.operators import Operator
from lben.parameterize import Explicit
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Solution, Solver
from lben.solvers.fista import FISTA
from lben.solvers.newton import Newton
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights import Weights

PRECISE = PeacemanRachford(tolerance=1e-12)
_ROUGH = PeacemanRachford(tolerance=1e-4)
_SLOW_STEPS = 20_000
_UNDERFLOW = 2.0**-1000  # far above what underflow may take from a sum, and far below whatever matters
_MOST_EPSS = 2**23  # hidden units that are solved for at once


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


class ExplicitNetwork:
    """The weights of a network, or bare ones, at work in double precision on the CPU.

    Where the weights carry no metric, one is looked for, by `search`; for a convolution the Euclidean one is tried.
    `proved` says whether there is one, and `monotonicity` is its m, rounded down. `hidden` bounds errors.
    Shapes: Wo (p, n), metric (n,).
    """

    def __init__(self, net: Certifiable | Weights | ConvWeights, activation: Activation | None = None) -> None:
        if isinstance(net, Weights | ConvWeights):
            sigma, normalize = (ReLU() if activation is None else activation), None
        else:
            Subject.refuse(net, activation)
            sigma, normalize = net.activation, copy.deepcopy(net.normalize)
        self.search: WellPosedness | None = None
        self.subject: Subject | ConvSubject
        self.weights: Weights | ConvWeights
        self.network: BaseNetwork
        convolution = ConvSubject.of(net, activation)
        if convolution is None:
            self._take_dense(Subject.of(net, activation), sigma, normalize)
        else:
            self._take_convolution(convolution, sigma, normalize)
        self.network.double().eval()
        self.proved = self.weights.lam is not None and self.monotonicity > 0
        self.hidden = Hidden(self.weights, sigma, self.monotonicity if self.proved else 0.0)

    def _take_dense(self, subject: Subject, activation: Activation, normalize: Normalize | None) -> None:
        weights = subject.weights
        self.search = best_metric(weights.W, subject.groups) if weights.lam is None else None
        if self.search is not None and self.search.holds:
            weights = replace(weights, lam=self.search.lam)
        self.subject, self.weights = replace(subject, weights=weights), weights
        self.operator: Operator = weights.operator()
        self.Wo, self.metric = weights.Wo, weights.metric()
        self.network = EquilibriumNetwork(Explicit(weights), activation, None, normalize)
        self.monotonicity = sure_monotonicity(weights.W, self.metric, self.operator.sure_monotonicity)

    def _take_convolution(self, subject: ConvSubject, activation: Activation, normalize: Normalize | None) -> None:
        tried = subject.with_metric()
        self.monotonicity = tried.sure_monotonicity()
        if self.monotonicity > 0:
            subject = tried
        self.subject, self.weights = subject, subject.weights
        self.operator = subject.weights.operator()
        self.Wo, self.metric = subject.weights.output, subject.weights.metric_diagonal()
        self.network = ConvNetwork(ConvExplicit(subject.weights), activation, None, normalize)

    def require_proof(self) -> None:
        """Refuse weights of which nothing is proved."""
        if self.proved:
            return
        if self.search is not None and not self.search.holds:
            raise NotWellPosed(str(self.search), 2 * self.monotonicity)
        raise NotWellPosed(
            "Their metric does not prove these weights well-posed: I - W is not strongly monotone beyond rounding "
            f"(m = {self.operator.monotonicity:.3g}).",
            2 * self.monotonicity,
        )

    def inputs(self, x: Tensor) -> Tensor:
        """A user's inputs as rows of doubles."""
        flat = self.flat(x)
        checks.finite("x", flat)
        return flat.to("cpu", torch.float64, copy=True).reshape(-1, flat.shape[-1])

    def flat(self, x: Tensor) -> Tensor:
        """A user's inputs with their features in one dimension, the last: images become rows."""
        checks.floating("x", x)
        if isinstance(self.weights, ConvWeights):
            x = self.weights.geometry.rows("x", x)
        return checks.width("x", x, self.weights.in_features).detach()

    @torch.no_grad()
    def evaluate(self, x: Tensor, solver: Solver = PRECISE) -> Evaluation:
        """Outputs for rows x, with the errors that the solver and rounding leave; many rows are taken in parts."""
        size = max(1, _MOST_EPSS // self.weights.hidden_features)
        parts = [self._evaluate(rows, solver) for rows in x.split(size)]
        names = [field.name for field in fields(Evaluation)]
        return Evaluation(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _evaluate(self, x: Tensor, solver: Solver) -> Evaluation:
        solution = self._solve(x, solver)
        z = solution.z
        y = F.linear(z, self.Wo, self.weights.by)
        terms = F.linear(z.abs(), self.Wo.abs(), self.weights.by.abs())
        rounding = (self.weights.hidden_features + 8) * (EPS * terms + torch.finfo(z.dtype).tiny)
        error = self.hidden.error(z, solution.v, x, normalize=self.network.normalize)
        return Evaluation(y, error, rounding, solution.converged)

    def classify(self, x: Tensor) -> Tensor:
        """The class of each row, -1 where there is no equilibrium; most show theirs long before machine precision."""
        if not self.proved:
            return self.evaluate(x).predicted
        rough = self.evaluate(x, _ROUGH)
        first, second = rough.y.topk(2, dim=-1).values.unbind(dim=-1)
        reach = float(self.reach(self.Wo[:, None] - self.Wo).max())
        unclear = ~(first - second > reach * rough.hidden_error + 2 * rough.rounding.amax(dim=-1))
        predicted = rough.y.argmax(dim=-1)
        if bool(unclear.any()):
            predicted[unclear] = self.evaluate(x[unclear]).predicted
        return predicted

    def _solve(self, x: Tensor, solver: Solver) -> Solution:
        """Equilibria as good as they can be had; what is left open shows in the residual, and raises nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.network.solver = replace(self.suitable(solver), on_failure="warn")
            solution = self.network.solve(x)
            failed = (~solution.converged).nonzero()[:, 0]
            if len(failed) == 0 or isinstance(solver, Newton) or not self.operator.has_resolvent:
                return solution
            self.network.solver = Newton(tolerance=solver.tolerance, on_failure="warn")
            other = self.network.solve(x[failed])
        better = ~(solution.residual[failed] <= other.residual)
        for name in ("z", "v", "defect", "residual", "refuted"):
            whole, part = getattr(solution, name), getattr(other, name)
            if whole is not None and part is not None:
                whole[failed[better]] = part[better]
        return solution

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
        return norm_bound(rows / self.metric.sqrt())


@undisturbed
def error_of(
    solution: Solution,
    net: Certifiable | Weights | ConvWeights,
    x: Tensor,
    bias: Tensor | None,
    activation: Activation | None,
) -> Tensor:
    """`Solution.error_bound`."""
    explicit = ExplicitNetwork(net, activation)
    inputs, batch, n = explicit.inputs(x), explicit.flat(x).shape[:-1], explicit.weights.hidden_features
    if solution.z.shape != (*batch, n):
        raise InvalidInput(
            f"For these inputs a hidden layer has shape {(*batch, n)}, but that of the solution is "
            f"{tuple(solution.z.shape)}."
        )
    z, v = (part.detach().to("cpu", torch.float64).reshape(-1, n) for part in (solution.z, solution.v))
    outside = None
    if bias is not None:
        checks.finite("bias", checks.width("bias", checks.floating("bias", bias), n))
        try:
            outside = bias.detach().to("cpu", torch.float64).expand(*batch, n).reshape(-1, n)
        except RuntimeError as wrong:
            raise InvalidInput(f"bias of shape {tuple(bias.shape)} does not fit shape {(*batch, n)}.") from wrong
    with torch.no_grad():
        error = explicit.hidden.error(z, v, inputs, normalize=explicit.network.normalize, bias=outside)
    return error.reshape(batch)
