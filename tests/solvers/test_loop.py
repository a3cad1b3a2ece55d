"""Solvers: one answer from all of them, closed forms, honest status, and no convergence where there is nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lben
from lben.certify.evaluator import hidden_error
from lben.operators.dense import DenseOperator
from lben.solvers.base import Problem, Solved
from lben.solvers.extragradient import Cut
from lben.solvers.loop import solve
from tests import problems
from tests.problems import ACTIVATIONS, SOLVERS, name


def reference(problem: Problem) -> Tensor:
    """Newton to the last digits, whose residual is checked here and not by the solver."""
    z = solve(lben.Newton(tolerance=1e-13), problem).z
    residual = z - problem.activation(problem.operator.affine(z, problem.b))
    assert float(residual.abs().max()) <= 1e-13 * (1 + problem.operator.norm) * (1 + float(z.abs().max()))
    return z


def tight(solver: lben.Solver) -> lben.Solver:
    return replace(solver, tolerance=1e-11)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
@pytest.mark.parametrize("gamma", [None, 1.0])
def test_all_solvers_agree(solver: lben.Solver, activation: lben.Activation, gamma: float | None) -> None:
    problem = Problem(problems.operator(5, gamma=gamma), activation, problems.biases(16, 5))
    solution = solve(tight(solver), problem)
    assert torch.allclose(solution.z, reference(problem), rtol=0, atol=1e-8)
    assert bool(solution.converged.all())


def hard_cases() -> list[object]:
    """Every pair; of those that take thousands of iterations two activations are quick enough for every run."""
    return [
        pytest.param(
            solver,
            activation,
            id=f"{name(solver)}-{name(activation)}",
            marks=[pytest.mark.slow]
            if not isinstance(activation, lben.ReLU | lben.Tanh) and solver.max_iterations > 10_000
            else [],
        )
        for solver in SOLVERS
        for activation in ACTIVATIONS
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("solver", "activation"), hard_cases())
def test_all_solvers_agree_on_hard_problems(solver: lben.Solver, activation: lben.Activation) -> None:
    """gamma = 0.05, L above 500."""
    problem = Problem(problems.hard_operator(5), activation, problems.biases(8, 5))
    solution = solve(tight(solver), problem)
    assert torch.allclose(solution.z, reference(problem), rtol=0, atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
@pytest.mark.parametrize(
    "make", [problems.closed_form_linear, problems.closed_form_scalar, problems.closed_form_triangular]
)
def test_closed_forms(solver: lben.Solver, make: object) -> None:
    problem, expected = make()  # type: ignore[operator]
    assert torch.allclose(solve(tight(solver), problem).z, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a.units is None], ids=name)
def test_symmetric_equilibria_minimise_the_paper_s_objective(activation: lben.Activation) -> None:
    """Proposition `operator` at S = 0: J(z) = <(I - W) z/2 - b, z>_Lam + sum lam_i f(z_i) is least at z*."""
    operator = problems.symmetric_operator(6)
    b = problems.biases(4, 6)
    lam = operator.lam
    assert lam is not None

    def objective(z: Tensor) -> Tensor:
        quadratic = (((z - z @ operator.W.T) / 2 - b) * z * lam).sum(-1)
        return quadratic + (lam * activation.potential(z)).sum(-1)

    z = solve(lben.PeacemanRachford(tolerance=1e-12), Problem(operator, activation, b)).z
    least = objective(z)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-1, 1.0):
        other = activation(activation(z) + size * torch.randn(50, *z.shape, dtype=z.dtype, generator=generator))
        assert bool((objective(other) >= least - 1e-9).all())
        mixture = z + 0.3 * (other - z)
        assert bool((objective(mixture) >= least - 1e-9).all())


@given(n=st.integers(1, 12), seed=st.integers(0, 1000), size=st.floats(0.01, 20), spread=st.floats(0, 2))
@settings(max_examples=60, deadline=None)
def test_peaceman_rachford_and_newton_agree_on_random_problems(n: int, seed: int, size: float, spread: float) -> None:
    operator = problems.operator(n, gamma=None, size=size, spread=spread, seed=seed)
    problem = Problem(operator, lben.ReLU(), problems.biases(6, n, seed))
    first = solve(lben.PeacemanRachford(tolerance=1e-11, max_iterations=100_000), problem)
    second = solve(lben.Newton(tolerance=1e-11), problem)
    weights = problems.bare(operator)
    bound = hidden_error(first, weights, problem.b) + hidden_error(second, weights, problem.b)
    assert operator.lam is not None
    apart = ((first.z - second.z) * operator.lam.sqrt()).norm(dim=1)
    assert bool((apart <= bound).all())


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_residual_is_what_anyone_can_compute(solver: lben.Solver) -> None:
    """residual = |c - z|/|z| with z = sigma(W c + b), where c = z + defect, and it is within the tolerance."""
    problem = Problem(problems.operator(5), lben.ReLU(), problems.biases(32, 5))
    for tolerance in (1e-2, 1e-5):
        solution = solve(replace(solver, tolerance=tolerance), problem)
        candidate = solution.z + solution.defect
        z = torch.relu(problem.operator.affine(candidate, problem.b))
        assert torch.allclose(solution.z, z, atol=1e-14)
        alive = z.norm(dim=1) > 0
        residual = (candidate - z).norm(dim=1)[alive] / z.norm(dim=1)[alive]
        assert torch.allclose(solution.residual[alive], residual, rtol=1e-6, atol=1e-15)
        assert float(solution.residual.max()) <= tolerance


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("activation", [lben.ReLU(), lben.Tanh()], ids=name)
def test_error_bound_holds(tolerance: float, activation: lben.Activation) -> None:
    weights = problems.bare(lben.LBEN(7, 20, 3, gamma=0.3).double().weights().detach().operator())
    problem = Problem(weights.operator(), activation, problems.biases(64, 20))
    solution = solve(lben.PeacemanRachford(tolerance=tolerance), problem)
    error = ((solution.z - reference(problem)) * weights.metric().sqrt()).norm(dim=1)
    bound = hidden_error(solution, weights, problem.b, activation=activation)
    assert bool((error <= bound + 1e-12).all())
    assert float(bound.max()) < 100 * tolerance * float(solution.z.norm(dim=1).max())


def test_answer_does_not_depend_on_the_batch() -> None:
    problem = Problem(problems.operator(8), lben.Tanh(), problems.biases(50, 8))
    tolerance = 1e-6
    solver = lben.PeacemanRachford(tolerance=tolerance)
    whole = solve(solver, problem).z
    for i in (0, 17, 49):
        alone = solve(solver, problem.rows(torch.tensor([i]))).z
        assert float((alone - whole[i]).norm() / whole[i].norm()) < 100 * tolerance


def no_equilibrium(kind: str) -> Problem:
    if kind == "W = I, ReLU, b = 1":
        W, b, activation = torch.eye(3), torch.ones(4, 3), lben.ReLU()
    elif kind == "W = 2, ReLU, b = 1":
        W, b, activation = 2 * torch.eye(3), torch.ones(4, 3), lben.ReLU()
    elif kind == "W = I, softplus, b = 0":
        W, b, activation = torch.eye(3), torch.zeros(4, 3), lben.Softplus()  # type: ignore[assignment]
    elif kind == "softplus that just misses":  # min of softplus(2z + b) - z is 1e-6
        W, activation = 2 * torch.eye(1), lben.Softplus()  # type: ignore[assignment]
        b = torch.full((4, 1), 2e-6 - 2 * math.log(2), dtype=torch.float64)
    else:
        W, b, activation = torch.tensor([[0.0, 1.5], [1.5, 0.0]]), torch.ones(4, 2), lben.ReLU()
    return Problem(DenseOperator(W.double()), activation, b.double())


SLOWLY = [pytest.param(tolerance, 3000, marks=pytest.mark.slow) for tolerance in (1e-2, 1e-4)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "kind",
    [
        "W = I, ReLU, b = 1",
        "W = 2, ReLU, b = 1",
        "W = I, softplus, b = 0",
        "softplus that just misses",
        "two units that feed each other",
    ],
)
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
@pytest.mark.parametrize(("tolerance", "most"), [(1e-2, 400), (1e-4, 400), *SLOWLY])
def test_no_equilibrium_is_never_called_converged(solver: lben.Solver, kind: str, tolerance: float, most: int) -> None:
    solver = replace(solver, tolerance=tolerance, max_iterations=min(solver.max_iterations, most))
    with pytest.warns(lben.ConvergenceWarning):
        solution = solve(solver, no_equilibrium(kind), on_failure="warn")
    assert not bool(solution.converged.any())
    with pytest.raises(lben.NotConverged):
        solve(solver, no_equilibrium(kind), on_failure="raise")


def test_an_unproved_w_with_an_equilibrium_converges() -> None:
    """W = [[0, 5], [0, 0]] satisfies no condition with Lambda = I, but has an equilibrium all the same."""
    W = DenseOperator(torch.tensor([[0.0, 5.0], [0.0, 0.0]], dtype=torch.float64))
    assert not W.proved
    problem = Problem(W, lben.Tanh(), problems.biases(8, 2))
    second = torch.tanh(problem.b[:, 1])
    expected = torch.stack([torch.tanh(5 * second + problem.b[:, 0]), second], dim=1)
    for solver in (lben.Newton(tolerance=1e-10), lben.DouglasRachford(tolerance=1e-10)):
        solution = solve(solver, problem)
        assert bool(solution.converged.all())
        assert torch.allclose(solution.z, expected, atol=1e-8)


@pytest.mark.parametrize("m", [0.5, pytest.param(0.1, marks=pytest.mark.slow)])
def test_plain_fista_would_diverge_where_ours_converges(m: float) -> None:
    """NOTES: I - W = m I + 3 [[0, 1], [-1, 0]], there with m = 0.1, with identity activation."""
    W = torch.eye(2, dtype=torch.float64) - torch.tensor([[m, 3.0], [-3.0, m]], dtype=torch.float64)
    problem = Problem(DenseOperator(W, torch.ones(2, dtype=torch.float64)), lben.Identity(), problems.biases(4, 2))
    solution = solve(lben.FISTA(tolerance=1e-8, max_iterations=100_000), problem)
    assert bool(solution.converged.all())
    u = z = torch.zeros_like(problem.b)
    t, L = 1.0, problem.operator.norm
    for _ in range(200):
        new = z + (z @ W.T + problem.b - z) / L
        new_t = (1 + (1 + 4 * t**2) ** 0.5) / 2
        u, z, t = new, new + (t - 1) / new_t * (new - u), new_t
    assert float(z.abs().max()) > 1e6


def test_extragradient_is_at_ease_where_the_skew_part_rules() -> None:
    """I - W = 0.1 I + 3 [[0, 1], [-1, 0]], L/m = 30: about L/m iterations, where forward-backward takes (L/m)^2."""
    W = torch.eye(2, dtype=torch.float64) - torch.tensor([[0.1, 3.0], [-3.0, 0.1]], dtype=torch.float64)
    problem = Problem(DenseOperator(W, torch.ones(2, dtype=torch.float64)), lben.Identity(), problems.biases(4, 2))
    cuts = solve(lben.Extragradient(tolerance=1e-6), problem)
    slow = solve(lben.ForwardBackward(tolerance=1e-6, max_iterations=100_000), problem)
    assert torch.allclose(cuts.z, slow.z, rtol=1e-4)
    assert 10 * cuts.iterations < slow.iterations


@given(n=st.integers(1, 6), m=st.sampled_from([0.0, 1e-9, 0.3, 5.0]), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_cut_is_projected_on_in_its_own_metric(n: int, m: float, seed: int) -> None:
    """What is projected is a member, on the boundary if it was none, and no member is farther from it than before."""
    generator = torch.Generator().manual_seed(seed)
    point, normal, z, other = 2 * torch.randn(4, 20, n, dtype=torch.float64, generator=generator)
    cut = Cut(point, normal, m, torch.rand(n, dtype=torch.float64, generator=generator) + 0.1)
    moved = cut.project(z)
    outside, scale = cut.excess(z) < 0, 1 + cut.excess(z).abs()
    assert bool((cut.excess(moved)[outside].abs() <= 1e-9 * scale[outside]).all())
    assert torch.equal(moved[~outside], z[~outside])
    member = cut.project(other)
    before, after = (cut.inner(at - member, at - member)[:, 0] for at in (z, moved))
    assert bool((after <= before + 1e-9 * (1 + before)).all())


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_warm_start_needs_fewer_iterations(solver: lben.Solver) -> None:
    problem = Problem(problems.operator(10, size=3.0), lben.ReLU(), problems.biases(16, 10))
    solver = tight(solver)
    cold = solve(solver, problem)
    nearby = Problem(problem.operator, problem.activation, problem.b * (1 + 1e-9))
    starts: list[Tensor | Solved] = [cold.z, cold]
    for start in starts:
        warm = solve(solver, nearby, start=start, first_burst=1)
        assert warm.iterations < cold.iterations or warm.iterations == 1
        assert torch.allclose(warm.z, cold.z, atol=1e-7)


def test_history_is_per_sample() -> None:
    problem = Problem(problems.operator(10, size=3.0), lben.ReLU(), problems.biases(16, 10))
    solution = solve(lben.ForwardBackward(tolerance=1e-6, max_iterations=10_000), problem, keep_history=True)
    assert solution.history is not None
    assert solution.history.shape == (solution.iterations, 16)
    assert torch.equal(solution.history[-1], solution.residual)
    assert float(solution.history[0].max()) > 1e-6


def test_given_alpha_is_honoured() -> None:
    problem = Problem(problems.operator(5), lben.ReLU(), problems.biases(4, 5))
    for solver in (lben.PeacemanRachford(alpha=0.37), lben.ForwardBackward(alpha=0.05), lben.FISTA(alpha=0.05)):
        assert solve(solver, problem).alpha == 0.37 or solve(solver, problem).alpha == 0.05
    slow = solve(lben.PeacemanRachford(alpha=30.0, tolerance=1e-8), problem).iterations
    assert slow > 3 * solve(lben.PeacemanRachford(tolerance=1e-8), problem).iterations


def test_automatic_steps_follow_the_theory() -> None:
    """sqrt(c/m): 1/sqrt(m L) for a symmetric operator, about 1/L for a skew one; forward-backward takes c."""
    symmetric = problems.symmetric_operator(8)
    m, L, c = symmetric.monotonicity, symmetric.norm, symmetric.cocoercivity
    assert c == pytest.approx(1 / L)
    assert lben.PeacemanRachford().step_size(symmetric) == pytest.approx((m * L) ** -0.5)
    assert lben.ForwardBackward().step_size(symmetric) == pytest.approx(1 / L)
    W = torch.eye(2, dtype=torch.float64) - torch.tensor([[0.1, 30.0], [-30.0, 0.1]], dtype=torch.float64)
    skew = DenseOperator(W, torch.ones(2, dtype=torch.float64))
    assert lben.PeacemanRachford().step_size(skew) == pytest.approx(1 / skew.norm, rel=1e-3)
    unproved = DenseOperator(2 * torch.eye(3, dtype=torch.float64))
    assert lben.PeacemanRachford().step_size(unproved) == pytest.approx(1 / unproved.norm)


def test_estimated_step_is_close_to_the_exact_one() -> None:
    """In training alpha comes from cheap estimates: within a factor of three of sqrt(c/m) here."""
    for gamma in (None, 0.1, 1.0):
        exact = problems.operator(40, gamma=gamma, spread=0.3)
        assert exact.lam is not None
        psi = 1 / exact.lam
        quick = DenseOperator(exact.W, exact.lam, monotonicity_bound=float(psi.min()))
        assert 1 / 3 < quick.balanced_step() / exact.balanced_step() < 3


def test_failure_modes() -> None:
    problem = Problem(problems.operator(10, size=5.0), lben.ReLU(), problems.biases(8, 10))
    solver = lben.PeacemanRachford(tolerance=1e-12, max_iterations=3)
    with pytest.raises(lben.NotConverged, match=r"after 3 iterations the residual is .* tolerance 1e-12") as caught:
        solve(solver, problem, on_failure="raise")
    assert caught.value.residual > 1e-12
    with pytest.warns(lben.ConvergenceWarning, match="did not converge for 8 of 8"):
        assert not bool(solve(solver, problem, on_failure="warn").converged.all())
    with pytest.warns(lben.ConvergenceWarning, match="Falling back to Newton"):
        rescued = solve(solver, problem, on_failure="fallback")
    assert bool(rescued.converged.all())
    assert torch.allclose(rescued.z, reference(problem), atol=1e-10)


def test_a_tolerance_below_the_precision_is_named() -> None:
    operator = problems.operator(10)
    problem = Problem(DenseOperator(operator.W.float(), None), lben.ReLU(), problems.biases(8, 10).float())
    with pytest.raises(lben.NotConverged, match="float32 cannot resolve"):
        solve(lben.PeacemanRachford(tolerance=1e-12, max_iterations=200), problem)
    with pytest.raises(lben.NotConverged, match="Raise max_iterations"):
        solve(lben.PeacemanRachford(tolerance=1e-6, max_iterations=1), problem)
    torch.manual_seed(2)  # one sample's z is a thousandth of its v, and so is what rounding leaves of it
    net = lben.LBEN(4, 6, 3, gamma=1.5, activation=lben.GroupSoftThreshold(2)).eval()
    x = 2 * torch.randn(200, 4)
    with pytest.raises(lben.NotConverged, match="float32 cannot resolve"):
        net(x)
    assert bool(net.double().solve(x.double()).converged.all())


def test_scale_does_not_matter() -> None:
    """A ReLU network is homogeneous: b of size 1e-12 is solved as well as b of size 1."""
    operator = problems.operator(6)
    b = problems.biases(20, 6)
    large = solve(lben.PeacemanRachford(tolerance=1e-8), Problem(operator, lben.ReLU(), b)).z
    small = solve(lben.PeacemanRachford(tolerance=1e-8), Problem(operator, lben.ReLU(), 1e-12 * b)).z
    assert torch.allclose(1e12 * small, large, atol=1e-6)


def test_dead_samples_converge_to_zero() -> None:
    problem = Problem(problems.operator(6), lben.ReLU(), -problems.biases(20, 6).abs())
    solution = solve(lben.PeacemanRachford(tolerance=1e-10), problem)
    assert torch.equal(solution.z, torch.zeros_like(solution.z))
