"""Train, evaluate, certify and attack one network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table

import lben
from lben import checks
from lben.cli.common import DataFolder, Device, Embedded, NetworkFile, Seed, UnitOption, out, say
from lben.cli.tables import (
    Holdout,
    Ignored,
    TableOption,
    Targets,
    TaskOption,
    TestTable,
    certify_columns,
    check_alone,
    columns_in,
    epochs_for,
    error_words,
    evaluate_table,
    lesson,
    normalize_of,
    rows_to_attack,
    rows_to_certify,
)
from lben.data import MNIST_MEAN, MNIST_STD, ImageData, RegressionData, TableData, embedded_mnist, mnist, pixels
from lben.disk import check_target
from lben.train import CrossEntropy, MeanSquare, Schedule, TrainConfig, error_rate, fit
from lben.train.checkpoint import CHECKPOINT

MOST_UNITS = 20_000  # of which W alone has 1.6 GB
Model = Literal["lben", "mon", "unconstrained"]


def train(
    file: Annotated[Path, typer.Argument(help="Where to write the network.", show_default=False)],
    model: Annotated[Model, typer.Option(help="Which kind of network.")] = "lben",
    gamma: Annotated[float | None, typer.Option(help="The Lipschitz bound of an lben; none: some finite one.")] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = 80,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.", show_default="10; for a table 500 steps or more")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images or rows a step.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Of Adam; its peak for one-cycle.")] = 4e-3,
    schedule: Annotated[Schedule, typer.Option(help="How the learning rate moves.")] = "one-cycle",
    margin: Annotated[float, typer.Option(help="Subtracted from the true logit: asks for larger radii.")] = 0.0,
    seed: Seed = 0,
    data: DataFolder = None,
    embedded: Embedded = False,
    table: TableOption = None,
    target: Targets = None,
    task: TaskOption = None,
    holdout: Holdout = None,
    test_table: TestTable = None,
    ignore: Ignored = None,
    run: Annotated[Path | None, typer.Option(help="A folder for the history and a checkpoint every epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a network or a run that is there.")] = False,
    device: Device = None,
) -> None:
    """Train a network on MNIST, or on a table, and write it to a file.

    After an interruption, the same command with --resume goes on from the last whole epoch, if there was a --run.
    """
    _check_network(model, gamma, hidden, run, resume)
    checks.placement(device, None)
    check_target(file)
    if not (resume or force):
        _refuse_to_overwrite(file, None if run is None else run / CHECKPOINT)
    checks.seed(seed)
    check_alone(table, data, embedded)
    rows = lesson(table, target, task, holdout, test_table, ignore, seed, margin)
    samples = _data(data, embedded) if rows is None else rows.data
    torch.manual_seed(seed)
    net = _network(model, gamma, hidden, rows).to(device)
    config = TrainConfig(
        epochs=(10 if rows is None else epochs_for(len(samples), batch_size)) if epochs is None else epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        schedule=schedule,
        loss=MeanSquare() if isinstance(samples, RegressionData) else CrossEntropy(margin),
        seed=seed,
    )
    if force and not resume and run is not None:
        (run / CHECKPOINT).unlink(missing_ok=True)
    try:
        history = fit(net, samples, config, folder=run, resume=resume, progress=rows is None or None, name=model)
    except KeyboardInterrupt:
        _interrupted(run)
    net.solver = lben.PeacemanRachford(tolerance=1e-4)
    lben.save(net.eval(), file, columns=None if rows is None else rows.columns)
    error = f"Test error {100 * history[-1].test_error:.2f} %." if rows is None else error_words(net, rows)
    say(f"{error} Written to {file}.")


def _check_network(model: Model, gamma: float | None, hidden: int, run: Path | None, resume: bool) -> None:
    if resume and run is None:
        raise lben.InvalidInput("--resume needs --run, the folder with the checkpoint.")
    if gamma is not None and model != "lben":
        raise lben.InvalidInput(f"--gamma is for lben, and {model} has no prescribed bound.")
    if checks.count("--hidden", hidden) > MOST_UNITS:
        raise lben.InvalidInput(f"--hidden must be at most {MOST_UNITS:,}, since W has its square, not {hidden:,}.")


def _refuse_to_overwrite(*files: Path | None) -> None:
    for file in files:
        if file is not None and file.exists():
            raise lben.InvalidInput(f"{str(file)!r} is there already: --force overwrites it, or give another name.")


def _interrupted(run: Path | None) -> NoReturn:
    words = "nothing is kept without --run, a folder for checkpoints"
    if run is not None:
        begun = (run / CHECKPOINT).is_file()
        words = "the same command with --resume goes on from the last whole epoch" if begun else "no epoch was finished"
    say(f"Interrupted: {words}.", Console(stderr=True))
    raise typer.Exit(130)


def evaluate(
    network: NetworkFile,
    data: DataFolder = None,
    embedded: Embedded = False,
    table: TableOption = None,
    device: Device = None,
) -> None:
    """The error of a network on the test images, or on a table."""
    check_alone(table, data, embedded)
    net, columns = lben.load(network, device=device).eval(), columns_in(network, table)
    if columns is not None and table is not None:
        evaluate_table(net, columns, table)
        return
    images = _data(data, embedded)
    error, unanswered = error_rate(net, images.test_images, images.test_labels)
    without = f", {unanswered} of them without an equilibrium" if unanswered else ""
    say(f"Test error {100 * error:.2f} % of {len(images.test_labels):,} images{without}.")


def certify(
    network: NetworkFile,
    gamma: Annotated[float | None, typer.Option(help="The bound to check; else the network's own.")] = None,
    rigorous: Annotated[bool, typer.Option("--rigorous", help="Decide in ball arithmetic: closer cases.")] = False,
    unit: UnitOption = "input",
    table: TableOption = None,
    device: Device = None,
) -> None:
    """Check a network's bound, find the smallest one that is provable, and two inputs that show it is nearly reached.

    Exits with 1 if the bound asked for, or carried by the network, does not hold.
    """
    net, columns = lben.load(network, device=device).eval(), columns_in(network, table, needed=False)
    x = None if columns is None else rows_to_certify(columns, table, unit)
    certificate = lben.certify(net, gamma, rigorous=rigorous, domain=unit)
    say(str(certificate))
    try:
        say(f"Tightest: {lben.tightest_bound(net, rigorous=rigorous, domain=unit)}")
    except (lben.NotWellPosed, lben.InvalidInput) as error:
        say(f"Tightest: {error}")
    say(str(lben.lipschitz_lower_bound(net, x, domain=unit)))
    if columns is not None:
        certify_columns(net, columns, x)
    if not certificate.holds:
        raise typer.Exit(1)


def attack(
    network: NetworkFile,
    size: Annotated[list[float], typer.Option(help="How far an image may move; give it more than once for more.")],
    method: Annotated[
        lben.AttackMethod, typer.Option(help="One step, many steps, or the nearest wrong class.")
    ] = "pgd",
    unit: UnitOption = "input",
    steps: Annotated[int, typer.Option(help="Of pgd and deepfool.")] = 50,
    restarts: Annotated[int, typer.Option(help="Of pgd.")] = 3,
    images: Annotated[int | None, typer.Option(help="Only the first so many test images, or rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random starts.")] = 0,
    data: DataFolder = None,
    embedded: Embedded = False,
    table: TableOption = None,
    device: Device = None,
) -> None:
    """Attack a network on the test images, or on a table, beside what is proved.

    The numbers of a row may all move, those by which its texts are encoded, too.
    """
    for length in size:
        if not 0 <= length < math.inf:
            raise lben.InvalidInput(f"--size must be a finite number of at least 0, not {length:g}.")
    if images is not None:
        checks.count("--images", images)
    check_alone(table, data, embedded)
    net, columns = lben.load(network, device=device).eval(), columns_in(network, table)
    if columns is not None and table is not None:
        net, x, y, bounds = rows_to_attack(net, columns, table, size, unit)
    else:
        found = _data(data, embedded)
        x, y, bounds = pixels(found.test_images), found.test_labels, (0.0, 1.0)
    x, y = x[:images], y[:images]
    result = lben.attack(
        net,
        x,
        y,
        size,
        method=method,
        domain=unit,
        bounds=bounds,
        steps=steps,
        restarts=restarts,
        seed=seed,
        progress=True,
    )
    try:
        accuracy = lben.certified_accuracy(net, x, y, size, domain=unit, progress=True).accuracy
        proved = [f"{100 * (1 - share):.2f} %" for share in accuracy.tolist()]
    except lben.NotWellPosed:
        proved = ["nothing"] * len(size)
    _show(result, proved, rows=columns is not None)


def _show(result: lben.Attack, proved: list[str], *, rows: bool) -> None:
    what, sizes = "images", {"size at the input": result.epsilons.input, "size in pixels": result.epsilons.pixels}
    if rows:
        what, sizes = "rows", {"size in standardised units": result.epsilons.input}
    count, clean = result.success.shape[1], 100 * result.clean_error
    table = Table(title=f"{result.method} on {count:,} {what}; error without attack {clean:.2f} %")
    for column in (*sizes, "error at least", "at most, proved"):
        table.add_column(column, justify="right")
    lengths = zip(*(some.tolist() for some in sizes.values()), strict=True)
    for length, error, most in zip(lengths, result.error.tolist(), proved, strict=True):
        table.add_row(*(f"{value:.4g}" for value in length), f"{100 * error:.2f} %", most)
    out.print(table)


def _data(folder: Path | None, embedded: bool) -> ImageData:
    if embedded and folder is not None:
        raise lben.InvalidInput("--embedded and --data exclude each other.")
    return embedded_mnist() if embedded else mnist(folder)


def _network(model: Model, gamma: float | None, hidden: int, rows: TableData | None) -> lben.EquilibriumNetwork:
    solver = lben.PeacemanRachford(tolerance=1e-3)
    if rows is None:
        sizes, normalize = (784, hidden, 10), lben.Normalize(MNIST_MEAN, MNIST_STD)
    else:
        sizes, normalize = (rows.columns.width, hidden, rows.columns.outputs), normalize_of(rows)
    if model == "lben":
        net: lben.EquilibriumNetwork = lben.LBEN(*sizes, gamma=gamma, normalize=normalize, solver=solver)
    else:
        net = (lben.MON if model == "mon" else lben.UnconstrainedEN)(*sizes, normalize=normalize, solver=solver)
    return net.to(normalize.std.dtype)
