"""Progress of long work, on stderr: where the caller asks for it, and by itself on a terminal after some seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeVar

from lben.checks import need
from lben.errors import MissingExtra

Show = bool | Literal["lines"] | None
"""What is shown: True, a bar and lines; "lines", those alone; False, nothing.

None: a bar, on a terminal, if rich is installed and the work has taken some seconds; it leaves nothing behind.
"""
PATIENCE = 3.0
"""Seconds before a bar appears that nobody asked for."""
_BAR_WIDTH = 12  # with a name, a share, a sentence and a time beside it, all within 80 columns
Item = TypeVar("Item")


class Bar:
    """Progress of some work; this one shows nothing."""

    def advance(self, count: int = 1, words: str = "") -> None:
        """So much more is done; `words` stand beside the bar, until there are others."""

    def line(self, words: str) -> None:
        """Print a line that stays, above the bar."""


class _RichBar(Bar):
    """A bar drawn by rich; without a terminal, its lines alone."""

    def __init__(self, description: str, total: int, show: Show) -> None:
        rich, console = _rich(), _console()
        self.description, self.lines, self.started = description, show is not None, False
        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(_BAR_WIDTH), rich.TaskProgressColumn())
        self.progress = rich.Progress(
            *columns,
            rich.TextColumn("{task.fields[words]}"),
            rich.TimeRemainingColumn(),
            console=console,
            transient=show is None,
            disable=show == "lines" or not console.is_terminal,
        )
        self.task = self.progress.add_task(description, total=total, words="")
        self.due = time.monotonic() + (PATIENCE if show is None else 0.0)

    def advance(self, count: int = 1, words: str = "") -> None:
        self.progress.update(self.task, advance=count, **({"words": words} if words else {}))
        if not self.started and time.monotonic() >= self.due:
            self.started = True
            self.progress.start()

    def line(self, words: str) -> None:
        if self.lines:
            self.progress.console.print(f"{self.description}: {words}", soft_wrap=True, markup=False, highlight=False)

    def stop(self) -> None:
        if self.started:
            self.progress.stop()


@contextmanager
def bar(description: str, total: int, *, show: Show) -> Iterator[Bar]:
    """A bar for so many steps, as far as `show` wants one."""
    if show is False or (show is None and not _seen()):
        yield Bar()
        return
    shown = _RichBar(description, total, show)
    try:
        yield shown
    finally:
        shown.stop()


def track(items: Iterable[Item], description: str, total: int, *, show: Show) -> Iterator[Item]:
    """The items, with a bar, as far as `show` wants one."""
    with bar(description, total, show=show) as shown:
        for item in items:
            yield item
            shown.advance()


def _seen() -> bool:
    """Whether somebody may be looking, and there is something to draw with."""
    try:
        return bool(_console().is_terminal)
    except MissingExtra:
        return False


@cache
def _console() -> Any:
    """One for all bars, so that rich knows of those within others."""
    return need("rich.console", "progress", extra="experiments").Console(stderr=True)


def _rich() -> Any:
    return need("rich.progress", "progress", extra="experiments")
