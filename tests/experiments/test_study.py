"""Studies: every row runs, its bound holds, and what is done is not done again."""

from __future__ import annotations

import json
import math
import random
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lben
from lben.data import ImageData
from lben.experiments import svhn
from lben.experiments.mnist import Equilibrium, quick, reproduce, rows
from lben.experiments.regions import read_regions, reproduce_regions
from lben.experiments.report import write_report
from lben.experiments.running import Plan, run, run_row, slug
from lben.experiments.study import Result, Row, read_run
from tests.experiments.hasty import hasty
from tests.problems import few_images


def small(recipe: str = "paper", hidden: int = 8) -> list[Row]:
    return [replace(row, hidden=hidden) for row in quick(rows(recipe), epochs=2)]  # type: ignore[arg-type]


def small_rows() -> list[Row]:
    """Of those that differ in a number alone, one is enough for every run."""
    others = ("LBEN γ=5", "LBEN γ=0.8", "LBEN γ=0.4", "LBEN γ=0.2", "LMT c=1", "LMT c=250", "LMT c=1000")
    return [row for row in small() if row.name not in others]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("row", small_rows(), ids=lambda row: slug(row.name))
def test_every_kind_of_row_trains_two_epochs_and_its_bound_holds(row: Row, tmp_path: Path) -> None:
    with hasty():
        check(row, run_row(row, few_images(200, 12), tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("row", small(hidden=15), ids=lambda row: slug(row.name))
def test_every_row_trains_two_epochs_and_its_bound_holds(row: Row, tmp_path: Path) -> None:
    check(row, run_row(row, few_images(300, 40), tmp_path), tmp_path)


@pytest.mark.slow
def test_a_convolutional_row_and_its_report(tmp_path: Path) -> None:
    row = replace(svhn.quick(svhn.rows(), epochs=2, channels=1)[3], in_shape=(1, 8, 8))
    assert row.gamma == 2.0
    with hasty():
        (result,) = run([row], middles(few_images(128, 10)), tmp_path, title="Small convolutions")
    check(row, result, tmp_path / slug(row.name))
    page = write_report(tmp_path)[1].read_text()
    assert "one entry of the metric a channel" in page
    assert "0.141" in page
    assert "Lip-NN" not in page


def middles(data: ImageData) -> ImageData:
    """The 8 x 8 pixels in the middle of each image."""
    train, test = (
        images.reshape(-1, 28, 28)[:, 10:18, 10:18].flatten(1) for images in (data.train_images, data.test_images)
    )
    return replace(data, train_images=train, test_images=test)


def check(row: Row, result: Result, folder: Path) -> None:
    found = result.measured
    assert len(result.history) == 2
    assert 0 <= found.error <= 1
    assert found.multi_step == sorted(found.multi_step)
    assert found.single_step[0] == pytest.approx(found.error, abs=0.02)
    if found.tight is not None:
        assert found.lower <= found.tight
        assert found.lower_proved
        assert found.certified == sorted(found.certified or [], reverse=True)
        assert found.certified_error is not None
        for proved, reached in zip(found.certified_error, found.multi_step, strict=True):
            assert reached <= proved + 1e-9
    assert found.upper == row.gamma
    if found.upper is not None and found.tight is not None:
        assert found.tight <= found.upper
    if isinstance(row, Equilibrium | svhn.Convolutional):
        assert lben.load(folder / "network.safetensors").gamma == row.gamma
        assert found.steps is not None
    assert result.relative_seconds > 0


def test_convolutional_rows_are_the_papers_and_start_at_one_point() -> None:
    nets = {row.name: row.network() for row in svhn.rows()}
    assert set(nets) == {"MON", "LBEN γ<∞", "LBEN γ=5", "LBEN γ=2", "LBEN γ=1"}
    for net in nets.values():
        assert net.hidden_features == 40 * 32 * 32
        for name, tensor in nets["MON"].named_parameters():
            assert torch.equal(net.get_parameter(name), tensor)
    assert float(nets["MON"].state_dict()["parameterization.epsilon"]) == 5.0


def test_a_third_of_the_training_images_is_always_the_same() -> None:
    whole = few_images()
    once, again = svhn.third(whole), svhn.third(whole)
    assert len(once.train_labels) == len(whole.train_labels) // 3
    assert torch.equal(once.train_images, again.train_images)
    assert torch.equal(once.test_images, whole.test_images)


def test_all_equilibrium_models_start_at_one_point() -> None:
    built = {row.name: row.network() for row in rows("paper")}
    nets = {name: net for name, net in built.items() if isinstance(net, lben.EquilibriumNetwork)}
    states = {name: net.state_dict() for name, net in nets.items()}
    for state in states.values():
        for part in ("U", "bz", "Wo", "by"):
            assert torch.equal(state[f"parameterization.{part}"], states["MON"][f"parameterization.{part}"])
    W = [nets[name].weights().W for name in ("MON", "UNC", "LBEN γ<∞")]
    assert torch.equal(W[0], W[1])
    assert torch.equal(W[0], W[2])
    lam = nets["LBEN γ=1"].weights().lam
    assert lam is not None
    assert torch.equal(lam, torch.ones(80))


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    data, chosen = few_images(100, 12), [row for row in small(hidden=5) if row.name in ("UNC", "plain")]
    with hasty():
        first = run(chosen, data, tmp_path)
    assert [result.row["name"] for result in first] == ["UNC", "plain"]
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/result.json"))]
    again = run(chosen, data, tmp_path)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/result.json"))] == written
    assert again == first
    assert read_run(tmp_path)[1] == first
    longer = [replace(row, config=replace(row.config, epochs=3)) for row in chosen]
    with pytest.raises(lben.InvalidFile, match="other options"):
        run(longer, data, tmp_path)
    with pytest.raises(lben.InvalidFile, match="holds another run"):
        run(chosen[:1], data, tmp_path)
    (tmp_path / "unc" / "result.json").write_text("{}")
    with pytest.raises(lben.InvalidFile, match="not the result of a row"):
        run(chosen, data, tmp_path)
    with pytest.raises(lben.InvalidInput, match="different names"):
        run([chosen[0], chosen[0]], data, tmp_path / "other")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with hasty():
        run([row for row in small(hidden=5) if row.name == "MON"], few_images(100, 12), folder)
    reproduce_regions(folder, 5)
    write_report(folder)
    return folder


def twisted(content: Any) -> Iterator[Any]:
    """The content with one thing in it replaced by nonsense, or gone, thing by thing."""
    yield from (None, [], {}, "x", 7, -1.5, True, math.nan, 10**400)
    if isinstance(content, dict):
        yield {**content, "strange": 1}
        for key, value in content.items():
            yield {name: other for name, other in content.items() if name != key}
            yield from ({**content, key: other} for other in twisted(value))
    if isinstance(content, list) and content:
        yield content[1:]
        yield from ([other, *content[1:]] for other in twisted(content[0]))


@pytest.mark.slow
@pytest.mark.parametrize("most", [200, 10**6])
@pytest.mark.parametrize("file", ["run.json", "mon/result.json", "regions.json"])
def test_a_twisted_file_is_refused_or_read(file: str, most: int, finished: Path, tmp_path: Path) -> None:
    """Every place of every file replaced by something else: an InvalidFile with a sentence, or a record."""
    place = tmp_path / "run"
    shutil.copytree(finished, place)
    cases = list(twisted(json.loads((place / file).read_text())))
    assert len(cases) > 50
    cases = random.Random(0).sample(cases, min(most, len(cases)))
    refused = read = 0
    for content in cases:
        (place / file).write_text(json.dumps(content))
        try:
            read_run(place)
            if file == "regions.json":
                read_regions(place / file)
        except lben.InvalidFile as error:
            refused += str(place / file) in str(error) and len(str(error).splitlines()) == 1
        else:
            read += 1
            if read % 150 == 1:  # each takes a second
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # matplotlib's, of axes without an extent
                    write_report(place)
    assert refused + read == len(cases)
    assert refused > len(cases) / 2
    for bad in (b"\xff", b"[" * 100_000, b""):
        (place / file).write_bytes(bad)
        with pytest.raises(lben.InvalidFile):
            write_report(place)


def test_reproduce_refuses_an_unknown_recipe(tmp_path: Path) -> None:
    with pytest.raises(lben.InvalidInput, match="recipe must be one of paper, ours, certified"):
        reproduce(Plan(tmp_path, short=True), "best")  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", [None, 5, b"x"])
def test_what_is_no_path_is_no_run(folder: Any) -> None:
    with pytest.raises(lben.InvalidInput, match="named by a path"):
        read_run(folder)
