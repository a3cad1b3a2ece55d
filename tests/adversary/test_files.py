"""Files with flipped bits, cut, spliced and crafted: an LbenError or an equal network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversary import guard
from tests.adversary.tally import Tally


def run(first: int, count: int, folder: Path, record_property: Callable[[str, object], None]) -> None:
    tally = Tally("files")
    guard.run(tally, "tests.adversary.crafting", first, count, folder)
    tally.finish(record_property)


def test_damaged_files_are_refused_or_equal(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    run(0, 300, tmp_path, record_property)


@pytest.mark.slow
def test_many_damaged_files_are_refused_or_equal(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run(10_000, 5000, tmp_path, record_property)
