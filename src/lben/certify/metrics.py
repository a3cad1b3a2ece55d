"""The smallest Lipschitz bound that Condition `lipschitz` proves for dense weights, over all diagonal metrics."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lben.certify.certificate import NO_BOUND, BoundSolver
from lben.certify.condition import Reduced, monotone
from lben.certify.wellposed import best_metric
from lben.checks import need
from lben.errors import InvalidInput, NotConverged, NotWellPosed
from lben.numerics.barrier import Quadratic, feasible_start, largest_norm, minimise_rho, smallest_rho
from lben.weights.dense import Weights

_SMALLEST = 1e-300
_LARGEST_POWER = 450  # of four: beyond it what is divided by rho is no double
_SQUARE = 1e-100  # rho below this is measured in units of its size, for its square is needed
_WIDEST = 1e120  # between entries of a metric to start from: beyond, products of them overflow
_PAST = 1e15  # times |U| |Wo|, at which D is all of the bound
_ROOM = 10  # how far above the smallest rho of its lam the barrier method starts


def smallest_gamma(
    weights: Weights, linear: Tensor, groups: Tensor | None, solver: BoundSolver
) -> tuple[Tensor, float, bool]:
    """A metric, NaN for linear units, gamma at the network's input, and whether it is known to be the smallest.

    linear: which units are the identity: they are eliminated first. groups: the blocks on which the metric is constant.
    Raises NotWellPosed where no metric proves an equilibrium.
    """
    reduced = Reduced.of(weights, linear)
    groups = None if groups is None else groups[reduced.kept].unique(return_inverse=True)[1]
    multipliers, gamma, finished = _solve(reduced, _start(weights.lam, reduced, groups), solver, groups)
    if not bool(((multipliers >= _SMALLEST) & (multipliers <= 1 / _SMALLEST)).all()) or not gamma <= 1 / _SMALLEST:
        raise InvalidInput(
            f"The bound {gamma:.3g}, or the metric that proves it, lies beyond the range of double precision: U and Wo "
            "are too large, or too different in size."
        )
    lam = torch.full_like(weights.bz, math.nan)
    lam[reduced.kept] = multipliers
    return lam, gamma, finished


def _start(lam: Tensor | None, reduced: Reduced, groups: Tensor | None) -> Tensor:
    """A metric of the reduced network to start from: the one its weights carry, or one that is found."""
    if lam is not None and float(lam.max() / lam.min()) <= _WIDEST and _proves(reduced, lam[reduced.kept]):
        return lam[reduced.kept]
    if len(reduced.kept) == 0:
        return reduced.W.new_zeros(0)
    found = best_metric(reduced.W, groups)
    if not found.holds or not _proves(reduced, found.lam):
        raise NotWellPosed(str(found), 2 * found.monotonicity)
    return found.lam


def _proves(reduced: Reduced, lam: Tensor) -> bool:
    """Whether lam seems to satisfy Condition `W` for the reduced network, so that a search can begin there."""
    return monotone(reduced.W, lam) == "holds"


def _solve(reduced: Reduced, lam: Tensor, solver: BoundSolver, groups: Tensor | None) -> tuple[Tensor, float, bool]:
    """The multipliers of the kept units, gamma, and whether it is known to be the smallest.

    In X of `Quadratic` the multipliers are gamma lam, and rho is gamma^2. U and Wo are first brought to norm one, D
    with them: the bound scales with both.
    """
    into, out = largest_norm(reduced.U), largest_norm(reduced.Wo)
    through = 0.0 if reduced.D is None else largest_norm(reduced.D)
    if into == 0 or out == 0:
        return *_nearly_free(reduced, lam, max(through * (1 + 1e-9), NO_BOUND)), True
    if through / into > _PAST * out:
        return *_past(reduced, lam, through * (1 + 1e-9)), True
    problem = replace(_problem(reduced, into, out), groups=groups)
    start = feasible_start(problem, lam)
    lowest = smallest_rho(problem, start)
    if not lowest < math.inf:
        raise NotWellPosed("The metric proves well-posedness by less than rounding, and no bound follows.", 0.0)
    half = math.frexp(lowest)[1] // 2 if lowest < _SQUARE else 0
    if lowest == 0 or half < -_LARGEST_POWER:
        raise InvalidInput("The bound lies beyond the range of double precision: W, U and Wo differ too much in size.")
    problem, lowest = replace(problem, K=problem.K * 4.0**-half), lowest * 4.0**-half
    if solver == "scs":
        found, finished = _scs(problem, start), True
        rho = smallest_rho(problem, found)
        if not rho < math.inf:
            raise NotConverged("The answer of SCS is not feasible and cannot be repaired: use the barrier method.", rho)
    else:
        found, rho, finished = minimise_rho(problem, start, _ROOM * lowest)
        if not finished:
            found, rho = min((found, rho), _best_multiple(problem, start), key=lambda pair: pair[1])
    root = math.sqrt(rho) * 2.0**half
    return found[: problem.free] * (out / into / root), max(root * into * out, _SMALLEST), finished


def _best_multiple(problem: Quadratic, start: Tensor) -> tuple[Tensor, float]:
    """The multiple of the first metric that gives the smallest rho: never above the product bound by much."""
    candidates = []
    for k in range(-4, 24):
        multiple = start.clone()
        multiple[: problem.free] *= 0.51 * 2 ** (k / 2)
        candidates.append((multiple, smallest_rho(problem, multiple)))
    return min(candidates, key=lambda pair: pair[1])


def _nearly_free(reduced: Reduced, lam: Tensor, gamma: float) -> tuple[Tensor, float]:
    """U or Wo is zero: the bound is |D|. lam is made so large, or small, that the one that is not does not matter."""
    into, out = largest_norm(lam[:, None] * reduced.U), largest_norm(reduced.Wo)
    if into == 0 and out == 0:
        return lam, gamma
    smallest = float(torch.linalg.eigvalsh(reduced.condition(lam, None))[0])
    if into == 0:
        return lam * (1e12 * (out / gamma) * (out / smallest) if smallest > 0 else math.inf), gamma
    return lam * (1e-12 * (gamma / into) * (smallest / into)), gamma


def _past(reduced: Reduced, lam: Tensor, gamma: float) -> tuple[Tensor, float]:
    """D is so large that the bound is |D| to nine digits: lam is balanced between U and Wo, which hardly matter."""
    root = lam.sqrt()
    return lam * (largest_norm(reduced.Wo / root) / largest_norm(root[:, None] * reduced.U)), gamma


def _problem(reduced: Reduced, into: float, out: float) -> Quadratic:
    """The data of X, with the outputs as p more units whose entry in lam is fixed at one.

    X = [[M - Lam U U' Lam/rho, Wo' + Lam U D'/rho], [., I - D D'/rho]]: its Schur complement at D = 0 is
    M - Wo'Wo - Lam U U' Lam/rho.
    """
    n, p = len(reduced.kept), len(reduced.Wo)
    A = torch.block_diag(torch.eye(n, dtype=reduced.W.dtype) - reduced.W, torch.eye(p, dtype=reduced.W.dtype) / 2)
    A[n:, :n] = reduced.Wo / out
    D = torch.zeros(p, reduced.U.shape[1], dtype=A.dtype) if reduced.D is None else reduced.D / out
    inputs = torch.cat([reduced.U, -D]) / into
    return Quadratic(A, inputs @ inputs.T, min(inputs.shape), n)


def _scs(problem: Quadratic, start: Tensor) -> Tensor:
    """lam by a general solver: minimise rho with [[X + Lam K Lam/rho, Lam R], [., rho I]] >= 0, K = R R'.

    Everything is measured in units of the start, at which the upper left block becomes I: without that, SCS takes
    minutes for networks with a large |W|. Its answer is feasible to its tolerance only, and is raised until it is.
    """
    cp = need("cvxpy", 'solver="scs"', extra="sdp")
    n, size = problem.free, len(problem.A)
    factor = torch.linalg.cholesky(problem.matrix(start, math.inf))
    P = torch.linalg.solve_triangular(factor, torch.eye(size, dtype=factor.dtype), upper=False).numpy()
    values, vectors = torch.linalg.eigh(problem.K / smallest_rho(problem, start))
    R = (vectors * values.clamp(min=0).sqrt())[:, -problem.rank :].numpy()
    ratio, groups = cp.Variable(), torch.arange(n) if problem.groups is None else problem.groups
    share = cp.Variable(int(groups.max()) + 1)[groups.numpy()]  # of lam and rho, in units of the start
    lam = cp.hstack([cp.multiply(share, start[:n].numpy()), start[n:].numpy()])
    column = cp.reshape(lam, (size, 1), order="C")
    half = P @ cp.multiply(column, problem.A.numpy() @ P.T)
    side = P @ cp.multiply(column, R)
    X = cp.bmat([[half + half.T, side], [side.T, ratio * np.eye(problem.rank)]])
    program = cp.Problem(cp.Minimize(ratio), [(X + X.T) / 2 >> 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the solution may be inaccurate": it is repaired and checked anyway
        program.solve(solver=cp.SCS, eps=1e-6, max_iters=50_000)
    if share.value is None:
        raise NotConverged(f"SCS found no bound: it says {program.status}. Use the barrier method.", math.inf)
    raised = [torch.as_tensor(share.value) * (1 + 1e-9 * 4.0**k) * start[:n] for k in range(16)]
    candidates = [torch.cat([multipliers, start[n:]]) for multipliers in raised]
    return min(candidates, key=lambda candidate: smallest_rho(problem, candidate))
