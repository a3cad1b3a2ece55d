"""Measurements of a study with little effort: the same ones, from fewer points and by fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lben.experiments import measure
from lben.experiments.measure import Effort


@contextmanager
def hasty() -> Iterator[None]:
    """Rows that run within this are searched for steep pairs, and timed, briefly."""

    def of(units: int, images: int, *, proved: bool) -> Effort:
        return Effort(images, images, images, restarts=4, climb=20, timed_steps=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure.Effort, "of", staticmethod(of))
        patch.setattr(measure, "_REPEATS", 2)
        yield
