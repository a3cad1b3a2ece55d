"""The tutorials run as they are printed, and what their cells assert is true."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from tests.problems import ROOT

FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("[0-9]*.md"))
QUICKEST = [FOLDER / "10-deployment.md"]
CELL = re.compile(r"^```\{code-cell\} python\n(?::tags: \[[\w-]+\]\n)?(.*?)^```$", re.S | re.M)


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def run(path: Path) -> int:
    """Execute all cells in one namespace, and draw every figure that they make; how many figures there were."""
    mpl.use("Agg")
    with mpl.rc_context():
        names: dict[str, object] = {"__name__": "__main__"}
        for number, cell in enumerate(CELL.findall(path.read_text("utf-8"))):
            exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)
        figures = [plt.figure(number) for number in plt.get_fignums()]
        for figure in figures:
            figure.canvas.draw()
        plt.close("all")
    return len(figures)


def test_there_are_ten_and_the_index_has_their_titles_in_order() -> None:
    index = (FOLDER / "index.md").read_text("utf-8")
    titles = [(re.findall(r"^# (.*)$", path.read_text("utf-8"), re.M)[0], path.name) for path in TUTORIALS]
    assert len(titles) == 10
    assert re.findall(r"^\d+\. \[(.*?)\]\((.*?)\): .*\?$", index, re.M) == titles
    assert re.findall(r"^(\d\d-\S+)$", index, re.M) == [path.stem for path in TUTORIALS]


@each(TUTORIALS)
def test_a_tutorial_goes_from_a_question_to_what_to_try_next(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "format_name: myst\n" in text.split("---")[1]
    assert re.search(r"^# [^\n]*\n\n\*\*Your question\.\*\* \*[^*]*\?\*\n", text, re.M)
    headings = re.findall(r"^## (.*)$", CELL.sub("", text), re.M)
    assert headings[-1] == "What to try next"
    assert text.rsplit("## What to try next", 1)[1].count("\n- ") >= 3
    linked = re.findall(r"\]\((\S+?\.md)\)", text)
    assert [name for name in linked if not (FOLDER / name).exists()] == []


@each(TUTORIALS)
def test_the_cells_compile_assert_and_share_one_look(path: Path) -> None:
    text = path.read_text("utf-8")
    cells = CELL.findall(text)
    assert len(cells) == text.count("```{code-cell}") >= 8
    for cell in cells:
        compile(cell, path.name, "exec")
        assert max(map(len, cell.splitlines())) <= 100
    assert cells[0] == CELL.findall(TUTORIALS[0].read_text("utf-8"))[0]
    assert sum(cell.count("assert ") for cell in cells) >= 3
    assert not re.search(r"\b_[a-z]\w*\.|\._[a-z]", "".join(cells)), "a private name"


@each(QUICKEST)
def test_the_quickest_tutorials_run(path: Path) -> None:
    assert run(path) >= 1


@pytest.mark.slow
@each(TUTORIALS)
def test_every_tutorial_runs(path: Path) -> None:
    assert run(path) >= 1
