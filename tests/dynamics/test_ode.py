"""The neural ODE: what its certificates prove is what its trajectories do, and the paper's false claims stay false."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lben
from lben.numerics.angles import largest_eigenvalue, largest_kappa
from lben.numerics.riccati import between_solutions, solve_riccati
from tests.problems import ACTIVATIONS, name, random_network

pytest.importorskip("torchdiffeq")
D = torch.float64
ROTATION = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=D)
COUNTEREXAMPLE = 0.5 * torch.eye(2, dtype=D) - 5 * ROTATION  # NOTES: Condition W holds, and the ODE does not contract


def weights(W: Tensor, U: Tensor | None = None, Wo: Tensor | None = None, lam: Tensor | None = None) -> lben.Weights:
    identity = torch.eye(len(W), dtype=D)
    U, Wo = identity if U is None else U, identity if Wo is None else Wo
    return lben.Weights(W, U, torch.zeros(len(W), dtype=D), Wo, torch.zeros(len(Wo), dtype=D), lam)


def contracting(
    n: int, *, rate: float, gamma: float | None = None, size: float = 1.0, spread: float = 0.5, seed: int = 0
) -> lben.ContractingODE:
    """A ContractingODE in double precision whose free variables are scaled by `size` and whose metric spreads."""
    torch.manual_seed(seed)
    ode = lben.ContractingODE(3, n, 2, rate=rate, gamma=gamma).double()
    with torch.no_grad():
        for key, parameter in ode.named_parameters():
            if key.endswith((".C", ".Wo")):
                parameter.mul_(size)
            if key.endswith(".d"):
                parameter.normal_(0, spread)
    return ode.eval()


def rates() -> st.SearchStrategy[float]:
    return st.floats(0.02, 0.95)


@given(n=st.integers(1, 8), rate=rates(), size=st.floats(0, 6), spread=st.floats(0, 2), seed=st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
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
    of_notes = weights(torch.eye(6, dtype=D) - psi[:, None] * lam_gap, lam=1 / psi)
    again = lben.ContractingODE.from_weights(of_notes, rate=0.3)
    assert torch.allclose(again.weights().W, of_notes.W, atol=1e-8)


def test_weights_that_do_not_contract_are_refused_with_the_rate_they_have() -> None:
    with pytest.raises(lben.BoundNotMet, match=r"proves the rate -1\.7.* at most, and not 0\.1"):
        lben.ContractingODE.from_weights(weights(COUNTEREXAMPLE, lam=torch.ones(2, dtype=D)), rate=0.1)
    with pytest.raises(lben.InvalidInput, match="no metric"):
        lben.ContractingODE.from_weights(weights(COUNTEREXAMPLE), rate=0.1)


def test_gradients_of_a_trajectory() -> None:
    ode = contracting(3, rate=0.2, gamma=1.0)
    v0, t = torch.randn(2, 3, dtype=D, requires_grad=True), torch.tensor([0.0, 0.4, 1.0], dtype=D)
    x = torch.randn(3, 2, 3, dtype=D, requires_grad=True)
    free = {key: value.detach().clone().requires_grad_() for key, value in ode.named_parameters()}

    def outputs(v0: Tensor, x: Tensor, *values: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(Outputs(ode), _renamed(free, values), (v0, x, t))
        return made

    assert torch.autograd.gradcheck(outputs, (v0, x, *free.values()), atol=1e-5, fast_mode=True)


class Outputs(torch.nn.Module):
    """The outputs along a trajectory, as a module, whose parameters can be put in from outside."""

    def __init__(self, ode: lben.ContractingODE) -> None:
        super().__init__()
        self.ode = ode

    def forward(self, v0: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return self.ode.output(self.ode.simulate(x, v0, t, tolerance=1e-9))


def _renamed(free: dict[str, Tensor], values: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"ode.{key}": value for key, value in zip(free, values, strict=True)}


def test_a_linear_ode_has_its_closed_form() -> None:
    """Identity activation and a ramp for an input: v' = (W - I) v + U x(t), solved by the matrix exponential."""
    torch.manual_seed(0)
    net = lben.MON(3, 4, 2, activation=lben.Identity()).double()
    with torch.no_grad():
        net.parameterization.bz.zero_()
    explicit, t = net.weights().detach(), torch.linspace(0, 3, 7, dtype=D)
    v0, slope = torch.randn(5, 4, dtype=D), torch.randn(5, 3, dtype=D)
    ramp = t[:, None, None] * slope
    on_grid = lben.ODE(net).simulate(ramp, v0, t, tolerance=1e-9)
    by_function = lben.ODE(net).simulate(lambda time: time.to(D) * slope, v0, t, tolerance=1e-9)
    size = 4 + 1 + 1  # v, the ramp's time, and one
    for i in range(5):
        whole = torch.zeros(size, size, dtype=D)
        whole[:4, :4] = explicit.W - torch.eye(4, dtype=D)
        whole[:4, 4] = explicit.U @ slope[i]
        whole[4, 5] = 1
        start = torch.cat([v0[i], torch.tensor([0.0, 1.0], dtype=D)])
        exact = torch.stack([(torch.linalg.matrix_exp(whole * float(time)) @ start)[:4] for time in t])
        assert torch.allclose(on_grid[:, i], exact, atol=1e-7)
        assert torch.allclose(by_function[:, i], exact, atol=1e-7)


def test_a_sample_does_not_depend_on_the_rest_of_its_batch() -> None:
    ode, t = contracting(6, rate=0.1), torch.linspace(0, 4, 5, dtype=D)
    x, v0 = torch.randn(40, 3, dtype=D), torch.randn(40, 6, dtype=D)
    v0[1:] *= 1e-3
    together, alone = ode.simulate(x, v0, t), ode.simulate(x[:1], v0[:1], t)
    assert torch.allclose(together[:, :1], alone, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_every_well_posed_ode_falls_along_its_lyapunov_function_to_its_equilibrium(
    activation: lben.Activation,
) -> None:
    """For constant x this is true of every LBEN, whether or not it contracts; the oracle holds on the way."""
    for gamma in (None, 0.3):
        net = random_network("LBEN", (3, 5, 2), activation, gamma=gamma, size=2.0, spread=0.5, trained=0, seed=3)
        net.solver = lben.Newton(tolerance=1e-12)
        ode, x = lben.ODE(net), torch.randn(6, 3, dtype=D)
        v = ode.simulate(x, 4 * torch.randn(6, 5, dtype=D), torch.linspace(0, 40, 41, dtype=D)).detach()
        rest, z = ode.equilibrium(x).detach(), net.solve(x).z.detach()
        assert torch.allclose(activation(rest), z, atol=1e-9)
        assert torch.allclose(v[-1], rest, atol=1e-4)
        level = ode.lyapunov(v, x).detach()
        assert bool((level[1:] <= level[:-1] + 1e-6 * (1 + level[0])).all())
        assert bool((level >= -1e-9 * (1 + level[0])).all())
        assert float(ode.half_space(v, x).excess(z).min()) >= -1e-8
        assert torch.allclose(ode.half_space(v[3], x).normal, ode.half_space(v, x).normal[3], atol=1e-12)


def test_the_lyapunov_function_knows_blocks() -> None:
    blocks = lben.Blocks([(lben.ReLU(), 1), (lben.Projection(lben.Box([-1, 0], [1, 1])), 4), (lben.Softmax(2), 2)])
    torch.manual_seed(0)
    net = lben.LBEN(2, 7, 1, activation=blocks, solver=lben.PeacemanRachford(tolerance=1e-12)).double()
    ode, x = lben.ODE(net), torch.randn(4, 2, dtype=D)
    v = ode.simulate(x, 4 * torch.randn(4, 7, dtype=D), torch.linspace(0, 20, 21, dtype=D)).detach()
    level = ode.lyapunov(v, x).detach()
    assert bool((level[1:] <= level[:-1] + 1e-6).all())
    assert float(level[0].min()) > 1e-2 > float(level[-1].max()) >= float(level.min()) >= -1e-9


def test_times_far_from_zero_and_no_samples_at_all() -> None:
    ode = lben.ContractingODE(1, 3, 1, rate=0.1)
    grid = 1e8 + torch.arange(5, dtype=D)  # which float32 cannot tell apart
    x, v0 = torch.randn(5, 2, 1), torch.randn(2, 3)
    assert torch.allclose(ode.simulate(x, v0, grid), ode.simulate(x, v0, grid - 1e8), atol=1e-5)
    assert ode.simulate(x[:, :0], v0[:0], grid).shape == (5, 0, 3)
    assert torch.equal(lben.ODE(ode)(x[0]), ode(x[0]))


@pytest.mark.parametrize("a", [-3.0, -15.0])
def test_the_gain_of_units_that_act_alone(a: float) -> None:
    """Of v' = -v + a relu(v) + x, y = relu(v): at rest it is 1/(1 - a)."""
    identity, zero = torch.eye(2, dtype=D), torch.zeros(2, dtype=D)
    gain = lben.incremental_gain(lben.Weights(a * identity, identity, zero, identity, zero)).gain
    assert gain is not None
    assert 1 / (1 - a) <= gain < 1


def test_the_other_ode_is_the_same_one_seen_through_w() -> None:
    """v = W z + U x + bz obeys Equation `neural-ode` if z obeys z' = -z + sigma(W z + U x + bz)."""
    net = lben.LBEN(3, 5, 2, gamma=0.5, activation=lben.Tanh()).double().eval()
    ode, t = lben.ODE(net), torch.linspace(0, 5, 11, dtype=D)
    x, z0 = torch.randn(4, 3, dtype=D), torch.randn(4, 5, dtype=D)
    z = ode.simulate_hidden(x, z0, t, tolerance=1e-9)
    W = net.weights().W
    v = ode.simulate(x, z0 @ W.T + net.drive(x), t, tolerance=1e-9)
    assert torch.allclose(z @ W.T + net.drive(x), v, atol=1e-6)


MODELS = {"n": st.integers(1, 5), "rate": rates(), "size": st.floats(0.3, 4), "seed": st.integers(0, 10**6)}


@given(**MODELS)
@settings(max_examples=12, deadline=None)
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
    joint = weights(torch.block_diag(*(part.W for part in parts)), torch.cat([part.U for part in parts]))
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


def test_the_best_rate_of_a_symmetric_w_is_m() -> None:
    """NOTES: with S = 0, T = Lambda proves min(m, 1), and no T proves more."""
    for n in (1, 4):
        B = torch.randn(n, n, dtype=D)
        W = 0.7 * torch.eye(n, dtype=D) - B @ B.T
        m = float(torch.linalg.eigvalsh(torch.eye(n, dtype=D) - W)[0])
        found = lben.contraction(weights(W))
        assert found.rate == pytest.approx(min(m, 1), abs=2e-3)
        assert found.best_rate >= min(m, 1) - 1e-9
    assert lben.contraction(weights(torch.zeros(2, 2, dtype=D))).rate == pytest.approx(1, abs=1e-3)


def test_proposition_contraction_is_false_as_printed() -> None:
    """W = 0.5 I - 5 [[0, 1], [-1, 0]]: Condition `W` holds, the frequency condition fails, and no T proves a rate."""
    subject = weights(COUNTEREXAMPLE, lam=torch.ones(2, dtype=D))
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


def test_the_counterexample_does_not_contract() -> None:
    """One input signal under which two of its states move apart, though every constant input has one equilibrium.

    The signal is made so that v(t) = a (s, -s) is a trajectory, s a square wave of half period 1.4 with round edges:
    the units take turns in being active, and each time a small difference grows by 2.5.
    """
    subject, size = weights(COUNTEREXAMPLE, lam=torch.ones(2, dtype=D)), 1e3
    ode = lben.ODE(lben.LBEN.from_weights(subject, epsilon=0.1))
    omega = torch.pi / 1.4

    def path(time: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.tanh(50 * torch.sin(omega * time))
        slope = 50 * omega * torch.cos(omega * time) * (1 - s**2)
        return size * torch.stack([s, -s]), size * torch.stack([slope, -slope])

    def signal(time: Tensor) -> Tensor:
        v, velocity = path(time)
        return (velocity + v - COUNTEREXAMPLE @ v.clamp(min=0)).expand(2, 2)

    t = torch.linspace(0.7, 9.1, 7, dtype=D)
    start, _ = path(t[0])
    v = ode.simulate(signal, start + torch.tensor([[0.0, 0.0], [1e-2, 0.0]], dtype=D), t, tolerance=1e-8).detach()
    assert torch.allclose(v[-1, 0], path(t[-1])[0], atol=1e-3)
    assert float((v[-1, 1] - v[-1, 0]).norm()) > 20 * 1e-2


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


@given(n=st.integers(1, 6), scale=st.floats(0.01, 10), seed=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_the_search_over_angles_brackets_the_maximum(n: int, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    M = scale * torch.randn(n, n, dtype=D)
    bound, attained, theta = largest_eigenvalue((M + M.T) / 4, M / 2)
    grid = torch.linspace(0, torch.pi, 301, dtype=D)
    turned = (1 + torch.exp(-1j * grid))[:, None, None] * M / 2
    values = torch.linalg.eigvalsh((turned + turned.mH) / 2)[:, -1]
    assert bound >= float(values.max()) - 1e-12 * scale * n
    assert bound - attained <= 1e-7 * scale * n
    assert 0 <= theta <= torch.pi + 1e-12


def test_the_riccati_equation_is_solved() -> None:
    torch.manual_seed(0)
    for n in (1, 5, 30):
        F = torch.randn(n, n, dtype=D) / n**0.5 - 2.5 * torch.eye(n, dtype=D)
        B = 0.3 * torch.randn(n, n, dtype=D) / n**0.5
        P = solve_riccati(F, B @ B.T, torch.eye(n, dtype=D))
        assert torch.allclose(P @ B @ B.T @ P + P @ F + F.T @ P, -torch.eye(n, dtype=D), atol=1e-9)
        assert float(torch.linalg.eigvals(F + B @ B.T @ P).real.max()) < 0


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


def test_the_gain_is_not_gamma_and_is_never_exceeded() -> None:
    """NOTES: W = -15, U = 1, Wo = 16 has gamma = 1, and its ODE amplifies signals by 2.0; climbing finds no more."""
    one = torch.ones(1, 1, dtype=D)
    subject = weights(-15 * one, one, 16 * one)
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
    for _ in range(2):
        optimizer.zero_grad()
        value = signal_gain(ode, x[0], x[1], t)
        seen.append(float(value.detach()))
        (-value.sum()).backward()
        optimizer.step()
    assert seen[-1] > seen[0]
    assert tight * 1.9 < max(seen) <= found.gain


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


@pytest.mark.parametrize(("size", "skew"), [(0.3, 0.0), (10, 0.0), (300, 0.0), (1e4, 0.0), (10, 0.1), (300, 0.1)])
def test_the_gain_is_the_smallest_that_a_general_solver_finds(size: float, skew: float) -> None:
    """Over P and T together, by semidefinite programming; where no T exists for a W, there is nothing to compare."""
    cp = pytest.importorskip("cvxpy")
    compared = 0
    for seed in range(3):
        torch.manual_seed(seed)
        A, B = torch.randn(2, 4, 4, dtype=D)
        subject = weights(-size * (A @ A.T + skew * (B - B.T)), torch.randn(4, 2, dtype=D), torch.randn(2, 4, dtype=D))
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


@pytest.mark.parametrize(("n", "size"), [(5, 0.5), (10, 0.5), (6, 1.0), (10, 10.0), (4, 1e4)])
def test_chains_contract_at_any_rate_and_amplify_by_their_product(n: int, size: float) -> None:
    """A feed-forward network of one unit a layer: T spreads over decades, and the gain is that of the steady state."""
    chain = size * torch.diag(torch.ones(n - 1, dtype=D), -1)
    unit = torch.eye(n, dtype=D)
    subject = weights(chain, unit[:, :1], unit[-1:])
    rate, gain = lben.contraction(subject, rigorous=True).rate, lben.incremental_gain(subject, rigorous=True).gain
    assert rate is not None
    assert gain is not None
    assert rate > 0.99
    assert size ** (n - 1) <= gain <= size ** (n - 1) * (1 + 1e-3)
    for U, Wo in ((unit[:, :1], torch.zeros(1, n, dtype=D)), (torch.zeros(n, 1, dtype=D), unit[-1:])):
        nothing = lben.incremental_gain(weights(chain, U, Wo)).gain
        assert nothing is not None
        assert nothing < 1e-6


def test_between_the_solutions_of_a_riccati_equation_the_inequality_is_strict() -> None:
    torch.manual_seed(0)
    for n, rank in ((1, 1), (5, 2), (30, 0)):  # also where S is singular, and P has no largest solution
        F = torch.randn(n, n, dtype=D) / n**0.5 - 2.5 * torch.eye(n, dtype=D)
        B = 0.3 * torch.randn(n, rank, dtype=D) / n**0.5
        P = between_solutions(F, B @ B.T, torch.eye(n, dtype=D))
        left = P @ B @ B.T @ P + P @ F + F.T @ P + torch.eye(n, dtype=D)
        assert float(torch.linalg.eigvalsh(left)[-1]) < 0
        assert float(torch.linalg.eigvalsh(P)[0]) > 0


@pytest.mark.slow
def test_contraction_of_eighty_units_takes_seconds() -> None:
    import time

    ode = lben.ContractingODE(10, 80, 3, rate=0.2)
    started = time.process_time()
    assert lben.contraction(ode).holds
    assert time.process_time() - started < 10


def test_a_contracting_ode_is_saved_and_loaded(tmp_path: object) -> None:
    ode = contracting(4, rate=0.3, gamma=2.0)
    lben.save(ode, f"{tmp_path}/ode.safetensors")
    again = lben.load(f"{tmp_path}/ode.safetensors")
    assert isinstance(again, lben.ContractingODE)
    assert again.rate == 0.3
    x = torch.randn(5, 3, dtype=D)
    assert torch.equal(again.eval()(x), ode(x))


T = torch.linspace(0, 1, 3)
V0, X = torch.zeros(2, 4), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ode: ode.simulate(X, V0, T.flip(0)), r"t must increase, but t\[1\] = 0.5 does not exceed 1"),
        (lambda ode: ode.simulate(X, V0, T[:1]), "at least two times"),
        (lambda ode: ode.simulate(X, V0, torch.tensor([0.0, torch.nan])), "t holds nan"),
        (lambda ode: ode.simulate(X, V0[:, :3], T), "4 features"),
        (lambda ode: ode.simulate(X, V0[0], T), r"\(batch, n\), not \(4,\)"),
        (lambda ode: ode.simulate(X[:1], V0, T), r"\(2, d\).* not \(1, 3\)"),
        (lambda ode: ode.simulate(X.expand(5, 2, 3), V0, T), r"not \(5, 2, 3\)"),
        (lambda ode: ode.simulate(lambda t: X[:1], V0, T), r"not \(1, 3\)"),
        (lambda ode: ode.simulate("x", V0, T), "not str"),
        (lambda ode: ode.simulate(X * torch.inf, V0, T), "x holds inf"),
        (lambda ode: ode.simulate(lambda t: X * torch.nan, V0, T), r"x\(t\) holds nan"),
        (lambda ode: ode.simulate(X, V0, T, tolerance=0.0), "tolerance"),
        (lambda ode: ode.simulate(X, V0, T, tolerance=1e-20), "tolerance must be at least"),
        (lambda ode: ode.lyapunov(V0[:, :3], X), "4 features"),
        (lambda ode: ode.lyapunov(V0[:1], X), r"\(1, 4\), which does not fit x"),
        (lambda ode: ode.half_space(V0 * torch.nan, X), "v holds nan"),
        (lambda ode: lben.ContractingODE(3, 4, 2, rate=1.0), "rate must lie between 0 and 1, .* not 1.0"),
        (lambda ode: lben.ContractingODE(3, 4, 2, rate=0.0), "rate must lie between 0 and 1, .* not 0.0"),
        (lambda ode: lben.ContractingODE(3, 4, 2, rate=float("nan")), "not nan"),
        (lambda ode: lben.frequency_test(torch.eye(2), lam=-torch.ones(2)), "lam must be positive"),
        (lambda ode: lben.frequency_test(torch.ones(2, 3)), "square"),
        (lambda ode: lben.ODE(torch.nn.Linear(3, 4)), "not Linear"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        call(lben.ContractingODE(3, 4, 2, rate=0.5))  # type: ignore[operator]


def test_what_is_not_well_posed_says_so() -> None:
    net = lben.UnconstrainedEN.from_weights(weights(3 * torch.eye(2, dtype=D)), activation=lben.ReLU()).eval()
    ode, x = lben.ODE(net), torch.ones(1, 2, dtype=D)
    with pytest.raises(lben.NotConverged, match="No metric proves"):
        ode.equilibrium(x)
    with pytest.raises(lben.NotWellPosed, match="no metric"):
        ode.half_space(x, x)
    with pytest.raises(lben.NotConverged, match="overflows"):
        lben.ODE(net.float()).simulate(x.float(), x.float(), torch.tensor([0.0, 100.0]), tolerance=1e-2)
    assert not lben.contraction(ode).holds
