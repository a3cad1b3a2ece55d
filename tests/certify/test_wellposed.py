"""Well-posedness: a metric that proves it, or a witness against all of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lben
from tests.problems import plain, random_network


@pytest.mark.parametrize("W12", [-4.0, 0.0, 1.5, 10.0])
@pytest.mark.parametrize("W22", [-3.0, 0.0, 0.99, 1.0, 1.01, 3.0])
def test_the_paper_s_two_by_two_example(W12: float, W22: float) -> None:
    W = torch.tensor([[0.0, W12], [0.0, W22]], dtype=torch.float64)
    found = lben.well_posed(W)
    assert found.holds == (W22 < 1)
    assert found.monotone == (W22 < 1 and 4 * (1 - W22) - W12**2 > 0)
    assert found.norm == (max(abs(W12), abs(W22)) < 1)
    assert found.perron_frobenius == (abs(W22) < 1)
    check_well_posedness(W, found)


def check_well_posedness(W: Tensor, found: lben.WellPosedness) -> None:
    """The metric, or the witness against all of them, speaks for itself."""
    if found.holds:
        M = torch.diag(found.lam) @ (torch.eye(len(W)) - W)
        assert float(torch.linalg.eigvalsh(M + M.T)[0]) > 0
        assert found.witness is None
    elif found.witness is not None:
        assert float(torch.linalg.eigvalsh(found.witness)[0]) >= -1e-12
        assert float(found.witness.diagonal().max()) == 1
        assert float(((torch.eye(len(W)) - W) @ found.witness).diagonal().max()) <= 1e-12


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.1, 3))
@settings(max_examples=80, deadline=None)
def test_well_posed_finds_a_metric_or_a_witness(seed: int, n: int, size: float) -> None:
    torch.manual_seed(seed)
    W = size * torch.randn(n, n).double() / math.sqrt(n)
    found = lben.well_posed(W)
    check_well_posedness(W, found)
    assert found.holds or found.witness is not None
    assert found.holds or not (found.monotone or found.norm or found.perron_frobenius)  # the older tests prove less
    assert found.monotonicity <= found.best_monotonicity
    assert str(found).startswith("Well-posed" if found.holds else "No diagonal metric")


@pytest.mark.parametrize("seed", range(20))
def test_a_singular_laplacian_is_not_well_posed(seed: int) -> None:
    """I - W is a graph Laplacian, so W 1 = 1 exactly and z = relu(W z) has many solutions, which rounding may hide."""
    generator = torch.Generator().manual_seed(seed)
    n = 3 + seed % 5
    edges = torch.randint(0, 4, (n, n), generator=generator).double().triu(1)
    edges = edges + edges.T
    W = torch.eye(n) - (torch.diag(edges.sum(1)) - edges)
    found = lben.well_posed(W)
    assert not found.holds
    assert not found.monotone
    for bound in (lben.tightest_bound, lben.product_bound):
        with pytest.raises(lben.NotWellPosed):
            bound(plain(W, torch.eye(n), torch.eye(n)))


@pytest.mark.parametrize("size", [1e3, 1e9, 1e12, 1e30])
def test_a_metric_is_found_at_any_scale(size: float) -> None:
    W = torch.tensor([[0.0, 0.0], [size, 0.0]], dtype=torch.float64)
    assert lben.well_posed(W).holds


@given(st.integers(0, 10**6), st.integers(2, 8))
@settings(max_examples=15, deadline=None)
def test_a_change_of_units_changes_nothing(seed: int, n: int) -> None:
    """W and S W S^-1 are well-posed together, for S spread over twelve decades."""
    net = random_network("LBEN", (3, n, 2), lben.ReLU(), gamma=None, size=1.0, spread=1.0, trained=0, seed=seed)
    w = net.weights().detach()
    S = 10 ** (12 * torch.rand(n, dtype=torch.float64) - 6)
    moved = plain(S[:, None] * w.W / S, S[:, None] * w.U, w.Wo / S)
    assert lben.well_posed(moved).holds
    assert lben.tightest_bound(moved).gamma == pytest.approx(lben.tightest_bound(w).gamma, rel=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_what_the_parameterization_makes_is_well_posed(seed: int, n: int) -> None:
    net = random_network("LBEN", (3, n, 2), lben.ReLU(), gamma=None, size=2.0, spread=2.0, trained=0, seed=seed)
    weights = net.weights().detach()
    assert lben.well_posed(weights).holds
    assert lben.well_posed(weights.W).holds


def test_feed_forward_networks_are_well_posed() -> None:
    """Strictly lower triangular, six layers: a metric exists, with entries that spread over ten decades."""
    torch.manual_seed(0)
    W = torch.zeros(60, 60, dtype=torch.float64)
    for k in range(5):
        W[10 * k + 10 : 10 * k + 20, 10 * k : 10 * k + 10] = 2 * torch.randn(10, 10).double()
    found = lben.well_posed(W)
    assert found.holds
    assert not found.monotone
    assert float(found.lam.max() / found.lam.min()) > 1e6


def test_unconstrained_weights_are_judged_and_bounded() -> None:
    torch.manual_seed(0)
    net = lben.UnconstrainedEN(5, 8, 3)
    assert lben.well_posed(net).holds
    tight = lben.tightest_bound(net)
    assert tight.holds
    with torch.no_grad():
        net.get_parameter("parameterization.W").add_(3 * torch.eye(8))
    assert not lben.well_posed(net).holds
    assert not lben.certify(net).holds
    assert not lben.certify(net, 5.0).holds
    for bound in (lben.tightest_bound, lben.product_bound):
        with pytest.raises(lben.NotWellPosed, match="No diagonal metric satisfies Condition W"):
            bound(net)


@pytest.mark.parametrize("size", [2, 5, 48, 64, 129])
@pytest.mark.parametrize("radius", [0.5, 0.99])
def test_matrices_of_equal_entries_are_well_posed(size: int, radius: float) -> None:
    """LAPACK's search for the eigenvalues of some of them does not converge."""
    found = lben.well_posed(torch.full((size, size), radius / size, dtype=torch.float64))
    assert found
    assert found.perron_frobenius
    assert found.norm
