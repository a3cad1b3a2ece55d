"""The house stays one that can be seen at a glance: few rooms, short files, no circles. Layers: `make lint`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lben
from tests.problems import ROOT

SOURCE = Path(lben.__file__).parent
FOLDERS = ("src", "tests", "benchmarks", "examples", "scripts")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
MODULES = {
    ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in SOURCE.rglob("*.py")
}
ROOMS = sorted(file.parent for file in SOURCE.glob("*/__init__.py"))


def test_the_rooms_are_few() -> None:
    # Folders that hold Python: a room is what others import from, and nothing imports the JavaScript of pages.
    assert len({file.parent for file in SOURCE.rglob("*.py")} - {SOURCE}) <= 15
    assert len(list(SOURCE.glob("*.py"))) <= 12


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_says_in_one_sentence_what_belongs_there(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    assert said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file: Path) -> None:
    """Without docstrings: `help` alone must be enough, and what explains does not tangle."""
    text = file.read_text()
    tree = ast.parse(text)
    assert text.count("\n") - said(tree) <= 350
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno - said(node) < 60, node.name


def said(tree: ast.AST) -> int:
    """How many lines of it are docstrings, be they of modules, classes, functions or what was assigned above."""
    spans = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in spans)


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def test_nothing_is_imported_late_but_behind_an_extra() -> None:
    """The command line needs packages that are no requirements, and is imported when it is called; others: `need`."""
    late = set()
    for name, file in MODULES.items():
        tree = ast.parse(file.read_text())
        first = {id(node) for node in tree.body}
        late |= {name for node in imports(tree) if id(node) not in first}
    assert late == {"lben.__main__"}


def test_no_file_imports_itself_through_others() -> None:
    needs = {}
    for name, file in MODULES.items():
        wanted = set()
        for node in imports(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lben":
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {module if module in MODULES else node.module for module in full}
        needs[name] = wanted - {"lben", name}  # `import lben` is for the command line, which nothing imports
    free: set[str] = set()
    while more := {name for name, wanted in needs.items() if name not in free and wanted <= free}:
        free |= more
    assert free == set(MODULES), "in a circle, or above one"
