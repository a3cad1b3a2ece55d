"""Semismooth Newton, made safe by Peaceman-Rachford."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.activations.base import Jacobian
from lben.solvers.anderson import Anderson
from lben.solvers.base import Iteration, Problem, Solved, Solver, Yardstick
from lben.solvers.forward_backward import ForwardBackward
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.solvers.splitting import starting_z

_SAFE_STEPS = 6
_MOST_STEPS = 192
_LINEAR_STEPS = 10  # of an inexact Newton step
_NEWTON_ENTRIES = 2**23  # matrix entries that one batch of dense solves may hold: 64 MB in double precision


@dataclass(frozen=True, kw_only=True)
class Newton(Solver):
    """Semismooth Newton: a few steps, each a linear solve, made safe by Peaceman-Rachford.

    ``z+ = z - (I - J W)^-1 (z - sigma(W z + b))`` with J = sigma'(W z + b). It starts from six Peaceman-Rachford steps.
    A sample whose Newton step does not halve its defect goes back to Peaceman-Rachford, for longer each time, so that
    every sample converges wherever that method does. For polishing and certifying; too slow for training. The solve is
    dense, sample by sample, where W is a matrix; where it is a convolution, a few accelerated steps on the linear
    problem.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, dtype=torch.float64, solver=lben.Newton(tolerance=1e-12))
        >>> solution = net.solve(torch.tensor([[1.0, -1.0]], dtype=torch.float64))
        >>> float(solution.residual) <= 1e-12
        True
    """

    max_iterations: int = 100

    @property
    def needs_resolvent(self) -> bool:
        return True

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        return _Newton(problem, start, self.tolerance)

    def first_burst(self, problem: Problem) -> int:
        return 1

    def next_burst(self, worst: float, taken: int) -> int:
        return 1


class _Newton(Iteration):
    def __init__(self, problem: Problem, start: Tensor | Solved | None, tolerance: float) -> None:
        self.problem = problem
        self.tolerance = tolerance
        self.measure = Yardstick(problem.b).residual
        self.safe = PeacemanRachford().begin(problem, start)
        self.patience = _SAFE_STEPS
        self.z = starting_z(problem, start)
        if start is None:
            self.z = self._safe_point()

    def _safe_point(self) -> Tensor:
        self.safe.advance(self.patience)
        self.patience = min(2 * self.patience, _MOST_STEPS)
        z = self.safe.candidate()
        return torch.where(torch.isfinite(z), z, 0.0)  # without a metric the step may not exist, as for W = 3 I

    def _residual(self, z: Tensor) -> Tensor:
        z_hat = self.problem.activation(self.problem.operator.affine(z, self.problem.b))
        return self.measure(z - z_hat, z_hat)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        before = self._residual(self.z)
        moved = self.z + newton_step(self.problem, self.z)
        good = self._residual(moved) <= 0.5 * before
        kept = ~good & (before <= self.tolerance)
        lost = ~good & ~kept
        self.z = torch.where(kept[:, None], self.z, moved)
        if bool(lost.any()):
            self.z = torch.where(lost[:, None], self._safe_point(), self.z)

    def candidate(self) -> Tensor:
        return self.z


def newton_step(problem: Problem, z: Tensor) -> Tensor:
    """-(I - J W)^-1 (z - sigma(W z + b)), exactly for a matrix W and roughly else; NaN where I - J W is singular."""
    v = problem.operator.affine(z, problem.b)
    defect = z - problem.activation(v)
    jacobian = problem.activation.gain(v)
    W = problem.operator.matrix()
    return _iterative_step(problem, jacobian, defect) if W is None else _dense_step(W, jacobian, defect)


def _dense_step(W: Tensor, jacobian: Jacobian, defect: Tensor) -> Tensor:
    """A dense solve for each sample."""
    identity = torch.eye(W.shape[0], dtype=W.dtype, device=W.device)
    rows = max(1, _NEWTON_ENTRIES // W.numel())
    steps = []
    for chunk in torch.arange(len(defect), device=defect.device).split(rows):
        step, info = torch.linalg.solve_ex(identity - jacobian.rows(chunk).times(W), -defect[chunk])
        steps.append(torch.where(info[:, None] == 0, step, torch.nan))
    return torch.cat(steps)


def _iterative_step(problem: Problem, jacobian: Jacobian, defect: Tensor) -> Tensor:
    """The step s = t - r by the linear equilibrium t = J (W t - W r), for a W that is too large to be a matrix."""
    method = PeacemanRachford() if problem.operator.has_resolvent else ForwardBackward()
    b = problem.operator.affine(-defect, torch.zeros_like(defect))
    linear = Problem(problem.operator, jacobian, b)
    iteration = Anderson(method=method).begin(linear, None)
    iteration.advance(_LINEAR_STEPS)
    return iteration.candidate() - defect
