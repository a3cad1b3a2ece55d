"""One architecture whose layers are exchanged: two scales of convolutions, a hidden layer, and logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from lben.activations.scalar import Identity
from lben.checks import need
from lben.layers.equilibrium import ImageLBEN
from lben.layers.sandwich import ConvSandwich, Sandwich
from lben.layers.shapes import MaxMin, PadChannels, SpaceToDepth
from lben.layers.sll import ConvSLL
from lben.layers.stack import Sequential
from lben.networks.dense import LBEN
from lben.networks.foreign import convolution_like
from lben.networks.imported import Residual
from lben.normalize import Normalize
from lben.solvers.peaceman_rachford import PeacemanRachford

Kind = Literal["plain", "orthogonium", "SLL", "sandwich", "equilibrium", "mix"]
CLASSES = 10
TOLERANCE, ROUGH = 1e-3, 1e-2
"""Of equilibria in training: of features, and of images, which take most of the time of their row."""


@dataclass(frozen=True)
class Architecture:
    """Pixels of `in_shape`, less `mean`, over `std`; squares of 2 x 2 of them as channels, zeros up to `channels`.

    Then depth[0] layers; squares of 2 x 2 again, so that there are four times as many channels; depth[1] layers; and
    `hidden` units before the logits. inner: the channels inside a residual layer, at each of the two scales.
    gamma: the bound from the normalised image to the logits, of all but the plain one.
    An equilibrium is a layer of any depth, so that one of them stands for all layers of its scale.
    """

    in_shape: tuple[int, int, int]
    mean: float
    std: float
    channels: int = 32
    inner: tuple[int, int] = (32, 64)
    depth: tuple[int, int] = (3, 3)
    hidden: int = 256
    gamma: float = 1.5

    def build(self, kind: Kind, seed: int) -> nn.Sequential:
        """The network with layers of this kind, at its start, which the seed decides."""
        torch.manual_seed(seed)
        stages: list[nn.Module] = [Normalize(self.mean, self.std)]
        for scale, (inner, depth) in enumerate(zip(self.inner, self.depth, strict=True)):
            channels = self.channels * 4**scale
            stages.append(SpaceToDepth(2))
            stages += [] if scale else [PadChannels(channels)]
            for _ in range(1 if kind == "equilibrium" else depth):
                stages += _layer(kind, channels, inner)
        features = prod(self.in_shape[1:]) * self.channels // 4
        stages += [nn.Flatten(), *self._head(kind, features)]
        net = nn.Sequential(*stages) if kind == "orthogonium" else Sequential(*stages, in_shape=self.in_shape)
        if kind not in ("sandwich", "equilibrium"):  # where convolutions are torch's own, a third faster
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net

    def _head(self, kind: Kind, features: int) -> list[nn.Module]:
        scale = Normalize(0.0, 1 / self.gamma)
        if kind == "plain":
            return [nn.Linear(features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, CLASSES)]
        if kind == "orthogonium":
            # as orthogonal as by its default, Björck's iteration, which takes half of the step for this layer alone
            choice = _peer("orthogonium.reparametrizers").CHOLESKY_STABLE_ORTHO_PARAMS
            linear = partial(_peer("orthogonium.layers.linear").OrthoLinear, ortho_params=choice)
            return [linear(features, self.hidden), MaxMin(), linear(self.hidden, CLASSES), scale]
        if kind in ("SLL", "sandwich"):
            last = Sandwich(self.hidden, CLASSES, activation=Identity())
            return [Sandwich(features, self.hidden), last, scale]
        solver = PeacemanRachford(tolerance=TOLERANCE)
        return [LBEN(features, self.hidden, CLASSES, gamma=self.gamma, solver=solver)]


def exported(net: nn.Sequential, in_shape: tuple[int, int, int]) -> Sequential:
    """The network with the kernels and matrices that it computes as plain ones, of which certificates take the norm."""
    if isinstance(net, Sequential):
        return net
    stages = [_plain(stage) for stage in net]
    return Sequential(*stages, in_shape=in_shape).train(net.training)


def _plain(stage: nn.Module) -> nn.Module:
    made: nn.Conv2d | nn.Linear
    if isinstance(stage, nn.Conv2d):
        made = convolution_like(stage, bias=stage.bias is not None)
    elif isinstance(stage, nn.Linear):
        made = nn.Linear(stage.in_features, stage.out_features, stage.bias is not None)
    else:
        return stage
    with torch.no_grad():
        made.weight.copy_(stage.weight)
        if made.bias is not None and stage.bias is not None:
            made.bias.copy_(stage.bias)
    return made


def _layer(kind: Kind, channels: int, inner: int) -> list[nn.Module]:
    if kind == "plain":
        there = nn.Conv2d(channels, inner, 3, padding=1)
        return [Residual(there, nn.ReLU(), nn.Conv2d(inner, channels, 3, padding=1))]
    if kind == "orthogonium":
        return [_peer("orthogonium.layers.conv.AOC").AdaptiveOrthoConv2d(channels, channels, 3), MaxMin()]
    if kind == "sandwich":
        # as orthogonium's by default; with zeros there would be half again as many frequencies, and a step as long
        return [ConvSandwich(channels, channels, padding="circular")]
    if kind == "equilibrium":
        solver = PeacemanRachford(tolerance=ROUGH)
        return [ImageLBEN(channels, inner, channels, gamma=1.0, skip="identity", solver=solver)]
    return [ConvSLL(channels, inner)]


def _peer(package: str) -> Any:
    return need(package, "The row of orthogonium's layers", extra="dev")
