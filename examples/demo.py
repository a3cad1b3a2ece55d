"""Train a network with a Lipschitz bound and one without, side by side, on the MNIST images that ship with lben.

    make demo

An LBEN promises, before it has seen any data, that moving an image by a distance r moves its output by at most
gamma * r. A MON makes no such promise. Both have 80 hidden units and train for ten epochs on 6,000 images. Then both
are certified and attacked; build/demo.png and build/demo.json show the outcome, and build/demo.html runs both
networks in a browser.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import lben
from lben.data import MNIST_MEAN, MNIST_STD, ImageData, embedded_mnist, pixels

EPOCHS, BATCH, LEARNING_RATE, SEED = 10, 64, 4e-3, 0
SIZES = [0.25 * k for k in range(13)]  # of perturbations, in pixels
ATTACKED = 400  # of the 1,000 test images, the first: those whose radii are proved, and that are attacked


@dataclass(frozen=True)
class Outcome:
    """What the table shows of one network."""

    name: str
    error: float
    gamma: float | None
    slope: float
    iterations: int
    residual: float
    seconds: float


def train(name: str, net: lben.EquilibriumNetwork, data: ImageData, progress: Progress) -> float:
    """Ordinary training with Adam and a one-cycle schedule; the seconds it took."""
    batches = -(-len(data.train_labels) // BATCH)
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, EPOCHS * batches)
    started = time.perf_counter()
    task = progress.add_task(name, total=EPOCHS * batches, loss=float("nan"))
    for _ in range(EPOCHS):
        for index in torch.randperm(len(data.train_labels)).split(BATCH):
            loss = F.cross_entropy(net(pixels(data.train_images[index])), data.train_labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.update(task, advance=1, loss=loss.item())
    return time.perf_counter() - started


def largest_slope(x: Tensor, y: Tensor) -> float:
    """The largest |y1 - y2| / |x1 - x2| over all pairs of rows."""
    return float((torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)).max())


@torch.no_grad()
def evaluate(name: str, net: lben.EquilibriumNetwork, data: ImageData, seconds: float) -> Outcome:
    """Judge a network on the test images, solved in double precision so that slopes are not rounding."""
    net = copy.deepcopy(net).eval().double()
    net.solver = lben.PeacemanRachford(tolerance=1e-8)
    x = pixels(data.test_images, torch.float64)
    solution, y = net.solve(x), net(x)
    assert net.normalize is not None
    return Outcome(
        name=name,
        error=100 * float((y.argmax(1) != data.test_labels).double().mean()),
        gamma=net.gamma,
        slope=largest_slope(net.normalize(x), y),
        iterations=solution.iterations,
        residual=float(solution.residual.max()),
        seconds=seconds,
    )


@dataclass(frozen=True)
class Robustness:
    """What is proved of one network, and what an attack on it reached, for each of SIZES; errors in per cent.

    certified: by bounds that hold everywhere. around: by bounds around each image.
    """

    name: str
    certificate: str
    shown: str
    bound: float
    slope: float
    median_radius: float
    certified: list[float]
    around: list[float]
    attacked: list[float]


def examine(name: str, net: lben.EquilibriumNetwork, data: ImageData) -> Robustness:
    """Prove, search for the opposite, and attack; each takes some seconds."""
    x, y = pixels(data.test_images), data.test_labels
    tight = lben.tightest_bound(net.eval(), rigorous=True)
    assert tight.gamma is not None
    below = lben.lipschitz_lower_bound(net, x, seed=SEED, progress=True)
    x, y = x[:ATTACKED], y[:ATTACKED]
    radius = lben.certified_radius(net, x, y, domain="pixels", progress=True).radius
    local = lben.certified_radius(net, x, y, domain="pixels", local=True, progress=True).radius
    attack = lben.attack(net, x, y, SIZES, steps=20, restarts=1, domain="pixels", seed=SEED, progress=True)
    return Robustness(
        name=name,
        certificate=str(tight),
        shown=str(below),
        bound=tight.gamma,
        slope=below.value,
        median_radius=float(local.median()),
        certified=[100 * float((radius <= size).double().mean()) for size in SIZES],
        around=[100 * float((local <= size).double().mean()) for size in SIZES],
        attacked=[100 * share for share in attack.error.tolist()],
    )


LEGEND = {
    "gamma": "the promise made before training: outputs never move more than gamma times as far as (normalised) "
    "inputs do, for any inputs whatever",
    "largest slope": "how far outputs moved relative to inputs, at most, between any two of the 1,000 test images",
    "iterations": "of the solver that finds the hidden layers of all test images at once",
    "residual": "how far the worst of them is from solving its equation, relative to its size",
}

REACHED = "the error that 20 steps of projected gradient reached: the true one is at least this"
PROVED = "no perturbation of at most that size can bring about more errors than this"
AROUND = "the same, by bounds around each image in place of those that hold everywhere"


def show(outcomes: list[Outcome], console: Console) -> None:
    table = Table(title="6,000 MNIST images to train, 1,000 to test, 80 hidden units", title_justify="left")
    for column in ("", "test error", "gamma", "largest slope", "iterations", "residual", "training"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for o in outcomes:
        table.add_row(
            o.name,
            f"{o.error:.1f} %",
            "none" if o.gamma is None else f"{o.gamma:g}",
            f"{o.slope:.3f}",
            str(o.iterations),
            f"{o.residual:.0e}",
            f"{o.seconds:.0f} s",
        )
    console.print(table)
    explain(LEGEND, console)


def explain(words: dict[str, str], console: Console) -> None:
    legend = Table.grid(padding=(0, 2))
    for word, meaning in words.items():
        legend.add_row(f"[bold]{word}[/]", meaning)
    console.print(legend, highlight=False)


def show_robustness(found: list[Robustness], console: Console) -> None:
    title = f"Error of {ATTACKED} test images under perturbations, in the l2 norm of pixels in [0, 1]"
    table = Table(title=title, title_justify="left")
    table.add_column("size at most", justify="right")
    for o in found:
        table.add_column(f"{o.name} attacked", justify="right")
        table.add_column(f"{o.name} proved", justify="right")
        table.add_column("around each", justify="right")
    for k in range(0, len(SIZES), 2):
        cells = [f"{share:.1f} %" for o in found for share in (o.attacked[k], o.certified[k], o.around[k])]
        table.add_row(f"{SIZES[k]:.1f}", *cells)
    console.print(table)
    words = {"attacked": REACHED, "proved": PROVED, "around each": AROUND}
    for o in found:
        radii = f"Half of these images are proved to keep their class within {o.median_radius:.2f} pixels (l2)."
        words[o.name] = f"{o.certificate} {o.shown} {radii}"
    explain(words, console)


def normalised(length: Any) -> Any:
    """A length in pixels, as it is after normalisation."""
    return length / MNIST_STD


def in_pixels(length: Any) -> Any:
    return length * MNIST_STD


def draw(found: list[Robustness], path: Path) -> None:
    """Error under attack and certified error against the size of the perturbation; the truth is in between."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for o, colour in zip(found, ("#0b6e99", "#c8553d"), strict=True):
        axes.fill_between(SIZES, o.attacked, o.certified, color=colour, alpha=0.12, linewidth=0)
        axes.plot(SIZES, o.certified, "--", color=colour, label=f"{o.name}: at most (proved)")
        axes.plot(
            SIZES, o.around, ":", color=colour, linewidth=1.8, label=f"{o.name}: at most (proved around each image)"
        )
        axes.plot(SIZES, o.attacked, "-o", color=colour, markersize=3.5, label=f"{o.name}: at least (attacked)")
    axes.set(xlim=(0, SIZES[-1]), ylim=(0, 100), xlabel="size of the perturbation, $\\ell_2$ in pixels of [0, 1]")
    axes.set_ylabel(f"error of {ATTACKED} test images, %")
    upper = axes.secondary_xaxis("top", functions=(normalised, in_pixels))
    upper.set_xlabel("the same after normalisation, as the network sees it")
    axes.grid(alpha=0.25)
    axes.spines["right"].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)  # two take 20 seconds in place of 26, and ten minutes beside other work
    target, console = folder(__doc__), Console()
    data = embedded_mnist()
    outcomes, nets = [], {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for name in ("LBEN", "MON"):
            torch.manual_seed(SEED)
            normalize = lben.Normalize(MNIST_MEAN, MNIST_STD)
            solver = lben.PeacemanRachford(tolerance=1e-3)
            net: lben.EquilibriumNetwork = (
                lben.LBEN(784, 80, 10, gamma=1.0, solver=solver, normalize=normalize)
                if name == "LBEN"
                else lben.MON(784, 80, 10, solver=solver, normalize=normalize)
            )
            seconds = train(name, net, data, progress)
            outcomes.append(evaluate(name, net, data, seconds))
            nets[name] = net
    show(outcomes, console)
    console.print("\nProving and attacking: about a minute.")
    found = []
    for name, net in nets.items():
        console.print(f"{name}: two steep inputs, a radius for every image, and attacks")
        found.append(examine(name, net, data))
    show_robustness(found, console)
    draw(found, target / "demo.png")
    record(target / "demo.json", "make demo", SEED, sizes=SIZES, networks=[vars(o) for o in found])
    console.print(f"The picture is {target / 'demo.png'}, its numbers {target / 'demo.json'}.")
    broken = [o.name for o in outcomes if o.gamma is not None and o.slope > o.gamma]
    broken += [o.name for o in found if o.slope > o.bound or any(map(float.__gt__, o.attacked, o.around))]
    if broken:
        raise SystemExit(f"The bound was exceeded by {broken}: this must not happen, please report it.")
    page = Path(__file__).parent.parent / "build" / "demo.html"
    page.parent.mkdir(exist_ok=True)
    lben.write_page(page, nets)
    console.print(f"Open {page} in a browser to draw digits, and to attack these networks yourself.")


if __name__ == "__main__":
    main()
