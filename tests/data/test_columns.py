"""The file of a network knows its columns, and nothing that is none is taken for one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import lben
from lben.data import Column, Columns, Target, read_columns
from lben.disk import read_tensors, write_tensors

COLUMNS = Columns((Column("a"), Column("b", ("x", "y"))), (Target("t", ("u", "v", "w")),))


def saved(folder: Path) -> Path:
    torch.manual_seed(0)
    lben.save(lben.LBEN(3, 4, 3, gamma=1.0), folder / "net", columns=COLUMNS)
    return folder / "net"


def test_a_file_knows_its_columns(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert read_columns(path) == COLUMNS
    assert lben.load(path).gamma == 1.0
    lben.save(lben.load(path), tmp_path / "without")
    assert read_columns(tmp_path / "without") is None
    with pytest.raises(lben.InvalidInput, match="3 inputs and 3 outputs, but the network has 2 and 3"):
        lben.save(lben.LBEN(2, 4, 3), tmp_path / "other", columns=COLUMNS)
    with pytest.raises(lben.InvalidInput, match="dense"):
        lben.save(lben.Sequential(torch.nn.Linear(3, 3)), tmp_path / "other", columns=COLUMNS)
    assert not (tmp_path / "other").exists()


def hostile(change: str) -> Any:
    made: Any = COLUMNS.describe()
    first, text, target = made["inputs"][0], made["inputs"][1], made["targets"][0]
    {
        "no inputs": lambda: made.update(inputs=[]),
        "no list": lambda: made.update(inputs="ab"),
        "more": lambda: made.update(code="print()"),
        "less": lambda: target.pop("std"),
        "twice": lambda: first.update(name="b"),
        "unprintable": lambda: first.update(name="\x1b[2Ja"),
        "no name": lambda: first.update(name=None),
        "one text": lambda: text.update(texts=["x"]),
        "same texts": lambda: text.update(texts=["x", "x"]),
        "numbers as texts": lambda: text.update(texts=[1, 2]),
        "another width": lambda: text.update(texts=["x", "y", "z"]),
        "many": lambda: text.update(texts=[str(n) for n in range(10**4)]),
        "fewer classes": lambda: target.update(classes=["u", "v"]),
        "classes with a std": lambda: target.update(std=2.0),
        "nan": lambda: target.update(classes=None, std=math.nan),
        "zero": lambda: target.update(classes=None, std=0.0),
        "infinite": lambda: target.update(classes=None, mean=math.inf),
        "deep": lambda: made.update(targets=[[[[[]]]]]),
    }[change]()
    return made


CHANGES = ["no inputs", "no list", "more", "less", "twice", "unprintable", "no name", "one text", "same texts"]
CHANGES += ["numbers as texts", "many", "classes with a std", "nan", "zero", "infinite", "deep"]


@pytest.mark.parametrize("change", [*CHANGES, "another width", "fewer classes"])
def test_hostile_columns_are_refused(change: str, tmp_path: Path) -> None:
    description, tensors = read_tensors(saved(tmp_path), "lben", "a network")
    write_tensors(tmp_path / "bad", "lben", {**description, "columns": hostile(change)}, tensors)
    with pytest.raises(lben.InvalidFile):
        lben.load(tmp_path / "bad")
    if change in CHANGES:
        with pytest.raises(lben.InvalidFile):
            read_columns(tmp_path / "bad")
