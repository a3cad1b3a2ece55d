"""Tasks that are done alone, side by side or on a cluster, each in a folder of its own, and that resume."""

from __future__ import annotations

import asyncio
import json
import platform
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from lben.checks import need
from lben.data import ImageData
from lben.disk import make_folder, write_bytes
from lben.errors import InvalidFile, InvalidInput
from lben.experiments.reading import is_number, read_record, record
from lben.progress import Show, bar
from lben.train import TrainConfig


@dataclass(frozen=True)
class Outcome(ABC):
    """What is known of one task: what it is, its history, and what its training costs.

    seconds: of training, without the look at the test images after each epoch, and of measuring. seconds_per_epoch:
    the median. relative_seconds: of an epoch, as a multiple of a plain network's.
    """

    row: dict[str, Any]
    seconds: float
    seconds_per_epoch: float
    relative_seconds: float
    lost_batches: int
    history: list[dict[str, Any]]

    def __post_init__(self) -> None:
        for name in ("name", "model"):
            if not isinstance(self.row.get(name), str):
                raise InvalidInput(f"the row has no {name}")
        for epoch in self.history:
            for name in ("epoch", "train_error", "test_error"):
                if not is_number(epoch.get(name)):
                    raise InvalidInput(f"{name} is {epoch.get(name)!r} in the history")

    @property
    @abstractmethod
    def error(self) -> float:
        """The share of test images with a wrong class."""


O = TypeVar("O", bound=Outcome)  # noqa: E741


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[O]):
    """One row of a study: a network that is trained as `config` says, and measured."""

    name: str
    config: TrainConfig

    @property
    @abstractmethod
    def outcome(self) -> type[O]:
        """What comes out of it."""

    @abstractmethod
    def work(self, data: ImageData, folder: Path, *, progress: Show) -> O:
        """Train and measure, from where an earlier call in this folder was interrupted."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """The row as plain values, by which a result recognises it."""


T = TypeVar("T", bound=Task[Any])


@dataclass(frozen=True)
class Run:
    """A folder of results: the command that makes it, when it began, with what, and the rows in their order.

    study: what the rows are about, and so what is reported of them.
    """

    title: str
    command: str
    seed: int
    began: str
    data: str
    versions: dict[str, str]
    rows: list[str]
    study: str = "paper"

    def __post_init__(self) -> None:
        for name in self.rows:
            if name != slug(name) or Path(name).name != name or len(name) > 100:
                raise InvalidInput(f"{name[:60]!r} is not the folder of a row")


@dataclass(frozen=True)
class Plan:
    """How a study is run: into which folder, by how many `jobs` side by side or on which `cluster`, as in `run`.

    root: the folder with its data set. short: little of it, in minutes, to see that all works.
    """

    folder: str | Path
    root: str | Path | None = None
    short: bool = False
    seed: int = 0
    jobs: int = 1
    cluster: str | None = None
    progress: Show = None

    def run(
        self,
        rows: Sequence[Task[O]],
        data: ImageData,
        title: str,
        command: str,
        study: str = "paper",
        only: Sequence[str] = (),
    ) -> list[O]:
        """Run rows, or `only` those of some names; what is done is not done again."""
        command += f" --seed {self.seed}" + " --quick" * self.short
        return run(
            seeded(rows, self.seed),
            data,
            self.folder,
            title=title,
            command=command,
            jobs=self.jobs,
            cluster=self.cluster,
            progress=self.progress,
            study=study,
            only=only,
        )


def run_row(row: Task[O], data: ImageData, folder: str | Path, *, progress: Show = None) -> O:
    """Train, certify and attack one row; what is done already, in `folder`, is not done again."""
    path = make_folder(folder)
    file = path / "result.json"
    if file.is_file():
        return read_result(file, row.outcome, row)
    result = row.work(data, path, progress=progress)
    write_bytes(file, (json.dumps(asdict(result), indent=1) + "\n").encode())
    return result


def read_result(file: Path, kind: type[O], row: Task[O] | None = None) -> O:
    """The result in a file; with `row`, only if it is of that row."""
    again = "is not the result of a row: remove it, and the run makes it again"
    result = read_record(file, partial(record, kind), again)
    if row is not None and result.row != json.loads(json.dumps(row.description())):
        raise InvalidFile(f"{file} belongs to a run with other options: use another folder.")
    return result


def run(
    rows: Sequence[Task[O]],
    data: ImageData,
    folder: str | Path,
    *,
    title: str = "Study",
    command: str = "",
    jobs: int = 1,
    cluster: str | None = None,
    progress: Show = None,
    study: str = "paper",
    only: Sequence[str] = (),
) -> list[O]:
    """Run rows, `jobs` of them side by side; every row has a folder of its own and resumes by itself.

    progress: as in `fit`; rows side by side show lines alone, and those on a cluster write them to its workers' logs.
    cluster: the address of a Dask scheduler whose workers take the rows instead. They must have one thread each and
    reach `folder` under the same path.
    only: the names of those to run now; all if there is none.
    """
    names = [slug(row.name) for row in rows]
    if not rows or len(set(names)) < len(names):
        raise InvalidInput(
            f"A run needs rows with different names, not {', '.join(row.name for row in rows) or 'none'}."
        )
    chosen = {slug(name): name for name in only}
    strange = [given for name, given in chosen.items() if name not in names]
    if strange:
        raise InvalidInput(f"There is no row {strange[0]!r}, but {', '.join(row.name for row in rows)}.")
    path = Path(folder).absolute()
    _begin(path, Run(title, command, rows[0].config.seed, _now(), _describe(data), _versions(), names, study))
    tasks = [(row, path / name) for row, name in zip(rows, names, strict=True) if not only or name in chosen]
    if cluster is None and jobs == 1:
        return [run_row(row, data, place, progress=progress) for row, place in tasks]
    lines: Show = "lines" if progress else False
    work = _on_cluster(tasks, data, cluster, lines) if cluster is not None else _side_by_side(tasks, data, jobs, lines)
    results: dict[str, O] = {}
    with warnings.catch_warnings(), bar(title, len(tasks), show=lines) as shown:
        warnings.filterwarnings("ignore", "A worker stopped", UserWarning)  # joblib renews workers that have grown
        for name, result in work:
            results[name] = result
            error = f"{100 * result.error:.2f} %"
            shown.line(f"{name} is done, with an error of {error}; {len(results)} of {len(tasks)} rows")
    return [results[row.name] for row, _ in tasks]


def read_description(folder: str | Path) -> Run:
    """What a folder says of the run that it holds."""
    if not isinstance(folder, str | Path):
        raise InvalidInput(f"A run is in a folder, which is named by a path, not by {folder!r}.")
    file = Path(folder) / "run.json"
    if not file.is_file():
        raise InvalidFile(f"{Path(folder)} is not a run: it has no run.json. `lben reproduce` makes runs.")
    again = "does not describe a run: remove it, and `lben reproduce` makes it again"
    return read_record(file, partial(record, Run), again)


def read_results(folder: str | Path, run: Run, kind: type[O]) -> list[O]:
    """The results that a run has so far, in the order of its rows."""
    files = [Path(folder) / name / "result.json" for name in run.rows]
    return [read_result(file, kind) for file in files if file.is_file()]


def slug(name: str) -> str:
    """A row's name as a folder."""
    plain = {"γ": "gamma", "<": "-below-", "∞": "infinity", "=": "-", " ": "-", ",": ""}
    return "".join(plain.get(letter, letter) for letter in name).lower()


def seeded(rows: Iterable[T], seed: int) -> list[T]:
    """The rows with another seed."""
    return [replace(row, config=replace(row.config, seed=seed)) for row in rows]


def _begin(path: Path, description: Run) -> None:
    """Write run.json, or find there that this is the run to go on with."""
    make_folder(path)
    if (path / "run.json").is_file():
        before = read_description(path)
        if (before.title, before.seed, before.data, before.rows) != (
            description.title,
            description.seed,
            description.data,
            description.rows,
        ):
            raise InvalidFile(f"{path} holds another run ({before.title}, seed {before.seed}): use another folder.")
        return
    write_bytes(path / "run.json", (json.dumps(asdict(description), indent=1) + "\n").encode())


def _side_by_side(
    tasks: list[tuple[Task[O], Path]], data: ImageData, jobs: int, progress: Show
) -> Iterator[tuple[str, O]]:
    joblib = need("joblib", "jobs > 1", extra="experiments")
    calls = (joblib.delayed(_alone)(row, data, place, progress) for row, place in tasks)
    done: Iterator[tuple[str, O]] = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
    return done


def _on_cluster(
    tasks: list[tuple[Task[O], Path]], data: ImageData, address: str, progress: Show
) -> Iterator[tuple[str, O]]:
    distributed = need("distributed", "A cluster", extra="cluster")
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, ValueError, asyncio.TimeoutError) as error:
        raise InvalidInput(f"There is no Dask scheduler at {address!r}: {type(error).__name__}.") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=10)
        except (OSError, asyncio.TimeoutError) as error:
            raise InvalidInput(
                f"No worker serves {address}: start one with `dask worker {address} --nthreads 1`."
            ) from error
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if any(worker["nthreads"] > 1 for worker in workers):
            raise InvalidInput(
                "Rows draw from torch's one random generator, so two may not share a process: "
                "start the workers with `dask worker --nthreads 1`."
            )
        shared = client.scatter(data, broadcast=True)
        futures = [client.submit(_alone, row, shared, place, progress, pure=False) for row, place in tasks]
        for future in distributed.as_completed(futures):
            yield future.result()


def _alone(row: Task[O], data: ImageData, folder: Path, progress: Show) -> tuple[str, O]:
    """One row in a process of its own, on one core."""
    torch.set_num_threads(1)
    return row.name, run_row(row, data, folder, progress=progress)


def _describe(data: ImageData) -> str:
    return f"{len(data.train_labels):,} training and {len(data.test_labels):,} test images"


def _versions() -> dict[str, str]:
    return {"lben": version("lben"), "torch": torch.__version__, "Python": platform.python_version()}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
