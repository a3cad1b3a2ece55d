"""Tables: read alike from every kind of file, encoded so that nothing is lost, and refused by row and column."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lben
from lben.data import Columns, Table, Target, columns_of, read_table, table_data

NAMES = ["length", "in, width", "colour", "n"]
ROWS = [
    [1.5, -2e3, "red", 0],
    [2.5, 4.0, 'a "deep" blue', 1],
    [0.25, 1e-9, "red", 2],
    [3.0, 7.125, "grün; hell", 1],
    [3.0, 0.0, "red", 0],
]


def written(path: Path, rows: list[list[Any]], names: list[str] = NAMES, delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, *rows])
    return path


def table(text: str, folder: Path) -> Table:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read_table(path)


def columns_by_name(rows: list[list[Any]]) -> dict[str, Any]:
    return {name: [row[index] for row in rows] for index, name in enumerate(NAMES)}


def in_file(kind: str, folder: Path) -> Path:
    """The same table in one of the ways to write it."""
    path = folder / f"table.{kind.split()[0]}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns_by_name(ROWS)), path)
    elif kind == "parquet of dictionaries":
        made = pyarrow.table(columns_by_name(ROWS))
        colours = made.column("colour").dictionary_encode()
        pyarrow.parquet.write_table(made.set_column(2, "colour", colours), path)
    elif kind == "npz":
        arrays: dict[str, Any] = {name: np.array(values) for name, values in columns_by_name(ROWS).items()}
        np.savez(path, **arrays)
    else:
        written(path, ROWS, delimiter={"tab": "\t", "semicolon": ";", "bar": "|"}.get(kind.split()[-1], ","))
        if "mark" in kind:
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        if "unix" in kind:
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n") + b"\n\n")
    return path


KINDS = ["csv", "csv mark", "csv unix", "csv semicolon", "csv bar", "tsv tab", "npz", "parquet"]


@pytest.mark.parametrize("kind", [*KINDS, "parquet of dictionaries"])
def test_every_kind_of_file_says_the_same(kind: str, tmp_path: Path) -> None:
    found = read_table(in_file(kind, tmp_path))
    assert list(found.columns) == NAMES
    assert len(found) == len(ROWS)
    for index, name in enumerate(NAMES):
        if name == "colour":
            assert found.texts(name) == tuple(row[index] for row in ROWS)
        else:
            assert found.numbers(name).tolist() == [row[index] for row in ROWS]
    columns = columns_of(found, ["n"])
    assert columns == columns_of(read_table(in_file("csv", tmp_path)), ["n"])
    assert columns.targets == (Target("n", ("0", "1", "2")),)
    assert columns.answers(found).tolist() == [0, 1, 2, 1, 0]


def test_a_matrix_of_an_npz_file_is_several_columns(tmp_path: Path) -> None:
    X, y = np.arange(12.0).reshape(4, 3) ** 2, np.array([True, False, True, False])
    np.savez(tmp_path / "t.npz", X=X, y=y)
    found = read_table(tmp_path / "t.npz")
    columns = columns_of(found, ["y"])
    assert [column.name for column in columns.inputs] == ["X0", "X1", "X2"]
    assert columns.classes == ("False", "True")
    assert torch.equal(columns.encode(found), torch.from_numpy(X))


NUMBERS = st.floats(-1e30, 1e30).filter(lambda value: value == 0 or abs(value) > 1e-15)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)


@settings(max_examples=40)
@given(st.lists(st.tuples(NUMBERS, WORDS.map("w{}".format)), min_size=3, max_size=12), st.randoms())
def test_nothing_is_lost_and_order_does_not_matter(rows: list[tuple[float, str]], random: Any) -> None:
    numbers, texts = np.array([row[0] for row in rows]), tuple(row[1] for row in rows)
    target = tuple("ab"[index % 2] for index in range(len(rows)))
    parts: list[tuple[str, Any]] = [("number", numbers), ("text", texts), ("spare", target), ("target", target)]
    assume(len(set(numbers)) > 1 and len(set(texts)) > 1)
    columns = columns_of(Table(dict(parts)).without(["spare"]), ["target"])
    random.shuffle(parts)
    x = columns.encode(Table(dict(parts)))
    number, text = (columns.places[name] for name in ("number", "text"))
    assert x[:, number[0]].tolist() == numbers.tolist()
    found = columns.inputs[[column.name for column in columns.inputs].index("text")].texts
    assert found is not None
    assert [found[index] for index in x[:, text].argmax(dim=1)] == list(texts)
    assert bool((x[:, text].sum(dim=1) == 1).all())
    assert columns.unused(Table(dict(parts))) == ["spare"]
    assert Columns.read(json.loads(json.dumps(columns.describe()))) == columns


def test_rows_are_parted_by_the_seed_and_standardised_by_those_to_train_on() -> None:
    generator = np.random.default_rng(0)
    whole = Table({"a": generator.normal(1e9, 2.0, 50), "b": ("x", "y") * 25, "t": generator.normal(-3.0, 0.1, 50)})
    first, again, other = (table_data(whole, ["t"], holdout=0.3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.data.train_inputs, again.data.train_inputs)
    assert not torch.equal(first.data.train_inputs, other.data.train_inputs)
    both = torch.cat([first.data.train_inputs, first.data.test_inputs])[:, 0]
    assert (len(first.data), len(first.data.test_inputs)) == (35, 15)
    assert both.sort().values.tolist() == sorted(whole.numbers("a").tolist())
    scaled = (first.data.train_inputs - first.mean) / first.std
    assert float(scaled[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert float(scaled[:, 0].std(correction=0)) == pytest.approx(1)
    assert torch.equal(scaled[:, 1:], first.data.train_inputs[:, 1:])
    assert isinstance(first.data, lben.data.RegressionData)
    assert float(first.data.train_targets.mean()) == pytest.approx(0, abs=1e-9)
    target = first.columns.targets[0]
    assert target.mean == pytest.approx(-3, abs=0.1)
    assert first.columns.answers(whole)[:, 0].numpy() * target.std + target.mean == pytest.approx(whole.numbers("t"))


def test_another_table_may_be_what_is_tested_on() -> None:
    one, two = Table({"a": np.arange(6.0), "t": ("u", "v", "u") * 2}), Table({"t": ("v",), "a": np.array([9.0])})
    found = table_data(one, ["t"], test=two)
    assert (len(found.data), found.data.test_inputs.tolist()) == (6, [[9.0]])
    with pytest.raises(lben.InvalidInput, match="row 1, column 't': 'w' is not among 'u', 'v'"):
        table_data(one, ["t"], test=Table({"t": ("w",), "a": np.array([9.0])}))


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        (("yes", "no", "yes"), "classification"),
        (("1", "2", "x"), "classification"),
        (("1.0", "2", "1"), "classification"),
        (np.array([True, False, True]), "classification"),
        (np.arange(20), "classification"),
        (np.arange(21), "regression"),
        (("1", "2.5", "3"), "regression"),
        (np.array([0.5, 1.0, 2.0]), "regression"),
    ],
)
def test_the_task_is_seen_from_the_target(values: Any, seen: str) -> None:
    found = Table({"a": np.arange(float(len(values))), "t": values})
    assert columns_of(found, ["t"]).task == seen
    if seen == "classification" and isinstance(values, np.ndarray):
        assert columns_of(found, ["t"], task="regression").task == "regression"


def test_classes_are_whole_numbers_however_they_are_written() -> None:
    columns = columns_of(Table({"a": np.arange(3.0), "t": ("10", "9.0", "-1")}), ["t"])
    assert columns.classes == ("-1", "9", "10")
    assert columns.answers(Table({"t": np.array([9.0, -1.0])})).tolist() == [1, 0]


GOOD = "a,b,t\n1,x,u\n2,y,v\n3,x,u\n"
BAD: list[tuple[str, list[str], str]] = [
    (GOOD, ["s"], "has no column 's', the target: it has 'a', 'b', 't'"),
    (GOOD, [], "A target is needed"),
    (GOOD, ["a", "a"], "named once"),
    (GOOD, ["t", "a"], "Classification has one target, but there are 2"),
    ("a,b,a\n1,2,3\n", ["b"], "has two columns named 'a'"),
    ("a,,t\n1,2,3\n", ["t"], "column 2 has no name"),
    ("a,b,t\n1,5,u\n2,5,v\n", ["t"], "column 'b' is 5 in every row"),
    ("a,b,t\n1,z,u\n2,z,v\n", ["t"], "column 'b' is 'z' in every row"),
    ("a,t\n1,u\n2,u\n", ["t"], "the target 't' has one class, 'u', in every row"),
    ("a,t\n1,0.5\n2,0.5\n", ["t"], "column 't' is 0.5 in every row"),
    ("a,t\n1,u\n,v\n", ["t"], "row 2, column 'a': the value is missing"),
    ("a,t\n1,u\n2,v\nNaN,v\n", ["t"], "row 3, column 'a': the value is missing ('NaN' counts as that)"),
    ("a,t\n1,u\nNA,v\n3,v\n", ["t"], "row 2, column 'a': the value is missing ('NA' counts as that)"),
    ("a,t\nx,u\n?,v\n", ["t"], "row 2, column 'a': the value is missing"),
    ("a,t\n1,u\n2,\n", ["t"], "row 2, column 't': the value is missing"),
    ("a,t\n1,u\n1e999,v\n", ["t"], "row 2, column 'a': inf is not a finite number"),
    ("a,t\n1,u\n1e300,v\n", ["t"], "column 'a' holds numbers as large as 1e+300"),
    ("a,t\n1,u\n2\n", ["t"], "row 2 has 1 cells, but there are 2 columns"),
    ("a,t\n1,u\n\n2,v\n", ["t"], "row 2 has 0 cells"),
    ("1,2\n3,4\n", ["2"], "must have the names of the columns, but has '1', '2'"),
    ("a;t\n1,5;u\n2,5;v\n", ["t"], "row 1, column 'a': '1,5' has a decimal comma"),
    ("t\nu\nv\n", ["t"], "has no column beside the target"),
    ("a,t\n", ["t"], "has no rows"),
    ("", ["t"], "is empty"),
    ("a,t\n" + "".join(f"id{n},{n % 2}\n" for n in range(101)), ["t"], "holds 101 different texts"),
    ("a,t\n" + "".join(f"{n},c{n}\n" for n in range(101)), ["t"], "has 101 classes"),
    ("a,t\n" + "".join(f"{n + 0.5},{n % 2}\n" for n in range(101)) + "1.2.3,1\n", ["t"], "is '1.2.3' in row 102"),
]


@pytest.mark.parametrize(("text", "targets", "words"), BAD)
def test_a_bad_table_is_one_sentence(text: str, targets: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(lben.InvalidInput) as raised:
        columns_of(table(text, tmp_path), targets)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_columns_that_are_left_out_may_hold_anything(tmp_path: Path) -> None:
    found = table("a,t,gaps\n1,u,\n2,v,\n", tmp_path)
    assert columns_of(found.without(["gaps"]), ["t"]).width == 1
    with pytest.raises(lben.InvalidInput, match="has no column 'none', which was to be ignored"):
        found.without(["none"])


def test_a_forced_task_must_fit(tmp_path: Path) -> None:
    with pytest.raises(lben.InvalidInput, match="row 1, column 't': 'u' is not a number"):
        columns_of(table(GOOD, tmp_path), ["t"], task="regression")
    with pytest.raises(lben.InvalidInput, match=r"row 2, column 't': 0\.5 is neither a text nor a whole number"):
        columns_of(table("a,t\n1,1\n2,0.5\n", tmp_path), ["t"], task="classification")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b,t\nx,u\n", "has no column 'a', which the network takes: it has 'b', 't'"),
        ("a,b\n1,z\n", "row 1, column 'b': 'z' is not among 'x', 'y'"),
        ("a,b\n1,x\nlong,x\n", "row 2, column 'a': 'long' is not a number"),
        ("a,b\n1,x\n2,\n", "row 2, column 'b': the value is missing"),
    ],
)
def test_another_table_is_wrong_by_row_and_column(text: str, words: str, tmp_path: Path) -> None:
    columns = columns_of(table(GOOD, tmp_path), ["t"])
    with pytest.raises(lben.InvalidInput) as raised:
        columns.encode(table(text, tmp_path))
    assert words in str(raised.value)


def test_arrays_are_looked_at_as_texts_are(tmp_path: Path) -> None:
    columns = columns_of(table(GOOD, tmp_path), ["t"])
    with pytest.raises(lben.InvalidInput, match="column 'b' must hold texts, but holds numbers"):
        columns.encode(Table({"a": np.ones(1), "b": np.ones(1)}))
    with pytest.raises(lben.InvalidInput, match="row 2, column 'a': the value is missing"):
        columns.encode(Table({"a": np.array([1.0, math.nan]), "b": ("x", "y")}))
    with pytest.raises(lben.InvalidInput, match="column 'a' holds neither numbers nor texts"):
        columns.encode(Table({"a": np.array(["2020-01-01"], "datetime64[D]"), "b": ("x",)}))


@pytest.mark.parametrize("name", ["t.csv", "t.npz", "t.parquet"])
def test_a_file_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xff\x00 nothing of the kind")
    with pytest.raises(lben.InvalidFile):
        read_table(tmp_path / name)
    np.savez(tmp_path / "p.npz", a=np.array([{}, []], dtype=object))
    with pytest.raises(lben.InvalidFile, match="cannot be read as arrays"):
        read_table(tmp_path / "p.npz")
    with pytest.raises(lben.InvalidInput, match="is not a file"):
        read_table(tmp_path / f"no-{name}")
    (tmp_path / "t.xls").write_bytes(b"")
    with pytest.raises(lben.InvalidInput, match=r"must end in \.csv"):
        read_table(tmp_path / "t.xls")


def test_parquet_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_file("parquet", tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(lben.MissingExtra, match=r"pip install 'lben\[parquet\]'"):
        read_table(path)


def test_gaps_and_dates_of_parquet_are_refused_where_they_are_used(tmp_path: Path) -> None:
    made = {"a": [1.0, None], "b": ["x", None], "day": pyarrow.array([1, 2], pyarrow.timestamp("ns")), "t": ["u", "v"]}
    pyarrow.parquet.write_table(pyarrow.table(made), tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    for name, words in (("a", "row 2, column 'a'"), ("b", "row 2, column 'b'"), ("day", "holds neither numbers nor")):
        left = found.without([other for other in ("a", "b", "day") if other != name])
        with pytest.raises(lben.InvalidInput, match=words):
            columns_of(left, ["t"])
