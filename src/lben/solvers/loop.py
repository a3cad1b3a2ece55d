"""The one loop that runs every solver, watches residuals and decides the status."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from lben.errors import ConvergenceWarning, NotConverged
from lben.solvers.base import OnFailure, Problem, Solution, Solver, Yardstick

_CONFIRMING_STEPS = 5
_NEWTON_ENTRIES = 2**23  # matrix entries that one batch of dense solves may hold: 64 MB in double precision


def solve(
    solver: Solver,
    problem: Problem,
    *,
    start: Tensor | Solution | None = None,
    keep_history: bool = False,
    on_failure: OnFailure = "raise",
    first_burst: int | None = None,
) -> Solution:
    """Run a solver until every sample has converged, and deal with those that have not.

    `first_burst` says after how many iterations the residual is first worth a look.
    """
    with torch.no_grad():
        solution, success = _run(solver, problem, start, keep_history, first_burst)
        proved = problem.operator.proved
        if success and proved:
            return solution
        if not proved:
            solution = _confirm(solver, problem, solution)
        if bool(solution.converged.all()):
            return solution
        return _handle_failure(solver, problem, solution, on_failure)


def _run(
    solver: Solver, problem: Problem, start: Tensor | Solution | None, keep_history: bool, first_burst: int | None
) -> tuple[Solution, bool]:
    """Iterate in bursts and look at the residuals after each, until the worst of them is within the tolerance."""
    iteration = solver.begin(problem, start)
    yardstick = Yardstick(problem.b)
    history: list[Tensor] = []
    taken, burst = 0, first_burst or solver.first_burst(problem.operator)
    while True:
        burst = 1 if keep_history else min(burst, solver.max_iterations - taken)
        iteration.advance(burst)
        taken += burst
        candidate = iteration.candidate()
        v = problem.operator.affine(candidate, problem.b)
        z = problem.activation(v)
        defect = candidate - z
        residual, worst, lost = yardstick.measure(defect, z, solver.tolerance)
        if keep_history:
            history.append(residual)
        if worst <= solver.tolerance or taken >= solver.max_iterations:
            break
        burst = solver.next_burst(worst, taken)
    solution = Solution(
        z=z,
        v=v,
        iterations=taken,
        residual=residual,
        defect=defect,
        method=type(solver).__name__,
        tolerance=solver.tolerance,
        alpha=iteration.alpha,
        state=iteration.u,
        history=torch.stack(history) if keep_history else None,
    )
    return solution, worst <= solver.tolerance and not lost


def _confirm(solver: Solver, problem: Problem, solution: Solution) -> Solution:
    """Where no metric proves that an equilibrium exists, take "converged" back from what only looks like one.

    With W = I and b = 1 the iterates of a ReLU network run off to infinity and the *relative* residual tends to
    zero. Near a true equilibrium a few Newton steps go a short way and end with almost no residual, and where they end
    is an equilibrium by itself, not only by what rounding leaves; here it is not so.
    """
    z = solution.z
    for _ in range(_CONFIRMING_STEPS):
        z = z + newton_step(problem, z)
    z_hat = problem.activation(problem.operator.affine(z, problem.b))
    measure = Yardstick(problem.b).residual
    near = measure(z - solution.z, solution.z) <= math.sqrt(solver.tolerance)
    solved = measure(z - z_hat, z_hat) <= max(1e-3 * solver.tolerance, 1e3 * torch.finfo(z.dtype).eps)
    again = problem.activation(problem.operator.affine(z_hat, problem.b))
    stable = measure(z_hat - again, again) <= math.sqrt(solver.tolerance)  # for W = 1e38 a defect of 1e-38 is not small
    return replace(solution, refuted=~(near & solved & stable))


def newton_step(problem: Problem, z: Tensor) -> Tensor:
    """-(I - J W)^-1 (z - sigma(W z + b)), a dense solve for each sample; NaN where I - J W is singular."""
    v = problem.operator.affine(z, problem.b)
    defect = z - problem.activation(v)
    jacobian = problem.activation.gain(v)
    W = problem.operator.matrix()
    identity = torch.eye(W.shape[0], dtype=W.dtype, device=W.device)
    rows = max(1, _NEWTON_ENTRIES // W.numel())
    steps = []
    for chunk in torch.arange(len(v), device=v.device).split(rows):
        step, info = torch.linalg.solve_ex(identity - jacobian.rows(chunk).times(W), -defect[chunk])
        steps.append(torch.where(info[:, None] == 0, step, torch.nan))
    return torch.cat(steps)


def _handle_failure(solver: Solver, problem: Problem, solution: Solution, on_failure: OnFailure) -> Solution:
    message = _explain(solver, problem, solution)
    if on_failure == "raise":
        raise NotConverged(message, float(solution.residual.max()))
    if on_failure == "warn":
        warnings.warn(message, ConvergenceWarning, stacklevel=4)
        return solution
    warnings.warn(f"{message} Falling back to Newton for those.", ConvergenceWarning, stacklevel=4)
    return _fall_back(solver, problem, solution)


def _fall_back(solver: Solver, problem: Problem, solution: Solution) -> Solution:
    """Solve the samples that failed again, from nothing, by the safeguarded Newton method."""
    from lben.solvers.newton import Newton

    failed = ~solution.converged
    index = failed.nonzero()[:, 0]
    failed_rows = replace(problem.rows(index), operator=problem.operator.exact())
    rescue = solve(Newton(tolerance=solver.tolerance), failed_rows, on_failure="raise")
    parts = {name: getattr(solution, name).clone() for name in ("z", "v", "residual", "defect")}
    for name, whole in parts.items():
        whole[index] = getattr(rescue, name)
    iterations = solution.iterations + rescue.iterations
    method = f"{solution.method}, then {rescue.method}"
    return replace(solution, iterations=iterations, method=method, refuted=None, state=None, **parts)


def _explain(solver: Solver, problem: Problem, solution: Solution) -> str:
    failed = int((~solution.converged).sum())
    worst = float(solution.residual[~solution.converged].max())
    text = (
        f"{solution.method} did not converge for {failed} of {solution.converged.numel()} samples: after "
        f"{solution.iterations} iterations the residual is {worst:.3g} and the tolerance {solver.tolerance:.3g}."
    )
    if not problem.operator.proved:
        return f"{text} No metric proves that these weights have an equilibrium at all; there may be none."
    if not math.isfinite(worst):
        return f"{text} The iterates overflowed: scale the input down or use float64."
    if worst < 1e3 * torch.finfo(problem.b.dtype).eps:
        return f"{text} {str(problem.b.dtype)[6:]} cannot resolve so small a tolerance: use float64 or loosen it."
    other = "use float64" if solution.method == "Newton" else "use lben.Newton()"
    return f"{text} Raise max_iterations, loosen tolerance, leave alpha at its automatic value, or {other}."
