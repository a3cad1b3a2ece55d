"""Networks whose units act in blocks: equilibria, gradients, files, and activations that change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lben
from tests.blocks import ACTIVATIONS, network, points
from tests.problems import SOLVERS, name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("along", ["random directions", pytest.param("all directions", marks=pytest.mark.slow)])
def test_gradients_of_equilibria(activation: lben.Activation, along: str) -> None:
    """In training by the fused layer, in evaluation by the other, to second order."""
    net = network(activation)
    x = points(2)[:, :4].requires_grad_()
    for training in (True, False):
        net.train(training)
        assert torch.autograd.gradcheck(net, x)
        assert torch.autograd.gradgradcheck(net, x, fast_mode=along == "random directions")
    loss = net(x).square().sum()
    d = net.get_parameter("parameterization.d")
    (grad,) = torch.autograd.grad(loss, d)
    with torch.no_grad():
        d[0] += 1e-6
        higher = net(x).square().sum()
        d[0] -= 2e-6
        lower = net(x).square().sum()
    assert float(grad[0]) == pytest.approx(float(higher - lower) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_every_solver_finds_the_same_equilibrium(solver: lben.Solver) -> None:
    activation = lben.Blocks([(lben.Tanh(), 1), (lben.Softmax(2), 2), (lben.Projection(lben.Ball(3)), 3)])
    net = network(activation).eval()
    x = points(5)[:, :4]
    net.solver = replace(solver, tolerance=1e-9)
    found = net.solve(x)
    W, b = net.weights().W, x @ net.weights().U.T + net.weights().bz
    assert bool(found.converged.all())
    assert torch.allclose(found.z, activation(found.z @ W.T + b), atol=1e-7)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_save_load_and_from_weights(activation: lben.Activation, tmp_path: Path) -> None:
    net = network(activation).eval()
    x = points(3)[:, :4]
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net")
    assert again.activation == net.activation
    assert torch.equal(again.eval()(x), net(x))
    third = lben.LBEN.from_weights(net.weights(), activation=activation, solver=net.solver).eval()
    assert torch.allclose(third(x), net(x), atol=1e-9)


def test_scalars_side_by_side_are_per_unit() -> None:
    blocks = lben.Blocks([(lben.ReLU(), 2), (lben.Tanh(), 4)])
    units = lben.PerUnit([lben.ReLU()] * 2 + [lben.Tanh()] * 4)
    one, other = network(blocks).eval(), network(units).eval()
    x = points(5)[:, :4]
    assert torch.allclose(one(x), other(x), atol=1e-12)
    assert lben.tightest_bound(one).gamma == lben.tightest_bound(other).gamma
    assert lben.lipschitz_lower_bound(one, x, restarts=2, steps=2).value > 0


def test_networks_that_need_no_common_metric_change_activations_freely() -> None:
    mon = lben.MON(4, 6, 3)
    mon.activation = lben.Softmax(3)
    assert lben.certify(mon).holds
    net = network(lben.Softmax(3))
    net.activation = lben.Softmax(1)
    net.activation = lben.ReLU()
    assert lben.certify(net).holds
