"""Linear units: they are eliminated, and not bounded as slopes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from tests.problems import plain, random_network


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_linear_networks_have_the_bound_of_their_norm(seed: int, d: int, n: int, p: int) -> None:
    net = random_network("LBEN", (d, n, p), lben.Identity(), gamma=1.0, size=1.0, spread=1.0, trained=0, seed=seed)
    w = net.weights().detach()
    norm = float(torch.linalg.matrix_norm(w.Wo @ torch.linalg.solve(torch.eye(n).double() - w.W, w.U), 2))
    eliminated = lben.tightest_bound(net)
    assert eliminated.gamma == pytest.approx(norm, rel=1e-6)
    assert norm <= (eliminated.gamma or 0.0)
    assert bool(torch.isnan(eliminated.lam).all())
    assert lben.tightest_bound(net, rigorous=True).holds
    assert norm <= (lben.tightest_bound(w).gamma or 0.0)  # the same weights, taken for slopes in [0, 1]


def test_a_linear_network_taken_for_slopes_costs() -> None:
    torch.manual_seed(0)
    U, Wo = torch.randn(8, 5).double(), torch.randn(3, 8).double()
    weights, norm = plain(torch.zeros(8, 8), U, Wo), float(torch.linalg.matrix_norm(Wo @ U, 2))
    assert lben.tightest_bound(weights, activation=lben.Identity()).gamma == pytest.approx(norm)
    assert 1.02 * norm < (lben.tightest_bound(weights).gamma or 0) < 1.65 * norm


def test_some_linear_units_are_eliminated() -> None:
    """A linear unit between two ReLU layers is the layer with their product: its bound is the bound of that."""
    torch.manual_seed(0)
    U, middle, back, Wo = (torch.randn(*s).double() for s in ((4, 3), (2, 4), (4, 2), (2, 4)))
    W = torch.zeros(10, 10, dtype=torch.float64)  # units: 4 ReLU, 2 linear, 4 ReLU
    W[4:6, :4], W[6:, 4:6] = middle, back
    inputs = torch.cat([U, torch.zeros(6, 3, dtype=torch.float64)])
    weights = plain(W, inputs, torch.cat([torch.zeros(2, 6, dtype=torch.float64), Wo], 1))
    activation = lben.PerUnit([lben.ReLU()] * 4 + [lben.Identity()] * 2 + [lben.ReLU()] * 4)
    direct = torch.zeros(8, 8, dtype=torch.float64)
    direct[4:, :4] = back @ middle
    without = plain(direct, torch.cat([U, torch.zeros(4, 3)]), torch.cat([torch.zeros(2, 4), Wo], 1))
    found = lben.tightest_bound(weights, activation=activation)
    assert found.gamma == pytest.approx(lben.tightest_bound(without).gamma, rel=1e-5)
    assert torch.isnan(found.lam).tolist() == [False] * 4 + [True] * 2 + [False] * 4
    assert lben.certify(weights, found.gamma, lam=found.lam, activation=activation, rigorous=True).holds


def test_a_skip_past_the_activation_is_not_bounded_as_a_slope() -> None:
    """y = x + relu(x) by a linear unit and a ReLU: the bound is 2, and needs the part that passes linearly."""
    W = torch.zeros(2, 2)
    activation = lben.PerUnit([lben.Identity(), lben.ReLU()])
    weights = plain(W, torch.ones(2, 1), torch.tensor([[1.0, 1.0]]))
    assert lben.tightest_bound(weights, activation=activation).gamma == pytest.approx(2, rel=1e-5)
    minus = plain(W, torch.ones(2, 1), torch.tensor([[1.0, -1.0]]))  # x - relu(x) = -relu(-x) has slope 1
    assert lben.tightest_bound(minus, activation=activation).gamma == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("U", [0.0, 2.0])
@pytest.mark.parametrize("Wo", [0.0, 3.0])
def test_a_bound_may_come_from_linear_units_alone(U: float, Wo: float) -> None:
    """y = 5 x + Wo relu(U x), with U or Wo zero or both not: |5| alone, or 5 + 6."""
    weights = plain(torch.zeros(2, 2), torch.tensor([[5.0], [U]]), torch.tensor([[1.0, Wo]]))
    tight = lben.tightest_bound(weights, activation=lben.PerUnit([lben.Identity(), lben.ReLU()]), rigorous=True)
    assert tight.gamma == pytest.approx(5 + U * Wo, rel=1e-5)


@pytest.mark.parametrize("smallest", [1e-8, 1e-11, 1e-15])
def test_the_elimination_of_nearly_singular_linear_units_is_accounted_for(smallest: float) -> None:
    generator = torch.Generator().manual_seed(1)
    Q = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    values = torch.ones(6, dtype=torch.float64)
    values[0] = smallest
    weights = plain(torch.eye(6) - Q @ torch.diag(values) @ Q.T, torch.eye(6), torch.eye(6))
    if smallest < 1e-13:
        with pytest.raises(lben.NotWellPosed, match="singular"):
            lben.tightest_bound(weights, activation=lben.Identity())
        return
    tight = lben.tightest_bound(weights, activation=lben.Identity())
    assert tight.gamma is not None
    assert lben.certify(weights, tight.gamma, lam=tight.lam, activation=lben.Identity(), rigorous=True).holds
