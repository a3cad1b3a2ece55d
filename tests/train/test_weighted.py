"""Rows with weights: merged, split and standardised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lben
from lben.certify.units import OwnUnits
from lben.train.weighted import Rows

NUMBERS = st.sampled_from([-1.5, -0.0, 0.0, 2.0])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=12))
def test_equal_rows_become_one_and_nothing_is_lost(table: list[tuple[float, float, int, int]]) -> None:
    array = np.array(table)
    rows = Rows.distinct(array[:, :2], array[:, 2].astype(int), array[:, 3])
    keys = [(*x, t) for x, t in zip(rows.x.tolist(), rows.targets.tolist(), strict=True)]
    assert len(set(keys)) == len(keys) == len({row[:3] for row in table})
    for key, weight in zip(keys, rows.weights.tolist(), strict=True):
        assert weight == sum(row[3] for row in table if row[:3] == key)
    again = Rows.distinct(array[::-1, :2], array[::-1, 2].astype(int), array[::-1, 3])
    assert torch.equal(again.x, rows.x)
    assert torch.equal(again.weights, rows.weights)


def test_rows_are_set_aside_from_every_class() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    rows = Rows.distinct(np.arange(100.0)[:, None], labels, np.ones(100))
    rest, aside = rows.split(0.2, torch.Generator().manual_seed(0))
    assert np.bincount(aside.targets).tolist() == [12, 6, 2]
    assert sorted([*rest.x[:, 0].tolist(), *aside.x[:, 0].tolist()]) == list(range(100))


def test_moments_are_those_of_repeated_rows() -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.normal((0.0, 1e3, 0.0), size=(20, 3)), rng.integers(1, 4, 20)
    x[:, 2] = 0.1
    rows = Rows.distinct(x, np.zeros(20), weights)
    mean, std, constant = rows.moments(rows.x)
    repeated = x.repeat(weights, axis=0)
    np.testing.assert_allclose(mean[:2], repeated.mean(axis=0)[:2])
    np.testing.assert_allclose(std[:2], repeated.std(axis=0)[:2])
    assert constant.tolist() == [False, False, True]
    assert float(mean[2]) == 0.1
    stage, _ = rows.standardised()
    assert torch.equal(stage(rows.x)[:, 2], torch.zeros(20, dtype=torch.float64))


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_scales_within_the_weights_are_those_of_a_linear_network(spread: float) -> None:
    """With linear units and W of the network, y = Wo (I - W)^-1 U x / std: its norm is the bound itself."""
    torch.manual_seed(0)
    std = torch.exp(spread * torch.randn(6)).double()
    stage = lben.Normalize(torch.zeros(6), torch.ones(6)).double()
    stage.std.copy_(std)
    net = lben.LBEN(6, 5, 3, gamma=3.0, activation=lben.Identity(), normalize=stage).double()
    weights = net.weights().detach()
    through = torch.linalg.solve(torch.eye(5, dtype=torch.float64) - weights.W, weights.U)
    slopes = weights.Wo @ through / std
    units = OwnUnits.of(net.weights(), net.activation, stage)
    norm = float(torch.linalg.matrix_norm(slopes, ord=2))
    assert norm * (1 - 1e-12) <= units.bound() <= norm * (1 + 1e-5)
    assert 0 < units.slack < 1e-12 * units.bound()
    pair = float((slopes[0] - slopes[1]).norm())
    assert pair * (1 - 1e-12) <= float(units.pairs()[0, 1]) <= pair * (1 + 1e-5)
    assert units.bound() <= (lben.tightest_bound(net, domain="pixels").gamma or 0.0) * (1 + 1e-6)
