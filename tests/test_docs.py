"""The documents name what exists."""

from __future__ import annotations

import pkgutil
import re

import lben
from tests.problems import ROOT


def test_every_test_that_the_theory_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "theory.md").read_text()))
    files = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    here = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 30
    assert named <= here, named - here


def test_every_function_that_the_theory_names_exists() -> None:
    text = (ROOT / "docs" / "theory.md").read_text()
    for path in re.findall(r"`(lben\.[\w.]+)", text):
        pkgutil.resolve_name(path)
    section = text[text.index("## The neural ODE") : text.index("### Why the parabola")]
    for name in re.findall(r"`ODE\.(\w+)", section):
        assert hasattr(lben.ODE, name), name
