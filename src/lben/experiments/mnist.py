"""The paper's study of MNIST, Table `MNIST_results`: its rows, and the recipes by which they are trained."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from lben.data import MNIST_MEAN, MNIST_STD, ImageData, embedded_mnist, mnist
from lben.errors import InvalidInput
from lben.experiments.baselines import LMT, FeedForward, LipschitzMargin, pool, train_lipnn
from lben.experiments.measure import TRAINING_TOLERANCE
from lben.experiments.regions import reproduce_regions
from lben.experiments.running import Plan
from lben.experiments.study import Published, Result, Row, start_from
from lben.networks.base import BaseNetwork
from lben.networks.dense import LBEN, MON, EquilibriumNetwork, UnconstrainedEN
from lben.normalize import Normalize
from lben.progress import Show
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train import CrossEntropy, Epoch, TrainConfig, fit

Recipe = Literal["paper", "ours", "certified"]
ROUND = 2
"""Epochs of Lip-NN between two semidefinite programs."""
PENALTY = 1e-3
"""Of Lip-NN: with 1 the first feasible weights hold training back, and it ends with 5 % error far below its bound."""
GREY_LEVELS = 255.0
"""LMT's c is a distance in grey levels of 255: read as one at the network's input, c = 100 learns nothing at all."""


@dataclass(frozen=True, kw_only=True)
class Equilibrium(Row):
    """An LBEN, MON or unconstrained network; all of one seed start at one and the same point, with Lambda = I."""

    kind: Literal["LBEN", "MON", "UNC"] = "LBEN"
    epsilon: float = 1.0

    def description(self) -> dict[str, Any]:
        """With epsilon where it is not 1, which results from before it could be chosen do not know."""
        own = {} if self.epsilon == 1.0 else {"epsilon": self.epsilon}
        return {**super().description(), **own}

    def network(self) -> EquilibriumNetwork:
        torch.manual_seed(self.config.seed)
        sizes = (784, self.hidden, 10)
        normalize, solver = _normalize(), PeacemanRachford(tolerance=TRAINING_TOLERANCE)
        start = MON(*sizes, normalize=normalize, solver=solver)
        if self.kind == "MON":
            return start
        if self.kind == "UNC":
            return UnconstrainedEN.from_weights(start.weights(), normalize=normalize, solver=solver)
        net = LBEN(*sizes, gamma=self.gamma, epsilon=self.epsilon, normalize=normalize, solver=solver)
        start_from(net, start)
        return net


@dataclass(frozen=True, kw_only=True)
class Plain(Row):
    """A network with one hidden layer and no bound."""

    def network(self) -> FeedForward:
        torch.manual_seed(self.config.seed)
        return FeedForward(784, self.hidden, 10, normalize=_normalize())


@dataclass(frozen=True, kw_only=True)
class LipschitzMarginTraining(Row):
    """The same network, trained with the loss that `config` then has to have."""

    def network(self) -> FeedForward:
        torch.manual_seed(self.config.seed)
        return LMT(784, self.hidden, 10, normalize=_normalize())


@dataclass(frozen=True, kw_only=True)
class LipNN(Row):
    """A plain network on 14 x 14 pixels, trained under LipSDP; `config.epochs` in all."""

    def network(self) -> FeedForward:
        torch.manual_seed(self.config.seed)
        return FeedForward(196, self.hidden, 10, normalize=_normalize())

    def prepare(self, data: ImageData) -> ImageData:
        return pool(data)

    def train(self, net: BaseNetwork | FeedForward, data: ImageData, folder: Path, *, progress: Show) -> list[Epoch]:
        assert isinstance(net, FeedForward)
        assert self.gamma is not None
        history, rounds = train_lipnn(
            net,
            data,
            self.gamma,
            rounds=-(-self.config.epochs // ROUND),
            epochs=ROUND,
            penalty=PENALTY,
            config=self.config,
            folder=folder,
            resume=True,
            progress=progress,
            name=self.name,
        )
        programs = [one.program_seconds / ROUND for one in rounds for _ in range(ROUND)]
        return [replace(row, seconds=row.seconds + extra) for row, extra in zip(history, programs, strict=True)]

    def relative_seconds(self, net: BaseNetwork | FeedForward, data: ImageData, history: list[Epoch]) -> float:
        """An epoch with its share of a program, beside one without."""
        plain = fit(self.network(), data, replace(self.config, epochs=1), progress=False)[0].seconds
        return statistics.median(epoch.seconds for epoch in history) / plain


PAPER = TrainConfig(epochs=40, batch_size=128, learning_rate=1e-3, schedule="step", step_epochs=10, step_factor=0.1)
"""The paper's training (its learning rate is misprinted as 1e3)."""
OURS = TrainConfig(epochs=15, batch_size=128, learning_rate=5e-3, schedule="one-cycle")
LIPNN = TrainConfig(epochs=20, batch_size=128, learning_rate=1e-3, schedule="constant")


def rows(recipe: Recipe = "paper") -> list[Row]:
    """The rows of a recipe: the paper's table by the paper's training or by ours, or networks for certified accuracy.

    "paper" and "ours" also train a plain network, for scale; "certified" has one network for each radius.
    """
    if recipe not in get_args(Recipe):
        raise InvalidInput(f"recipe must be one of {', '.join(get_args(Recipe))}, not {recipe!r}.")
    if recipe == "certified":
        return list(_certified())
    return list(_table(PAPER if recipe == "paper" else OURS))


def _table(config: TrainConfig) -> Iterator[Row]:
    """Table `MNIST_results`, with what the paper reports, and a plain network."""
    yield Equilibrium(name="LBEN γ<∞", config=config, published=Published(2.03, 56.0, 82.0, None, 9.8))
    for gamma, published in (
        (5.0, Published(1.81, 46.4, 95.4, 5.0, 2.912)),
        (1.0, Published(2.36, 19.4, 85.5, 1.0, 0.865)),
        (0.8, Published(2.59, 17.4, 80.1, 0.8, 0.715)),
        (0.4, Published(4.44, 16.1, 65.0, 0.4, 0.372)),
        (0.2, Published(7.41, 14.4, 42.6, 0.2, 0.184)),
    ):
        yield Equilibrium(name=f"LBEN γ={gamma:g}", config=config, gamma=gamma, published=published)
    yield Equilibrium(name="MON", config=config, kind="MON", published=Published(2.04, 55.8, 88.6, None, 7.75))
    yield Equilibrium(name="UNC", config=config, kind="UNC", published=Published(2.08, 48.75, 77.9, None, 239.0))
    for c, published in (
        (1, Published(2.3, 59.4, 88.1, None, 17.5)),
        (100, Published(3.4, 65.4, 92.0, None, 7.66)),
        (250, Published(6.92, 61.8, 98.4, None, 6.92)),
        (1000, Published(12.23, 78.4, 98.9, None, 3.10)),
    ):
        margin = replace(config, loss=LipschitzMargin(c / GREY_LEVELS))
        yield LipschitzMarginTraining(name=f"LMT c={c}", config=margin, published=published)
    yield LipNN(name="Lip-NN", config=LIPNN, gamma=8.74, published=Published(3.55, upper=8.74))
    yield Plain(name="plain", config=config)


def _certified() -> Iterator[Row]:
    """Wide networks with a margin in the loss: one for each of the radii that others report, in pixels.

    The margin is what a perturbation of that size can take from the difference of two logits, sqrt(2) gamma r / 0.3081,
    or more where it costs no accuracy; gamma is then a temperature. `docs/results/README.md` says what was tried.
    """
    far = TrainConfig(epochs=20, batch_size=256, learning_rate=1e-2, schedule="one-cycle", loss=CrossEntropy(4.1))
    near = replace(far, loss=CrossEntropy(5.0))
    yield Equilibrium(name="for 0.3 pixels", config=near, gamma=1.2, hidden=500, epsilon=1e-3)
    yield Equilibrium(name="for 1.58 pixels", config=far, gamma=0.55, hidden=750, epsilon=1e-3)


def reproduce(plan: Plan, recipe: Recipe = "paper") -> list[Result]:
    """Run all rows of a recipe, and the grid of Figure `two_by_two`; a short plan: few epochs on the embedded part."""
    chosen = quick(rows(recipe)) if plan.short else rows(recipe)
    data = embedded_mnist() if plan.short else mnist(plan.root)
    title = f"MNIST, recipe {recipe}" + ", quick" * plan.short
    results = plan.run(chosen, data, title, f"lben reproduce mnist --recipe {recipe}")
    reproduce_regions(plan.folder, progress=plan.progress)
    return results


def quick(rows: Iterable[Row], epochs: int = 4) -> list[Row]:
    """The rows with few epochs and a learning rate for few steps: for the embedded data, and to see that all works."""
    return [replace(row, config=replace(row.config, epochs=epochs, learning_rate=5e-3)) for row in rows]


def _normalize() -> Normalize:
    return Normalize(MNIST_MEAN, MNIST_STD)
