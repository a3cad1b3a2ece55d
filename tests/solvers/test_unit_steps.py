"""Peaceman-Rachford with one step a unit: the same equilibria, in fewer iterations, with W c + b for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lben
from lben.activations.base import Activation
from lben.operators.base import Operator
from lben.parameterize.skip import Skip
from lben.solvers.base import Iteration, Problem
from lben.solvers.loop import solve
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.solvers.unit_steps import UnitSteps
from tests import problems


def conv_problem(activation: Activation, *, size: float = 1.0, transposed: bool = False) -> Problem:
    weights = problems.conv_network((2, 6, 5), "channel", gamma=0.7, channels=4, size=size).weights().detach()
    operator = weights.operator(monotonicity_bound=None)
    operator = operator.transpose() if transposed else operator
    return Problem(operator, activation, problems.biases(6, operator.size))


def gain(n: int) -> Activation:
    return lben.ReLU().gain(problems.biases(6, n, seed=5))


def columns(x: Tensor) -> Tensor:
    """The same rows, side by side in memory."""
    return x.T.contiguous().T


@pytest.mark.parametrize("size", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("kind", ["ReLU", "HardTanh", "Identity", "adjoint"])
def test_it_finds_what_one_step_for_all_finds(kind: str, size: float) -> None:
    problem = conv_problem(lben.ReLU(), size=size, transposed=kind == "adjoint")
    activation = gain(problem.operator.size) if kind == "adjoint" else getattr(lben, kind)()
    problem = Problem(problem.operator, activation, columns(problem.b))
    solver = PeacemanRachford(tolerance=1e-11, max_iterations=20_000)
    assert isinstance(solver.begin(problem, None), UnitSteps)
    found = solve(solver, problem)
    other = solve(PeacemanRachford(alpha=0.3, tolerance=1e-11, max_iterations=20_000), problem)
    assert torch.allclose(found.z, other.z, rtol=0, atol=1e-8 * float(other.z.abs().max()))
    for start in (found, found.z):
        assert solve(solver, problem, start=start, first_burst=1).iterations <= 3


@pytest.mark.parametrize("transposed", [False, True])
def test_the_pre_activation_that_comes_free_is_that_of_the_candidate(transposed: bool) -> None:
    problem = conv_problem(lben.ReLU(), size=2.0, transposed=transposed)
    iteration = PeacemanRachford(tolerance=1e-2).begin(problem, None)
    for steps in (1, 3):
        iteration.advance(steps)
        expected = iteration.candidate().clone()
        c, v = iteration.look(problem)
        assert torch.equal(c, expected)
        assert torch.allclose(v, problem.operator.affine(c, problem.b), rtol=0, atol=1e-12 * float(v.abs().max()))


def test_a_tolerance_near_rounding_is_judged_by_a_product_with_w() -> None:
    problem = conv_problem(lben.ReLU())
    assert PeacemanRachford(tolerance=1e-2).begin(problem, None).cheap_look
    assert not PeacemanRachford(tolerance=1e-15).begin(problem, None).cheap_look


def test_one_step_for_all_where_a_step_a_unit_is_not_proved() -> None:
    for activation in (lben.Tanh(), lben.LeakyReLU(0.1)):
        assert not isinstance(PeacemanRachford().begin(conv_problem(activation), None), UnitSteps)
    assert not isinstance(PeacemanRachford(alpha=0.1).begin(conv_problem(lben.ReLU()), None), UnitSteps)
    hard = conv_problem(lben.HardTanh(), transposed=True)  # D^-1 sigma(D v) is another function
    assert not isinstance(PeacemanRachford().begin(hard, None), UnitSteps)
    free = lben.ConvUnconstrainedEN((2, 6, 5), 4, 3, pool=1).double().weights().detach().operator()
    problem = Problem(free, lben.ReLU(), problems.biases(6, free.size))
    assert not isinstance(PeacemanRachford().begin(problem, None), UnitSteps)


def test_channels_of_unlike_scales_take_fewer_iterations() -> None:
    """Of a network whose channels differ a hundredfold in (I - W)_ii, one step fits few."""
    net = problems.conv_network((2, 6, 5), "channel", gamma=None, channels=4, size=1.0)
    with torch.no_grad():
        dict(net.parameterization.named_parameters())["d"].copy_(torch.tensor([-2.3, -0.7, 0.7, 2.3]))
    operator = net.weights().detach().operator()
    problem = Problem(operator, lben.ReLU(), problems.biases(6, operator.size))
    own = solve(PeacemanRachford(tolerance=1e-6), problem).iterations
    one = solve(PeacemanRachford(tolerance=1e-6, alpha=operator.balanced_step()), problem).iterations
    assert own < 0.7 * one


class _Persistent(PeacemanRachford):
    """Goes on with what it began with."""

    def reconsider(self, *_: object) -> None:
        return None


def with_a_mean(gamma: float | None, free: str, bound: float | None = None) -> Operator:
    """Of a convolution one frequency of which is many times larger than all others."""
    net = problems.conv_network((2, 10, 10), "channel", gamma=gamma, channels=4, size=1.0)
    with torch.no_grad():
        dict(net.parameterization.named_parameters())[free].add_(2.0)
    return net.weights().detach().operator(monotonicity_bound=bound)


@pytest.mark.parametrize(("gamma", "free"), [(0.7, "V"), (0.7, "U"), (None, "V")])
def test_one_step_for_all_takes_over_where_a_step_a_unit_turns_out_slow(gamma: float | None, free: str) -> None:
    operator = with_a_mean(gamma, free)
    problem = Problem(operator, lben.ReLU(), problems.biases(6, operator.size))
    slow = solve(_Persistent(tolerance=1e-3, max_iterations=5000), problem)
    found = solve(PeacemanRachford(tolerance=1e-3), problem)
    exact = solve(PeacemanRachford(tolerance=1e-12, max_iterations=20_000, alpha=0.02), problem)
    assert found.iterations < 0.5 * slow.iterations
    assert found.recent is not None
    assert 0 < found.recent < found.iterations
    assert bool(found.converged.all())
    assert float((found.z - exact.z).norm() / exact.z.norm()) < 0.05
    assert isinstance(PeacemanRachford(tolerance=1e-3).begin(problem, None), UnitSteps)  # other inputs may be quick


def test_the_adjoint_of_the_same_training_step_begins_with_what_was_quicker() -> None:
    operator = with_a_mean(0.7, "V", bound=0.3)
    problem = Problem(operator, lben.ReLU(), problems.biases(6, operator.size))
    found = solve(PeacemanRachford(tolerance=1e-3), problem)
    adjoint = Problem(operator.transpose(), lben.ReLU().gain(found.v), problem.b)
    assert not isinstance(PeacemanRachford(tolerance=1e-3).begin(adjoint, None), UnitSteps)
    assert bool(solve(PeacemanRachford(tolerance=1e-3), adjoint).converged.all())


def test_a_step_a_unit_stays_where_it_is_quick() -> None:
    problem = conv_problem(lben.ReLU())
    found = solve(PeacemanRachford(tolerance=1e-6), problem)
    assert found.recent == found.iterations


def test_steps_of_their_own_come_back_where_one_for_all_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, changes = conv_problem(lben.ReLU(), size=8.0), []
    monkeypatch.setattr(type(problem.operator), "single_steps", lambda _: (1e-4, 2e-4))

    class Watched(PeacemanRachford):
        def reconsider(self, *args: Any) -> Iteration | None:
            other = super().reconsider(*args)
            changes.append(type(other)) if other is not None else None
            return other

    assert bool(solve(Watched(tolerance=1e-6), problem).converged.all())
    assert [kind is UnitSteps for kind in changes] == [False, False, True]


@pytest.mark.parametrize("seed", [1, 4, 7])
@pytest.mark.parametrize("skip", [None, "identity"])
def test_weights_of_any_size_converge_whatever_was_asked_before(skip: Skip | None, seed: int) -> None:
    """Of these one step for all units is far slower than it may be hoped to be, for I - W is far from symmetric."""
    torch.manual_seed(seed)
    layer = lben.ImageLBEN(2, 4, 2, gamma=1.0, skip=skip, dtype=torch.float64).eval()
    with torch.no_grad():
        for part in layer.parameters():
            part.mul_(20.0) if part.dim() > 1 else part.add_(6 * torch.randn_like(part))
        images = torch.randn(4, 2, 6, 6, dtype=torch.float64)
        whole = layer(images)
        for k in (0, 1, 2, 3, 2, 1, 0):
            alone = layer(images[k : k + 1])[0]
            assert torch.allclose(alone, whole[k], rtol=0, atol=1e-2 * float(whole.abs().max()))
