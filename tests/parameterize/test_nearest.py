"""Where training starts from: the nearest admissible weights in the stated norm, and how far they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy
import pytest
import torch
from torch import nn

import lben
from lben.parameterize.nearest import nearest_weights


def free_weights(n: int = 5, d: int = 4, p: int = 3, seed: int = 0) -> lben.Weights:
    """Random weights with a random metric, which prove nothing."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((n, n), (n, d), (n,), (p, n), (p,))
    W, U, bz, Wo, by = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    lam = torch.rand(n, generator=generator, dtype=torch.float64) + 0.3
    return lben.Weights(W, U, bz, Wo, by, lam)


def size(weights: lben.Weights, other: lben.Weights) -> float:
    """The stated norm of a difference."""
    lam = weights.metric()[:, None]
    parts = (lam * (weights.W - other.W), lam * (weights.U - other.U), weights.Wo - other.Wo)
    return float(sum((part**2).sum() for part in parts) ** 0.5)


def by_cvxpy(weights: lben.Weights, gamma: float, room: float) -> float:
    """The distance from the same set, written as one linear matrix inequality, by Clarabel."""
    cp: Any = cvxpy
    n, d, p = weights.hidden_features, weights.in_features, weights.out_features
    lam = weights.metric()
    X0 = (torch.diag(lam) - lam[:, None] * weights.W).numpy()
    G0, Wo0 = (lam[:, None] * weights.U).numpy(), weights.Wo.numpy()
    X, G, Wo = cp.Variable((n, n)), cp.Variable((n, d)), cp.Variable((p, n))
    eye = torch.eye(n + p + d, dtype=torch.float64).numpy()
    corner = X + X.T - 2 * room * eye[:n, :n]
    top = [corner, Wo.T, G]
    rest = [[Wo, gamma * eye[:p, :p], eye[:p, p : p + d] * 0], [G.T, eye[:d, d : d + p] * 0, gamma * eye[:d, :d]]]
    cost = cp.sum_squares(X - X0) + cp.sum_squares(G - G0) + cp.sum_squares(Wo - Wo0)
    program = cp.Problem(cp.Minimize(cost), [cp.bmat([top, *rest]) >> 0])
    program.solve(solver=cp.CLARABEL)
    distance: float = program.value**0.5
    return distance


@pytest.mark.parametrize(("gamma", "seed"), [(1e-3, 3), (0.1, 0), (1.0, 1), (10.0, 2)])
def test_the_nearest_weights_are_those_of_a_general_solver(gamma: float, seed: int) -> None:
    weights = free_weights(seed=seed)
    found = nearest_weights(weights, gamma, 0.01)
    assert found.distance == pytest.approx(by_cvxpy(weights, gamma, 0.01), rel=1e-5)
    assert found.distance == pytest.approx(size(found.weights, weights), rel=1e-6)
    assert float(torch.linalg.eigvalsh(found.weights.condition(gamma))[0]) >= 0.02 - 1e-6


@pytest.mark.parametrize("gamma", [1e-2, 1e-3])
def test_a_start_of_small_bound_is_found(gamma: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    start = lben.LBEN.initialize_from(lben.from_sequential(module), gamma)
    assert 0 < start.relative < 1
    assert lben.certify(start.net, gamma).holds


def test_without_gamma_eigenvalues_are_lifted() -> None:
    weights = free_weights()
    found = nearest_weights(weights, None, 0.01)
    lacking = (0.02 - torch.linalg.eigvalsh(weights.condition(None))).clamp(min=0) / 2
    assert found.distance == pytest.approx(float(lacking.norm()), rel=1e-9)
    assert torch.equal(found.weights.U, weights.U)


def test_admissible_weights_stay_as_they_are() -> None:
    torch.manual_seed(0)
    weights = lben.LBEN(4, 6, 3, gamma=2.0).double().weights().detach()
    start = lben.LBEN.initialize_from(weights, 2.0)
    assert start.distance == 0
    again = start.net.weights()
    for name, tensor in weights.tensors().items():
        assert torch.allclose(getattr(again, name), tensor, atol=1e-12), name


def test_a_feed_forward_network_is_where_training_starts() -> None:
    """At a gamma above its bound the LBEN computes what the network does; below, it is as near as it may be."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    imported = lben.from_sequential(module)
    tight = lben.tightest_bound(imported).gamma
    assert tight is not None
    x = torch.randn(20, 4, dtype=torch.float64)
    starts = [lben.LBEN.initialize_from(imported.weights(), factor * tight) for factor in (1.5, 0.5, 0.25)]
    for start, factor in zip(starts, (1.5, 0.5, 0.25), strict=True):
        assert start.net.bound() == pytest.approx(factor * tight)
    distances = [start.distance for start in starts]
    assert distances == sorted(distances)
    assert starts[0].relative < 0.05
    whole = lben.LBEN.initialize_from(imported, 1.5 * tight)
    assert torch.equal(whole.net.eval()(x), starts[0].net.eval()(x))
    wanted = module(x).detach()
    near, far = (float((start.net.eval()(x).detach() - wanted).norm() / wanted.norm()) for start in starts[::2])
    assert near < 0.05 < far
    optimizer = torch.optim.SGD(starts[1].net.parameters(), lr=1e-2)
    before = [parameter.detach().clone() for parameter in starts[1].net.parameters()]
    (starts[1].net.train()(x) - wanted).square().sum().backward()
    optimizer.step()
    V = starts[1].net.get_parameter("parameterization.V")
    assert V.grad is not None
    assert bool((V.grad.abs() > 0).any(dim=1).all())  # no direction is stuck
    assert all(bool((a != b).any()) for a, b in zip(before, starts[1].net.parameters(), strict=True))
    assert lben.certify(starts[1].net).holds


def test_a_network_is_taken_with_its_activation_and_normalisation() -> None:
    normalize = lben.Normalize(0.5, 0.25)
    module = nn.Sequential(normalize, nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    net = lben.from_sequential(module)
    tight, x = lben.tightest_bound(net).gamma, torch.rand(10, 3, dtype=torch.float64)
    assert tight is not None
    start = lben.LBEN.initialize_from(net, 2 * tight)
    assert torch.allclose(start.net.eval()(x), module(x), atol=1e-3)


def test_weights_of_which_nothing_is_proved_are_a_start_too() -> None:
    weights = replace(free_weights(), lam=None)
    weights = replace(weights, W=weights.W + 3 * torch.eye(5, dtype=torch.float64))
    assert not lben.well_posed(weights).holds
    start = lben.LBEN.initialize_from(weights, 1.0)
    assert start.net.bound() == 1.0
    assert start.distance > 1


def test_a_start_with_blocks_has_a_metric_that_is_constant_on_them() -> None:
    weights = replace(free_weights(6), lam=None)
    start = lben.LBEN.initialize_from(weights, 1.0, activation=lben.Softmax(3))
    lam = start.net.weights().metric().detach()
    assert len(lam.unique()) == 2
    assert start.net.bound() == 1.0


def test_bad_input_is_named() -> None:
    with pytest.raises(lben.InvalidInput, match=r"gamma .* not -1.0"):
        lben.LBEN.initialize_from(free_weights(), -1.0)
    with pytest.raises(lben.InvalidInput, match=r"epsilon .* not 0"):
        lben.LBEN.initialize_from(free_weights(), 1.0, epsilon=0)
    with pytest.raises(lben.InvalidInput, match=r"lam must have shape"):
        lben.LBEN.initialize_from(free_weights(), 1.0, lam=torch.ones(4))
    with pytest.raises(lben.InvalidInput, match=r"not int"):
        lben.LBEN.initialize_from(3, 1.0)  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gamma", [1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("seed", range(4))
def test_small_bounds_have_nearest_weights(gamma: float, seed: int) -> None:
    torch.manual_seed(seed)
    start = lben.LBEN.initialize_from(lben.LBEN(5, 6, 2, gamma=1.0).double(), gamma=gamma)
    assert start.net.bound() == gamma
    assert start.relative < 1
