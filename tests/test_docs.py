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


def test_what_a_page_includes_it_links_to() -> None:
    """GitHub shows the name of what is included, and nothing of it: a reader there needs a link."""
    found = 0
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        for path in re.findall(r"^```{include} (\S+)", text, re.M):
            found += 1
            assert f'<a href="{path}">' in text, f"{page.name} includes {path}"
    assert found >= 8


def test_every_file_that_the_plan_of_the_house_names_exists() -> None:
    places = [ROOT, ROOT / "src", ROOT / "src" / "lben"]
    for page, least in (("docs/architecture.md", 40), ("CONTRIBUTING.md", 15)):
        named = set(re.findall(r"`([\w.]+(?:/[\w.]*)+|\w+\.py)`", (ROOT / page).read_text()))
        assert len(named) >= least
        assert [path for path in sorted(named) if not any((place / path).exists() for place in places)] == [], page


def test_every_room_is_in_the_plan_of_the_house() -> None:
    plan = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    rooms = [path.parent.name for path in (ROOT / "src" / "lben").glob("*/__init__.py")]
    files = [path.name for path in (ROOT / "src" / "lben").glob("*.py") if not path.name.startswith("__")]
    assert [name for name in (*rooms, *files) if not re.search(rf"(?:^|[ │]){re.escape(name)}(?=\s)", plan, re.M)] == []


def test_every_function_that_the_theory_names_exists() -> None:
    text = (ROOT / "docs" / "theory.md").read_text()
    for path in re.findall(r"`(lben\.[\w.]+)", text):
        pkgutil.resolve_name(path)
    section = text[text.index("## The neural ODE") : text.index("### Why the parabola")]
    for name in re.findall(r"`ODE\.(\w+)", section):
        assert hasattr(lben.ODE, name), name
