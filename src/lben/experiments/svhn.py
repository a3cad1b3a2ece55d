"""The paper's study of SVHN, Table `SVHN_results`: convolutional networks on the photographs of house numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from lben.data import MNIST_MEAN, MNIST_STD, SVHN_MEAN, SVHN_STD, ImageData, embedded_mnist, svhn
from lben.experiments.baselines import FeedForward
from lben.experiments.measure import TRAINING_TOLERANCE, relative_seconds
from lben.experiments.running import Plan
from lben.experiments.study import Published, Result, Row, start_from
from lben.networks.base import BaseNetwork
from lben.networks.convolutional import ConvLBEN, ConvMON
from lben.normalize import Normalize
from lben.progress import Show
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train import Epoch, TrainConfig

RADII = (36 / 255, 72 / 255, 108 / 255, 1.0)
"""In pixels, at which others report certified accuracy on colour images."""
EPSILON, POOL = 5.0, 4
_COMMAND = "lben reproduce svhn"
WATCHED = 2000
"""Test images looked at after each epoch; all of them are in the end."""

PAPER = TrainConfig(epochs=5, batch_size=32, learning_rate=1e-3, schedule="step", step_epochs=10, step_factor=0.1)
"""The paper's training (its learning rate is misprinted as 1e3); it does not tell the size of a batch."""


@dataclass(frozen=True, kw_only=True)
class Convolutional(Row):
    """One equilibrium layer of `hidden` channels, bounded by `gamma` if there is one, or `monotone` alone.

    All of one seed start at one and the same point, with Lambda = I.
    """

    hidden: int = 40
    monotone: bool = False
    in_shape: tuple[int, int, int] = (3, 32, 32)
    mean: float = SVHN_MEAN
    std: float = SVHN_STD
    radii: tuple[float, ...] = RADII

    def network(self) -> BaseNetwork:
        torch.manual_seed(self.config.seed)
        solver = PeacemanRachford(tolerance=TRAINING_TOLERANCE)
        normalize = Normalize(self.mean, self.std)
        start = ConvMON(self.in_shape, self.hidden, 10, epsilon=EPSILON, pool=POOL, solver=solver, normalize=normalize)
        if self.monotone:
            return start
        sizes = (self.in_shape, self.hidden, 10)
        net = ConvLBEN(*sizes, gamma=self.gamma, epsilon=EPSILON, pool=POOL, solver=solver, normalize=normalize)
        start_from(net, start)
        return net

    def train(self, net: BaseNetwork | FeedForward, data: ImageData, folder: Path, *, progress: Show) -> list[Epoch]:
        watched = replace(data, test_images=data.test_images[:WATCHED], test_labels=data.test_labels[:WATCHED])
        return super().train(net, watched, folder, progress=progress)

    def relative_seconds(self, net: BaseNetwork | FeedForward, data: ImageData, history: list[Epoch]) -> float:
        """Beside a network with a convolution of the image, one of as many channels, pooling and a linear output."""
        shape = nn.Unflatten(1, self.in_shape)
        plain = nn.Sequential(shape, Normalize(self.mean, self.std), *plain_convolution(self.in_shape, self.hidden, 10))
        return relative_seconds(net, plain, data, self.config, net.weights().hidden_features)


def plain_convolution(in_shape: tuple[int, int, int], channels: int, outputs: int) -> nn.Sequential:
    """One convolution of the image, one of the hidden layer, pooling and a linear output."""
    colours, height, width = in_shape
    return nn.Sequential(
        nn.Conv2d(colours, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(POOL),
        nn.Flatten(),
        nn.Linear(channels * (height // POOL) * (width // POOL), outputs),
    )


def rows() -> list[Convolutional]:
    """Table `SVHN_results`, with what the paper reports, and other bounds beside its one."""
    return list(_table())


def _table() -> Iterator[Convolutional]:
    yield Convolutional(name="MON", config=PAPER, monotone=True, published=Published(19.5, 40.0, 72.0, None, 8.3))
    yield Convolutional(name="LBEN γ<∞", config=PAPER)
    yield Convolutional(name="LBEN γ=5", config=PAPER, gamma=5.0)
    yield Convolutional(name="LBEN γ=2", config=PAPER, gamma=2.0, published=Published(22.75, 37.0, 56.0, 2.0, 0.8))
    yield Convolutional(name="LBEN γ=1", config=PAPER, gamma=1.0)


def reproduce(plan: Plan, *, part: bool = False, only: Sequence[str] = ()) -> list[Result]:
    """Run all rows, or `only` some.

    part: train on a fixed third of SVHN; a short plan: few channels on the embedded part of MNIST.
    """
    if plan.short:
        title = "The rows of SVHN, small and on MNIST, quick"
        return plan.run(quick(rows()), embedded_mnist(), title, _COMMAND, only=only)
    data = svhn(plan.root)
    title = "SVHN" + ", a third of the training images" * part
    return plan.run(rows(), third(data) if part else data, title, _COMMAND + " --third" * part, only=only)


def quick(rows: Iterable[Convolutional], epochs: int = 2, channels: int = 4) -> list[Convolutional]:
    """The rows with few channels and epochs, for the embedded digits; nothing is published of them."""
    return [
        replace(
            row,
            config=replace(row.config, epochs=epochs, learning_rate=5e-3),
            hidden=channels,
            in_shape=(1, 28, 28),
            mean=MNIST_MEAN,
            std=MNIST_STD,
            published=None,
        )
        for row in rows
    ]


def third(data: ImageData) -> ImageData:
    """A fixed third of the training images, and all test images."""
    chosen = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(0))
    chosen = chosen[: len(chosen) // 3]
    return replace(data, train_images=data.train_images[chosen], train_labels=data.train_labels[chosen])
