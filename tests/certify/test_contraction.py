"""Contraction: its certificates, the test at every frequency, and the paper's proposition, which stays false."""

from __future__ import annotations

import pytest
import torch

import lben
from tests.problems import COUNTEREXAMPLE, contracting, plain

D = torch.float64


def test_the_best_rate_of_a_symmetric_w_is_m() -> None:
    """NOTES: with S = 0, T = Lambda proves min(m, 1), and no T proves more."""
    for n in (1, 4):
        B = torch.randn(n, n, dtype=D)
        W = 0.7 * torch.eye(n, dtype=D) - B @ B.T
        m = float(torch.linalg.eigvalsh(torch.eye(n, dtype=D) - W)[0])
        found = lben.contraction(plain(W))
        assert found.rate == pytest.approx(min(m, 1), abs=2e-3)
        assert found.best_rate >= min(m, 1) - 1e-9
    assert lben.contraction(plain(torch.zeros(2, 2, dtype=D))).rate == pytest.approx(1, abs=1e-3)


def test_proposition_contraction_is_false_as_printed() -> None:
    """W = 0.5 I - 5 [[0, 1], [-1, 0]]: Condition `W` holds, the frequency condition fails, and no T proves a rate."""
    subject = plain(COUNTEREXAMPLE, lam=torch.ones(2, dtype=D))
    assert lben.certify(subject).holds
    test = lben.frequency_test(subject)
    assert not test.holds
    assert test.frequency > 0
    found = lben.contraction(subject)
    assert not found.holds
    assert found.P is None
    assert found.best_rate <= 0
    assert "none exists" in str(found)
    assert not lben.incremental_gain(subject).holds


def test_the_frequency_test_is_what_the_theorem_says() -> None:
    """Theorem `iqc` with G = W/(1 + i omega), evaluated on a dense grid; ours is no weaker and nearly as strong."""
    torch.manual_seed(0)
    for scale in (0.3, 1.0, 3.0):
        W, lam = scale * torch.randn(4, 4, dtype=D), torch.rand(4, dtype=D) + 0.5
        test = lben.frequency_test(W, lam=lam)
        omega = torch.cat([torch.linspace(0, 50, 20_001, dtype=D), torch.tensor([1e9], dtype=D)])
        G = W / (1 + 1j * omega)[:, None, None]
        L = torch.diag(lam).to(G.dtype)
        stated = L @ G + G.mH @ L - 2 * L
        root = lam.rsqrt()
        largest = float(torch.linalg.eigvalsh(root[:, None] * stated * root)[:, -1].max())
        assert -test.margin >= largest
        assert -test.margin == pytest.approx(largest, abs=1e-4 * scale)


def test_a_certificate_is_checked_from_its_matrices_alone() -> None:
    """The block inequality again, here, in ball arithmetic, and in float32 networks."""
    ode = contracting(6, rate=0.2, gamma=1.0)
    for rigorous in (False, True):
        found = lben.contraction(ode.float() if rigorous else ode, rigorous=rigorous)
        assert found.holds
        assert found.rigorous is rigorous
        assert found.rate is not None
        assert found.P is not None
        W, T = ode.weights().W.detach().double(), torch.diag(found.T)
        side = found.P @ W + T
        block = torch.cat([torch.cat([2 * (1 - found.rate) * found.P, -side], 1), torch.cat([-side.T, 2 * T], 1)])
        assert torch.equal(found.P, found.P.T)
        size = block.diagonal().sqrt()
        assert float(torch.linalg.eigvalsh(block / torch.outer(size, size))[0]) == pytest.approx(found.margin, abs=1e-9)
        assert found.margin > 0
        gain = lben.incremental_gain(ode, rigorous=rigorous)
        assert gain.holds
        assert gain.margin > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "size"), [(5, 0.5), (10, 0.5), (6, 1.0), (10, 10.0), (4, 1e4)])
def test_chains_contract_at_any_rate_and_amplify_by_their_product(n: int, size: float) -> None:
    """A feed-forward network of one unit a layer: T spreads over decades, and the gain is that of the steady state."""
    chain = size * torch.diag(torch.ones(n - 1, dtype=D), -1)
    unit = torch.eye(n, dtype=D)
    subject = plain(chain, unit[:, :1], unit[-1:])
    rate, gain = lben.contraction(subject, rigorous=True).rate, lben.incremental_gain(subject, rigorous=True).gain
    assert rate is not None
    assert gain is not None
    assert rate > 0.99
    assert size ** (n - 1) <= gain <= size ** (n - 1) * (1 + 1e-3)
    for U, Wo in ((unit[:, :1], torch.zeros(1, n, dtype=D)), (torch.zeros(n, 1, dtype=D), unit[-1:])):
        nothing = lben.incremental_gain(plain(chain, U, Wo)).gain
        assert nothing is not None
        assert nothing < 1e-6


@pytest.mark.slow
def test_contraction_of_eighty_units_takes_seconds() -> None:
    import time

    ode = lben.ContractingODE(10, 80, 3, rate=0.2)
    started = time.process_time()
    assert lben.contraction(ode).holds
    assert time.process_time() - started < 10
