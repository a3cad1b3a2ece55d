"""Public names called with nonsense: a result or an LbenError, soon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversary.guard import run


def test_nonsense_is_refused_by_name(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    run("calls", "tests.adversary.fuzzing", 0, 250, tmp_path, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_much_nonsense_is_refused_by_name(
    part: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run("calls", "tests.adversary.fuzzing", 10_000 + 1000 * part, 1000, tmp_path, record_property)
