"""Run the paper's experiments again, and show what came out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import lben
from lben import checks
from lben.cli.common import DataFolder, Seed, say
from lben.experiments import layers as layers_study
from lben.experiments import mnist as mnist_study
from lben.experiments import svhn as svhn_study
from lben.experiments.figures import draw_regions
from lben.experiments.layers import Dataset
from lben.experiments.mnist import Recipe
from lben.experiments.regions import reproduce_regions
from lben.experiments.report import write_report
from lben.experiments.running import Plan, Task

Quick = Annotated[bool, typer.Option("--quick", help="Few epochs on the embedded images: some minutes.")]
Jobs = Annotated[int | None, typer.Option(help="Rows side by side, one core each.", show_default="all cores")]
Cluster = Annotated[str | None, typer.Option(help="The address of a Dask scheduler that is to run the rows instead.")]


def _rows(tasks: Sequence[Task[Any]]) -> str:
    return f"A row to run now; may be repeated: {', '.join(task.name for task in tasks)}."


def mnist(
    run: Annotated[
        Path | None,
        typer.Argument(help="The folder of the run; runs/mnist-RECIPE, or -quick, if not given.", show_default=False),
    ] = None,
    recipe: Annotated[
        Recipe, typer.Option(help="The paper's training, a better one, or one for certified accuracy.")
    ] = "paper",
    quick: Quick = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
    seed: Seed = 0,
    data: DataFolder = None,
) -> None:
    """The MNIST study: every row trained, certified and attacked, and a report beside the paper's figures.

    What is done already is not done again: after an interruption, give the same command.
    """
    folder = Path("runs", f"mnist-{recipe}" + "-quick" * quick) if run is None else run
    plan = _plan(folder, quick, seed, jobs, cluster, data)
    _reproduce(lambda: mnist_study.reproduce(plan, recipe), folder)


def svhn(
    run: Annotated[
        Path | None,
        typer.Argument(help="The folder of the run; runs/svhn, -third or -quick, if not given.", show_default=False),
    ] = None,
    third: Annotated[
        bool, typer.Option("--third", help="Train on a fixed third of the training images: hours, not a day.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(help=_rows(svhn_study.rows()))] = None,
    data: DataFolder = None,
    seed: Seed = 0,
    quick: Quick = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """The SVHN study of convolutional networks: every row trained, certified and attacked, and a report.

    What is done already is not done again: after an interruption, give the same command. --quick trains small networks
    on the embedded digits of MNIST, to see that all works.
    """
    if quick and third:
        raise lben.InvalidInput("--quick and --third exclude each other.")
    folder = Path("runs", "svhn" + "-third" * third + "-quick" * quick) if run is None else run
    plan = _plan(folder, quick, seed, jobs, cluster, data)
    _reproduce(lambda: svhn_study.reproduce(plan, part=third, only=only or ()), folder)


def layers(
    run: Annotated[
        Path | None,
        typer.Argument(help="The folder of the run; runs/layers-DATASET, or -quick, if not given.", show_default=False),
    ] = None,
    dataset: Annotated[Dataset, typer.Option(help="The images to train on.")] = "svhn",
    only: Annotated[list[str] | None, typer.Option(help=_rows(layers_study.quick()))] = None,
    data: DataFolder = None,
    seed: Seed = 0,
    quick: Quick = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """The study of depth: one architecture, its layers exchanged, trained alike, certified and attacked.

    What is done already is not done again: after an interruption, give the same command. --quick trains small networks
    on the embedded digits of MNIST, to see that all works. One row of orthogonium's layers needs that package.
    """
    folder = Path("runs", "layers-quick" if quick else f"layers-{dataset}") if run is None else run
    plan = _plan(folder, quick, seed, jobs, cluster, data)
    _reproduce(lambda: layers_study.reproduce(plan, dataset, only or ()), folder)


def _plan(folder: Path, quick: bool, seed: int, jobs: int | None, cluster: str | None, data: Path | None) -> Plan:
    if quick and data is not None:
        raise lben.InvalidInput("--quick uses the embedded images: give it no --data.")
    side_by_side = checks.count("--jobs", os.cpu_count() or 1 if jobs is None else jobs)
    return Plan(folder, data, quick, checks.seed(seed), side_by_side, cluster, progress=True)


def _reproduce(study: Callable[[], object], folder: Path) -> None:
    """Run a study and write its report."""
    try:
        study()
    except KeyboardInterrupt:
        say("Interrupted. The same command goes on from here.", Console(stderr=True))
        raise typer.Exit(130) from None
    report(folder)


def regions(
    run: Annotated[Path, typer.Argument(help="The folder to write to.")] = Path("runs/regions"),
) -> None:
    """Figure two_by_two: where each condition proves that a 2 x 2 network has one equilibrium."""
    found = reproduce_regions(run, progress=True)
    for file in draw_regions(found, run):
        say(f"Written to {file}.")


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run of `lben reproduce`.", show_default=False)],
) -> None:
    """A page in HTML and one in Markdown, with all tables and figures of a run, finished or not."""
    for file in write_report(run):
        say(f"Written to {file}.")
