"""Rows side by side, on a cluster and after Ctrl-C: each in a folder of its own, in their order, with their names."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lben
from lben.data import ImageData, embedded_mnist
from lben.experiments.mnist import quick, rows
from lben.experiments.running import Outcome, Task, run, run_row, slug
from lben.experiments.study import read_run
from lben.progress import Show, bar
from lben.train import TrainConfig
from tests.experiments.test_study import small
from tests.problems import ROOT, few_images


@dataclass(frozen=True)
class Counted(Outcome):
    """How many images there were to train on, as an error."""

    @property
    def error(self) -> float:
        return float(self.row["images"])


@dataclass(frozen=True, kw_only=True)
class Counting(Task[Counted]):
    """A row that trains nothing."""

    @property
    def outcome(self) -> type[Counted]:
        return Counted

    def description(self) -> dict[str, Any]:
        return {"name": self.name, "model": "Counting", "images": 7}

    def work(self, data: ImageData, folder: Path, *, progress: Show) -> Counted:
        assert folder.name == slug(self.name)
        with bar(self.name, 1, show=progress) as shown:
            shown.line(f"counts {len(data.train_labels)}")
        return Counted(self.description(), 1.0, 1.0, 1.0, 0, [])


LIGHT = [Counting(name=name, config=TrainConfig(epochs=1)) for name in ("first γ=1", "second", "third")]
CLUSTER = {"n_workers": 1, "processes": False, "dashboard_address": None}


def check_light(found: list[Counted], folder: Path, title: str = "Study") -> None:
    assert [result.row["name"] for result in found] == [row.name for row in LIGHT]
    assert sorted(path.parent.name for path in folder.glob("*/result.json")) == ["first-gamma-1", "second", "third"]
    assert [asdict(result) for result in run(LIGHT, few_images(7, 2), folder, title=title)] == [
        asdict(one) for one in found
    ]


def test_rows_in_threads_come_back_in_their_order_and_name_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes on around rows side by side, without the processes."""
    joblib = pytest.importorskip("joblib")
    with joblib.parallel_config(backend="threading"):
        found = run(LIGHT, few_images(7, 2), tmp_path, title="Three", jobs=2, progress=True)
    said = capsys.readouterr().err.splitlines()
    for row in LIGHT:
        assert f"{row.name}: counts 7" in said
        assert [line for line in said if line.startswith(f"Three: {row.name} is done, with an error of 700.00 %")]
    assert said[-1].endswith("3 of 3 rows")
    check_light(found, tmp_path, "Three")


SIDE_BY_SIDE = """
import sys
sys.path.insert(0, {root!r})
from tests.problems import few_images
from tests.experiments.test_study import small
from lben.experiments.running import run
chosen = [row for row in small(hidden=5) if row.name in ("MON", "plain")]
run(chosen, few_images(100, 20), {folder!r}, title="Two", jobs=2, progress=True)
"""


@pytest.mark.slow
def test_trained_rows_side_by_side_are_not_done_again(tmp_path: Path) -> None:
    chosen = [row for row in small(hidden=5) if row.name in ("MON", "plain")]
    first = run(chosen, few_images(100, 20), tmp_path, jobs=2)
    assert [result.row["name"] for result in first] == ["MON", "plain"]
    assert run(chosen, few_images(100, 20), tmp_path) == first


@pytest.mark.slow
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
def test_a_cluster_within_this_process_runs_the_rows(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(threads_per_worker=1, **CLUSTER) as cluster:
        check_light(run(LIGHT, few_images(7, 2), tmp_path, cluster=cluster.scheduler_address), tmp_path)
    refused = pytest.raises(lben.InvalidInput, match="--nthreads 1")
    with distributed.LocalCluster(threads_per_worker=2, **CLUSTER) as cluster, refused:
        run(LIGHT, few_images(7, 2), tmp_path / "threads", cluster=cluster.scheduler_address)
    with pytest.raises(lben.InvalidInput, match="no Dask scheduler"):
        run(LIGHT, few_images(7, 2), tmp_path / "nobody", cluster="nonsense://nowhere")


@pytest.mark.slow
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


@pytest.mark.slow
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
