"""The study of depth: one architecture on colour images, its layers exchanged, all certified by the same verbs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lben import checks
from lben.attacks import attack
from lben.certify.radius import certified_accuracy
from lben.data import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    MNIST_MEAN,
    MNIST_STD,
    SVHN_MEAN,
    SVHN_STD,
    ImageData,
    cifar10,
    embedded_mnist,
    pixels,
    svhn,
)
from lben.errors import InvalidInput
from lben.experiments.measure import EVALUATION_TOLERANCE, WIDE, relative_seconds
from lben.experiments.reading import is_number
from lben.experiments.running import Outcome, Plan, Task
from lben.experiments.stacks import Architecture, Kind, exported
from lben.files import save
from lben.layers.stack import Sequential
from lben.networks.base import BaseNetwork
from lben.progress import Show, bar
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train import CrossEntropy, Emma, Loss, TrainConfig, error_rate, fit

Dataset = Literal["svhn", "cifar10"]
RADII = (36 / 255, 72 / 255, 108 / 255)
"""In pixels, at which others report certified accuracy on colour images."""
STUDY = "layers"
WATCHED = 2000
"""Test images looked at after each epoch; all of them are in the end."""
ATTACKED = 500
"""Test images attacked, by 20 steps: the first ones."""
_STEPS = 20

SVHN = Architecture((3, 32, 32), SVHN_MEAN, SVHN_STD)
CIFAR = Architecture((3, 32, 32), CIFAR10_MEAN, CIFAR10_STD)
SMALL = Architecture((1, 28, 28), MNIST_MEAN, MNIST_STD, channels=8, inner=(4, 8), depth=(1, 1), hidden=16)
"""For the embedded digits."""
# gamma and the margin were chosen on training images of SVHN that were kept aside, shifts on those of CIFAR-10
# (scripts/layers_choice.py), never on test images
_CYCLE = TrainConfig(epochs=12, batch_size=128, learning_rate=6e-3, schedule="one-cycle")
_PLAIN_RATE = 1e-3
"""Nothing bounds the plain layers: at the rate of the others their loss leapt to 23,724 and then stayed at chance."""


@dataclass(frozen=True)
class Proved:
    """Of one network: shares between 0 and 1, sizes in pixels.

    certified: the accuracy that is proved at each of `radii`, on all test images. attacked: what 20 steps of projected
    gradient leave of it at the same sizes, on the first `attacked_images`. bound: from normalised images to logits, the
    product of what is proved of the stages. Neither is asked of a network that was not made to have a bound.
    """

    error: float
    unanswered: int
    parameters: int
    bound: float | None
    radii: list[float]
    certified: list[float] | None
    attacked: list[float]
    attacked_images: int

    def __post_init__(self) -> None:
        for name in ("certified", "attacked"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.radii):
                raise InvalidInput(f"{name} has {len(values)} values instead of {len(self.radii)}")


@dataclass(frozen=True)
class Stacked(Outcome):
    """What is known of one row, and what was proved."""

    proved: Proved

    def __post_init__(self) -> None:
        """Refuse a row of which the report could not say what it is."""
        super().__post_init__()
        sizes, config = self.row.get("architecture"), self.row.get("config")
        if not isinstance(sizes, dict) or not isinstance(config, dict):
            raise InvalidInput("the row has no architecture and config")
        depth = sizes.get("depth")
        numbers = [sizes.get(name) for name in ("std", "channels", "hidden", "gamma")]
        numbers += [config.get("epochs"), *(depth if isinstance(depth, list | tuple) and len(depth) == 2 else [None])]
        if not all(is_number(number) for number in numbers) or not isinstance(config.get("loss"), str):
            raise InvalidInput("the row does not tell its architecture and config")

    @property
    def error(self) -> float:
        return self.proved.error


@dataclass(frozen=True, kw_only=True)
class Layers(Task[Stacked]):
    """The architecture with layers of one kind."""

    kind: Kind
    architecture: Architecture

    @property
    def outcome(self) -> type[Stacked]:
        return Stacked

    def description(self) -> dict[str, Any]:
        sizes = asdict(self.architecture)
        return {
            "name": self.name,
            "model": self.kind,
            "architecture": {name: list(v) if isinstance(v, tuple) else v for name, v in sizes.items()},
            "config": self.config.description(),
        }

    def network(self) -> nn.Sequential:
        """The network at its start."""
        return self.architecture.build(self.kind, self.config.seed)

    def work(self, data: ImageData, folder: Path, *, progress: Show) -> Stacked:
        own, net = shaped(data, self.architecture.in_shape), self.network()
        watched = replace(own, test_images=own.test_images[:WATCHED], test_labels=own.test_labels[:WATCHED])
        history = fit(net, watched, self.config, folder=folder, resume=True, progress=progress, name=self.name)
        trained = time.perf_counter()
        cost = self.relative_seconds(net, own)
        with bar(self.name, 1, show=progress) as shown:
            shown.line("trained; certified accuracy and attacks are next")
        plain = exported(net.eval(), self.architecture.in_shape)
        save(plain, folder / "network.safetensors")
        proved = prove(plain, own, bounded=self.kind != "plain", seed=self.config.seed, progress=progress)
        proved = replace(proved, parameters=sum(parameter.numel() for parameter in net.parameters()))
        return Stacked(
            row=self.description(),
            seconds=sum(epoch.seconds for epoch in history) + time.perf_counter() - trained,
            seconds_per_epoch=statistics.median(epoch.seconds for epoch in history),
            relative_seconds=cost,
            lost_batches=sum(epoch.lost for epoch in history),
            history=[asdict(epoch) for epoch in history],
            proved=proved,
        )

    def relative_seconds(self, net: nn.Module, data: ImageData) -> float:
        """The time of a training step as a multiple of that of the plain layers."""
        if self.kind == "plain":
            return 1.0
        plain = self.architecture.build("plain", self.config.seed)
        return relative_seconds(net, plain, data, replace(self.config, augment=None), WIDE + 1)


def prove(net: Sequential, data: ImageData, *, bounded: bool, seed: int, progress: Show) -> Proved:
    """All that the report says of a trained network, from its weights: nothing here trusts how they were made."""
    show = False if progress == "lines" else progress
    for module in net.modules():
        if isinstance(module, BaseNetwork):
            module.solver = PeacemanRachford(tolerance=EVALUATION_TOLERANCE)
    x, y = pixels(data.test_images), data.test_labels
    error, unanswered = error_rate(net, data.test_images, y)
    certified = bound = None
    if bounded:
        bound = net.bound()
        found = certified_accuracy(net, x, y, RADII, domain="pixels", progress=show is True)
        certified = found.accuracy.tolist()
    few = slice(min(len(y), ATTACKED))
    attacked = attack(
        net, x[few], y[few], RADII, domain="pixels", steps=_STEPS, restarts=1, seed=seed, progress=show
    )  # fmt: skip
    return Proved(
        error=error,
        unanswered=unanswered,
        parameters=sum(parameter.numel() for parameter in net.parameters()),
        bound=bound,
        radii=list(RADII),
        certified=certified,
        attacked=(1 - attacked.error).tolist(),
        attacked_images=len(y[few]),
    )


def shaped(data: ImageData, shape: tuple[int, int, int]) -> ImageData:
    """The data with images of that shape in place of rows."""
    changed = {name: getattr(data, name).reshape(-1, *shape) for name in ("train_images", "test_images")}
    return replace(data, **changed)


def rows(dataset: Dataset) -> list[Layers]:
    """The rows for one data set: all are trained with the same margin, but the last, which is trained with EMMA's.

    The plain one has a learning rate of its own.
    """
    if dataset == "svhn":
        return list(_table(SVHN, replace(_CYCLE, loss=CrossEntropy(2.0), augment="shift")))
    return list(_table(CIFAR, replace(_CYCLE, loss=CrossEntropy(1.5), augment="flip and shift")))


def _table(architecture: Architecture, config: TrainConfig) -> Iterator[Layers]:
    kinds: dict[str, Kind] = {
        "plain": "plain",
        "orthogonium": "orthogonium",
        "SLL": "SLL",
        "sandwich": "sandwich",
        "equilibrium": "equilibrium",
        "mix": "mix",
    }
    for name, kind in kinds.items():
        own = replace(config, learning_rate=_PLAIN_RATE) if kind == "plain" else config
        yield Layers(name=name, kind=kind, architecture=architecture, config=own)
    emma = replace(config, loss=margins(architecture, 2 * RADII[0]))
    yield Layers(name="mix EMMA", kind="mix", architecture=architecture, config=emma)


def margins(architecture: Architecture, radius: float) -> Loss:
    """EMMA's margins for a radius in pixels: two logits of a network of the bound gamma move by sqrt(2) gamma."""
    return Emma(radius, 2**0.5 * architecture.gamma / architecture.std)


def reproduce(plan: Plan, dataset: Dataset = "svhn", only: Sequence[str] = ()) -> list[Stacked]:
    """Run all rows, or `only` some; a short plan: small networks on the embedded part of MNIST."""
    checks.choice("dataset", dataset, ("svhn", "cifar10"))
    command = "lben reproduce layers"
    if plan.short:
        return plan.run(quick(), embedded_mnist(), "Layers, small and on MNIST, quick", command, STUDY, only)
    command += f" --dataset {dataset}"
    data = svhn(plan.root) if dataset == "svhn" else cifar10(plan.root)
    title = "Layers on " + ("SVHN" if dataset == "svhn" else "CIFAR-10")
    return plan.run(rows(dataset), data, title, command, STUDY, only)


def quick(epochs: int = 2) -> list[Layers]:
    """The rows with few channels and epochs, for the embedded digits."""
    config = replace(_CYCLE, epochs=epochs, loss=CrossEntropy(1.0))
    return list(_table(SMALL, config))
