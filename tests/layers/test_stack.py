"""Stacks as networks: trained, certified, copied and moved, with every layer that there is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.data import embedded_mnist as embedded
from lben.train import CrossEntropy, TrainConfig, fit


def deep() -> lben.Sequential:
    """Digits through explicit convolutions, an equilibrium of images, a matrix and an equilibrium of features."""
    return lben.Sequential(
        lben.Normalize(0.1307, 0.3081),
        lben.SpaceToDepth(4),
        lben.ConvSLL(16, 8),
        lben.ConvSandwich(16, 8),
        lben.ImageLBEN(8, 6, 8, gamma=1.0, skip="identity", solver=lben.PeacemanRachford(tolerance=1e-2)),
        lben.MaxMin(),
        nn.Flatten(),
        nn.Linear(8 * 49, 24),
        lben.SLL(24),
        lben.Sandwich(24, 20),
        lben.LBEN(20, 16, 10, gamma=2.0, solver=lben.PeacemanRachford(tolerance=1e-2)),
        in_shape=(1, 28, 28),
    )


@pytest.fixture(scope="module")
def trained() -> lben.Sequential:
    torch.manual_seed(0)
    net = deep()
    config = TrainConfig(epochs=2, batch_size=100, learning_rate=5e-3, loss=CrossEntropy(margin=0.5))
    history = fit(net, embedded(), config)
    assert history[-1].test_error < 0.15
    for part in net.modules():
        if isinstance(part, lben.LBEN | lben.ImageLBEN):
            part.solver = lben.PeacemanRachford(tolerance=1e-6)
    return net.double().eval()


def test_a_deep_network_that_was_trained_is_proved(trained: lben.Sequential) -> None:
    certificate = lben.certify(trained, domain="pixels", rigorous=True)
    assert certificate
    assert certificate.rigorous
    x = embedded().test_images[:40].double().reshape(-1, 1, 28, 28) / 255
    below = lben.lipschitz_lower_bound(trained, x[:8], restarts=1, steps=3, domain="pixels")
    tight = lben.tightest_bound(trained, domain="pixels")
    assert below.proved
    assert below.value <= (tight.gamma or 0) <= (certificate.gamma or 0) == pytest.approx(trained.bound("pixels"))


def test_no_attack_breaks_a_radius_of_a_deep_network(trained: lben.Sequential) -> None:
    data = embedded()
    x, y = data.test_images[:16].double().reshape(16, -1) / 255, data.test_labels[:16]
    found = lben.certified_radius(trained, x, y, pairwise=False, domain="pixels")
    assert float((found.radius > 0.05).double().mean()) > 0.5
    sizes = torch.tensor([0.1, 0.3, 1.0])
    attacked = lben.attack(trained, x, y, sizes, domain="pixels", steps=10, restarts=1)
    assert not bool((attacked.success & (found.radius > sizes[:, None])).any())
    inside = lben.enclose(trained, x)
    with torch.no_grad():
        assert bool(((trained(x) - inside.y).abs() <= inside.error + 1e-3).all())


def test_copies_are_the_same_function(trained: lben.Sequential) -> None:
    x = torch.rand(5, 1, 28, 28, dtype=torch.float64)
    other = deep().double().eval()
    other.load_state_dict(trained.state_dict())
    twin, single = copy.deepcopy(trained), deep().eval()
    single.load_state_dict(trained.state_dict())
    with torch.no_grad():
        y = trained(x)
        assert torch.equal(twin(x), y)
        assert torch.allclose(other(x), y, atol=0.1)  # its solvers are as they were made, rough
        assert torch.allclose(single(x.float()).double(), y, atol=0.1)
    assert other.bound("pixels") == trained.bound("pixels") == pytest.approx(single.bound("pixels"), rel=1e-4)


def test_gradients_of_a_stack_are_exact() -> None:
    torch.manual_seed(0)
    solver = lben.PeacemanRachford(tolerance=1e-13)
    net = lben.Sequential(
        lben.SpaceToDepth(2),
        lben.ConvSLL(4, 2, activation=lben.Tanh()),
        lben.ImageLBEN(4, 2, 1, gamma=1.0, activation=lben.Tanh(), solver=solver),
        nn.Flatten(),
        lben.Sandwich(9, 3, activation=lben.Tanh()),
        lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Tanh(), solver=solver),
        in_shape=(1, 6, 6),
    ).double()
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,), atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (2, 10), (9,), (2, 3, 3, 1)])
def test_samples_of_another_shape_than_the_bound_is_for_are_refused(shape: tuple[int, ...]) -> None:
    """Of a larger image the slope of this sum of neighbours is 8.69, and of three pixels a side at most 5.83."""
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.ones_(conv.weight)
    net = lben.Sequential(conv, in_shape=(1, 3, 3)).eval()
    assert net.bound() < 5.84
    with pytest.raises(lben.InvalidInput, match=r"made for samples of shape \(1, 3, 3\)"):
        net(torch.ones(shape))
    assert net(torch.ones(2, 1, 3, 3)).equal(net(torch.ones(2, 9)))


class _Louder(lben.SLL):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class _Loud(lben.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class _Mine(lben.Sequential):
    """A stack that says what it is made of, and does no more than a stack."""

    def __init__(self) -> None:
        super().__init__(lben.SLL(3), nn.Linear(3, 2))

    def training_step(self, x: Tensor) -> Tensor:
        y: Tensor = self(x)
        return y.square().mean()


def _hooked(module: Any) -> Any:
    module.register_forward_hook(lambda *args: 10 * args[2])
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lben.Sequential(_Louder(3)), "Stage 0 _Louder has a forward of its own, and of SLL alone"),
        (lambda: _Loud(lben.SLL(3)), "The network, _Loud, has a forward of its own"),
        (lambda: lben.Sequential(_Loud(lben.SLL(3))), "Stage 0 _Loud has a forward of its own"),
        (lambda: lben.Sequential(_hooked(lben.SLL(3))), "Stage 0 SLL has hooks"),
        (lambda: _hooked(lben.Sequential(lben.SLL(3))), "The network, Sequential, has hooks"),
        (lambda: _hooked(lben.LBEN(3, 3, 2, gamma=1.0)), "The network, LBEN, has hooks"),
    ],
)
def test_nothing_is_proved_of_code_that_is_not_read(make: Callable[[], lben.Sequential], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.certify(make().eval())


def test_a_stack_of_ones_own_that_computes_the_same_is_one() -> None:
    assert lben.certify(_Mine().eval())
