"""The paper's studies: rows that are trained, certified and attacked, beside what the paper reports of them."""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lben.data import ImageData
from lben.experiments.baselines import FeedForward
from lben.experiments.measure import EVALUATION_TOLERANCE, RADII, Measured, measure, relative_seconds
from lben.experiments.reading import record
from lben.experiments.running import Outcome, Run, Task, read_description, read_results
from lben.files import save
from lben.networks.base import BaseNetwork
from lben.progress import Show, bar
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train import Epoch, fit


@dataclass(frozen=True)
class Published:
    """A row of the paper's table: errors in per cent, bounds as the paper states them."""

    error: float | None = None
    attacked_5: float | None = None
    attacked_10: float | None = None
    upper: float | None = None
    lower: float | None = None


@dataclass(frozen=True)
class Result(Outcome):
    """What is known of one row, and what was measured."""

    measured: Measured

    def __post_init__(self) -> None:
        super().__post_init__()
        self.published  # noqa: B018 (raises where it is no such thing)

    @property
    def error(self) -> float:
        return self.measured.error

    @property
    def published(self) -> Published:
        """What the paper reports."""
        return record(Published, self.row.get("published") or {})


@dataclass(frozen=True, kw_only=True)
class Row(Task[Result]):
    """One model of a study: what it is, how it is trained, and what the paper reports of it."""

    gamma: float | None = None
    hidden: int = 80
    published: Published | None = None
    radii: tuple[float, ...] = RADII

    @property
    def outcome(self) -> type[Result]:
        return Result

    @abstractmethod
    def network(self) -> BaseNetwork | FeedForward:
        """The network at its start, which `config.seed` decides."""

    def prepare(self, data: ImageData) -> ImageData:
        """The data as this model takes them."""
        return data

    def train(self, net: BaseNetwork | FeedForward, data: ImageData, folder: Path, *, progress: Show) -> list[Epoch]:
        """Train the network, from where an earlier call in this folder was interrupted."""
        return fit(net, data, self.config, folder=folder, resume=True, progress=progress, name=self.name)

    def relative_seconds(self, net: BaseNetwork | FeedForward, data: ImageData, history: list[Epoch]) -> float:
        """The time of an epoch as a multiple of a plain network's."""
        w = net.weights()
        plain = FeedForward(w.in_features, w.hidden_features, w.out_features, normalize=net.normalize)
        return relative_seconds(net, plain, data, self.config, w.hidden_features)

    def description(self) -> dict[str, Any]:
        """The row as plain values, by which a result recognises it."""
        return {
            "name": self.name,
            "model": type(self).__name__,
            "gamma": self.gamma,
            "hidden": self.hidden,
            "published": None if self.published is None else asdict(self.published),
            "config": self.config.description(),
        }

    def work(self, data: ImageData, folder: Path, *, progress: Show) -> Result:
        own, net = self.prepare(data), self.network()
        history = self.train(net, own, folder, progress=progress)
        trained = time.perf_counter()
        cost = self.relative_seconds(net, own, history)
        if isinstance(net, BaseNetwork):
            net.solver = PeacemanRachford(tolerance=EVALUATION_TOLERANCE)
            save(net, folder / "network.safetensors")
        with bar(self.name, 1, show=progress) as shown:
            shown.line("trained; bounds, certified accuracy and attacks are next")
        seed = self.config.seed
        measured = measure(net.eval(), own, gamma=self.gamma, radii=self.radii, seed=seed, progress=progress)
        return Result(
            row=self.description(),
            measured=measured,
            seconds=sum(epoch.seconds for epoch in history) + time.perf_counter() - trained,
            seconds_per_epoch=statistics.median(epoch.seconds for epoch in history),
            relative_seconds=cost,
            lost_batches=sum(epoch.lost for epoch in history),
            history=[asdict(epoch) for epoch in history],
        )


def read_run(folder: str | Path) -> tuple[Run, list[Result]]:
    """A run of the paper's rows and the results that it has so far, in their order."""
    run = read_description(folder)
    return run, read_results(folder, run, Result)


def start_from(net: nn.Module, start: nn.Module) -> None:
    """Give a network the parameters of another, all that it has; those that the other has not stay."""
    with torch.no_grad():
        for name, parameter in start.named_parameters():
            net.get_parameter(name).copy_(parameter)
