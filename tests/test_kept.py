"""What is kept between calls, operators and bounds of pairs, is never older than what decides W."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import lben
from lben.networks.base import BaseNetwork

SHAPE = (1, 4, 4)
NETWORKS: dict[str, Callable[[], BaseNetwork]] = {
    "LBEN": lambda: lben.LBEN(16, 6, 3, gamma=1.0),
    "linear skip": lambda: lben.LBEN(16, 6, 3, gamma=1.0, skip="linear"),
    "MON": lambda: lben.MON(16, 6, 3),
    "ContractingODE": lambda: lben.ContractingODE(16, 6, 3, rate=0.5, gamma=1.0),
    "channel": lambda: lben.ConvLBEN(SHAPE, 2, 3, gamma=1.0, pool=2),
    "pixel": lambda: lben.ConvLBEN(SHAPE, 2, 3, gamma=1.0, pool=2, metric="pixel"),
    "identity": lambda: lben.ConvLBEN(SHAPE, 2, 3, gamma=1.0, pool=2, metric="identity"),
    "ConvMON": lambda: lben.ConvMON(SHAPE, 2, 3, pool=2),
    "ConvUnconstrainedEN": lambda: lben.ConvUnconstrainedEN(SHAPE, 2, 3, pool=2),
}
BOUNDED = ["LBEN", "linear skip", "ContractingODE", "channel", "pixel", "identity"]


class Doubled(nn.Module):
    """A parametrization with a number that is no tensor."""

    factor = 2.0

    def forward(self, value: Tensor) -> Tensor:
        return self.factor * value


def make(kind: str) -> BaseNetwork:
    torch.manual_seed(0)
    net = NETWORKS[kind]().double().eval()
    net.solver = lben.FISTA(tolerance=1e-11, max_iterations=50_000)
    return net


def inputs() -> Tensor:
    return torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def fresh(net: BaseNetwork) -> Tensor:
    """The output with nothing kept."""
    twin = copy.deepcopy(net)
    twin._kept = None
    y: Tensor = twin(inputs())
    return y.detach()


@pytest.mark.parametrize("kind", BOUNDED)
def test_an_operator_follows_gamma(kind: str) -> None:
    net = make(kind)
    before = net(inputs()).detach()
    net.parameterization.gamma = 0.05
    after = net(inputs()).detach()
    assert not torch.allclose(before, after, atol=1e-6)
    assert torch.equal(after, fresh(net))
    slope = (after[0] - after[1]).norm() / (inputs()[0] - inputs()[1]).norm()
    assert float(slope) <= net.bound() == 0.05


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", BOUNDED)
def test_bounds_of_pairs_follow_gamma(kind: str) -> None:
    net = make(kind)
    lben.certified_radius(net, inputs())
    net.parameterization.gamma = 30.0
    kept = lben.certified_radius(net, inputs())
    assert torch.equal(kept.bounds, lben.certified_radius(net.weights(), inputs()).bounds)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_a_pruned_network_uses_its_weights_as_they_are(kind: str, training: bool) -> None:
    net = make(kind).train(training)
    net(inputs())
    for name in [name for name, _ in net.parameterization.named_parameters()]:
        prune.random_unstructured(net.parameterization, name, amount=0.3)
    for step in range(2):
        assert torch.allclose(net(inputs()), expected(net), atol=1e-8), step
        net(inputs()).sum().backward()  # a second time: the graph of the first is gone
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_parametrization_is_computed_again(kind: str) -> None:
    net = make(kind)
    doubled = Doubled()
    name = "V" if hasattr(net.parameterization, "V") else "C" if hasattr(net.parameterization, "C") else "W"
    parametrize.register_parametrization(net.parameterization, name, doubled)
    net(inputs())
    doubled.factor = 0.5
    assert torch.allclose(net(inputs()), expected(net), atol=1e-8)


def expected(net: BaseNetwork) -> Tensor:
    """The outputs of a dense network of the explicit weights."""
    given: Any = net.weights().detach()
    weights = given if isinstance(given, lben.Weights) else given.dense()
    bare = replace(weights, D=None)
    plain = lben.UnconstrainedEN.from_weights(bare, activation=net.activation, solver=net.solver)
    return weights.readout(plain.eval().solve(inputs()).z, inputs()).detach()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", NETWORKS)
def test_inference_mode_leaves_nothing_that_gradients_cannot_use(kind: str) -> None:
    net = make(kind)
    x = inputs().requires_grad_()
    with torch.inference_mode():
        quiet = net(inputs())
    loud = net(x)
    loud.sum().backward()
    assert torch.allclose(quiet, loud, atol=1e-8)
    with torch.inference_mode():
        net(inputs())
    net(x).sum().backward()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", NETWORKS)
def test_inputs_made_in_inference_mode_serve_in_training(kind: str) -> None:
    net = make(kind).train()
    with torch.inference_mode():
        x, bias = inputs(), torch.ones(net.hidden_features, dtype=torch.float64)
    y = net(x, bias=bias)
    assert torch.equal(y, net(inputs(), bias=torch.ones_like(bias)))
    y.sum().backward()
    assert torch.equal(net.solve(x).z, net.solve(inputs()).z)
