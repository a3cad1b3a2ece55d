"""Files with flipped bits, cut, spliced and crafted: an LbenError or an equal network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversary.guard import run


def test_damaged_files_are_refused_or_equal(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    run("files", "tests.adversary.crafting", 0, 60, tmp_path, record_property)


@pytest.mark.slow
def test_many_damaged_files_are_refused_or_equal(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run("files", "tests.adversary.crafting", 10_000, 5000, tmp_path, record_property)
