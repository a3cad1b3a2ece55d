"""A network as its explicit weights define it, in double precision, with the proved error of what it computes."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations import Activation, ReLU
from lben.certify.certificate import Certifiable, Subject
from lben.certify.wellposed import search_metric
from lben.errors import ConvergenceWarning, NotWellPosed
from lben.networks import EquilibriumNetwork
from lben.operators import DenseOperator
from lben.parameterize import Explicit
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import OnFailure, Solution, Solver
from lben.solvers.newton import Newton
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights import Weights

PRECISE = PeacemanRachford(tolerance=1e-12)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Outputs y and hidden layers z, with proved bounds on their errors, as rows.

    hidden_error: on |z - z*| in the Lambda norm, shape (batch,); infinite where no metric proves one.
    rounding: on each entry of y from its last product.
    converged: whether z is an equilibrium to the tolerance; without a metric there may be none.
    """

    y: Tensor
    z: Tensor
    hidden_error: Tensor
    rounding: Tensor
    converged: Tensor

    @property
    def predicted(self) -> Tensor:
        """The class of each row; -1 where there is no equilibrium to give one."""
        return torch.where(self.converged, self.y.argmax(dim=-1), -1)


class ExplicitNetwork:
    """The weights of a network, or bare ones, at work in double precision on the CPU.

    Where the weights carry no metric, one is looked for, by `search`; `proved` says whether there is one, and
    `monotonicity` is its m, rounded down.
    """

    def __init__(self, net: Certifiable | Weights, activation: Activation | None = None) -> None:
        self.subject = Subject.of(net, activation)
        if isinstance(net, Weights):
            sigma, normalize = (ReLU() if activation is None else activation), None
        else:
            sigma, normalize = net.activation, copy.deepcopy(net.normalize)
        weights = self.subject.weights
        self.search = search_metric(weights.W, self.subject.groups) if weights.lam is None else None
        if self.search is not None and self.search.holds:
            weights = replace(weights, lam=self.search.lam)
        self.weights = weights
        self.operator = DenseOperator(weights.W, weights.lam)
        self.monotonicity = self.operator.sure_monotonicity
        self.proved = weights.lam is not None and self.monotonicity > 0
        self.network = EquilibriumNetwork(Explicit(weights), sigma, None, normalize).double().eval()

    def require_proof(self) -> None:
        """Refuse weights of which nothing is proved."""
        if self.proved:
            return
        if self.weights.lam is None:
            raise NotWellPosed(str(self.search), 2 * self.monotonicity)
        raise NotWellPosed(
            "Their metric does not prove these weights well-posed: I - W is not strongly monotone beyond rounding "
            f"(m = {self.operator.monotonicity:.3g}).",
            2 * self.monotonicity,
        )

    def method(self, solver: Solver, on_failure: OnFailure) -> Solver:
        """`solver`, or one sweep to the same tolerance where the weights are those of a feed-forward network."""
        if self.operator.layers is None:
            return replace(solver, on_failure=on_failure)
        return BackSubstitution(tolerance=solver.tolerance, on_failure=on_failure)

    def inputs(self, x: Tensor) -> Tensor:
        """A user's inputs as rows of doubles."""
        checks.finite("x", checks.floating("x", x).detach())
        checks.width("x", x, self.weights.in_features)
        return x.detach().to("cpu", torch.float64, copy=True).reshape(-1, x.shape[-1])

    @torch.no_grad()
    def evaluate(self, x: Tensor, solver: Solver = PRECISE) -> Evaluation:
        """Outputs for rows x, with the errors that the solver and rounding leave.

        z is the exact equilibrium for the bias b + W defect (see `Solution.error_bound`); what rounding adds is
        bounded by the absolute values of all terms of W c + U x + bz.
        """
        solution = self._solve(x, solver)
        w, z = self.weights, solution.z
        unit = torch.finfo(z.dtype).eps
        normalize = self.network.normalize
        size = x.abs() if normalize is None else (x.abs() + normalize.mean.abs()) / normalize.std
        candidate = (z + solution.defect).abs()
        terms = F.linear(candidate, w.W.abs(), w.bz.abs()) + F.linear(size, w.U.abs())
        lost = (w.hidden_features + w.in_features + self.network.activation.rounding) * unit * (terms + z.abs())
        spill = torch.linalg.vector_norm(lost * w.metric().sqrt(), dim=-1)
        error = torch.full_like(spill, torch.inf)
        if self.proved:
            proved = solution.error_bound_for(self.operator) * (self.operator.monotonicity / self.monotonicity)
            error = proved + spill * (1 + (1 + self.operator.norm) / self.monotonicity)
            error = torch.nan_to_num(error, nan=torch.inf)
        y = F.linear(z, w.Wo, w.by)
        rounding = (w.hidden_features + 2) * unit * F.linear(z.abs(), w.Wo.abs(), w.by.abs())
        return Evaluation(y, z, error, rounding, solution.converged)

    def _solve(self, x: Tensor, solver: Solver) -> Solution:
        """Equilibria as good as they can be had; what is left open shows in the residual, and raises nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.network.solver = self.method(solver, "warn")
            solution = self.network.solve(x)
            failed = (~solution.converged).nonzero()[:, 0]
            if len(failed) == 0 or isinstance(solver, Newton):
                return solution
            self.network.solver = Newton(tolerance=solver.tolerance, on_failure="warn")
            other = self.network.solve(x[failed])
        better = ~(solution.residual[failed] <= other.residual)
        for name in ("z", "v", "defect", "residual", "refuted"):
            whole, part = getattr(solution, name), getattr(other, name)
            if whole is not None and part is not None:
                whole[failed[better]] = part[better]
        return solution

    def reach(self, rows: Tensor) -> Tensor:
        """By how much an error of one in the Lambda norm of z can move rows z: |rows Lam^(-1/2)|, row by row."""
        lengths: Tensor = torch.linalg.vector_norm(rows / self.weights.metric().sqrt(), dim=-1)
        return lengths
