"""Progress bars for long work, where the caller asks for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lben.extras import need

Item = TypeVar("Item")


def track(items: Iterable[Item], description: str, total: int, *, show: bool | None) -> Iterator[Item]:
    """The items, with a bar if `show`."""
    if not show:
        yield from items
        return
    yield from _rich().track(items, description, total)


class TrainingBar:
    """Progress of a training run, step by step; this one shows nothing."""

    def advance(self, count: int) -> None: ...

    def step(self, loss: float) -> None: ...

    def say(self, state: str) -> None: ...


class _RichTrainingBar(TrainingBar):
    def __init__(self, rich: Any, name: str, total: int) -> None:
        words = "loss {task.fields[loss]:.3f}  {task.fields[state]}"
        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TaskProgressColumn())
        self.progress = rich.Progress(*columns, rich.TextColumn(words), rich.TimeRemainingColumn())
        self.task = self.progress.add_task(name, total=total, loss=math.nan, state="")

    def advance(self, count: int) -> None:
        self.progress.update(self.task, advance=count)

    def step(self, loss: float) -> None:
        self.progress.update(self.task, advance=1, loss=loss)

    def say(self, state: str) -> None:
        self.progress.update(self.task, state=state)


@contextmanager
def training_bar(name: str, total: int, *, show: bool) -> Iterator[TrainingBar]:
    """A bar of so many steps, if `show`."""
    if not show:
        yield TrainingBar()
        return
    bar = _RichTrainingBar(_rich(), name, total)
    with bar.progress:
        yield bar


def _rich() -> Any:
    return need("rich.progress", "progress=True", extra="experiments")
