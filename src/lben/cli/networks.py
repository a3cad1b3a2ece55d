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
from lben.data import MNIST_MEAN, MNIST_STD, ImageData, embedded_mnist, mnist, pixels
from lben.disk import check_target
from lben.train import CrossEntropy, Schedule, TrainConfig, error_rate, fit
from lben.train.checkpoint import CHECKPOINT

MOST_UNITS = 20_000  # of which W alone has 1.6 GB
Model = Literal["lben", "mon", "unconstrained"]


def train(
    file: Annotated[Path, typer.Argument(help="Where to write the network.", show_default=False)],
    model: Annotated[Model, typer.Option(help="Which kind of network.")] = "lben",
    gamma: Annotated[float | None, typer.Option(help="The Lipschitz bound of an lben; none: some finite one.")] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = 80,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Of Adam; its peak for one-cycle.")] = 4e-3,
    schedule: Annotated[Schedule, typer.Option(help="How the learning rate moves.")] = "one-cycle",
    margin: Annotated[float, typer.Option(help="Subtracted from the true logit: asks for larger radii.")] = 0.0,
    seed: Seed = 0,
    data: DataFolder = None,
    embedded: Embedded = False,
    run: Annotated[Path | None, typer.Option(help="A folder for the history and a checkpoint every epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a network or a run that is there.")] = False,
    device: Device = None,
) -> None:
    """Train a network on MNIST and write it to a file.

    After an interruption, the same command with --resume goes on from the last whole epoch, if there was a --run.
    """
    if resume and run is None:
        raise lben.InvalidInput("--resume needs --run, the folder with the checkpoint.")
    if gamma is not None and model != "lben":
        raise lben.InvalidInput(f"--gamma is for lben, and {model} has no prescribed bound.")
    if checks.count("--hidden", hidden) > MOST_UNITS:
        raise lben.InvalidInput(f"--hidden must be at most {MOST_UNITS:,}, since W has its square, not {hidden:,}.")
    checks.placement(device, None)
    check_target(file)
    if not (resume or force):
        _refuse_to_overwrite(file, None if run is None else run / CHECKPOINT)
    images = _data(data, embedded)
    torch.manual_seed(checks.seed(seed))
    net = _network(model, gamma, hidden, device)
    config = TrainConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        schedule=schedule,
        loss=CrossEntropy(margin),
        seed=seed,
    )
    if force and not resume and run is not None:
        (run / CHECKPOINT).unlink(missing_ok=True)
    try:
        history = fit(net, images, config, folder=run, resume=resume, progress=True, name=model)
    except KeyboardInterrupt:
        _interrupted(run)
    net.solver = lben.PeacemanRachford(tolerance=1e-4)
    lben.save(net.eval(), file)
    say(f"Test error {100 * history[-1].test_error:.2f} %. Written to {file}.")


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


def evaluate(network: NetworkFile, data: DataFolder = None, embedded: Embedded = False, device: Device = None) -> None:
    """The error of a network on the test images."""
    net, images = lben.load(network, device=device).eval(), _data(data, embedded)
    error, unanswered = error_rate(net, images.test_images, images.test_labels)
    without = f", {unanswered} of them without an equilibrium" if unanswered else ""
    say(f"Test error {100 * error:.2f} % of {len(images.test_labels):,} images{without}.")


def certify(
    network: NetworkFile,
    gamma: Annotated[float | None, typer.Option(help="The bound to check; else the network's own.")] = None,
    rigorous: Annotated[bool, typer.Option("--rigorous", help="Account for every rounding error.")] = False,
    unit: UnitOption = "input",
    device: Device = None,
) -> None:
    """Check a network's bound, find the smallest one that is provable, and two inputs that show it is nearly reached.

    Exits with 1 if the bound asked for, or carried by the network, does not hold.
    """
    net = lben.load(network, device=device).eval()
    certificate = lben.certify(net, gamma, rigorous=rigorous, domain=unit)
    say(str(certificate))
    try:
        say(f"Tightest: {lben.tightest_bound(net, rigorous=rigorous, domain=unit)}")
    except (lben.NotWellPosed, lben.InvalidInput) as error:
        say(f"Tightest: {error}")
    say(str(lben.lipschitz_lower_bound(net, domain=unit)))
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
    images: Annotated[int | None, typer.Option(help="Only the first so many test images.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random starts.")] = 0,
    data: DataFolder = None,
    embedded: Embedded = False,
    device: Device = None,
) -> None:
    """Attack a network on the test images, beside what is proved."""
    for length in size:
        if not 0 <= length < math.inf:
            raise lben.InvalidInput(f"--size must be a finite number of at least 0, not {length:g}.")
    if images is not None:
        checks.count("--images", images)
    net, found = lben.load(network, device=device).eval(), _data(data, embedded)
    x, y = pixels(found.test_images[:images]), found.test_labels[:images]
    result = lben.attack(
        net,
        x,
        y,
        size,
        method=method,
        domain=unit,
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
    table = Table(title=f"{method} on {len(y):,} images; error without attack {100 * result.clean_error:.2f} %")
    for column in ("size at the input", "size in pixels", "error at least", "at most, proved"):
        table.add_column(column, justify="right")
    sizes = zip(result.epsilons.input.tolist(), result.epsilons.pixels.tolist(), strict=True)
    for (at_input, in_pixels), error, most in zip(sizes, result.error.tolist(), proved, strict=True):
        table.add_row(f"{at_input:.4g}", f"{in_pixels:.4g}", f"{100 * error:.2f} %", most)
    out.print(table)


def _data(folder: Path | None, embedded: bool) -> ImageData:
    if embedded and folder is not None:
        raise lben.InvalidInput("--embedded and --data exclude each other.")
    return embedded_mnist() if embedded else mnist(folder)


def _network(
    model: Model, gamma: float | None, hidden: int, device: str | None
) -> lben.LBEN | lben.MON | lben.UnconstrainedEN:
    normalize, solver = lben.Normalize(MNIST_MEAN, MNIST_STD), lben.PeacemanRachford(tolerance=1e-3)
    if model == "lben":
        return lben.LBEN(784, hidden, 10, gamma=gamma, normalize=normalize, solver=solver, device=device)
    kind = lben.MON if model == "mon" else lben.UnconstrainedEN
    return kind(784, hidden, 10, normalize=normalize, solver=solver, device=device)
