"""What all measurements share: interleaved repeats, and a ratio as a row of the report."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One ratio: how long `what` takes relative to `against`; `target` is the most it may be."""

    what: str
    against: str
    ratio: float
    low: float
    high: float
    target: float | None = None
    note: str = ""


def interleave(steps: dict[str, Step], repeats: int = 80, block: int = 10) -> dict[str, list[float]]:
    """Seconds a step, in blocks of equal steps that take turns, so that a slow moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        for name, step in steps.items():
            started = time.perf_counter()
            for _ in range(block):
                step()
            if repeat > 1:
                times[name].append((time.perf_counter() - started) / block)
    return times


def compare(times: dict[str, list[float]], what: str, against: str, target: float | None = None, note: str = "") -> Row:
    """The median and the quartiles of the paired ratios."""
    ratios = [a / b for a, b in zip(times[what], times[against], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Row(what, against, middle, low, high, target, note)
