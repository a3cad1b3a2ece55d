"""The one loop that runs every solver, watches residuals and decides the status."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from lben import checks
from lben.errors import ConvergenceWarning, NotConverged
from lben.numerics.norms import row_ratio
from lben.solvers.base import OnFailure, Problem, Solved, Solver, Yardstick
from lben.solvers.forward_backward import ForwardBackward
from lben.solvers.newton import Newton, newton_step
from lben.solvers.splitting import starting_z

_CONFIRMING_STEPS = 5
_SLOW_STEPS = 100_000  # of forward-backward where there is no resolvent to make Newton safe


def solve(
    solver: Solver,
    problem: Problem,
    *,
    start: Tensor | Solved | None = None,
    keep_history: bool = False,
    on_failure: OnFailure = "raise",
    first_burst: int | None = None,
) -> Solved:
    """Run a solver until every sample has converged, and deal with those that have not.

    `first_burst` says after how many iterations the residual is first worth a look.
    """
    checks.flag("keep_history", keep_history)
    with torch.no_grad():
        found = None if start is None else _look(solver, problem, start, keep_history)
        solution, success = found or attempt(solver, problem, start, keep_history, first_burst)
        proved = problem.operator.proved
        if success and proved:
            return solution
        if not proved:
            solution = _confirm(solver, problem, solution)
        if bool(solution.converged.all()):
            return solution
        return _handle_failure(solver, problem, solution, on_failure)


def _look(solver: Solver, problem: Problem, start: Tensor | Solved, keep_history: bool) -> tuple[Solved, bool] | None:
    """The start itself where it is good enough for every sample."""
    candidate = starting_z(problem, start)
    v = problem.operator.affine(candidate, problem.b)
    z = problem.activation(v)
    defect = candidate - z
    residual, worst, lost = Yardstick(problem.b).measure(defect, z, solver.tolerance)
    if lost or not worst <= solver.tolerance:
        return None
    solution = Solved(
        z=z,
        v=v,
        iterations=0,
        residual=residual,
        defect=defect,
        method=type(solver).__name__,
        tolerance=solver.tolerance,
        history=residual.new_zeros(0, len(residual)) if keep_history else None,
    )
    return solution, True


def attempt(
    solver: Solver, problem: Problem, start: Tensor | Solved | None, keep_history: bool, first_burst: int | None
) -> tuple[Solved, bool]:
    """Iterate in bursts and look at the residuals after each, until the worst of them is within the tolerance.

    What was found, and whether it is within the tolerance; what to do where it is not is the caller's business.
    """
    iteration = solver.begin(problem, start)
    yardstick = Yardstick(problem.b)
    history: list[Tensor] = []
    taken, burst = 0, first_burst or solver.first_burst(problem)
    since, before = 0, 1.0  # of the iteration at work: when it began, and at which residual
    if iteration.cheap_look and first_burst is not None:
        burst -= burst // 6
    while True:
        burst = 1 if keep_history else min(burst, solver.max_iterations - taken)
        iteration.advance(burst)
        taken += burst
        candidate, v = iteration.look(problem)
        z = problem.activation(v)
        defect = candidate.sub_(z) if iteration.gives_away else candidate - z
        residual, worst, lost = yardstick.measure(defect, z, solver.tolerance)
        if keep_history:
            history.append(residual)
        if worst <= solver.tolerance or taken >= solver.max_iterations:
            break
        burst = solver.next_burst(worst, max(taken - 2, 1) if iteration.cheap_look else taken)
        pace = math.log(worst / before) / (taken - since) if 0 < worst < math.inf else math.inf
        other = solver.reconsider(problem, iteration, z, worst, pace, taken - since)
        if other is not None:
            iteration, since, before = other, taken, worst
    solution = Solved(
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
        recent=taken - since,
    )
    return solution, worst <= solver.tolerance and not lost


def _confirm(solver: Solver, problem: Problem, solution: Solved) -> Solved:
    """Where no metric proves that an equilibrium exists, take "converged" back from what only looks like one.

    With W = I and b = 1 the iterates of a ReLU network run off to infinity and the *relative* residual tends to
    zero. Near a true equilibrium a few Newton steps go a short way and end with almost no residual, and where they end
    is an equilibrium by itself, not only by what rounding leaves; here it is not so.
    """
    measure = Yardstick(problem.b).residual
    limit = max(1e-3 * solver.tolerance, 1e3 * torch.finfo(solution.z.dtype).eps)
    z = solution.z + newton_step(problem, solution.z)
    z_hat = problem.activation(problem.operator.affine(z, problem.b))
    for _ in range(_CONFIRMING_STEPS - 1):
        index = (~(measure(z - z_hat, z_hat) <= limit)).nonzero()[:, 0]
        if len(index) == 0:
            break
        rows = problem.rows(index)
        z[index] = z[index] + newton_step(rows, z[index])
        z_hat[index] = rows.activation(rows.operator.affine(z[index], rows.b))
    near = measure(z - solution.z, solution.z) <= math.sqrt(solver.tolerance)
    solved = measure(z - z_hat, z_hat) <= limit
    again = problem.activation(problem.operator.affine(z_hat, problem.b))
    stable = measure(z_hat - again, again) <= math.sqrt(solver.tolerance)  # for W = 1e38 a defect of 1e-38 is not small
    return replace(solution, refuted=~(near & solved & stable))


def _handle_failure(solver: Solver, problem: Problem, solution: Solved, on_failure: OnFailure) -> Solved:
    message = _explain(solver, problem, solution)
    if on_failure == "raise":
        raise NotConverged(message, float(solution.residual.max()))
    if on_failure == "warn":
        warnings.warn(message, ConvergenceWarning, stacklevel=4)
        return solution
    safe = _safe_method(solver, problem)
    warnings.warn(f"{message} Falling back to {type(safe).__name__} for those.", ConvergenceWarning, stacklevel=4)
    return _fall_back(safe, problem, solution)


def _fall_back(safe: Solver, problem: Problem, solution: Solved) -> Solved:
    """Solve the samples that failed again, from nothing, by a safe method."""
    failed = ~solution.converged
    index = failed.nonzero()[:, 0]
    failed_rows = replace(problem.rows(index), operator=problem.operator.exact())
    rescue = solve(safe, failed_rows, on_failure="raise")
    parts = {name: getattr(solution, name).clone() for name in ("z", "v", "residual", "defect")}
    for name, whole in parts.items():
        whole[index] = getattr(rescue, name)
    iterations = solution.iterations + rescue.iterations
    method = f"{solution.method}, then {rescue.method}"
    return replace(solution, iterations=iterations, method=method, refuted=None, state=None, **parts)


def _safe_method(solver: Solver, problem: Problem) -> Solver:
    """Safeguarded Newton; without a resolvent to guard it, forward-backward, which converges at its own step."""
    if problem.operator.has_resolvent:
        return Newton(tolerance=solver.tolerance)
    return ForwardBackward(tolerance=solver.tolerance, max_iterations=_SLOW_STEPS)


def _explain(solver: Solver, problem: Problem, solution: Solved) -> str:
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
    if within_rounding(solution):
        return f"{text} {str(problem.b.dtype)[6:]} cannot resolve so small a tolerance: use float64 or loosen it."
    no_newton = solution.method == "Newton" or not problem.operator.has_resolvent
    other = "use float64" if no_newton else "use lben.Newton()"
    return f"{text} Raise max_iterations, loosen tolerance, leave alpha at its automatic value, or {other}."


def within_rounding(solution: Solved) -> bool:
    """Whether all that is left is of the size of rounding errors in v, which may be far larger than z."""
    failed = ~solution.converged
    defect, v = solution.defect[failed], solution.v[failed]
    return bool((row_ratio(defect, v) <= 1e2 * torch.finfo(v.dtype).eps).all())
