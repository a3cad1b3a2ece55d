"""Hidden images with a frame of zeros: sigma inside, nothing outside, for every solver and in every proof."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lben

FRAMED = [lben.Framed(4, 5, 2), lben.Framed(5, 6, 1, 2), lben.Framed(4, 5, 2, activation=lben.Tanh())]


def inside(activation: lben.Framed) -> Tensor:
    """By coordinates: unit by unit, in the order row, column, channel."""
    b, rows, columns = activation.border, range(activation.height), range(activation.width)
    kept = [b <= i < activation.height - b and b <= j < activation.width - b for i in rows for j in columns]
    return torch.tensor(kept).repeat_interleave(activation.channels)


@pytest.mark.parametrize("activation", FRAMED)
def test_it_is_the_activation_inside_and_zero_on_the_frame(activation: lben.Framed) -> None:
    inner, kept = activation.activation, inside(activation)
    v = torch.randn(3, len(kept), dtype=torch.float64)
    for mine, its in (
        (activation(v), inner(v)),
        (activation.derivative(v), inner.derivative(v)),
        (activation.prox(v, 0.3), inner.prox(v, 0.3)),
        (activation.reflection(0.3)(v), 2 * inner.prox(v, 0.3) - v),
    ):
        torch.testing.assert_close(mine[:, kept], its[:, kept])
    assert float(activation(v)[:, ~kept].abs().max()) == 0
    assert float(activation.derivative(v)[:, ~kept].abs().max()) == 0
    assert torch.equal(activation.reflection(0.3)(v)[:, ~kept], -v[:, ~kept])
    potential = activation.potential(activation(v))
    torch.testing.assert_close(potential[:, kept], inner.potential(inner(v))[:, kept])
    assert float(potential[:, ~kept].max()) == 0
    assert bool(torch.isinf(activation.potential(activation(v) + 1)[:, ~kept]).all())


@pytest.mark.parametrize("solver", [lben.DouglasRachford, lben.ForwardBackward, lben.Extragradient, lben.Newton])
@pytest.mark.parametrize("inner", [lben.ReLU(), lben.Tanh()])
def test_every_solver_finds_the_same_equilibrium(solver: type[lben.Solver], inner: lben.ReLU | lben.Tanh) -> None:
    torch.manual_seed(0)
    activation = lben.Framed(5, 5, 2, activation=inner)
    net = lben.ConvLBEN((1, 3, 3), 2, 3, gamma=1.0, padding=1, pool=1, activation=activation).double().eval()
    net.solver = lben.PeacemanRachford(tolerance=1e-11)
    x, w, kept = torch.randn(4, 9, dtype=torch.float64), net.weights().detach().dense(), inside(activation)
    z = net.solve(x).z.detach()
    torch.testing.assert_close(z[:, kept], inner(z @ w.W.T + x @ w.U.T + w.bz)[:, kept])
    assert float(z[:, ~kept].abs().max()) == 0
    net.solver = solver(tolerance=1e-9, max_iterations=10_000)
    torch.testing.assert_close(net.solve(x).z.detach(), z, rtol=1e-6, atol=1e-6)


def test_gradients_are_exact_and_the_bound_is_proved() -> None:
    torch.manual_seed(1)
    solver = lben.PeacemanRachford(tolerance=1e-12)
    net = lben.ConvLBEN(
        (1, 3, 3), 2, 2, gamma=0.5, padding=1, pool=1, activation=lben.Framed(5, 5, 2), solver=solver
    ).double()
    x = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,))
    net.eval()
    assert lben.certify(net, 0.5)
    below, above = lben.lipschitz_lower_bound(net, x.detach(), restarts=2, steps=5), lben.tightest_bound(net).gamma
    assert above is not None
    assert 0 < below.value <= above <= 0.5
    enclosed = lben.enclose(net, x.detach())
    assert bool(((net(x.detach()) - enclosed.y).abs() <= enclosed.error + 1e-10).all())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 5, 1), "A frame of 1 leaves nothing of an image of 2 x 5"),
        ((5, 5, 1, 0), "border must be an integer of at least 1, not 0"),
        ((5, 5, 0), "channels must be"),
        ((10**6, 10**6, 10), "A hidden image would have"),
        ((5, 5, 1, 1, lben.Softmax(5)), "takes an activation of single units, .* not Softmax"),
    ],
)
def test_what_does_not_fit_is_named(arguments: tuple[int, int, int], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.Framed(*arguments)


def test_it_knows_how_many_units_it_is_for() -> None:
    with pytest.raises(lben.InvalidInput, match="25 activations were given for 50 units"):
        lben.ConvMON((1, 5, 5), 2, 3, pool=1, activation=lben.Framed(5, 5, 1))
    with pytest.raises(lben.InvalidInput, match="must have 25 features"):
        lben.Framed(5, 5, 1)(torch.zeros(24))
