"""The neural ODE: its trajectories, equilibria and Lyapunov function, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lben
from tests.problems import ACTIVATIONS, COUNTEREXAMPLE, contracting, name, plain, random_network

pytest.importorskip("torchdiffeq")
D = torch.float64


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


@pytest.mark.sampled(4)
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


def test_the_other_ode_is_the_same_one_seen_through_w() -> None:
    """v = W z + U x + bz obeys Equation `neural-ode` if z obeys z' = -z + sigma(W z + U x + bz)."""
    net = lben.LBEN(3, 5, 2, gamma=0.5, activation=lben.Tanh()).double().eval()
    ode, t = lben.ODE(net), torch.linspace(0, 5, 11, dtype=D)
    x, z0 = torch.randn(4, 3, dtype=D), torch.randn(4, 5, dtype=D)
    z = ode.simulate_hidden(x, z0, t, tolerance=1e-9)
    W = net.weights().W
    v = ode.simulate(x, z0 @ W.T + net.drive(x), t, tolerance=1e-9)
    assert torch.allclose(z @ W.T + net.drive(x), v, atol=1e-6)


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
    net = lben.UnconstrainedEN.from_weights(plain(3 * torch.eye(2, dtype=D)), activation=lben.ReLU()).eval()
    ode, x = lben.ODE(net), torch.ones(1, 2, dtype=D)
    with pytest.raises(lben.NotConverged, match="No metric proves"):
        ode.equilibrium(x)
    with pytest.raises(lben.NotWellPosed, match="no metric"):
        ode.half_space(x, x)
    with pytest.raises(lben.NotConverged, match="overflows"):
        lben.ODE(net.float()).simulate(x.float(), x.float(), torch.tensor([0.0, 100.0]), tolerance=1e-2)
    assert not lben.contraction(ode).holds


def test_the_counterexample_does_not_contract() -> None:
    """One input signal under which two of its states move apart, though every constant input has one equilibrium.

    The signal is made so that v(t) = a (s, -s) is a trajectory, s a square wave of half period 1.4 with round edges:
    the units take turns in being active, and each time a small difference grows by 2.5.
    """
    subject, size = plain(COUNTEREXAMPLE, lam=torch.ones(2, dtype=D)), 1e3
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
