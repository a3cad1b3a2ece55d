"""What cannot stand in a stack is refused in one sentence, which says what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lben


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.f(x)
        return y


REFUSED: list[tuple[nn.Module, str]] = [
    (Mine(), r"0 Mine has no known bound: .* by lben\.read\(module, in_shape\)"),
    (nn.GELU(), r"0 GELU .* slopes in \[0, 1\], such as nn\.ReLU or nn\.ELU"),
    (nn.SiLU(), "such as nn.ReLU"),
    (nn.ELU(2.0), r"make it with an alpha in \(0, 1\], not 2"),
    (nn.Hardtanh(-float("inf"), 1.0), "finite min_val"),
    (nn.Hardtanh(0.0, 1e-320), "a max_val that is not next to it"),
    (nn.Softplus(threshold=1), "threshold >= 20, not 1.0 and 1"),
    (nn.PReLU(), "use nn.LeakyReLU"),
    (nn.Softmax(1), "the logits in front of it"),
    (nn.MultiheadAttention(8, 1), "attention multiplies"),
    (nn.LayerNorm(8), "0 LayerNorm .* use nn.BatchNorm1d or nn.BatchNorm2d, which are linear in evaluation"),
    (nn.GroupNorm(1, 1), "linear in evaluation"),
    (nn.BatchNorm2d(1, track_running_stats=False), "track_running_stats=True"),
    (nn.PixelUnshuffle(2), r"use lben\.SpaceToDepth\(2\)"),
    (nn.MaxPool2d(2, ceil_mode=True), "0 MaxPool2d has no known bound: make it with ceil_mode=False"),
    (nn.MaxPool2d(2, return_indices=True), "return_indices=False"),
    (nn.MaxPool2d(2, padding=1), "padding=0"),
    (nn.MaxPool2d(2, dilation=2), "dilation=1"),
    (nn.MaxPool2d(3, 2), "pools that overlap are not contractions"),
    (nn.AdaptiveMaxPool2d(1), "use nn.AvgPool2d, nn.AdaptiveAvgPool2d, or nn.MaxPool2d"),
    (nn.AdaptiveAvgPool2d(3), r"pools squares of several sizes: \(3, 3\) does not divide images of \(8, 8\)"),
    (nn.Conv1d(1, 1, 1), r"use nn\.Conv2d"),
    (nn.ZeroPad2d(1), "the padding of the nn.Conv2d behind it"),
    (nn.Dropout3d(), "use nn.Dropout"),
    (nn.LSTM(8, 8), r"lben\.REN"),
    (nn.Upsample(2), r"help\(lben\.Sequential\)"),
    (nn.ModuleList([nn.ReLU()]), "one by one"),
    (nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), "remove_parametrizations"),
    (nn.Unflatten(1, (2, 2)), r"cannot divide 1 into \(2, 2\)"),
    (nn.Unflatten(0, (1, 1)), "must divide a dimension of a sample .* not dimension 0"),
]


@pytest.mark.parametrize(("module", "words"), REFUSED, ids=[type(module).__name__ for module, _ in REFUSED])
def test_a_refusal_says_what_to_use_instead(module: nn.Module, words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words) as caught:
        lben.Sequential(module, in_shape=(1, 8, 8))
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert ". " not in said
    assert len(said) < 180


class Code(nn.Module):
    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        return self.code(x)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (F.silu, r"silu \(node silu\) is none of the functions that are known: use one with slopes in \[0, 1\]"),
        (lambda x: F.layer_norm(x, (8,)), "use nn.BatchNorm1d"),
        (lambda x: F.softmax(x, 1), "return the logits"),
        (lambda x: F.pixel_unshuffle(x, 2), "lben.SpaceToDepth"),
    ],
)
def test_a_function_that_is_refused_has_another_to_use(code: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words) as caught:
        lben.read(Code(code).eval(), (1, 8, 8))
    assert "known are sums" not in str(caught.value)


@pytest.mark.parametrize("size", [1, (2, 4), (None, 2)])
def test_adaptive_pools_are_the_plain_ones_that_they_are(size: int | tuple[int | None, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    features = 4 * F.adaptive_avg_pool2d(torch.zeros(1, 4, 8), size).numel()
    front = nn.Conv2d(1, 4, 3, padding=1)
    back = nn.Linear(features, 3)
    net = lben.Sequential(front, nn.ReLU(), nn.AdaptiveAvgPool2d(size), nn.Flatten(), back, in_shape=(1, 4, 8)).eval()
    plain = lben.read(nn.Sequential(front, nn.ReLU(), nn.AdaptiveAvgPool2d(size), nn.Flatten(), back).eval(), (1, 4, 8))
    assert net.bound() == plain.bound()
    x = torch.rand(3, 1, 4, 8)
    near = lben.enclose(net, x)
    assert bool(((net(x) - near.y).abs() <= near.error + 1e-5).all())
    lben.save(net, tmp_path / "net")
    assert torch.equal(lben.load(tmp_path / "net").eval()(x), net(x))


@pytest.mark.parametrize(("dim", "sizes"), [(1, (1, 4, -1)), (-1, (2, 2, 4))])
def test_features_become_images(dim: int, sizes: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    stages = [nn.Linear(3, 16), nn.Unflatten(dim, sizes), nn.Conv2d(sizes[0], 2, 2), nn.Flatten()]
    net = lben.Sequential(*stages).eval()
    x = torch.rand(5, 3)
    near = lben.enclose(net, x)
    assert bool(((net(x) - near.y).abs() <= near.error + 1e-5).all())
    found = lben.lipschitz_lower_bound(net, x, restarts=2, steps=20)
    assert 0.9 * net.bound() < found.value * 2 <= 2 * net.bound()
    lben.save(net, tmp_path / "net")
    assert torch.equal(lben.load(tmp_path / "net").eval()(x), net(x))
    assert lben.read(nn.Sequential(*stages).eval(), 3).bound() == net.bound()


LAYERS: list[Callable[[], nn.Module]] = [
    lambda: lben.ConvSLL(3),
    lambda: lben.ConvSandwich(3, 2),
    lambda: lben.ImageLBEN(3, 2, 3, gamma=1.0),
]


@pytest.mark.parametrize("make", LAYERS)
def test_a_layer_of_images_alone_says_what_it_hangs_on(make: Callable[[], nn.Module]) -> None:
    verbs: tuple[Any, ...] = (lben.certify, lben.tightest_bound, lben.product_bound)
    for ask in verbs:
        with pytest.raises(lben.InvalidInput, match=r"depend on the image: give weights\(\(height, width\)\), or put"):
            ask(make())


@pytest.mark.parametrize("make", [*LAYERS, lambda: lben.SLL(3), lambda: lben.Sandwich(3, 2), lambda: nn.Linear(3, 2)])
def test_a_layer_alone_is_not_saved_but_in_a_stack(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    layer = make()
    with pytest.raises(lben.InvalidInput, match=r"put it in a stack, by lben\.Sequential\(layer\)\.$"):
        lben.save(layer, tmp_path / "net")  # type: ignore[arg-type]
    shape = (3, 8, 8) if hasattr(layer, "kernel_size") or isinstance(layer, lben.ImageLBEN) else 3
    lben.save(lben.Sequential(layer, in_shape=shape), tmp_path / "net")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Linear(2, 2)), r"not Sequential: make a stack of it, by lben\.Sequential\(\*module\)"),
        (nn.Linear(2, 2), r"not Linear: put it in a stack, by lben\.Sequential\(module\)"),
        (lben.Residual(nn.Linear(2, 2)), r"by lben\.Sequential\(module\)"),
        (Mine(), r"not Mine: lben\.read\(module, in_shape\) makes a stack of it"),
    ],
)
def test_what_is_certified_is_a_stack(module: nn.Module, words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.certify(module)  # type: ignore[call-overload]


def test_pixels_of_a_stack_begin_with_a_normalisation() -> None:
    net = lben.Sequential(nn.Linear(4, 3))
    for ask in (
        lambda: lben.certify(net, domain="pixels"),
        lambda: net.bound("pixels"),
        lambda: lben.certified_radius(net, torch.rand(2, 4), domain="pixels"),
    ):
        with pytest.raises(lben.InvalidInput, match=r"a stack that begins with lben\.Normalize\(mean, std\)"):
            ask()
