"""Train a network with a Lipschitz bound and one without, side by side, on the MNIST images that ship with lben.

    make demo

An LBEN promises, before it has seen any data, that moving an image by a distance r moves its output by at most
gamma * r. A MON makes no such promise. Both have 80 hidden units and train for ten epochs on 6,000 images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import lben
from lben.data import MNIST_MEAN, MNIST_STD, ImageData, embedded_mnist, pixels

EPOCHS, BATCH, LEARNING_RATE, SEED = 10, 64, 4e-3, 0


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
    net.eval().double().solver = lben.PeacemanRachford(tolerance=1e-8)
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


LEGEND = {
    "gamma": "the promise made before training: outputs never move more than gamma times as far as (normalised) "
    "inputs do, for any inputs whatever",
    "largest slope": "how far outputs moved relative to inputs, at most, between any two of the 1,000 test images",
    "iterations": "of the solver that finds the hidden layers of all test images at once",
    "residual": "how far the worst of them is from solving its equation, relative to its size",
}


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
    legend = Table.grid(padding=(0, 2))
    for word, meaning in LEGEND.items():
        legend.add_row(f"[bold]{word}[/]", meaning)
    console.print(legend, highlight=False)


def main() -> None:
    console = Console()
    data = embedded_mnist()
    outcomes = []
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
    show(outcomes, console)
    broken = [o.name for o in outcomes if o.gamma is not None and o.slope > o.gamma]
    if broken:
        raise SystemExit(f"The bound was exceeded by {broken}: this must not happen, please report it.")


if __name__ == "__main__":
    main()
