"""`lben page`, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lben
from lben.data import read_columns
from tests.cli.test_commands import call
from tests.export.test_pages import data_of


@pytest.fixture
def small(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    lben.save(lben.LBEN(2, 3, 1, gamma=1.0), tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def test_a_page_is_written_once(small: Path, tmp_path: Path) -> None:
    other = tmp_path / "deeper"
    other.mkdir()
    lben.save(lben.MON(2, 3, 1), other / "small.safetensors")
    page = tmp_path / "page.html"
    assert call("page", str(small), "-o", str(page)) == f"Written to {page}: open it in a browser.\n"
    assert [net["name"] for net in data_of(page.read_text())["networks"]] == ["small"]
    assert "--force overwrites it" in call("page", str(small), "-o", str(page), code=1)
    call("page", str(small), str(other / "small.safetensors"), "-o", str(page), "--force")
    names = [net["name"] for net in data_of(page.read_text())["networks"]]
    assert names == [str(small), str(other / "small.safetensors")]


def test_two_networks_that_ship_with_lben_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(lben, "write_page", lambda path, networks, columns: shown.append((path, networks, columns)))
    call("page", "--output", str(tmp_path / "page.html"))
    ((path, networks, columns),) = shown
    assert path == tmp_path / "page.html"
    assert list(networks) == ["LBEN, γ = 1", "MON"]
    assert [type(net) for net in networks.values()] == [lben.LBEN, lben.MON]
    assert networks["LBEN, γ = 1"].gamma == 1
    assert columns is None


def test_a_table_gives_its_names_and_units(small: Path, tmp_path: Path) -> None:
    rows = "\n".join(f"{x},{y},{100 + 3 * x - y}" for x in range(8) for y in range(8))
    (tmp_path / "table.csv").write_text(f"length,width,price\n{rows}\n")
    net, page = tmp_path / "net.safetensors", tmp_path / "page.html"
    table = ("--table", str(tmp_path / "table.csv"), "--target", "price")
    call("train", str(net), *table, "--gamma", "2", "--hidden", "5", "--epochs", "2")
    call("page", str(net), "-o", str(page))
    data, known = data_of(page.read_text()), read_columns(net)
    assert known is not None
    assert data["axes"]["inputs"] == ["length", "width"]
    assert (data["axes"]["output"], data["axes"]["std"]) == ("price", known.targets[0].std)
    said = call("page", str(net), str(small), "-o", str(tmp_path / "both.html"), code=1)
    assert "must take the same columns, but" in said
    assert not (tmp_path / "both.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "nowhere is not a file"),
        (("-o", "nowhere/page.html"), "directory that exists"),
        (("-o", "page.pdf"), "'page.pdf' must end in .html"),
        (("{small}", "{small}"), "Each network must be given once"),
    ],
)
def test_errors_are_one_sentence(small: Path, arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    given = [argument.format(small=small) for argument in arguments]
    if "-o" not in given:
        given += ["-o", str(tmp_path / "page.html")]
    said = call("page", *given, code=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1
