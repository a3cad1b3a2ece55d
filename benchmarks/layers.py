"""Layers of the bound 1 against a plain convolution, and against those of orthogonium and deel-torchlip, as ratios.

All map 64 channels at 16 x 16 to as many, by kernels of 3 x 3, and are followed by a ReLU unless they have one. A step
is a forward and a backward pass to the images and to all parameters, in training mode, as in the middle of a network.
"""

from __future__ import annotations

import warnings

import torch
from deel import torchlip
from measuring import Row, Step, compare, interleave
from orthogonium.layers import AdaptiveOrthoConv2d
from orthogonium.layers.conv.AOL.aol import AOLConv2D
from orthogonium.layers.conv.SLL.sll_layer import SDPBasedLipschitzResBlock
from torch import nn

import lben

CHANNELS, SIDE, BATCH = 64, 16, 128
SEED = 0
PLAIN = "nn.Conv2d and ReLU"
EXPLICIT = ("lben.ConvSLL", "lben.ConvSandwich")
REPEATS, BLOCK = 20, 2


def step(layer: nn.Module) -> Step:
    x = torch.randn(BATCH, CHANNELS, SIDE, SIDE, requires_grad=True)
    weights = torch.randn(BATCH, CHANNELS, SIDE, SIDE)

    def run() -> None:
        layer.zero_grad()
        x.grad = None
        (layer(x) * weights).sum().backward()

    return run


def ours() -> dict[str, nn.Module]:
    torch.manual_seed(SEED)
    solver = lben.PeacemanRachford(tolerance=1e-2)
    return {
        "lben.ConvSLL": lben.ConvSLL(CHANNELS),
        "lben.ConvSandwich": lben.ConvSandwich(CHANNELS, CHANNELS),
        "lben.ImageLBEN at 1e-2": lben.ImageLBEN(CHANNELS, CHANNELS, CHANNELS, gamma=1.0, solver=solver),
    }


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU())


def peers() -> dict[str, nn.Module]:
    """Those of others, of the same shape."""
    torch.manual_seed(SEED)
    return {
        "orthogonium SDPBasedLipschitzResBlock": SDPBasedLipschitzResBlock(CHANNELS, 1),
        "orthogonium AOLConv2D": nn.Sequential(AOLConv2D(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()),
        "orthogonium AdaptiveOrthoConv2d": nn.Sequential(AdaptiveOrthoConv2d(CHANNELS, CHANNELS, 3), nn.ReLU()),
        "torchlip SpectralConv2d": nn.Sequential(torchlip.SpectralConv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()),
    }


def layer_rows() -> list[Row]:
    """Against a plain convolution; what an equilibrium is found to is said behind it."""
    layers = {PLAIN: plain(), **ours()}
    times = interleave({name: step(layer) for name, layer in layers.items()}, REPEATS, BLOCK)
    return [compare(times, name, PLAIN, target) for name, target in zip(ours(), (3.0, 6.0, 8.0), strict=True)]


def peer_rows() -> list[Row]:
    """Ours against each of theirs, and theirs against a plain convolution, all in one run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs speak of torch's coming changes
        own, others = {name: layer for name, layer in ours().items() if name in EXPLICIT}, peers()
        layers = {PLAIN: plain(), **own, **others}
        times = interleave({name: step(layer) for name, layer in layers.items()}, REPEATS, BLOCK)
    rows = [compare(times, name, PLAIN) for name in others]
    return rows + [compare(times, name, other) for other in others for name in own]
