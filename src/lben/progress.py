"""Progress bars for long work, where the caller asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from lben.extras import need

Item = TypeVar("Item")


def track(items: Iterable[Item], description: str, total: int, *, show: bool) -> Iterator[Item]:
    """The items, with a bar if `show`."""
    if not show:
        yield from items
        return
    bar = need("rich.progress", "progress=True", extra="experiments").track
    yield from bar(items, description, total)
