"""Lower bounds: true, close to the tightest bound, and reproducible."""

from __future__ import annotations

import copy
from io import StringIO

import pytest
import torch

import lben
from lben.data import embedded_mnist, pixels
from tests.problems import ACTIVATIONS, mnist_network, random_network


def recomputed(net: lben.EquilibriumNetwork, lower: lben.LowerBound) -> float:
    """The slope between the two inputs, by the network itself."""
    net = copy.deepcopy(net).double()
    net.solver = lben.Newton(tolerance=1e-12)
    with torch.no_grad():
        y1, y2 = net(lower.inputs)
    return float(torch.linalg.vector_norm(y1 - y2) / torch.linalg.vector_norm(lower.inputs[0] - lower.inputs[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gamma", "with_data"),
    [
        (0.2, False),
        (1.0, True),
        pytest.param(0.2, True, marks=pytest.mark.slow),
        pytest.param(1.0, False, marks=pytest.mark.slow),
    ],
)
def test_ninety_per_cent_of_the_tightest_bound_on_mnist(gamma: float, with_data: bool) -> None:
    net = mnist_network(gamma)
    x = pixels(embedded_mnist().test_images) if with_data else None
    lower, tight = lben.lipschitz_lower_bound(net, x), lben.tightest_bound(net).gamma
    assert tight is not None
    assert lower.proved
    assert 0.9 * tight <= lower.value <= tight
    assert float(lower.trace[-1]) == pytest.approx(lower.value, rel=1e-2)
    assert bool((lower.trace.diff() >= 0).all())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_the_two_inputs_show_the_value(activation: lben.Activation) -> None:
    net = random_network("LBEN", (4, 5, 3), activation, gamma=1.0, size=2.0, spread=0.5, trained=3, seed=5)
    lower = lben.lipschitz_lower_bound(net, restarts=8, steps=30)
    shown = recomputed(net, lower)
    assert lower.value <= shown
    assert lower.value == pytest.approx(shown, rel=1e-5)


def test_a_linear_network_reaches_its_norm() -> None:
    net = random_network("MON", (6, 8, 4), lben.Identity(), gamma=None, size=1.0, spread=0, trained=0, seed=0)
    w = net.weights().detach()
    norm = float(torch.linalg.matrix_norm(w.Wo @ torch.linalg.solve(torch.eye(8).double() - w.W, w.U), 2))
    assert lben.lipschitz_lower_bound(net, restarts=4, steps=5).value == pytest.approx(norm, rel=1e-5)


def test_known_slope_of_a_single_unit() -> None:
    """z = relu(-3 z + 2 x), y = 5 z: the slope is 2.5 where the unit is active."""
    one = torch.ones(1, 1, dtype=torch.float64)
    weights = lben.Weights(-3 * one, 2 * one, one[0] * 0, 5 * one, one[0] * 0)
    lower, tight = lben.lipschitz_lower_bound(weights, restarts=4, steps=10), lben.tightest_bound(weights)
    assert lower.value == pytest.approx(2.5)
    assert tight.gamma == pytest.approx(2.5, rel=1e-5)


def test_seed_domain_and_progress(terminal: StringIO) -> None:
    net, x = mnist_network(1.0), pixels(embedded_mnist().test_images[:50])
    one = lben.lipschitz_lower_bound(net, x, restarts=2, steps=10, seed=3)
    two = lben.lipschitz_lower_bound(net, x, restarts=2, steps=10, seed=3, progress=True)
    assert "Climbing" in terminal.getvalue()
    assert one.value == two.value
    assert torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.trace, two.trace)
    in_pixels = lben.lipschitz_lower_bound(net, x, restarts=4, steps=20, domain="pixels")
    assert in_pixels.domain == "pixels"
    assert 2 < in_pixels.value <= (lben.tightest_bound(net, domain="pixels").gamma or 0)
    assert recomputed(net, in_pixels) == pytest.approx(in_pixels.value, rel=1e-6)  # W is made anew in float64


def test_nothing_is_proved_of_unconstrained_weights() -> None:
    torch.manual_seed(0)
    net = lben.UnconstrainedEN(4, 6, 2)
    assert lben.lipschitz_lower_bound(net, restarts=2, steps=5).proved  # a metric is found
    with torch.no_grad():
        net.get_parameter("parameterization.W")[0, 0] = 1.5
    lower = lben.lipschitz_lower_bound(net, restarts=2, steps=5)
    assert not lower.proved
    assert "nothing is proved" in str(lower)
