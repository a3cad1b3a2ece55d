"""Networks of every kind that can be exported, small ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import lben
from tests import blocks, problems

Make = Callable[[], nn.Module]


def lben_net(**options: object) -> lben.LBEN:
    return lben.LBEN(4, 6, 3, gamma=1.0, **options).eval()  # type: ignore[arg-type]


def stack() -> lben.Sequential:
    return lben.Sequential(
        lben.Normalize(0.5, 0.25),
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.ELU(),
        lben.MaxMin(),
        lben.SpaceToDepth(2),
        lben.PadChannels(18),
        lben.ConvSandwich(18, 6),
        lben.ConvSLL(6, 5),
        nn.Conv2d(6, 6, 3, groups=2, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(6),
        nn.AvgPool2d(3, stride=1, padding=1),
        nn.MaxPool2d(2),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        lben.Residual(nn.Linear(6, 6), lben.LBEN(6, 8, 6, gamma=1.0)),
        lben.Sandwich(6, 5),
        lben.SLL(5, 4),
        nn.Softplus(threshold=37),
        nn.Linear(5, 3),
        in_shape=(1, 8, 8),
    ).eval()


def deep() -> lben.Sequential:
    """Two equilibria, the first of images."""
    return lben.Sequential(
        lben.ImageLBEN(2, 3, 2, gamma=1.0, skip="identity"),
        nn.Flatten(),
        lben.LBEN(40, 6, 3, gamma=2.0),
        in_shape=(2, 5, 4),
    ).eval()


def feed_forward() -> lben.LayeredNetwork:
    parts = nn.Linear(4, 6), nn.ReLU(), lben.Residual(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3)
    return lben.from_sequential(nn.Sequential(*parts))


def image(padding: str) -> lben.Sequential:
    return lben.Sequential(lben.ImageLBEN(2, 3, 4, gamma=1.0, padding=padding), in_shape=(2, 5, 4)).eval()  # type: ignore[arg-type]


KINDS: dict[str, Make] = {
    "LBEN": lben_net,
    "pixels": lambda: lben_net(normalize=lben.Normalize([0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 0.1, 0.3])),
    "linear skip": lambda: lben_net(skip="linear"),
    "identity skip": lambda: lben.LBEN(4, 6, 4, gamma=1.0, skip="identity").eval(),
    "double": lambda: lben_net().double(),
    "MON": lambda: lben.MON(4, 6, 3).eval(),
    "unconstrained": lambda: lben.UnconstrainedEN(4, 6, 3).eval(),
    "ConvLBEN": lambda: lben.ConvLBEN((2, 4, 4), 3, 3, gamma=1.0, pool=2, padding=1).eval(),
    "pixel metric": lambda: lben.ConvLBEN((2, 4, 4), 3, 3, gamma=1.0, pool=2, metric="pixel").eval(),
    "ConvMON": lambda: lben.ConvMON((2, 4, 4), 3, 3, pool=2, normalize=lben.Normalize([0.4, 0.5], [0.2, 0.3])).eval(),
    "feed-forward": feed_forward,
    "stack": stack,
    "deep": deep,
    "image, zeros": lambda: image("zeros"),
    "image, circular": lambda: image("circular"),
}
ACTIVATIONS: list[lben.Activation] = [
    *problems.ACTIVATIONS,
    *(one for one in blocks.ACTIVATIONS[:-1] if "Polyhedron" not in repr(one)),
    lben.Blocks([(lben.ReLU(), 1), (lben.Softmax(2), 2), (lben.Identity(), 1), (lben.Projection(lben.Ball(2)), 2)]),
]


def with_activation(activation: lben.Activation) -> lben.LBEN:
    torch.manual_seed(0)
    net = lben.LBEN(4, activation.units or 6, 3, gamma=1.0, activation=activation).eval()
    with torch.no_grad():
        net.get_parameter("parameterization.bz").normal_()
        net.get_parameter("parameterization.V").mul_(2)
    return net


def lively(make: Make) -> nn.Module:
    """A network of a kind, with biases that are not zero."""
    torch.manual_seed(0)
    net = make()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(("bz", "bias", "by")):
                parameter.normal_()
    return net
