"""Certificates of units that act in blocks: Lambda is constant on each, and that costs what it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from tests.blocks import ACTIVATIONS, network, points


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(ACTIVATIONS), st.sampled_from([0.2, 1.0, 5.0]), st.integers(0, 10**6))
def test_bounds_hold_and_are_in_order(activation: lben.Activation, gamma: float, seed: int) -> None:
    net = network(activation, gamma=gamma, seed=seed).eval()
    tight = lben.tightest_bound(net)
    assert tight.gamma is not None
    groups = activation.groups(6)
    if groups is not None:
        for block in groups.unique():
            assert len(tight.lam[groups == block].unique()) == 1
    x = 3 * points(24, seed)[:, :4]
    with torch.no_grad():
        y = net(x)
    slope = float((torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)).max())
    assert slope <= tight.gamma * (1 + 1e-9)
    assert tight.gamma <= gamma * (1 + 1e-9)
    assert lben.certify(net).holds


@pytest.mark.sampled(4)
@pytest.mark.parametrize("activation", ACTIVATIONS[1:], ids=repr)
def test_certificates_on_blocks(activation: lben.Activation) -> None:
    """The barrier method agrees with SCS and ball arithmetic; a metric per unit proves less than it seems to."""
    net = network(activation).eval()
    tight, weights = lben.tightest_bound(net, rigorous=True), net.weights().detach()
    assert tight.gamma == pytest.approx(lben.tightest_bound(net, solver="scs").gamma, rel=1e-4)
    alone = lben.tightest_bound(replace(weights, lam=None)).gamma  # for units that act alone, over more metrics
    assert alone is not None
    assert tight.gamma is not None
    assert alone <= tight.gamma * (1 + 1e-6)
    free = replace(weights, lam=None, gamma=None)
    found = lben.tightest_bound(free, activation=activation).gamma
    assert found == pytest.approx(tight.gamma, rel=1e-5)
    assert lben.well_posed(net).holds
    radius = lben.certified_radius(net, points(6)[:, :4])
    assert float(radius.radius.min()) >= 0
    assert 0 < lben.lipschitz_lower_bound(net, restarts=2, steps=5).value <= tight.gamma


def test_blocks_can_fail_where_units_alone_would_not() -> None:
    """W = [[0, 3], [0, 0]] is well-posed for units alone, but for a block Lam = I is the only metric, and fails."""
    W = torch.tensor([[0.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    weights = lben.Weights(W, eye, zero, eye, zero)
    assert lben.well_posed(weights).holds
    net = lben.UnconstrainedEN.from_weights(weights, activation=lben.Softmax(2))
    found = lben.well_posed(net)
    assert not found.holds
    assert not lben.well_posed(W, activation=lben.Softmax(2)).holds
    assert found.witness is not None
    assert float(torch.linalg.eigvalsh(found.witness)[0]) >= -1e-12
    assert float(((eye - W) @ found.witness).trace()) <= 1e-12
    with pytest.raises(lben.NotWellPosed):
        lben.tightest_bound(weights, activation=lben.Softmax(2))
