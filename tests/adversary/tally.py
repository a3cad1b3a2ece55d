"""What an adversary has tried, and what it has found: counts that are printed, and failures by class."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

import lben

Result = TypeVar("Result")
_SHOWN = 3  # failures of one class that are written out


@dataclass
class Tally:
    """Counts under the name of one part, and the failures found, each with all it takes to see it again."""

    part: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def fail(self, kind: str, message: str) -> None:
        self.counts["failures"] += 1
        self.failures.setdefault(kind, []).append(message)

    def attempt(self, kind: str, where: str, call: Callable[[], Result]) -> Result | None:
        """What a call returns; None where the library refuses, or fails by an error that is not its own."""
        try:
            return call()
        except lben.LbenError:
            self.count("refused")
        except Exception as error:  # everything else is what is looked for
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{kind}: {type(error).__name__} at {place.filename.split('/')[-1]}:{place.name}"
            self.fail(name, f"{where}: {type(error).__name__}: {error}")
        return None

    def merge(self, counts: dict[str, int], failures: dict[str, list[str]]) -> None:
        self.counts.update(counts)
        for kind, messages in failures.items():
            self.failures.setdefault(kind, []).extend(messages)

    def finish(self, record_property: Callable[[str, object], None]) -> None:
        """Hand the counts to the summary, and fail if anything was found."""
        self.counts["failures"] += 0
        record_property("adversary", json.dumps([self.part, self.counts]))
        if self.failures:
            raise AssertionError("\n".join(self.report()))

    def report(self) -> Iterable[str]:
        yield f"{self.part}: {self.counts['failures']} failures in {len(self.failures)} classes ({dict(self.counts)})"
        for kind, messages in sorted(self.failures.items()):
            yield f"== {kind}: {len(messages)} times"
            yield from (f"   {message}" for message in messages[:_SHOWN])


def show(record: Any) -> str:
    """Weights, to the last bit, as Python can read them."""
    parts = {name: value for name, value in vars(record).items() if value is not None}
    return ", ".join(f"{name}={v.tolist() if isinstance(v, Tensor) else v!r}" for name, v in parts.items())


def total(properties: Iterable[tuple[str, object]]) -> dict[str, Counter[str]]:
    """The counts of all parts, from what tests have recorded."""
    found: dict[str, Counter[str]] = {}
    for name, value in properties:
        if name == "adversary":
            part, counts = json.loads(str(value))
            found.setdefault(part, Counter()).update(counts)
    return found


def single_thread() -> None:
    """Small matrices gain nothing from threads, and results do not depend on their number."""
    torch.set_num_threads(1)
