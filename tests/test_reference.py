"""`help` is enough: every public name says what its arguments are, and has an example that runs as it is printed."""

from __future__ import annotations

import ast
import doctest
import inspect
import itertools
import re
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer

import lben
import lben.sklearn
from lben.cli.main import app
from tests.problems import ROOT

MODULES = {
    "lben": lben,
    "lben.data": lben.data,
    "lben.train": lben.train,
    "lben.sklearn": lben.sklearn,
    "lben.baselines": lben.baselines,
}
NAMES = {
    f"{prefix}.{name}": getattr(module, name)
    for prefix, module in MODULES.items()
    for name in module.__all__
    if not isinstance(getattr(module, name), ModuleType) and name != "__version__"
}
CALLABLE = {name: thing for name, thing in NAMES.items() if callable(thing) and typing.get_origin(thing) is None}
ASSIGNED = sorted(NAMES.keys() - CALLABLE.keys())
BY_SKLEARN = {"n_features_in_", "feature_names_in_"}
NEVER_RAISE = {"lben.data.embedded_mnist"}
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Examples")
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def bases() -> dict[str, type]:
    """What public classes inherit from within the library, whose docstrings `help` shows as well."""
    classes = {base for thing in CALLABLE.values() if inspect.isclass(thing) for base in thing.__mro__}
    private = classes - {thing for thing in CALLABLE.values() if inspect.isclass(thing)}
    return {f"{one.__module__}.{one.__name__}": one for one in private if one.__module__.startswith("lben.")}


SHOWN = {**CALLABLE, **dict(sorted(bases().items()))}
ALL_EXAMPLES: dict[str, Any] = {"lben": lben, **SHOWN}


def section(doc: str, title: str) -> str:
    """The lines of a section, without its title."""
    found = re.search(rf"^{title}:\n((?:(?: .*)?\n?)+)", doc, re.MULTILINE)
    return found.group(1) if found else ""


def described(doc: str) -> set[str]:
    """The names that a docstring describes, each at the head of an entry of its own."""
    entries = section(doc, "Args") + section(doc, "Attributes")
    return set(re.findall(r"^    \*{0,2}(\w+): \S", entries, re.MULTILINE))


def arguments(thing: Any) -> set[str]:
    if inspect.isclass(thing) and (issubclass(thing, BaseException) or getattr(thing, "_is_protocol", False)):
        return set()  # errors are made by the library, and protocols by nobody
    if inspect.isclass(thing) and thing.__init__ is object.__init__:
        return set()
    return set(inspect.signature(thing).parameters) - {"self"}


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Those that are called by name, of the library's own, with what `help` says of them."""
    for name, method in inspect.getmembers(cls, inspect.isroutine):
        own = getattr(method, "__module__", None) or ""
        if not name.startswith("_") and own.startswith("lben."):
            yield name, method


def test_there_are_names() -> None:
    assert len(CALLABLE) > 140
    assert len(ASSIGNED) > 10


@pytest.mark.parametrize("name", CALLABLE)
def test_every_name_has_an_example(name: str) -> None:
    assert ">>> " in section(inspect.getdoc(CALLABLE[name]) or "", "Examples")


@pytest.mark.parametrize("name", CALLABLE)
def test_every_argument_is_described(name: str) -> None:
    doc = inspect.getdoc(CALLABLE[name]) or ""
    assert arguments(CALLABLE[name]) - described(doc) == set()
    assert described(doc) - arguments(CALLABLE[name]) <= extra_names(CALLABLE[name])


@pytest.mark.parametrize("name", [name for name, thing in CALLABLE.items() if inspect.isfunction(thing)])
def test_every_function_says_what_it_returns_and_raises(name: str) -> None:
    doc = inspect.getdoc(CALLABLE[name]) or ""
    assert section(doc, "Returns") or inspect.signature(CALLABLE[name]).return_annotation in (None, "None")
    assert section(doc, "Raises") or name in NEVER_RAISE


@pytest.mark.parametrize("name", CALLABLE)
def test_tensors_are_described_with_their_shapes(name: str) -> None:
    thing = CALLABLE[name]
    if arguments(thing):
        signature = inspect.signature(thing)
        annotations = [parameter.annotation for parameter in signature.parameters.values()]
        taken = [*annotations, signature.return_annotation] if inspect.isfunction(thing) else annotations
        assert not any("Tensor" in str(one) for one in taken) or "shape" in (inspect.getdoc(thing) or "")


def extra_names(thing: Any) -> set[str]:
    """What a docstring may describe besides arguments: what instances have."""
    if not inspect.isclass(thing):
        return set()
    made = set(re.findall(r"self\.(\w+)", "".join(inspect.getsource(base) for base in own_bases(thing))))
    seen = {name for name in dir(thing) if not name.startswith("_")}
    return seen | made | set(inspect.get_annotations(thing)) | BY_SKLEARN


def own_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("lben")]


@pytest.mark.parametrize("name", [name for name, thing in CALLABLE.items() if inspect.isclass(thing)])
def test_every_argument_of_a_method_is_described(name: str) -> None:
    missing = {}
    for method, thing in methods(CALLABLE[name]):
        doc = inspect.getdoc(thing) or ""
        wanted = set(inspect.signature(thing).parameters) - {"self"}
        left = wanted - described(doc)
        if left or not doc:
            missing[method] = sorted(left)
    assert missing == {}


@pytest.mark.parametrize("name", SHOWN)
def test_sections_are_those_of_one_format(name: str) -> None:
    for doc in [inspect.getdoc(SHOWN[name]), *docs_of_methods(SHOWN[name])]:
        titles = re.findall(r"^([A-Z][a-z]+):$", doc or "", re.MULTILINE)
        assert set(titles) <= set(SECTIONS)
        assert titles == sorted(titles, key=SECTIONS.index)
        assert (doc or "x")[0] != "\n"


def docs_of_methods(thing: Any) -> list[str]:
    return [inspect.getdoc(method) or "" for _, method in methods(thing)] if inspect.isclass(thing) else []


@pytest.mark.parametrize("name", ALL_EXAMPLES)
def test_examples_run_as_they_are_printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with `lben` and `torch` imported, and torch's random numbers from their beginning."""
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=name != "lben")
    known = {"lben": lben, "torch": torch}
    found = [test for test in finder.find(ALL_EXAMPLES[name], name, globs=known) if test.examples]
    assert found or name in bases()
    for test in found:
        runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), list[str]()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            runner.run(test, out=said.append)
        missing = re.search(r"errors\.(?:MissingExtra: |InvalidInput: (?=Before torch 2\.6))(.*)", "".join(said))
        if missing and name != "lben.MissingExtra":
            pytest.skip(missing.group(1))
        assert runner.failures == 0, "".join(said)


def explained() -> Counter[str]:
    """The names that are assigned somewhere in the library with words behind them."""
    found: Counter[str] = Counter()
    for file in Path(lben.__file__).parent.rglob("*.py"):
        for node, after in itertools.pairwise(ast.parse(file.read_text()).body):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and str(after.value.value)
            if isinstance(node, ast.Assign) and said:
                found.update(getattr(target, "id", "") for target in node.targets)
    return found


def test_what_is_no_class_or_function_is_explained_where_it_is_assigned() -> None:
    found = explained()
    assert {name: found[name.rpartition(".")[2]] for name in ASSIGNED} == dict.fromkeys(ASSIGNED, 1)


def test_every_name_is_on_exactly_one_page() -> None:
    places = Counter(
        path
        for page in PAGES
        for path in re.findall(r"^\.\. auto(?:class|function|exception|data):: (\S+)", page.read_text(), re.MULTILINE)
    )
    assert {path: count for path, count in places.items() if count > 1} == {}
    assert set(places) - set(NAMES) == set()
    assert set(NAMES) - set(places) == set()


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All commands with what they are called by, those within others, too."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")
    if not getattr(command, "commands", {}):
        yield path, command


def test_every_command_is_on_its_page_with_all_its_options() -> None:
    """Its words are those of the help, options within them set as code."""
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    parts = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    known = dict(commands(typer.main.get_command(app), "lben"))
    assert parts.keys() == known.keys()
    for name, command in known.items():
        rows = [line.replace("`", "") for line in parts[name].splitlines() if line.startswith("| `")]
        words = [f"| {label(given)} | {given.help}".replace("`", "") for given in command.params]
        assert len(rows) == len(words), name
        assert [pair for pair in zip(words, rows, strict=True) if not pair[1].startswith(pair[0])] == [], name


def label(given: Any) -> str:
    """What an argument or an option is called on the page."""
    return str(given.name).upper() if given.param_type_name == "argument" else ", ".join(given.opts)
