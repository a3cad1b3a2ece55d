"""The size of inputs and gradients does not matter: nothing under- or overflows, forward or backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lben
from lben.operators.dense import DenseOperator
from lben.solvers.base import Problem, Yardstick
from lben.solvers.extragradient import Cut
from lben.solvers.loop import solve
from tests import problems
from tests.problems import DTYPES, POWERS, SOLVERS, name


def homogeneous(dtype: torch.dtype, power: int) -> Problem:
    """A problem of ReLU units, whose b, and so whose z, is multiplied by a power of two, without rounding."""
    operator = problems.operator(12, size=2.0)
    assert operator.lam is not None
    cast = DenseOperator(operator.W.to(dtype), operator.lam.to(dtype))
    return Problem(cast, lben.ReLU(), problems.biases(8, 12).to(dtype) * 2.0**power)


@DTYPES
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_iterations_do_not_depend_on_scale(solver: lben.Solver, dtype: torch.dtype) -> None:
    """A power of two goes through every step of a homogeneous problem, so that nothing else may change."""
    plain = solve(solver, homogeneous(dtype, 0))
    for power in POWERS[dtype]:
        other = solve(solver, homogeneous(dtype, power))
        assert other.iterations == plain.iterations
        assert torch.allclose(other.residual, plain.residual, rtol=0.05, atol=2e-7)
        assert torch.allclose(other.z * 2.0**-power, plain.z, rtol=0, atol=1e-3 * solver.tolerance)


@DTYPES
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_gradients_do_not_depend_on_scale(solver: lben.Solver, dtype: torch.dtype) -> None:
    """The adjoint is linear in what comes from above, however small or large that is."""
    torch.manual_seed(0)
    net = lben.LBEN(3, 8, 2, gamma=1.0, solver=solver).to(dtype).eval()
    x = problems.biases(4, 3).to(dtype).requires_grad_()
    above = problems.biases(4, 2, 5).to(dtype)

    def gradient(factor: float) -> Tensor:
        (grad,) = torch.autograd.grad(net(x), x, above * factor)
        return grad

    plain = gradient(1.0)
    for power in POWERS[dtype]:
        assert torch.allclose(gradient(2.0**power) * 2.0**-power, plain, rtol=0, atol=1e-3 * solver.tolerance)


@DTYPES
def test_quick_and_careful_residuals_agree(dtype: torch.dtype) -> None:
    """`measure` may take the plain norms only where they say the same; batches mix sizes and zeros."""
    limits = torch.finfo(dtype)
    sizes = torch.tensor([0.0, limits.tiny, limits.tiny**0.5, 1.0, limits.max**0.5, limits.max / 1e4], dtype=dtype)
    b = problems.biases(len(sizes), 9).to(dtype)
    b = sizes[:, None] * b / b.abs().max()
    for share in (0.0, 1e-6, 1e-3):
        for chosen in (slice(0, 6), slice(1, 2), slice(2, 3), slice(3, 4), slice(4, 5), slice(5, 6)):
            z, defect = b[chosen].clamp(min=0), share * b[chosen]
            measured, worst, lost = Yardstick(b[chosen]).measure(defect, z, 1e-4)
            assert torch.allclose(measured, Yardstick(b[chosen]).residual(defect, z), rtol=1e-5)
            assert worst == float(measured.max())
            assert not lost


@DTYPES
def test_a_cut_is_the_same_at_every_scale(dtype: torch.dtype) -> None:
    point, normal, z = 2 * torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    lam = torch.linspace(0.5, 2, 4, dtype=dtype)
    plain = Cut(point, normal, 0.3, lam).project(z)
    for power in POWERS[dtype]:
        s = 2.0**power
        assert torch.allclose(Cut(s * point, s * normal, 0.3, lam).project(s * z) / s, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_a_warm_start_that_is_good_enough_is_returned(solver: lben.Solver) -> None:
    problem = homogeneous(torch.float64, 0)
    cold = solve(solver, problem)
    precise = solve(replace(solver, tolerance=1e-9), problem)
    for start in (precise, precise.z):
        warm = solve(solver, problem, start=start, keep_history=True)
        assert warm.iterations == 0
        assert warm.history is not None
        assert warm.history.shape == (0, 8)
        assert bool(warm.converged.all())
        assert torch.allclose(warm.z, precise.z, atol=1e-7)
    assert solve(solver, problem, start=torch.zeros_like(cold.z)).iterations > 0
    further = solve(replace(solver, tolerance=1e-9), problem, start=warm)
    assert bool(further.converged.all())


def test_a_start_does_not_turn_into_an_equilibrium_where_there_is_none() -> None:
    """W = I, b = 1: at z = 1e9 the residual is 1e-9, and still there is no equilibrium."""
    W = DenseOperator(torch.eye(2, dtype=torch.float64))
    problem = Problem(W, lben.ReLU(), torch.ones(3, 2, dtype=torch.float64))
    with pytest.raises(lben.NotConverged):
        solve(lben.Newton(), problem, start=torch.full((3, 2), 1e9, dtype=torch.float64))


def test_gradients_of_a_warm_start() -> None:
    """A solution of no iterations is as differentiable as any."""
    torch.manual_seed(0)
    net = lben.LBEN(3, 8, 2, gamma=1.0).double().eval()
    net.solver = lben.PeacemanRachford(tolerance=1e-12)
    x = problems.biases(4, 3).requires_grad_()
    cold = net.solve(x)
    warm = net.solve(x, start=cold)
    assert warm.iterations == 0
    one, other = (torch.autograd.grad(s.z.square().sum(), x)[0] for s in (cold, warm))
    assert torch.allclose(one, other, atol=1e-9)
