"""Random stacks of all kinds of layers, trained: no pair of inputs is steeper than what is proved."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import lben
from lben.parameterize.image import Padding
from lben.parameterize.skip import Skip
from tests.layers.climbing import steepest, trained

PRECISE = lben.PeacemanRachford(tolerance=1e-9)
ALIVE = lben.LeakyReLU(0.2)  # with ReLU, and nothing that passes it by, a stack may become flat: nothing is shown then
KINDS: list[tuple[Skip | None, float]] = [
    (None, 0.1),
    ("linear", 1.0),
    ("identity", 4.0),
    (None, 1.0),
    ("linear", 4.0),
    ("identity", 1.0),
    (None, 4.0),
    ("linear", 0.1),
]
"""Of equilibria: eight seeds in a row meet each, among images and among features."""


def equilibrium(kind: tuple[Skip | None, float]) -> dict[str, Any]:
    """The options of an equilibrium of this kind."""
    skip, gamma = kind
    return {"skip": skip, "gamma": gamma, "solver": PRECISE, "activation": lben.ReLU() if skip else ALIVE}


def drawn(seed: int) -> lben.Sequential:
    """Images through layers in any order, one of them an equilibrium; then features through others, and another."""
    r = Random(seed)
    torch.manual_seed(seed)
    shape = (r.randint(1, 2), *[(3, 5), (4, 4), (5, 4), (6, 6)][seed % 4])
    stages: list[nn.Module] = [lben.SpaceToDepth(2)] if shape[1] == 6 else []
    channels = shape[0] * (4 if stages else 1)
    own = equilibrium(KINDS[seed % 8])
    for kind in r.sample(["equilibrium", *r.sample(["SLL", "sandwich", "sorting"], 2)], 3):
        after = channels if own["skip"] == "identity" and kind == "equilibrium" else r.randint(1, 3)
        padding: Padding = r.choice(("zeros", "circular"))
        if kind == "equilibrium":
            stages.append(lben.ImageLBEN(channels, 3, after, padding=padding, **own))
            channels = after
        elif kind == "SLL":
            stages.append(lben.ConvSLL(channels, 3))
        elif kind == "sandwich":
            stages.append(lben.ConvSandwich(channels, after, padding=padding, activation=ALIVE))
            channels = after
        else:
            channels += channels % 2
            stages += [lben.PadChannels(channels), lben.MaxMin()]
    stages.append(nn.Flatten())
    width = channels * shape[1] * shape[2] // (4 if shape[1] == 6 else 1)
    own = equilibrium(KINDS[(3 * seed + 1) % 8])
    for kind in r.sample(["equilibrium", "SLL", "sandwich"], 3):
        hidden = r.randint(3, 8)
        after = width if own["skip"] == "identity" and kind == "equilibrium" else r.randint(3, 8)
        if kind == "SLL":
            stages.append(lben.SLL(width, hidden))
        elif kind == "sandwich":
            stages.append(lben.Sandwich(width, after, activation=ALIVE))
            width = after
        else:
            stages.append(lben.LBEN(width, hidden, after, **own))
            width = after
    return lben.Sequential(*stages, in_shape=shape).double()


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 40))])
def test_no_pair_is_steeper_than_the_bound_after_training(seed: int) -> None:
    net = drawn(seed)
    made = math.prod(part.gamma or 0.0 for part in net if isinstance(part, lben.LBEN | lben.ImageLBEN))
    trained(net, net.in_shape, rate=0.01).eval()
    for rigorous in (False, True):
        certificate = lben.certify(net, rigorous=rigorous)
        assert certificate
        assert certificate.gamma == pytest.approx(net.bound(), rel=1e-12)
    tight = lben.tightest_bound(net)
    assert tight
    assert tight.gamma is not None
    assert tight.gamma <= net.bound() * (1 + 1e-9) <= made * (1 + 1e-6)
    climbed = steepest(net, net.in_shape, pairs=6, steps=25)
    assert 0.005 * tight.gamma < climbed <= tight.gamma * (1 + 1e-6)
