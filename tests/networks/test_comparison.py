"""What is imported is what the module computes, on inputs of its own, or it is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import lben

IN_PLACE: list[Callable[[], nn.Module]] = [
    lambda: nn.ReLU(inplace=True),
    lambda: nn.ReLU6(inplace=True),
    lambda: nn.LeakyReLU(5.0, inplace=True),
    lambda: nn.ELU(0.5, inplace=True),
    lambda: nn.Hardtanh(-0.5, 2.0, inplace=True),
]


@pytest.mark.parametrize("activation", IN_PLACE)
def test_activations_in_place_are_imported(activation: Callable[[], nn.Module]) -> None:
    """At the head, in the middle, at the end, and in a residual block once its input is no longer what they change."""
    torch.manual_seed(0)
    block = lben.Residual(nn.Linear(4, 4), activation(), nn.Dropout(inplace=True), activation(), nn.Linear(4, 4))
    module = nn.Sequential(activation(), nn.Linear(3, 4), activation(), block, activation()).double().eval()
    net, x = lben.from_sequential(module, input_shape=3), 3 * torch.randn(50, 3, dtype=torch.float64)
    assert torch.allclose(net(x), module(x.clone()), atol=1e-12)


@pytest.mark.parametrize("activation", IN_PLACE)
@pytest.mark.parametrize(
    ("before", "where"), [([], "1.0"), ([nn.Identity(), nn.Sequential(nn.Flatten(), nn.Dropout())], "1.2")]
)
def test_a_residual_block_that_changes_its_own_input_is_refused(
    activation: Callable[[], nn.Module], before: list[nn.Module], where: str
) -> None:
    block = lben.Residual(*before, activation(), nn.Linear(3, 3))
    with pytest.raises(lben.InvalidInput, match=rf"Layer {where}, .* in place on the input .* inplace=False"):
        lben.from_sequential(nn.Sequential(nn.Linear(3, 3), block))
    x = 3 * torch.randn(20, 3)
    assert not torch.allclose(block.eval()(x.clone()), x + block.body(x.clone()))  # it is no x + f(x)


def test_the_comparison_finds_what_no_layer_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose forward was replaced."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net = lben.from_sequential(module)
    assert isinstance(net, lben.LayeredNetwork)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: torch.relu(x - 0.01))
    with pytest.raises(lben.InvalidInput, match="does not compute what its layers say"):
        lben.from_sequential(module)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: 1 / 0)
    with pytest.raises(lben.InvalidInput, match="cannot be called: ZeroDivisionError"):
        lben.from_sequential(module)


def test_the_module_is_left_as_it_was() -> None:
    norm = nn.BatchNorm1d(4).eval()
    module = nn.Sequential(lben.Normalize(0.5, 2.0), nn.Linear(3, 4), norm, nn.ReLU(inplace=True), nn.Dropout())
    before, modes = copy.deepcopy(module.state_dict()), [part.training for part in module.modules()]
    state = torch.get_rng_state()
    net = lben.from_sequential(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    module.double()  # which is not to reach the copy
    assert net(torch.zeros(1, 3)).dtype == torch.float32


@pytest.mark.parametrize("size", [1e-6, 1e-2, 30.0, 1e6])
@pytest.mark.parametrize("depth", [1, 6])
def test_rounding_alone_is_no_difference(size: float, depth: int) -> None:
    """Large and small weights, deep networks, and layers that all but cancel each other; beyond that, one sentence."""
    torch.manual_seed(0)
    stages: list[nn.Module] = [nn.Linear(5, 8)]
    for _ in range(depth):
        stages += [nn.Softplus(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LeakyReLU(0.3), nn.Linear(8, 8)]
    first, last = nn.Linear(8, 30), nn.Linear(30, 8)
    with torch.no_grad():
        for stage in stages:
            if isinstance(stage, nn.Linear):
                stage.weight.mul_(size)
        first.weight.mul_(1e4)
        null = torch.linalg.qr(first.weight.double(), mode="complete")[0][:, 8:]
        last.weight.copy_((null @ torch.randn(22, 8).double()).T + 1e-4 * last.weight)
    module = nn.Sequential(*stages, first, last).double()
    if size ** (6 * depth) > 1e140:
        with pytest.raises(lben.InvalidInput, match="so large together"):
            lben.from_sequential(module)
    else:
        lam = lben.from_sequential(module).weights().metric()
        assert bool((lam > 0).all() and lam.isfinite().all())


class Own(lben.Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def hooked(stage: nn.Module) -> nn.Module:
    stage.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    return stage


def patched(stage: nn.Module) -> nn.Module:
    stage.forward = lambda x: x
    return stage


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([parametrizations.weight_norm(nn.Linear(3, 3))], "Linear, is parametrized.*remove_parametrizations"),
        ([nn.Linear(3, 3), nn.MaxPool1d(1)], "MaxPool1d, is none of the layers that can be folded.*BatchNorm2d.$"),
        ([nn.Linear(3, 3), nn.PReLU()], "PReLU, is none of the activations"),
        (
            [nn.Linear(3, 3), nn.Softplus(threshold=1)],
            "Softplus, must have beta > 0 and threshold >= 20",
        ),
        ([Own(0.0, 1.0), nn.Linear(3, 3)], "Own, is a module of its own kind"),
        ([hooked(lben.Normalize(0.0, 1.0)), nn.Linear(3, 3)], "Layer 0, Normalize, has hooks"),
        ([patched(nn.Linear(3, 3))], "Layer 0, Linear, has a forward of its own"),
        ([nn.Linear(3, 3, dtype=torch.complex64)], "complex64"),
        ([nn.Linear(3, 3), nn.Linear(3, 3, dtype=torch.complex64)], "complex64"),
        ([nn.Linear(3, 3), nn.Linear(3, 3, device="meta")], "meta device"),
        ([lben.Normalize([0.0] * 4, [1.0] * 4), nn.Linear(3, 3)], "4"),
    ],
)
def test_refusals_say_what_to_do(stages: list[nn.Module], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.from_sequential(nn.Sequential(*stages))


@pytest.mark.parametrize("body", [(), (3,), (None,), ([nn.ReLU()],), (nn.ReLU,), (torch.relu,), ({"a": nn.ReLU()},)])
def test_a_residual_takes_modules(body: tuple[Any, ...]) -> None:
    with pytest.raises(lben.InvalidInput, match="Residual takes"):
        lben.Residual(*body)


@pytest.mark.parametrize("shape", [10**30, (10**12,), 10**5, (3, 224, 224), (), True, "ab", (3, "x")])
def test_sizes_that_cannot_be_are_refused(shape: Any) -> None:
    with pytest.raises(lben.InvalidInput, match=r"input_shape|GB is the most"):
        lben.from_sequential(nn.Sequential(nn.ReLU(), nn.Flatten()), input_shape=shape)


def test_what_single_precision_cannot_hold_is_refused() -> None:
    """Limits far apart are a HardTanh of a huge scale: its rounding made another function of the module."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.Hardtanh(0, 1e6), nn.Linear(32, 5))
    with pytest.raises(lben.InvalidInput, match=r"In float32 the outputs would be .* off .* module\.double\(\)"):
        lben.from_sequential(module)
    x = torch.randn(20, 8, dtype=torch.float64)
    assert torch.allclose(lben.from_sequential(module.double())(x), module(x), rtol=1e-9, atol=1e-9)
    assert lben.from_sequential(nn.Sequential(nn.Linear(8, 32), nn.ReLU6(), nn.Linear(32, 5)))
