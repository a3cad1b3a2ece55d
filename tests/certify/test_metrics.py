"""The search for the smallest bound: independent ways agree with it, and it says where it stops."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import lben
from lben.numerics import barrier
from lben.numerics.barrier import grouped_direction
from tests.problems import lipsdp, mnist_network, plain, random_network


@pytest.mark.parametrize("kind", ["LBEN", "MON"])
@pytest.mark.parametrize(("n", "d", "p"), [(6, 9, 3), (9, 3, 4), (5, 5, 1)])
def test_barrier_and_scs_agree(kind: str, n: int, d: int, p: int) -> None:
    net = random_network(kind, (d, n, p), lben.ReLU(), gamma=None, size=2.0, spread=1.0, trained=3, seed=n)
    barrier, scs = lben.tightest_bound(net), lben.tightest_bound(net, solver="scs")
    assert barrier.holds
    assert scs.holds
    assert scs.gamma == pytest.approx(barrier.gamma, rel=1e-4)


@pytest.mark.slow
def test_barrier_and_scs_agree_on_mnist() -> None:
    net = mnist_network(None)
    assert lben.tightest_bound(net, solver="scs").gamma == pytest.approx(lben.tightest_bound(net).gamma, rel=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_one_hidden_layer_is_lipsdp(seed: int) -> None:
    torch.manual_seed(seed)
    U, Wo = torch.randn(8, 5).double(), torch.randn(3, 8).double()
    tight = lben.tightest_bound(plain(torch.zeros(8, 8), U, Wo))
    assert tight.gamma == pytest.approx(lipsdp([U, Wo]), rel=1e-4)


@pytest.mark.parametrize("zero", ["U", "Wo", "both"])
def test_outputs_that_do_not_depend_on_inputs(zero: str) -> None:
    torch.manual_seed(0)
    weights = lben.MON(3, 4, 2).double().weights().detach()
    if zero in ("U", "both"):
        weights = replace(weights, U=torch.zeros_like(weights.U))
    if zero in ("Wo", "both"):
        weights = replace(weights, Wo=torch.zeros_like(weights.Wo))
    tight = lben.tightest_bound(weights)
    assert tight.holds
    assert (tight.gamma or 1.0) < 1e-20


def test_the_path_from_input_to_output_may_be_broken_in_between() -> None:
    """Units that hear the input are not those that are read: every gamma > 0 holds, and a small one is found."""
    tight = lben.tightest_bound(plain(torch.zeros(2, 2), torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])))
    assert tight.holds
    assert (tight.gamma or 1.0) < 1e-6


@pytest.mark.parametrize("size", [1e2, 1e5, 1e8])
def test_a_search_that_rounding_stops_says_so(size: float) -> None:
    torch.manual_seed(0)
    a = torch.randn(20, 20).double()
    weights = plain(size * (a - a.T), torch.randn(20, 10), torch.randn(5, 20))
    tight = lben.tightest_bound(weights)
    assert tight.holds
    assert (tight.gamma or math.inf) <= lben.product_bound(weights)
    assert ("stopped by rounding" in tight.method) == (size > 1e3)


@pytest.mark.slow
def test_a_thousand_units() -> None:
    torch.manual_seed(0)
    for net in (lben.MON(784, 1000, 10), lben.LBEN(784, 1000, 10, gamma=1.0)):
        tight = lben.tightest_bound(net)
        assert tight.holds
        assert (tight.gamma or math.inf) <= lben.product_bound(net)
        assert not lben.certify(net, 0.99 * (tight.gamma or 0), lam=tight.lam).holds
        assert lben.lipschitz_lower_bound(net, restarts=8, steps=20).value <= (tight.gamma or 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("decades", [20, 60, 120, 200])
@pytest.mark.parametrize("chain", [False, True])
def test_a_metric_over_many_decades_hides_no_tighter_bound(
    decades: int, chain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the metric the search begins at, its bound is that of a general solver, in a bounded number of steps."""
    generator = torch.Generator().manual_seed(1)
    W, U, Wo = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 5), (5, 2), (2, 5)))
    lam = 10 ** torch.linspace(-decades / 2, decades / 2, 5, dtype=torch.float64)
    W = torch.tril(W, -1) * (lam / lam[:, None]) if chain else -0.5 * torch.eye(5, dtype=torch.float64)
    weights = plain(W, U, Wo, lam)
    steps = 0

    def counted(*arguments: Any) -> tuple[Tensor, float]:
        nonlocal steps
        steps += 1
        return grouped_direction(*arguments)

    monkeypatch.setattr(sys.modules[grouped_direction.__module__], "grouped_direction", counted)
    found = lben.tightest_bound(weights)
    general = lben.tightest_bound(replace(weights, lam=None), solver="scs")
    assert found.gamma == pytest.approx(general.gamma, rel=1e-3)
    assert "stopped" not in found.method
    assert 0 < steps <= 2000


def test_a_room_that_underflows_is_a_sentence() -> None:
    """U is zero, and gamma, which is then tiny, times the smallest eigenvalue is below every double."""
    lam = torch.full((2,), 1e-300, dtype=torch.float64)
    with pytest.raises(lben.InvalidInput, match="beyond the range"):
        lben.tightest_bound(plain(torch.zeros(2, 2), torch.zeros(2, 1), torch.full((1, 2), 1e21), lam))


def test_a_search_that_is_stopped_still_proves_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lben.LBEN(4, 6, 2, gamma=1.0).double()
    best = lben.tightest_bound(net)
    monkeypatch.setattr(barrier, "_ALL_STEPS", 4)
    found = lben.tightest_bound(net)
    assert "stopped" in found.method
    assert found
    assert found.gamma is not None
    assert best.gamma is not None
    assert found.gamma >= best.gamma * (1 - 1e-6)
