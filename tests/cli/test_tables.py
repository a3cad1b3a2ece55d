"""Tables on the command line: what a file knows of its columns, what is printed of them, and what is refused."""

from __future__ import annotations

import csv
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

import lben
from lben.data import read_columns, read_table
from tests.cli.test_commands import call

COUNT = 60


def flowers() -> dict[str, list[Any]]:
    """Three kinds that lengths and colours tell apart, one of the lengths in a large unit and far from zero."""
    draw = np.random.default_rng(0)
    kind = draw.integers(0, 3, COUNT)
    return {
        "stem": (kind + 0.4 * draw.normal(size=COUNT)).tolist(),
        "leaf": (1e6 + 5e3 * kind + 3e3 * draw.normal(size=COUNT)).tolist(),
        "colour": [("red", "blue")[int(k == 2) ^ int(draw.random() < 0.2)] for k in kind],
        "kind": [("rose", "lily", "iris")[k] for k in kind],
    }


def houses() -> dict[str, list[Any]]:
    draw = np.random.default_rng(1)
    area, age = draw.uniform(40, 200, COUNT), draw.uniform(0, 100, COUNT)
    price = 3000 * area - 800 * age + 20_000 * draw.normal(size=COUNT)
    return {
        "area": area.tolist(),
        "age": age.tolist(),
        "price": (3e5 + price).tolist(),
        "rent": (price / 300).tolist(),
    }


def written(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
        np.savez(path, **arrays)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tables")
    written(made / "flowers.csv", flowers())
    written(made / "houses.csv", houses())
    short = ["--hidden", "8", "--epochs", "20", "--batch-size", "12", "--learning-rate", "0.03"]
    said = call(
        "train", str(made / "kinds"), "--table", str(made / "flowers.csv"), "--target", "kind", "--gamma", "2", *short
    )
    assert "Classification of 'kind' (3 classes) from 3 columns: 48 rows to train on, 12 to test on." in said
    assert re.search(r"Test error \d+\.\d\d % of 12 rows\.", said)
    said = call(
        "train", str(made / "prices"), "--table", str(made / "houses.csv"), "--target", "price", "--target", "rent",
        "--gamma", "1.5", *short,
    )  # fmt: skip
    assert "Regression of 'price', 'rent' (numbers) from 2 columns" in said
    error, spread = (
        float(found) for found in re.findall(r"([\d.e+]+) for 'price' .*?deviation of ([\d.e+]+)", said)[0]
    )
    assert error < 0.5 * spread, "nothing was learned"
    return made


def predictions(said: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(said)))


def test_what_is_trained_knows_its_columns(folder: Path) -> None:
    columns = read_columns(folder / "kinds")
    assert columns is not None
    known = [("stem", None), ("leaf", None), ("colour", ("blue", "red"))]
    assert [(column.name, column.texts) for column in columns.inputs] == known
    assert columns.classes == ("iris", "lily", "rose")
    net = lben.load(folder / "kinds")
    assert net.normalize.std.dtype == torch.float64
    scaled = net.normalize(columns.encode(read_table(folder / "flowers.csv")))
    assert float(scaled[:, :2].abs().max()) < 5
    assert float(scaled[:, :2].mean(dim=0).abs().max()) < 0.5


def test_evaluate_says_the_error_on_another_table(folder: Path, tmp_path: Path) -> None:
    said = call("evaluate", str(folder / "kinds"), "--table", str(folder / "flowers.csv"))
    error = float(re.findall(r"Test error ([\d.]+) % of 60 rows", said)[0]) / 100
    answers = predictions(call("predict", str(folder / "kinds"), str(folder / "flowers.csv")))
    wrong = sum(row["predicted_kind"] != kind for row, kind in zip(answers, flowers()["kind"], strict=True))
    assert error == pytest.approx(wrong / COUNT, abs=1e-4)
    assert wrong < COUNT / 3
    said = call("evaluate", str(folder / "prices"), "--table", str(folder / "houses.csv"))
    answers = predictions(call("predict", str(folder / "prices"), str(folder / "houses.csv")))
    off = np.array([float(row["predicted_rent"]) for row in answers]) - np.array(houses()["rent"])
    found = float(re.findall(r"([\d.e+]+) for 'rent'", said)[0])
    assert found == pytest.approx(float(np.sqrt((off**2).mean())), rel=1e-3)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_order_and_kind_of_file_change_no_prediction(suffix: str, folder: Path, tmp_path: Path) -> None:
    first = call("predict", str(folder / "kinds"), str(folder / "flowers.csv"))
    mixed = flowers()
    other = {name: mixed[name] for name in ("colour", "leaf", "stem")}
    assert call("predict", str(folder / "kinds"), str(written(tmp_path / f"t{suffix}", other))) == first
    more = {"id": list(range(COUNT)), **other}
    said = call("predict", str(folder / "kinds"), str(written(tmp_path / f"more{suffix}", more)))
    assert said.replace("Columns that are not used: 'id'.\n", "") == first
    assert "'id'" in said


def steepest(net: Any, x: Tensor, classes: Tensor, free: Tensor, length: Tensor) -> Tensor:
    """Rows moved by `length` standardised units against their classes, along the gradient, and with small steps."""
    std: Tensor = net.normalize.std
    moved = torch.zeros_like(x)
    for _ in range(10):
        moved = moved.detach().requires_grad_()
        logits = net(x + moved * std)
        own = logits.gather(1, classes[:, None])[:, 0]
        best = logits.scatter(1, classes[:, None], -torch.inf).amax(dim=1)
        (gradient,) = torch.autograd.grad((best - own).sum(), moved)
        moved = moved.detach() + gradient * free * length[:, None]
        size = torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp(min=1e-12)
        moved = moved * (length[:, None] / size)
    return x + moved * std


def test_radii_are_sound_in_both_units_and_not_idle(folder: Path) -> None:
    net, columns = lben.load(folder / "kinds").eval(), read_columns(folder / "kinds")
    net.solver = lben.PeacemanRachford(tolerance=1e-10)
    assert columns is not None
    x = columns.encode(read_table(folder / "flowers.csv"))
    said = predictions(call("predict", str(folder / "kinds"), str(folder / "flowers.csv")))
    classes = torch.tensor([columns.classes.index(row["predicted_kind"]) for row in said])
    radius = torch.tensor([float(row["certified_radius"]) for row in said], dtype=torch.float64)
    assert torch.equal(classes, net(x).argmax(dim=1))
    free = torch.ones(columns.width, dtype=torch.float64)
    inside, outside = (steepest(net, x, classes, free, factor * radius) for factor in (0.999, 3.0))
    assert torch.equal(net(inside).argmax(dim=1), classes)
    assert bool((net(outside).argmax(dim=1) != classes).double().mean() > 0.3)
    own = predictions(call("predict", str(folder / "kinds"), str(folder / "flowers.csv"), "--unit", "own"))
    for number, name in enumerate(("stem", "leaf")):
        alone = torch.tensor([float(row[f"radius_{name}"]) for row in own], dtype=torch.float64)
        assert torch.allclose(alone, radius * net.normalize.std[number], rtol=1e-6)
        for sign in (-1.0, 1.0):
            moved = x.clone()
            moved[:, number] += sign * 0.999 * alone
            assert torch.equal(net(moved).argmax(dim=1), classes)


def test_a_class_is_certified_within_its_radius_alone(folder: Path) -> None:
    table = str(folder / "flowers.csv")
    said = predictions(call("predict", str(folder / "kinds"), table, "--uncertainty", "0.3"))
    assert {row["certified"] for row in said} == {"True", "False"}
    assert all((row["certified"] == "True") == (float(row["certified_radius"]) > 0.3) for row in said)
    std = float(lben.load(folder / "kinds").normalize.std[1])
    own = call("predict", str(folder / "kinds"), table, "--uncertainty", f"leaf={0.3 * std}")
    assert [row["certified"] for row in predictions(own)] == [row["certified"] for row in said]


@pytest.mark.parametrize("asked", [["0.2"], ["area=10"], ["area=5", "age=3"]])
def test_intervals_hold_every_row_within_the_uncertainty(asked: list[str], folder: Path) -> None:
    net, columns = lben.load(folder / "prices").eval(), read_columns(folder / "prices")
    net.solver = lben.PeacemanRachford(tolerance=1e-10)
    assert columns is not None
    x = columns.encode(read_table(folder / "houses.csv"))
    options = [word for words in asked for word in ("--uncertainty", words)]
    said = predictions(call("predict", str(folder / "prices"), str(folder / "houses.csv"), *options))
    draw, widest = torch.Generator().manual_seed(0), 0.0
    for _ in range(40):
        if asked == ["0.2"]:
            moved = torch.randn(x.shape, generator=draw, dtype=torch.float64)
            moved = moved / torch.linalg.vector_norm(moved, dim=1, keepdim=True) * 0.2 * net.normalize.std
        else:
            box = dict(words.split("=") for words in asked)
            sides = torch.tensor([float(box.get(name, 0)) for name in ("area", "age")], dtype=torch.float64)
            moved = (2 * torch.rand(x.shape, generator=draw, dtype=torch.float64) - 1).sign() * sides
        y = net(x + moved).detach()
        for number, target in enumerate(columns.targets):
            values = (y[:, number] * target.std + target.mean).tolist()
            for row, value in zip(said, values, strict=True):
                low, high = float(row[f"{target.name}_low"]), float(row[f"{target.name}_high"])
                assert low <= value <= high
                widest = max(widest, abs(value - float(row[f"predicted_{target.name}"])) / (high - low) * 2)
    assert widest > 0.3, "intervals so wide tell nothing"


def test_certify_gives_bounds_in_both_units(folder: Path) -> None:
    said = call("certify", str(folder / "prices"))
    assert "In these bounds, inputs are columns in standardised units" in said
    net, columns = lben.load(folder / "prices").eval(), read_columns(folder / "prices")
    assert columns is not None
    torch.manual_seed(0)
    std, net.solver = net.normalize.std, lben.PeacemanRachford(tolerance=1e-10)
    for t, target in enumerate(columns.targets):
        for j, column in enumerate(columns.inputs):
            row = re.findall(rf"│ {target.name} +│ {column.name} +│ +(\S+) │ +(\S+) │ +(\S+) │", said)
            spread, scaled, own = (float(word) for word in row[0])
            gamma = lben.tightest_bound(net, outputs=[t], features=[j]).gamma
            assert gamma is not None
            assert spread == pytest.approx(float(std[j]), rel=1e-3)
            assert 1 <= scaled / (gamma * target.std) < 1.002
            assert 1 <= own / (gamma * target.std / float(std[j])) < 1.002
            x = torch.rand(200, 2, dtype=torch.float64) * torch.tensor([160.0, 100.0]) + torch.tensor([40.0, 0.0])
            moved = x.clone()
            moved[:, j] += 1.0
            change = (net(moved) - net(x)).detach()[:, t].abs() * target.std
            assert 0.1 * own < float(change.max()) <= own


def test_certify_looks_at_the_rows_of_a_table(folder: Path) -> None:
    said = call("certify", str(folder / "kinds"), "--table", str(folder / "flowers.csv"))
    assert "a change" in said  # of text: the words may be on the next line of their cell
    rows = predictions(call("predict", str(folder / "kinds"), str(folder / "flowers.csv")))
    least = min(float(row["certified_radius"]) for row in rows)
    found = re.findall(r"radii of 60 rows, in standardised units: from (\S+) on, for half from (\S+) on", said)
    assert float(found[0][0]) == pytest.approx(least, rel=1e-3)


def test_attack_stays_between_what_is_reached_and_what_is_proved(folder: Path) -> None:
    said = call(
        "attack", str(folder / "kinds"), "--table", str(folder / "flowers.csv"), "--size", "0.2", "--size", "1",
        "--steps", "5", "--restarts", "1",
    )  # fmt: skip
    assert "pgd on 60 rows" in said
    assert "size in standardised units" in said
    rows = re.findall(r"│ +([\d.]+) │ +([\d.]+) % │ +([\d.]+) % │", said)
    assert [float(size) for size, _, _ in rows] == [0.2, 1.0]
    clean = float(re.findall(r"without attack ([\d.]+) %", said)[0])
    for _, least, most in rows:
        assert clean <= float(least) <= float(most)
    assert float(rows[1][1]) > clean


def test_a_run_on_a_table_resumes_to_the_same_network(folder: Path, tmp_path: Path) -> None:
    options = ["--table", str(folder / "flowers.csv"), "--target", "kind", "--hidden", "4", "--epochs", "2"]
    options += ["--run", str(tmp_path / "run")]
    call("train", str(tmp_path / "one"), *options)
    call("train", str(tmp_path / "two"), *options, "--resume")
    one, two = (lben.load(tmp_path / name).state_dict() for name in ("one", "two"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    assert read_columns(tmp_path / "one") == read_columns(tmp_path / "two")
    other = written(tmp_path / "other.csv", {**flowers(), "stem": list(range(COUNT))})
    said = call("train", str(tmp_path / "three"), "--table", str(other), *options[2:], "--resume", code=1)
    assert "another run" in said


def test_a_table_to_test_on_and_columns_to_ignore(folder: Path, tmp_path: Path) -> None:
    few = written(tmp_path / "few.csv", {name: values[:7] for name, values in flowers().items()})
    said = call(
        "train", str(tmp_path / "net"), "--table", str(folder / "flowers.csv"), "--target", "kind", "--test-table",
        str(few), "--ignore", "colour", "--hidden", "4", "--epochs", "1", "--model", "mon",
    )  # fmt: skip
    assert "60 rows to train on, 7 to test on" in said
    columns = read_columns(tmp_path / "net")
    assert columns is not None
    assert columns.names == ["stem", "leaf", "kind"]


def test_predictions_are_written_whole_and_over_nothing(folder: Path, tmp_path: Path) -> None:
    target, command = tmp_path / "p.csv", ["predict", str(folder / "kinds"), str(folder / "flowers.csv")]
    assert "60 predictions written" in call(*command, "-o", str(target))
    assert target.read_text() == call(*command)
    before = target.read_bytes()
    assert "--force overwrites it" in call(*command, "-o", str(target), code=1)
    bad = written(tmp_path / "bad.csv", {"stem": ["1"], "leaf": ["x"], "colour": ["red"]})
    said = call(*command[:2], str(bad), "-o", str(target), "--force", code=1)
    assert "bad.csv, row 1, column 'leaf': 'x' is not a number" in said
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "p.csv"]


BAD_TABLES = [
    ("a,b,t\n1,5,u\n2,5,v\n3,5,u\n", "column 'b' is 5 in every row"),
    ("a,t\n1,u\n2,u\n3,u\n", "the target 't' has one class"),
    ("a,a,t\n1,2,u\n3,4,v\n", "two columns named 'a'"),
    ("a,b\n1,2\n3,4\n", "has no column 't', the target"),
    ("a,t\n1,u\n,v\n3,u\n", "row 2, column 'a': the value is missing"),
    ("a,t\n1,u\n2,v\n", "fewer than two are left to train on"),
]


@pytest.mark.parametrize(("text", "words"), BAD_TABLES)
def test_a_bad_table_is_one_sentence_and_nothing_is_written(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    said = call(
        "train", str(tmp_path / "net"), "--table", str(tmp_path / "t.csv"), "--target", "t", "--run",
        str(tmp_path / "run"), code=1,
    )  # fmt: skip
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "x", "--table", "flowers.csv"), "--table needs --target"),
        (("train", "x", "--embedded", "--target", "kind"), "need --table"),
        (("train", "x", "--table", "flowers.csv", "--target", "kind", "--embedded"), "--table excludes"),
        (("train", "x", "--table", "houses.csv", "--target", "price", "--margin", "1"), "--margin is for classes"),
        (("train", "x", "--table", "flowers.csv", "--target", "kind", "--holdout", "2"), "holdout must be a share"),
        (
            ("train", "x", "--table", "flowers.csv", "--target", "kind", "--task", "regression"),
            "row 1, column 'kind': 'iris' is not a number",
        ),
        (
            ("train", "x", "--table", "houses.csv", "--target", "price", "--holdout", "0.1", "--test-table", "t"),
            "exclude each other",
        ),
        (("evaluate", "kinds", "--embedded"), "takes the columns of a table"),
        (("evaluate", "kinds", "--table", "houses.csv"), "houses.csv has no column 'stem', which the network takes"),
        (("evaluate", "images", "--table", "houses.csv"), "was not trained on a table"),
        (("predict", "images", "houses.csv"), "was not trained on a table"),
        (("certify", "kinds", "--unit", "pixels"), "--unit pixels is for images"),
        (("attack", "kinds", "--table", "flowers.csv", "--size", "1", "--unit", "pixels"), "is for images"),
        (("attack", "prices", "--table", "houses.csv", "--size", "1"), "this network predicts numbers"),
        (("predict", "prices", "houses.csv", "--unit", "own"), "--unit is for radii"),
        (("predict", "prices", "houses.csv", "--uncertainty", "-1"), "must be a finite number of at least 0, not '-1'"),
        (("predict", "prices", "houses.csv", "--uncertainty", "size=1"), "(age, area), not 'size=1'"),
        (("predict", "kinds", "flowers.csv", "--uncertainty", "colour=1"), "(leaf, stem), not 'colour=1'"),
        (("predict", "kinds", "flowers.csv", "-o", "none/p.csv"), "directory that exists"),
    ],
)
def test_errors_are_one_sentence(
    arguments: tuple[str, ...], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    lben.save(lben.LBEN(784, 3, 10), folder / "images")
    said = call(*arguments, code=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not (folder / "x").exists()
