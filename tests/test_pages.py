"""What the pages show runs as it stands: python blocks in order, page by page, and the commands between them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import typer

from lben.cli.main import app
from tests.problems import ROOT

FENCE = re.compile(r"^ *```(python|sh)\n(.*?)^ *```$", re.M | re.S)
DOCS = ROOT / "docs"
FOLDERS = (DOCS / "howto", DOCS / "guide")
PAGES = [ROOT / "README.md", DOCS / "start.md", *sorted(page for folder in FOLDERS for page in folder.glob("*.md"))]
LONG = {"README", "start", "sklearn", "certificate", "depth", "imported", "local", "ode", "recurrent"}
LINKED = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The kind and the text of every block that can run."""
    return [(kind, textwrap.dedent(text)) for kind, text in FENCE.findall(page.read_text())]


def python_blocks(page: Path) -> list[str]:
    return [text for kind, text in blocks(page) if kind == "python"]


def commands(page: Path) -> list[list[str]]:
    """The words behind `lben` of every line that calls it."""
    lines = [line for kind, text in blocks(page) if kind == "sh" for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("lben ")]


def cases(pages: list[Path]) -> list[object]:
    """Those that take more than some seconds are slow."""
    return [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in LONG else []) for page in pages]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", cases([page for page in PAGES if python_blocks(page)]))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for number, text in enumerate(python_blocks(page)):
            exec(compile(text, f"{page.name}, block {number}", "exec"), names)


def test_the_readme_shows_what_start_shows() -> None:
    first = python_blocks(DOCS / "start.md")[0]
    assert python_blocks(ROOT / "README.md") == [first]
    assert len(first.splitlines()) <= 17


def test_commands_of_the_pages_have_options_that_exist() -> None:
    seen = 0
    for words in (words for page in [*PAGES, DOCS / "results" / "studies.md"] for words in commands(page)):
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, words
        seen += 1
    assert seen > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", ["start.md", "howto/data.md", "howto/resume.md"])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path) -> None:
    page = DOCS / name
    if name == "howto/data.md":  # the table that the commands read
        table = next(text for text in python_blocks(page) if "houses.csv" in text)
        subprocess.run([sys.executable, "-c", table], cwd=tmp_path, check=True)
    for words in commands(page):
        run = subprocess.run([sys.executable, "-m", "lben", *words], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, (words, run.stdout[-2000:], run.stderr[-2000:])


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_the_version_is_said_once_and_repeated_truly() -> None:
    def found(file: str, pattern: str) -> str:
        match = re.search(pattern, (ROOT / file).read_text(), re.M)
        assert match, file
        return match[1]

    said = found("pyproject.toml", r'^version = "(.+)"$')
    assert found("CITATION.cff", r"^version: (.+)$") == said
    assert found("CHANGELOG.md", r"^## \[(\d.+?)\] - \d{4}-\d{2}-\d{2}$") == said
    assert found("CHANGELOG.md", rf"^## \[{re.escape(said)}\] - (.+)$") == found(
        "CITATION.cff", r"^date-released: (.+)$"
    )
