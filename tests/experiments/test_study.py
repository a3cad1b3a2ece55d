"""Studies: every row runs, its bound holds, and what is done is not done again."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lben
from lben.data import embedded_mnist
from lben.experiments import svhn
from lben.experiments.mnist import Equilibrium, quick, reproduce, rows
from lben.experiments.regions import read_regions, reproduce_regions
from lben.experiments.report import write_report
from lben.experiments.running import Plan, run, run_row, slug
from lben.experiments.study import Result, Row, read_run
from tests.problems import ROOT, few_images


def small(recipe: str = "paper", hidden: int = 15) -> list[Row]:
    return [replace(row, hidden=hidden) for row in quick(rows(recipe), epochs=2)]  # type: ignore[arg-type]


@pytest.mark.parametrize("row", small(), ids=lambda row: slug(row.name))
def test_every_row_trains_two_epochs_and_its_bound_holds(row: Row, tmp_path: Path) -> None:
    check(row, run_row(row, few_images(300, 40), tmp_path), tmp_path)


def test_a_convolutional_row_and_its_report(tmp_path: Path) -> None:
    row = svhn.quick(svhn.rows(), epochs=2, channels=1)[3]
    assert row.gamma == 2.0
    (result,) = run([row], few_images(300, 40), tmp_path, title="Small convolutions")
    check(row, result, tmp_path / slug(row.name))
    page = write_report(tmp_path)[1].read_text()
    assert "one entry of the metric a channel" in page
    assert "0.141" in page
    assert "Lip-NN" not in page


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


def test_side_by_side_and_again(tmp_path: Path) -> None:
    chosen = [row for row in small(hidden=10) if row.name in ("MON", "plain")]
    first = run(chosen, few_images(300, 40), tmp_path, jobs=2)
    assert [result.row["name"] for result in first] == ["MON", "plain"]
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/result.json"))]
    again = run(chosen, few_images(300, 40), tmp_path)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/result.json"))] == written
    assert again == first
    assert read_run(tmp_path)[1] == first
    longer = [replace(row, config=replace(row.config, epochs=3)) for row in chosen]
    with pytest.raises(lben.InvalidFile, match="other options"):
        run(longer, few_images(300, 40), tmp_path)
    with pytest.raises(lben.InvalidFile, match="holds another run"):
        run(chosen[:1], few_images(300, 40), tmp_path)
    (tmp_path / "mon" / "result.json").write_text("{}")
    with pytest.raises(lben.InvalidFile, match="not the result of a row"):
        run(chosen, few_images(300, 40), tmp_path)
    with pytest.raises(lben.InvalidInput, match="different names"):
        run([chosen[0], chosen[0]], few_images(300, 40), tmp_path / "other")


SIDE_BY_SIDE = """
import sys
sys.path.insert(0, {root!r})
from tests.problems import few_images
from tests.experiments.test_study import small
from lben.experiments.running import run
chosen = [row for row in small(hidden=5) if row.name in ("MON", "plain")]
run(chosen, few_images(100, 20), {folder!r}, title="Two", jobs=2, progress=True)
"""


def test_rows_side_by_side_name_themselves_and_their_epochs(tmp_path: Path) -> None:
    code = SIDE_BY_SIDE.format(root=str(ROOT), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    for name in ("MON", "plain"):
        assert [line for line in said if line.startswith(f"{name}: epoch 2 of 2: test error")]
        assert [line for line in said if line.startswith(f"Two: {name} is done, with an error of")]
    assert said[-1].endswith("2 of 2 rows")
    assert not [line for line in said if "━" in line]


@pytest.mark.filterwarnings("ignore")  # what Dask's own threads leave behind when its cluster closes
def test_a_dask_cluster_runs_the_rows(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    chosen = [row for row in small(hidden=10) if row.name in ("LMT c=1", "plain")]
    alone = [run_row(row, few_images(300, 40), tmp_path / "alone" / slug(row.name)) for row in chosen]
    options = {"dashboard_address": None, "host": "127.0.0.1", "processes": True}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        found = run(chosen, few_images(300, 40), tmp_path / "cluster", cluster=cluster.scheduler_address)
    for one, other in zip(alone, found, strict=True):
        assert one.row == other.row
        assert one.measured.error == pytest.approx(other.measured.error, abs=0.011)  # threads may sum otherwise
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster:
        with pytest.raises(lben.InvalidInput, match="--nthreads 1"):
            run(chosen, few_images(300, 40), tmp_path / "threads", cluster=cluster.scheduler_address)
        address = cluster.scheduler_address
    with pytest.raises(lben.InvalidInput, match="no Dask scheduler"):
        run(chosen, few_images(300, 40), tmp_path / "nobody", cluster=address)


def test_an_interrupted_command_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run: one sentence, no traceback, and the same command goes on from there."""
    command = [sys.executable, "-m", "lben", "reproduce", "mnist", "run", "--recipe", "ours", "--quick", "--jobs", "2"]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test in the background would not
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=listen
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("run/*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "same command" in said
    description, _ = read_run(tmp_path / "run")
    assert "--recipe ours" in description.command
    begun = next(path.parent for path in (tmp_path / "run").glob("*/checkpoint.safetensors"))
    row = next(row for row in quick(rows("ours")) if slug(row.name) == begun.name)
    result = run_row(row, embedded_mnist(), begun)
    assert len(result.history) == row.config.epochs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run([row for row in small(hidden=5) if row.name == "MON"], few_images(200), folder)
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


@pytest.mark.parametrize("file", ["run.json", "mon/result.json", "regions.json"])
def test_a_twisted_file_is_refused_or_read(file: str, finished: Path, tmp_path: Path) -> None:
    """Every place of every file replaced by something else: an InvalidFile with a sentence, or a record."""
    place = tmp_path / "run"
    shutil.copytree(finished, place)
    cases = list(twisted(json.loads((place / file).read_text())))
    assert len(cases) > 50
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
