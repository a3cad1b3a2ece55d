"""The ODE that contracts by construction: its rate is certified, and every pair of its trajectories keeps to it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from lben.numerics.angles import largest_kappa
from tests.problems import COUNTEREXAMPLE, contracting, plain

pytest.importorskip("torchdiffeq")
D = torch.float64


def rates() -> st.SearchStrategy[float]:
    return st.floats(0.02, 0.95)


@given(n=st.integers(1, 8), rate=rates(), size=st.floats(0, 6), spread=st.floats(0, 2), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_rate_and_gamma_hold_whatever_the_free_variables(
    n: int, rate: float, size: float, spread: float, seed: int
) -> None:
    """T = Lambda proves the rate, Condition `lipschitz` holds for gamma, and m is at least the rate."""
    gamma = [None, 0.3, 2.0][seed % 3]
    ode = contracting(n, rate=rate, gamma=gamma, size=size, spread=spread, seed=seed)
    explicit = ode.weights().detach()
    root = explicit.metric().sqrt()
    M = root[:, None] * explicit.W / root
    assert largest_kappa(M) < 1 - rate
    assert lben.certify(ode).holds
    assert float(torch.linalg.eigvalsh(2 * torch.eye(n, dtype=D) - M - M.T)[0]) / 2 >= rate


@pytest.mark.parametrize("gamma", [None, 2.0])
def test_every_proved_w_is_made_by_some_free_variables(gamma: float | None) -> None:
    """The parameterization is onto: from the weights of a network it finds C and d that stand for them."""
    for seed in range(5):
        first = contracting(6, rate=0.3, gamma=gamma, seed=seed)
        again = lben.ContractingODE.from_weights(first.weights(), rate=0.25, gamma=gamma)
        for found, given_ in zip(again.weights().tensors().values(), first.weights().tensors().values(), strict=True):
            assert torch.allclose(found, given_, atol=1e-9)
    V, S = torch.randn(6, 6, dtype=D) / 2, torch.randn(6, 6, dtype=D)
    S, psi = S - S.T, torch.exp(torch.randn(6, dtype=D) / 2)
    lam_gap = V.T @ V + 0.31 * torch.diag(1 / psi) + S.T @ (psi[:, None] * S) / (4 * 0.7) + S  # the form of NOTES
    of_notes = plain(torch.eye(6, dtype=D) - psi[:, None] * lam_gap, lam=1 / psi)
    again = lben.ContractingODE.from_weights(of_notes, rate=0.3)
    assert torch.allclose(again.weights().W, of_notes.W, atol=1e-8)


@pytest.mark.parametrize("seed", range(9))
def test_rate_gamma_and_gain_hold_whatever_the_free_variables(seed: int) -> None:
    """All three are certified from the weights, which other free variables can be found for."""
    torch.manual_seed(seed)
    gain, gamma, rate = [0.05, 0.5, 3.0][seed % 3], [None, 1.0, 0.02][seed // 3], [0.1, 0.5, 0.9][seed % 3]
    ode = lben.ContractingODE(2, 4, 2, rate=rate, gamma=gamma, gain=gain, dtype=D)
    with torch.no_grad():
        for parameter in ode.parameters():
            parameter.add_(torch.rand(()) * 2 * torch.randn_like(parameter))
    weights = ode.weights().detach()
    assert lben.certify(ode).holds
    found, contraction = lben.incremental_gain(ode), lben.contraction(ode)
    assert found.gain is not None
    assert contraction.rate is not None
    assert found.gain <= gain * (1 + 1e-6)
    assert contraction.rate >= rate - 1e-9
    again = lben.ContractingODE.from_weights(weights, rate=0.9 * rate, gamma=gamma, gain=1.05 * gain)
    assert torch.allclose(again.weights().W, weights.W, rtol=1e-7, atol=1e-7 * float(weights.W.abs().max()))
    with pytest.raises(lben.BoundNotMet, match="does not prove"):
        lben.ContractingODE.from_weights(weights, rate=rate, gamma=gamma, gain=1e-3 * found.gain)


def test_weights_that_do_not_contract_are_refused_with_the_rate_they_have() -> None:
    with pytest.raises(lben.BoundNotMet, match=r"proves the rate -1\.7.* at most, and not 0\.1"):
        lben.ContractingODE.from_weights(plain(COUNTEREXAMPLE, lam=torch.ones(2, dtype=D)), rate=0.1)
    with pytest.raises(lben.InvalidInput, match="no metric"):
        lben.ContractingODE.from_weights(plain(COUNTEREXAMPLE), rate=0.1)


MODELS = {"n": st.integers(1, 5), "rate": rates(), "size": st.floats(0.3, 4), "seed": st.integers(0, 10**6)}


@given(**MODELS)
@settings(max_examples=2, deadline=None)
def test_trajectories_approach_at_the_certified_rate_under_any_input(
    n: int, rate: float, size: float, seed: int
) -> None:
    approach(n, rate, size, seed)


def approach(n: int, rate: float, size: float, seed: int) -> None:
    ode = contracting(n, rate=rate, size=size, seed=seed)
    ode.activation = [lben.Tanh(), lben.ReLU(), lben.LeakyReLU(0.2)][seed % 3]
    found = lben.contraction(ode)
    assert found.rate is not None
    assert found.rate >= rate
    check_approach(ode, [found])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_trajectories_of_hundreds_of_models_approach_at_the_certified_rate(seed: int) -> None:
    """Thirty models a time, as one ODE whose W is block-diagonal: its blocks do not know of each other."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(30, 3, generator=generator)
    odes = [
        contracting(1 + int(5 * a), rate=0.02 + 0.93 * float(b), size=0.3 + 3.7 * float(c), seed=1000 * seed + k)
        for k, (a, b, c) in enumerate(draws)
    ]
    found = [lben.contraction(ode) for ode in odes]
    parts = [ode.weights().detach() for ode in odes]
    joint = plain(torch.block_diag(*(part.W for part in parts)), torch.cat([part.U for part in parts]))
    activation = [lben.Tanh(), lben.ReLU(), lben.LeakyReLU(0.2)][seed % 3]
    check_approach(lben.ODE(lben.UnconstrainedEN.from_weights(joint, activation=activation)), found)


def check_approach(ode: lben.ODE | lben.ContractingODE, found: list[lben.Contraction]) -> None:
    """States in pairs, one input signal that jumps about, and the P norm of their distances at all times of a grid."""
    t = torch.linspace(0, 4, 9, dtype=D)
    x = 5 * torch.randn(9, 1, 3, dtype=D).expand(9, 16, 3)
    with torch.no_grad():
        v = ode.simulate(x, 5 * torch.randn(16, ode.network.hidden_features, dtype=D), t, tolerance=1e-8)
    assert all(one.holds and one.P is not None for one in found)
    pieces = v.split([len(one.T) for one in found], dim=-1)
    for one, piece in zip(found, pieces, strict=True):
        assert one.P is not None
        assert one.rate is not None
        apart = piece[:, ::2] - piece[:, 1::2]
        length = torch.einsum("tbi,ij,tbj->tb", apart, one.P, apart).clamp(min=0).sqrt()
        allowed = length[:-1] * torch.exp(-one.rate * (t[1:] - t[:-1]))[:, None]
        assert bool((length[1:] <= allowed + 1e-5 * length[0]).all())


def test_a_contracting_ode_is_saved_and_loaded(tmp_path: object) -> None:
    ode = contracting(4, rate=0.3, gamma=2.0)
    lben.save(ode, f"{tmp_path}/ode.safetensors")
    again = lben.load(f"{tmp_path}/ode.safetensors")
    assert isinstance(again, lben.ContractingODE)
    assert again.rate == 0.3
    x = torch.randn(5, 3, dtype=D)
    assert torch.equal(again.eval()(x), ode(x))
