"""The command `lben`: argument parsing and printing only."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table

import lben
from lben import checks
from lben.certify.certificate import Domain
from lben.data import MNIST_MEAN, MNIST_STD, ImageData, embedded_mnist, mnist, pixels
from lben.experiments import mnist as mnist_study
from lben.experiments import regions
from lben.experiments import svhn as svhn_study
from lben.experiments.figures import draw_regions
from lben.experiments.mnist import Recipe
from lben.experiments.report import write_report
from lben.train import CrossEntropy, Schedule, TrainConfig, error_rate, fit
from lben.train.checkpoint import CHECKPOINT
from lben.writing import check_target

app = typer.Typer(
    help="Lipschitz-bounded equilibrium networks: train, certify and attack them, and reproduce the paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
MOST_UNITS = 20_000  # of which W alone has 1.6 GB
reproduce_app = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)
app.add_typer(reproduce_app, name="reproduce")
out = Console()


Model = Literal["lben", "mon", "unconstrained"]
NetworkFile = Annotated[
    Path, typer.Argument(help="A network that `lben train` or lben.save wrote.", show_default=False)
]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="The folder with the data set; else LBEN_DATA, the cache, or a download.")
]
Embedded = Annotated[bool, typer.Option("--embedded", help="Use the 7,000 images that ship with lben.")]
UnitOption = Annotated[Domain, typer.Option(help="Where distances are measured: after normalisation, or in pixels.")]


def _say(words: str, console: Console = out) -> None:
    """A sentence, left as it is."""
    console.print(words, soft_wrap=True, highlight=False, markup=False)


def _version(asked: bool) -> None:
    if asked:
        _say(f"lben {lben.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
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
    seed: Annotated[int, typer.Option(help="Decides the start and the order of the data.")] = 0,
    data: DataFolder = None,
    embedded: Embedded = False,
    run: Annotated[Path | None, typer.Option(help="A folder for the history and a checkpoint every epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a network or a run that is there.")] = False,
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
    check_target(file)
    if not (resume or force):
        _refuse_to_overwrite(file, None if run is None else run / CHECKPOINT)
    images = _data(data, embedded)
    torch.manual_seed(checks.seed(seed))
    net = _network(model, gamma, hidden)
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
    _say(f"Test error {100 * history[-1].test_error:.2f} %. Written to {file}.")


def _refuse_to_overwrite(*files: Path | None) -> None:
    for file in files:
        if file is not None and file.exists():
            raise lben.InvalidInput(f"{str(file)!r} is there already: --force overwrites it, or give another name.")


def _interrupted(run: Path | None) -> NoReturn:
    words = "nothing is kept without --run, a folder for checkpoints"
    if run is not None:
        begun = (run / CHECKPOINT).is_file()
        words = "the same command with --resume goes on from the last whole epoch" if begun else "no epoch was finished"
    _say(f"Interrupted: {words}.", Console(stderr=True))
    raise typer.Exit(130)


@app.command()
def evaluate(network: NetworkFile, data: DataFolder = None, embedded: Embedded = False) -> None:
    """The error of a network on the test images."""
    net, images = lben.load(network).eval(), _data(data, embedded)
    error, unanswered = error_rate(net, images.test_images, images.test_labels)
    without = f", {unanswered} of them without an equilibrium" if unanswered else ""
    _say(f"Test error {100 * error:.2f} % of {len(images.test_labels):,} images{without}.")


@app.command()
def certify(
    network: NetworkFile,
    gamma: Annotated[float | None, typer.Option(help="The bound to check; else the network's own.")] = None,
    rigorous: Annotated[bool, typer.Option("--rigorous", help="Account for every rounding error.")] = False,
    unit: UnitOption = "input",
) -> None:
    """Check a network's bound, find the smallest one that is provable, and two inputs that show it is nearly reached.

    Exits with 1 if the bound asked for, or carried by the network, does not hold.
    """
    net = lben.load(network).eval()
    certificate = lben.certify(net, gamma, rigorous=rigorous, domain=unit)
    _say(str(certificate))
    try:
        _say(f"Tightest: {lben.tightest_bound(net, rigorous=rigorous, domain=unit)}")
    except (lben.NotWellPosed, lben.InvalidInput) as error:
        _say(f"Tightest: {error}")
    _say(str(lben.lipschitz_lower_bound(net, domain=unit)))
    if not certificate.holds:
        raise typer.Exit(1)


@app.command()
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
) -> None:
    """Attack a network on the test images, beside what is proved."""
    for length in size:
        if not 0 <= length < math.inf:
            raise lben.InvalidInput(f"--size must be a finite number of at least 0, not {length:g}.")
    if images is not None:
        checks.count("--images", images)
    net, found = lben.load(network).eval(), _data(data, embedded)
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


Quick = Annotated[bool, typer.Option("--quick", help="Few epochs on the embedded images: some minutes.")]
Jobs = Annotated[int | None, typer.Option(help="Rows side by side, one core each.", show_default="all cores")]
Cluster = Annotated[str | None, typer.Option(help="The address of a Dask scheduler that is to run the rows instead.")]
Seed = Annotated[int, typer.Option(help="Decides the start and the order of the data.")]


@reproduce_app.command("mnist")
def reproduce_mnist(
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
    _reproduce(partial(mnist_study.reproduce, folder, recipe), folder, quick, jobs, cluster, seed, data)


@reproduce_app.command("svhn")
def reproduce_svhn(
    run: Annotated[
        Path | None,
        typer.Argument(help="The folder of the run; runs/svhn, -third or -quick, if not given.", show_default=False),
    ] = None,
    third: Annotated[
        bool, typer.Option("--third", help="Train on a fixed third of the training images: hours, not a day.")
    ] = False,
    quick: Quick = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
    seed: Seed = 0,
    data: DataFolder = None,
) -> None:
    """The SVHN study of convolutional networks: every row trained, certified and attacked, and a report.

    What is done already is not done again: after an interruption, give the same command. --quick trains small networks
    on the embedded digits of MNIST, to see that all works.
    """
    if quick and third:
        raise lben.InvalidInput("--quick and --third exclude each other.")
    folder = Path("runs", "svhn" + "-third" * third + "-quick" * quick) if run is None else run
    _reproduce(partial(svhn_study.reproduce, folder, part=third), folder, quick, jobs, cluster, seed, data)


def _reproduce(
    study: Callable[..., object],
    folder: Path,
    quick: bool,
    jobs: int | None,
    cluster: str | None,
    seed: int,
    data: Path | None,
) -> None:
    """Run a study and write its report."""
    if quick and data is not None:
        raise lben.InvalidInput("--quick uses the embedded images: give it no --data.")
    try:
        study(
            root=data,
            short=quick,
            seed=checks.seed(seed),
            jobs=checks.count("--jobs", os.cpu_count() or 1 if jobs is None else jobs),
            cluster=cluster,
            progress=True,
        )
    except KeyboardInterrupt:
        _say("Interrupted. The same command goes on from here.", Console(stderr=True))
        raise typer.Exit(130) from None
    report(folder)


@reproduce_app.command("regions")
def reproduce_regions(
    run: Annotated[Path, typer.Argument(help="The folder to write to.")] = Path("runs/regions"),
) -> None:
    """Figure two_by_two: where each condition proves that a 2 x 2 network has one equilibrium."""
    found = regions.reproduce_regions(run, progress=True)
    for file in draw_regions(found, run):
        _say(f"Written to {file}.")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run of `lben reproduce`.", show_default=False)],
) -> None:
    """A page in HTML and one in Markdown, with all tables and figures of a run, finished or not."""
    for file in write_report(run):
        _say(f"Written to {file}.")


def _data(folder: Path | None, embedded: bool) -> ImageData:
    if embedded and folder is not None:
        raise lben.InvalidInput("--embedded and --data exclude each other.")
    return embedded_mnist() if embedded else mnist(folder)


def _network(model: Model, gamma: float | None, hidden: int) -> lben.LBEN | lben.MON | lben.UnconstrainedEN:
    normalize, solver = lben.Normalize(MNIST_MEAN, MNIST_STD), lben.PeacemanRachford(tolerance=1e-3)
    if model == "lben":
        return lben.LBEN(784, hidden, 10, gamma=gamma, normalize=normalize, solver=solver)
    kind = lben.MON if model == "mon" else lben.UnconstrainedEN
    return kind(784, hidden, 10, normalize=normalize, solver=solver)
