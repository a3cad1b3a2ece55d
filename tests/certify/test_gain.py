"""The incremental gain: no signal exceeds it, and it is the smallest that a general solver finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import lben
from tests.problems import contracting, plain

pytest.importorskip("torchdiffeq")
D = torch.float64


@pytest.mark.parametrize("a", [-3.0, -15.0])
def test_the_gain_of_units_that_act_alone(a: float) -> None:
    """Of v' = -v + a relu(v) + x, y = relu(v): at rest it is 1/(1 - a)."""
    identity, zero = torch.eye(2, dtype=D), torch.zeros(2, dtype=D)
    gain = lben.incremental_gain(lben.Weights(a * identity, identity, zero, identity, zero)).gain
    assert gain is not None
    assert 1 / (1 - a) <= gain < 1


def signal_gain(
    ode: lben.ODE | lben.ContractingODE, one: Tensor, other: Tensor, t: Tensor, tolerance: float = 1e-7
) -> Tensor:
    """|y1 - y2| / |x1 - x2| in L2 of signals that are linear between grid times, zero at both ends apart, from rest."""
    v0 = torch.zeros(one.shape[1], ode.network.hidden_features, dtype=D)
    y = [ode.output(ode.simulate(x, v0, t, tolerance=tolerance)) for x in (one, other)]
    move = (one - other).square().sum(dim=-1)
    cross = ((one - other)[1:] * (one - other)[:-1]).sum(dim=-1)
    parts = (t[1:] - t[:-1])[:, None] * (move[1:] + move[:-1] + cross)
    energy = parts.sum(dim=0) / 3  # exact for signals that are linear between times
    heights = (y[0] - y[1]).square().sum(dim=-1)
    return (torch.trapezoid(heights, t, dim=0) / energy).sqrt()


@pytest.mark.parametrize("climbs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_gain_is_not_gamma_and_is_never_exceeded(climbs: bool) -> None:
    """NOTES: W = -15, U = 1, Wo = 16 has gamma = 1, and its ODE amplifies signals by 2.0; climbing finds no more."""
    one = torch.ones(1, 1, dtype=D)
    subject = plain(-15 * one, one, 16 * one)
    tight = lben.tightest_bound(subject).gamma
    found = lben.incremental_gain(subject, rigorous=True)
    assert tight == pytest.approx(1, abs=1e-3)
    assert tight is not None
    assert found.gain is not None
    assert found.gain > 1.9
    ode = lben.ODE(lben.UnconstrainedEN.from_weights(subject))
    slow, fast = torch.linspace(0, 4.999, 61, dtype=D), torch.linspace(5, 5.4, 401, dtype=D)
    t = torch.cat([slow, fast])
    # the unit is held below zero, where nothing is read, while a small difference grows; then a pulse takes it above
    base = torch.where(t < 5, -2.0, torch.where(t < 5.03, 500.0, 100.0))
    difference = torch.where(t < 5, 1e-2 * torch.exp(t - 5), 0.0)
    x = torch.stack([base + difference, base])[:, :, None, None].requires_grad_()
    optimizer = torch.optim.Adam([x], lr=1e-4)
    seen = []
    for grad in (True, False) if climbs else (False,):
        with torch.set_grad_enabled(grad):
            value = signal_gain(ode, x[0], x[1], t)
        seen.append(float(value.detach()))
        if grad:
            (-value.sum()).backward()
            optimizer.step()
    assert not climbs or seen[-1] > seen[0]
    assert tight * 1.9 < max(seen) <= found.gain


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_random_signals_never_exceed_the_gain(seed: int) -> None:
    ode = contracting(5, rate=0.2, gamma=1.0, size=1.5, seed=seed)
    found, tight = lben.incremental_gain(ode), lben.tightest_bound(ode).gamma
    assert found.gain is not None
    assert tight is not None
    assert found.gain >= tight * (1 - 1e-6)  # constant signals are signals
    t = torch.linspace(0, 12, 61, dtype=D)
    one = torch.randn(61, 32, 3, dtype=D) * torch.linspace(0, 3, 32, dtype=D)[:, None]
    other = one + torch.randn(61, 32, 3, dtype=D)
    other[:, 16:] = one[:, 16:] + torch.randn(1, 16, 3, dtype=D)
    with torch.no_grad():
        assert float(signal_gain(ode, one, other, t).max()) <= found.gain * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_optimised_signals_never_exceed_the_gain(seed: int) -> None:
    """Signals climb the ratio of norms, coarsely integrated; then all that they came to is integrated well."""
    ode = contracting(4, rate=0.2, size=1.5, seed=seed)
    found = lben.incremental_gain(ode)
    assert found.gain is not None
    t = torch.linspace(0, 6, 19, dtype=D)
    base, apart = (torch.randn(19, 8, 3, dtype=D, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([base, apart], lr=0.3)
    paths = []
    for _ in range(20):
        paths.append((base.detach().clone(), apart.detach().clone()))
        optimizer.zero_grad()
        (-signal_gain(ode, base, base + 0.1 * apart, t, tolerance=1e-3).sum()).backward()
        optimizer.step()
    one, move = (torch.cat(parts, dim=1) for parts in zip(*paths, strict=True))
    with torch.no_grad():
        seen = signal_gain(ode, one, one + 0.1 * move, t).unflatten(0, (20, 8))
    assert float(seen.max()) <= found.gain * (1 + 1e-3)
    assert float(seen.max()) > 1.3 * float(seen[0].max())


OTHER_SIZES = [pytest.param(*case, marks=pytest.mark.slow) for case in ((10, 0.0), (300, 0.0), (300, 0.1))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("size", "skew"), [(0.3, 0.0), (1e4, 0.0), (10, 0.1), *OTHER_SIZES])
def test_the_gain_is_the_smallest_that_a_general_solver_finds(size: float, skew: float) -> None:
    """Over P and T together, by semidefinite programming; where no T exists for a W, there is nothing to compare."""
    cp = pytest.importorskip("cvxpy")
    compared = 0
    for seed in range(3):
        torch.manual_seed(seed)
        A, B = torch.randn(2, 4, 4, dtype=D)
        subject = plain(-size * (A @ A.T + skew * (B - B.T)), torch.randn(4, 2, dtype=D), torch.randn(2, 4, dtype=D))
        found = lben.incremental_gain(subject)
        if found.gain is None:
            assert skew > 0
            assert lben.contraction(subject).best_rate <= 0
            continue
        W, U, Wo = (part.numpy() for part in (subject.W, subject.U, subject.Wo))
        P, T, square = cp.Variable((4, 4), symmetric=True), cp.diag(cp.Variable(4)), cp.Variable()
        side, corner = -(P @ W + T), 2 * T - Wo.T @ Wo
        rows = [[2 * P, side, -P @ U], [side.T, corner, 0 * U], [-U.T @ P, 0 * U.T, square * np.eye(2)]]
        block = cp.bmat(rows)
        cp.Problem(cp.Minimize(square), [(block + block.T) / 2 >> 0]).solve(solver=cp.CLARABEL)
        smallest = float(np.sqrt(square.value))
        assert smallest * (1 - 1e-3) <= found.gain <= smallest * (1 + 2e-3)
        compared += 1
    assert compared > 0
