"""Networks and layers that transforms of torch are tried on, each as a function of rows of features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import lben
from tests import blocks

SOLVER = lben.PeacemanRachford(tolerance=1e-12)
WITHOUT_RESOLVENT = lben.Anderson(method=lben.ForwardBackward(), tolerance=1e-11)
TANH = lben.Tanh()


def images(layer: nn.Module) -> nn.Module:
    """A layer of images of 3 x 3 pixels, from rows to rows."""
    return nn.Sequential(nn.Unflatten(-1, (1, 3, 3)), layer, nn.Flatten())


def stack() -> nn.Module:
    return lben.Sequential(
        lben.SLL(3, 4, activation=TANH), lben.LBEN(3, 4, 3, gamma=2.0, activation=TANH, solver=SOLVER), nn.Linear(3, 2)
    )


KINDS: dict[str, Callable[[], nn.Module]] = {
    "LBEN": lambda: lben.LBEN(3, 5, 2, gamma=1.0, activation=TANH, solver=SOLVER),
    "LBEN without gamma": lambda: lben.LBEN(3, 5, 2, solver=SOLVER, normalize=lben.Normalize(0.1, 0.5)),
    "linear skip": lambda: lben.LBEN(3, 5, 2, gamma=1.0, skip="linear", activation=TANH, solver=SOLVER),
    "tied skip": lambda: lben.LBEN(3, 5, 3, gamma=1.0, skip="identity", activation=TANH, solver=SOLVER),
    "MON": lambda: lben.MON(3, 5, 2, activation=lben.Sigmoid(), solver=SOLVER),
    "UnconstrainedEN": lambda: lben.UnconstrainedEN(3, 5, 2, activation=TANH, solver=SOLVER),
    "ContractingODE": lambda: lben.ContractingODE(3, 5, 2, rate=0.1, gamma=1.0, activation=TANH, solver=SOLVER),
    "Elementwise": lambda: lben.LBEN(3, 5, 2, gamma=1.0, activation=lben.Elementwise(torch.tanh), solver=SOLVER),
    "ConvLBEN": lambda: lben.ConvLBEN((1, 4, 4), 2, 2, gamma=1.0, pool=2, activation=TANH, solver=SOLVER),
    "pixel metric": lambda: lben.ConvLBEN(
        (1, 4, 4), 2, 2, gamma=4.0, epsilon=4.0, pool=2, metric="pixel", activation=TANH, solver=WITHOUT_RESOLVENT
    ),
    "ImageLBEN": lambda: images(lben.ImageLBEN(1, 2, 1, gamma=1.0, activation=TANH, solver=SOLVER)),
    "ImageLBEN with skip": lambda: images(
        lben.ImageLBEN(1, 2, 1, gamma=1.0, skip="linear", activation=TANH, solver=SOLVER)
    ),
    "SLL": lambda: lben.SLL(3, 4, activation=TANH),
    "ConvSLL": lambda: images(lben.ConvSLL(1, 2, activation=TANH)),
    "Sandwich": lambda: lben.Sandwich(3, 4, activation=TANH),
    "ConvSandwich": lambda: images(lben.ConvSandwich(1, 2, activation=TANH)),
    "stack": stack,
    "Ball": lambda: blocks.network(blocks.ACTIVATIONS[1]),
    "Simplex": lambda: blocks.network(blocks.ACTIVATIONS[2]),
    "Softmax": lambda: blocks.network(lben.Softmax(3)),
    "GroupSoftThreshold": lambda: blocks.network(lben.GroupSoftThreshold(2, 0.7)),
    "Blocks with a Polyhedron": lambda: blocks.network(blocks.ACTIVATIONS[6]),
}
PARTLY = ["LBEN", "UnconstrainedEN", "ConvLBEN", "ImageLBEN", "stack", "Blocks with a Polyhedron"]
"""One of every mechanism, for what takes longer."""
CASES = [*((kind, False) for kind in KINDS), *((kind, True) for kind in PARTLY)]
"""Kinds, and whether they are in training: within transforms both are one path."""


def make(kind: str, training: bool, seed: int = 0) -> nn.Module:
    """In double precision, with weights that differ from seed to seed in every part."""
    torch.manual_seed(seed)
    net = KINDS[kind]().double().train(training)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return net


def inputs(kind: str, count: int = 3) -> Tensor:
    """Rows of as many features as the network takes."""
    if kind in ("ConvLBEN", "pixel metric"):
        features = 16
    elif kind.startswith(("Image", "ConvS")):
        features = 9
    else:
        features = 4 if kind in list(KINDS)[-5:] else 3
    return torch.randn(count, features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def sample(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network as a function of one sample without a batch."""

    def call(x: Tensor) -> Tensor:
        y: Tensor = net(x[None])[0]
        return y

    return call
