"""Public names called with nonsense: a result or an LbenError, soon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversary import guard
from tests.adversary.tally import Tally


def run(first: int, count: int, folder: Path, record_property: Callable[[str, object], None]) -> None:
    tally = Tally("calls")
    guard.run(tally, "tests.adversary.fuzzing", first, count, folder)
    tally.finish(record_property)


def test_nonsense_is_refused_by_name(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    run(0, 500, tmp_path, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_much_nonsense_is_refused_by_name(
    part: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run(10_000 + 1000 * part, 1000, tmp_path, record_property)
