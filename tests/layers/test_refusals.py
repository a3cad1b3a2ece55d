"""Modules that cannot stand in a stack: whichever door one comes to, one sentence names it and its place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import lben

ACTIVATIONS: list[nn.Module] = [
    *(nn.GELU(), nn.SiLU(), nn.Mish(), nn.PReLU(), nn.SELU(), nn.CELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.GLU()),
    *(nn.LogSigmoid(), nn.Softsign(), nn.Hardshrink(), nn.Softshrink(), nn.Tanhshrink(), nn.RReLU()),
    *(nn.Threshold(0.1, 20.0), nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1), nn.MultiheadAttention(4, 2)),
    *(nn.Hardtanh(-math.inf, math.inf), nn.Softplus(1.0, 5.0)),
]
PLAIN: list[nn.Module] = [
    *(nn.LayerNorm(4), nn.RMSNorm(4), nn.BatchNorm1d(4, track_running_stats=False), nn.BatchNorm1d(3)),
    *(nn.Bilinear(4, 4, 4), nn.Embedding(4, 4), nn.LSTM(4, 4), nn.GRU(4, 4), nn.RNN(4, 4), nn.Linear(3, 2)),
    *(nn.TransformerEncoderLayer(4, 2), nn.Conv1d(1, 1, 3), nn.ConvTranspose1d(1, 1, 3), nn.CrossEntropyLoss()),
    *(nn.Unflatten(1, (3, 2)), nn.Flatten(0), nn.AlphaDropout(), nn.FeatureAlphaDropout()),
    *(nn.ModuleList([nn.Linear(4, 4)]), spectral_norm(nn.Linear(4, 4)), nn.Conv2d(4, 2, 1), nn.MaxPool2d(2)),
]
LAYERS: list[nn.Module] = [
    *(lben.Normalize([0.0, 0.0], 1.0), lben.LBEN(3, 4, 2), lben.MON(5, 4, 2), lben.ConvLBEN((1, 4, 4), 2, 3)),
    *(lben.SLL(5), lben.Sandwich(5, 3), lben.ConvSLL(2), lben.ConvSandwich(2, 2), lben.ImageLBEN(2, 2, 2)),
    *(lben.SpaceToDepth(2), lben.PadChannels(2), lben.ODE(lben.LBEN(4, 5, 2))),
    *(lben.REN(4, 3, 5, 4, behaviour=lben.Contracting()), lben.Residual(nn.Linear(4, 3))),
    lben.Parallel(nn.Linear(4, 3), nn.Linear(4, 2)),
]
POOLS: list[nn.Module] = [
    *(nn.MaxPool2d(3, 2), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(2, ceil_mode=True)),
    *(nn.AvgPool2d(2, ceil_mode=True), nn.AvgPool2d(2, padding=1, count_include_pad=False), nn.LPPool2d(2, 2)),
    *(nn.AvgPool2d(2, divisor_override=3), nn.AdaptiveMaxPool2d(2), nn.FractionalMaxPool2d(2, output_size=2)),
]
IMAGES: list[nn.Module] = [
    *(nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode) for mode in ("reflect", "replicate")),
    *(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 9), nn.ConvTranspose2d(2, 2, 3), nn.Conv3d(2, 2, 3), nn.Linear(3, 2)),
    *(nn.BatchNorm2d(2, track_running_stats=False), nn.BatchNorm2d(3), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)),
    *(nn.GroupNorm(1, 2), nn.InstanceNorm2d(2), nn.InstanceNorm2d(2, track_running_stats=True), nn.Softmax2d()),
    *(nn.LayerNorm([2, 4, 4]), nn.LocalResponseNorm(2), nn.Upsample(scale_factor=2), nn.Dropout3d(), nn.Flatten(2)),
    *(nn.PixelShuffle(1), nn.PixelUnshuffle(2), nn.ChannelShuffle(2), nn.Fold((4, 4), 2), nn.Unfold(2)),
    *(nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ConstantPad2d(1, 1.0), nn.CircularPad2d(1)),
    *(lben.SpaceToDepth(3), lben.PadChannels(1), lben.ConvSLL(3), lben.ConvSandwich(3, 2), lben.ImageLBEN(3, 2, 2)),
    *(lben.SLL(4), lben.Sandwich(4, 4), lben.LBEN(5, 4, 3), lben.ImageLBEN(2, 2, 2, kernel_size=5)),
]
CASES: list[tuple[nn.Module, tuple[int, ...]]] = [
    *((module, (4,)) for module in (*ACTIVATIONS, *PLAIN, *LAYERS)),
    *((module, (2, 4, 4)) for module in (*POOLS, *IMAGES)),
    (lben.MaxMin(), (3,)),
    (lben.MaxMin(), (3, 4, 4)),
]
DOORS: dict[str, Callable[[nn.Module, tuple[int, ...]], lben.Sequential]] = {
    "a stage": lambda module, shape: lben.Sequential(nn.Identity(), module, in_shape=shape),
    "in a block": lambda module, shape: lben.Sequential(nn.Identity(), lben.Residual(module), in_shape=shape),
    "read": lambda module, shape: lben.read(nn.Sequential(nn.Identity(), module).eval(), shape),
}


def check(door: str, module: nn.Module, shape: tuple[int, ...], names: str) -> None:
    with pytest.raises(lben.InvalidInput) as caught:
        DOORS[door](module.eval(), shape)
    message = str(caught.value)
    assert re.search(names, message), message
    assert "\n" not in message


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("module", "shape"), CASES, ids=[f"{type(case[0]).__name__}-{case[1]}" for case in CASES])
def test_a_module_that_does_not_fit_is_named_with_its_place(
    door: str, module: nn.Module, shape: tuple[int, ...]
) -> None:
    check(door, module, shape, rf"\b1(\.\w+)*,? (torch\.|nn\.|lben\.)*{type(module).__name__}\b")


class Own(nn.Linear):
    """A class of its own, which may do anything."""


@pytest.mark.parametrize("door", ["a stage", "in a block"])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_so_are_classes_of_others_and_layers_without_sizes(door: str) -> None:
    for module, shape in ((Own(4, 4), (4,)), (nn.LazyLinear(3), (4,)), (nn.LazyConv2d(2, 3), (2, 4, 4))):
        check(door, module, shape, rf"\b1(\.\w+)*,? {type(module).__name__}\b")
