"""The implicit layer: exact gradients of first and second order, three ways to each, and memory that stays put."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lben
from lben.activations.base import Scalar
from lben.implicit import equilibrium
from lben.operators.dense import DenseOperator
from tests import problems
from tests.problems import ACTIVATIONS, SOLVERS, name

MODES = [True, False]


def away_from_kinks(net: lben.EquilibriumNetwork, x: Tensor, distance: float = 1e-3) -> bool:
    """No unit sits where a piecewise activation bends, at 0 or +-1."""
    v = net.solve(x).v.detach()
    return float(torch.minimum(v.abs(), (v.abs() - 1).abs()).min()) > distance


def network(activation: lben.Activation, solver: lben.Solver, kind: type = lben.LBEN) -> lben.EquilibriumNetwork:
    """A small one: a check of second derivatives solves once for every pair of inputs and outputs."""
    torch.manual_seed(0)
    gamma = {"gamma": 0.8} if kind is lben.LBEN else {}
    units = activation.units or 3
    net: lben.EquilibriumNetwork = kind(2, units, 1, activation=activation, solver=solver, **gamma)
    net.double()
    if kind is lben.LBEN:
        with torch.no_grad():
            net.get_parameter("parameterization.d").normal_(0, 0.5)
    return net


def functional(net: lben.EquilibriumNetwork) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The network as a function of its input, a bias from outside and all free variables."""
    names = [n for n, _ in net.named_parameters()]

    def call(x: Tensor, bias: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        result: Tensor = torch.func.functional_call(net, values, (x,), {"bias": bias})
        return result

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 2, dtype=torch.float64, generator=generator).requires_grad_()
    bias = (0.3 * torch.randn(2, net.hidden_features, dtype=torch.float64, generator=generator)).requires_grad_()
    return call, (x, bias, *net.parameters())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("training", MODES)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_gradients_for_every_activation(activation: lben.Activation, training: bool) -> None:
    net = network(activation, lben.Newton(tolerance=1e-12)).train(training)
    call, inputs = functional(net)
    assert away_from_kinks(net, inputs[0])
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def solver_cases() -> list[object]:
    """Every solver with both activations in both modes; what takes thousands of iterations, quickly in one alone."""
    return [
        pytest.param(
            activation,
            solver,
            training,
            id=f"{name(activation)}-{name(solver)}-{training}",
            marks=[pytest.mark.slow]
            if solver.max_iterations > 10_000 and training == isinstance(activation, lben.ReLU)
            else [],
        )
        for activation in (lben.ReLU(), lben.Tanh())
        for solver in SOLVERS
        for training in MODES
    ]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("activation", "solver", "training"), solver_cases())
def test_gradients_for_every_solver(activation: lben.Activation, solver: lben.Solver, training: bool) -> None:
    net = network(activation, replace(solver, tolerance=1e-12)).train(training)
    call, inputs = functional(net)
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("training", MODES)
@pytest.mark.parametrize("kind", [lben.MON, lben.UnconstrainedEN])
def test_gradients_for_every_network(kind: type, training: bool) -> None:
    net = network(lben.Tanh(), lben.PeacemanRachford(tolerance=1e-12), kind).train(training)
    call, inputs = functional(net)
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if isinstance(a, Scalar)], ids=name)
def test_three_ways_to_a_gradient(activation: lben.Activation) -> None:
    """The adjoint solve, a dense solve with (I - J W), and autograd through the unrolled iteration."""
    found = problems.operator(6)
    W = found.W.clone().requires_grad_()
    b = problems.biases(5, 6).requires_grad_()
    g = problems.biases(5, 6, seed=2)

    adjoint_z = equilibrium(DenseOperator(W, found.lam), activation, b, lben.PeacemanRachford(tolerance=1e-13))
    adjoint = torch.autograd.grad(adjoint_z, (W, b), g)

    z = adjoint_z.detach()
    j = activation.derivative(z @ W.detach().T + b.detach())
    system = torch.eye(6, dtype=z.dtype) - j[:, :, None] * W.detach()
    q = j * torch.linalg.solve(system.mT, g)
    dense = (q.T @ z, q)

    alpha = found.balanced_step()
    identity = torch.eye(6, dtype=z.dtype)
    resolvent = torch.linalg.inv(identity + alpha * (identity - W))
    u = torch.zeros_like(b)
    for _ in range(300):
        w = 2 * activation.prox(u, alpha) - u
        u = 2 * (w + alpha * b) @ resolvent.T - w
    unrolled = torch.autograd.grad(activation.prox(u, alpha), (W, b), g)

    for first, second, third in zip(adjoint, dense, unrolled, strict=True):
        assert torch.allclose(first, second, atol=1e-9)
        assert torch.allclose(first, third, atol=1e-7)


def test_i_minus_jw_is_invertible() -> None:
    """Proposition `gradient`: I - J W has no zero eigenvalue for any J with entries in [0, 1], corners and inside."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(10):
        W = problems.operator(6, gamma=None, size=5.0, spread=1.0, seed=seed).W
        J = torch.rand(500, 6, dtype=torch.float64, generator=generator)
        J[:250] = J[:250].round()
        system = torch.eye(6, dtype=torch.float64) - J[:, :, None] * W
        determinants = torch.linalg.det(system)
        assert float(determinants.min()) > 0


def test_gradients_do_not_depend_on_the_mode() -> None:
    net = network(lben.ReLU(), lben.PeacemanRachford(tolerance=1e-12))
    x = torch.randn(6, 2, dtype=torch.float64)
    grads = []
    for training in MODES:
        net.train(training)
        net.zero_grad()
        net(x).square().sum().backward()
        grads.append([parameter.grad for parameter in net.parameters()])
    for first, second in zip(*grads, strict=True):
        assert first is not None
        assert second is not None
        assert torch.allclose(first, second, atol=1e-9)


@pytest.mark.parametrize("training", MODES)
def test_no_grad_mixed_with_training(training: bool) -> None:
    net = network(lben.ReLU(), lben.PeacemanRachford(tolerance=1e-10)).train(training)
    x = torch.randn(6, 2, dtype=torch.float64)
    with torch.no_grad():
        quiet = net(x)
    assert not quiet.requires_grad
    loud = net(x)
    assert loud.requires_grad
    assert torch.allclose(quiet, loud, atol=1e-8)
    loud.sum().backward()
    with torch.inference_mode():
        assert torch.allclose(net(x), loud, atol=1e-8)
    net(x).sum().backward()


def test_solution_is_differentiable_too() -> None:
    net = network(lben.Tanh(), lben.PeacemanRachford(tolerance=1e-12)).eval()
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    weights = net.weights()
    (first,) = torch.autograd.grad((net.solve(x).z @ weights.Wo.T + weights.by).square().sum(), x)
    (second,) = torch.autograd.grad(net(x).square().sum(), x)
    assert torch.allclose(first, second, atol=1e-9)


MEMORY = """
import resource, torch, lben
torch.manual_seed(0)
torch.set_num_threads(1)
net = lben.LBEN(50, 400, 10, gamma=1.0)
x = torch.randn(2000, 50)
for iterations in (20, 120):
    options = {"alpha": 0.05, "tolerance": 1e-30, "max_iterations": iterations, "on_failure": "warn"}
    net.solver = lben.PeacemanRachford(**options)
    net(x).sum().backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


LEAK = """
import gc, resource, torch, lben
gc.disable()
torch.manual_seed(0)
net = lben.LBEN(50, 400, 10, gamma=1.0)
x = torch.randn(2000, 50)
def forward():
    net.train()(x)
    net.eval()(x)
    net.solve(x)
    net.weights()
forward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(6):
    forward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_graph_that_is_dropped_is_freed() -> None:
    """Without the garbage collector: no cycle of references keeps the 30 MB of a forward pass alive."""
    run = subprocess.run([sys.executable, "-c", LEAK], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 100_000  # kilobytes


def test_memory_does_not_grow_with_iterations() -> None:
    """Peak memory of a training step with 20 iterations and with 120, of 3 MB each: unrolled, it grows by 300 MB."""
    command = [sys.executable, "-W", "ignore", "-c", MEMORY]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    few, many = (int(line) for line in run.stdout.split())
    assert many - few < 60_000  # kilobytes
