"""What is proved of recurrent networks: with P and multipliers that are carried, or found, against other solvers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.numerics.storage import Storage

D = torch.float64


def made(behaviour: lben.Behaviour | None, seed: int = 0, size: float = 0.6, acyclic: bool = False) -> lben.REN:
    torch.manual_seed(seed)
    ren = lben.REN(2, 3, 4, 2, behaviour=behaviour, acyclic=acyclic, dtype=D)
    with torch.no_grad():
        for parameter in ren.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return ren


def bare(ren: lben.REN) -> lben.RENWeights:
    return replace(ren.weights().detach(), P=None, lam=None)


BEHAVIOURS = [lben.Contracting(0.9), lben.Lipschitz(1.0), lben.Lipschitz(0.5, rate=0.9), lben.Passive(0.1, 0.3)]


@pytest.mark.parametrize("rigorous", [False, True])
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=repr)
def test_what_is_promised_is_proved_with_and_without_its_metric(behaviour: lben.Behaviour, rigorous: bool) -> None:
    ren = made(behaviour)
    own, found = lben.certify(ren, rigorous=rigorous), lben.certify(bare(ren), rigorous=rigorous)
    assert own.holds
    assert "its own" in own.method
    assert found.holds
    assert "found" in found.method
    assert own.rigorous is rigorous
    for certificate in (own, found):
        assert_inequality(ren.weights().detach(), certificate)


def assert_inequality(w: lben.RENWeights, proof: lben.Dissipation) -> None:
    """In the form with the Schur complement in P taken, which the library does not use."""
    assert proof.P is not None
    assert proof.lam is not None
    assert proof.rate is not None
    L, q, d = torch.diag(proof.lam), w.hidden_features, w.in_features
    K = torch.cat([w.A, w.B1, w.B2], dim=1)
    Y = torch.cat([w.C2, w.D21, w.feedthrough()], dim=1)
    R = torch.cat([-w.C1, torch.eye(q, dtype=D) - w.D11, -w.D12], dim=1)
    n, N = len(w.A), K.shape[1]
    X = -K.T @ proof.P @ K
    X[:n, :n] += proof.rate**2 * proof.P
    half = torch.zeros(N, N, dtype=D)
    half[n : n + q] = L @ R
    X = X + half + half.T
    if proof.gain is not None:
        X = X - Y.T @ Y
        X[n + q :, n + q :] += proof.gain**2 * torch.eye(d, dtype=D)
    elif proof.supply is not None:
        U = torch.zeros(d, N, dtype=D)
        U[:, n + q :] = torch.eye(d, dtype=D)
        cross = U.T @ proof.supply.S @ Y
        X = X + Y.T @ proof.supply.Q @ Y + cross + cross.T + U.T @ proof.supply.R @ U
    else:
        X = X[: n + q, : n + q]
    assert float(torch.linalg.eigvalsh(X)[0]) > 0
    assert float(torch.linalg.eigvalsh(proof.P)[0]) > 0


def test_searches_find_more_than_was_promised_and_nothing_that_signals_contradict() -> None:
    ren = made(lben.Lipschitz(1.0), seed=1)
    contraction, gain = lben.contraction(bare(ren)), lben.incremental_gain(bare(ren))
    assert contraction.holds
    assert contraction.rate is not None
    assert contraction.rate < 1
    assert gain.holds
    assert gain.gain is not None
    assert gain.gain <= 1
    below = lben.lipschitz_lower_bound(ren, torch.randn(10, 3, 2, dtype=D), restarts=3, steps=15)
    assert str(below).startswith("Two signals show a gain of at least ")
    assert below.proved
    assert 0.5 * gain.gain < below.value <= gain.gain
    assert below.inputs.shape == (2, 10, 2)
    assert lben.certify(ren, 1.01 * gain.gain).holds
    assert not lben.certify(ren, 0.9 * below.value).holds
    passive = made(lben.Passive(0.1, 0.3))
    eye = torch.eye(2, dtype=D)
    assert lben.dissipation(passive).holds
    assert lben.dissipation(bare(passive), -0.4 * eye, eye, -0.1 * eye).holds


def test_what_is_false_is_refuted_or_undecided() -> None:
    """Constant slopes refute a rate, a gain and a supply; a verdict is a truth value."""
    free = made(None, size=0.0)
    with torch.no_grad():
        free.parameterization.A.copy_(torch.diag(torch.tensor([1.2, 0.5, 0.3], dtype=D)))  # type: ignore[operator]
    for rigorous in (False, True):
        assert lben.contraction(free, rigorous=rigorous).verdict == "fails"
        assert lben.incremental_gain(free, rigorous=rigorous).verdict == "fails"
    assert not lben.certify(free)
    ren = made(lben.Lipschitz(1.0), seed=2)
    below = lben.lipschitz_lower_bound(ren, restarts=4, steps=10).value
    assert lben.certify(bare(ren), 0.2 * below).verdict == "fails"
    eye = torch.eye(2, dtype=D)
    assert lben.dissipation(ren, -eye, 0 * eye, 1e-3 * eye).verdict == "fails"
    rotation = 0.999999 * torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=D)
    w = made(None, size=0.0).weights().detach()
    turning = replace(w, A=torch.block_diag(rotation, torch.zeros(1, 1, dtype=D)), B1=0 * w.B1)
    assert lben.contraction(turning).holds
    assert lben.contraction(replace(turning, A=1.00001 * turning.A)).verdict == "fails"


def test_derivatives_of_the_barrier_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    n, q, d = 2, 3, 2
    N = n + q + d
    rows = torch.cat(
        [0.2 * torch.randn(q, n), torch.eye(q) + 0.2 * torch.randn(q, q), 0.1 * torch.randn(q, d)], 1
    ).double()
    storage = Storage(1.3, 0.15 * torch.randn(n, N).double(), rows, torch.zeros(N, N, dtype=D))
    P, lam, pull = (
        torch.eye(n, dtype=D) + 0.1,
        torch.rand(q, dtype=D) + 0.5,
        (torch.eye(n, dtype=D), torch.ones(q, dtype=D)),
    )
    point = storage.point(P, lam, 5.0)
    assert point is not None
    i, j = torch.triu_indices(n, n)

    def barrier(x: Tensor) -> Tensor:
        upper = torch.zeros(n, n, dtype=D).index_put((i, j), x[: len(i)])
        S, free, tau = upper + upper.T - torch.diag(upper.diagonal()), x[len(i) : -1], x[-1]
        half = torch.cat([torch.zeros(n, N, dtype=D), free[:, None] * rows, torch.zeros(d, N, dtype=D)])
        corner = torch.block_diag(1.3 * S, torch.zeros(q, q, dtype=D), tau * torch.eye(d, dtype=D))
        X = corner - storage.K.T @ S @ storage.K + half + half.T
        return 2 * tau - torch.logdet(X) - torch.logdet(S) - free.log().sum() + (pull[0] * S).sum() + free.sum()

    at = torch.cat([P[i, j], lam, torch.tensor([5.0], dtype=D)])
    gradient, hessian = storage.derivatives(point, 2.0, pull)
    assert torch.allclose(gradient, torch.func.grad(barrier)(at))
    assert torch.allclose(hessian, torch.func.jacrev(torch.func.grad(barrier))(at))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_the_gain_is_that_of_a_general_solver(seed: int) -> None:
    cvxpy: Any = pytest.importorskip("cvxpy")
    ren = made(lben.Contracting(0.95), seed=seed)
    w = bare(ren)
    found = lben.incremental_gain(w)
    assert found.holds
    assert found.gain is not None
    n, q, d = w.state_features, w.hidden_features, w.in_features
    P, lam, tau = cvxpy.Variable((n, n), symmetric=True), cvxpy.Variable(q), cvxpy.Variable()
    K, Y = (torch.cat(parts, dim=1).numpy() for parts in ([w.A, w.B1, w.B2], [w.C2, w.D21, w.feedthrough()]))
    R = torch.cat([-w.C1, torch.eye(q, dtype=D) - w.D11, -w.D12], dim=1).numpy()
    pick = torch.eye(n + q + d, dtype=D).numpy()
    J, E, U = pick[:n], pick[n : n + q], pick[n + q :]
    half = E.T @ cvxpy.diag(lam) @ R
    X = J.T @ P @ J - K.T @ P @ K + half + half.T - Y.T @ Y + tau * (U.T @ U)
    problem = cvxpy.Problem(cvxpy.Minimize(tau), [(X + X.T) / 2 >> 0, P >> 0, lam >= 0])
    problem.solve(solver=cvxpy.CLARABEL)
    assert found.gain**2 >= problem.value * (1 - 1e-6)
    assert found.gain == pytest.approx(problem.value**0.5, rel=2e-4)


def test_a_network_of_torch_carries_no_metric_and_gets_one() -> None:
    torch.manual_seed(0)
    tame, wild = nn.RNN(2, 4), nn.RNN(2, 4, nonlinearity="relu")
    with torch.no_grad():
        wild.weight_hh_l0.copy_(1.5 * torch.eye(4))  # type: ignore[operator]
    assert lben.contraction(lben.from_rnn(tame)).holds
    assert lben.contraction(lben.from_rnn(wild)).verdict == "fails"
    assert lben.certify(lben.from_rnn(tame)).holds
    step = lben.from_rnn(tame).weights().step()
    assert lben.tightest_bound(step, activation=lben.Tanh()).holds


def test_a_supply_that_is_a_gain_is_proved_by_the_networks_own_metric() -> None:
    """It was scaled as if the supply were gamma |du|^2 - |dy|^2 / gamma, and another was looked for."""
    torch.manual_seed(0)
    supply = lben.Dissipative([[-1.0]], [[0.0]], [[1e-4]])
    net = lben.REN(1, 3, 4, 1, behaviour=supply, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    found = lben.certify(net)
    assert found
    assert "its own P and lam" in str(found)


def test_without_a_state_a_gain_can_be_refuted() -> None:
    torch.manual_seed(0)
    net = lben.REN(1, 0, 2, 1, behaviour=lben.Lipschitz(1.0), dtype=torch.float64)
    assert lben.certify(net)
    assert lben.certify(net, 1e-3).verdict == "fails"


def test_what_incremental_gain_finds_makes_a_network() -> None:
    torch.manual_seed(3)
    net = lben.REN(2, 2, 3, 2, behaviour=lben.Lipschitz(5.0), dtype=torch.float64)
    found = lben.incremental_gain(net)
    assert found.gain is not None
    weights = replace(net.weights().detach(), P=found.P, lam=found.lam)
    again = lben.REN.from_weights(weights, behaviour=lben.Lipschitz(1.2 * found.gain))
    u = torch.randn(6, 4, 2, dtype=torch.float64)
    assert torch.allclose(again(u), net(u), atol=1e-8)
    assert lben.certify(again)


def test_a_signal_of_the_lower_bound_names_its_time_step() -> None:
    net = lben.REN(2, 2, 3, 1, behaviour=lben.Lipschitz(1.0))
    u = torch.zeros(6, 3, 2)
    u[4, 1, 0] = torch.nan
    with pytest.raises(lben.InvalidInput, match="time step 4 of 6"):
        lben.lipschitz_lower_bound(net, u)
    assert net(torch.zeros(6, 0, 2)).shape == (6, 0, 1)
