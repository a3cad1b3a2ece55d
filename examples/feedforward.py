"""Certify feed-forward networks that were trained elsewhere: the product of norms, the tightest bound, and the truth.

    make feedforward

Plain PyTorch networks of one to five hidden layers, with and without residual blocks, learn the MNIST images that ship
with lben. `lben.from_sequential` reads each; `lben.tightest_bound` of the result is LipSDP, and a pair of inputs shows
how far it can be from the truth at most. build/feedforward.png shows all three.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import lben
from lben.data import embedded_mnist, pixels

WIDTH, EPOCHS, BATCH = 32, 3, 64
DEPTHS = range(1, 6)
SEED = 0


def build(depth: int, *, residual: bool) -> nn.Sequential:
    """784 inputs, `depth` hidden layers, 10 outputs."""
    stages: list[nn.Module] = [nn.Linear(784, WIDTH), nn.ReLU()]
    for _ in range(depth - 1):
        layer: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        stages += [lben.Residual(*layer, nn.Linear(WIDTH, WIDTH))] if residual else layer
    return nn.Sequential(*stages, nn.Linear(WIDTH, 10))


def train(module: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module(x[index]), y[index]).backward()
            optimizer.step()


def product_of_norms(module: nn.Module) -> float:
    """The bound that needs no equation: norms of layers multiplied, with 1 + that of its body for a residual block."""
    if isinstance(module, nn.Linear):
        return float(torch.linalg.matrix_norm(module.weight.detach(), 2))
    if isinstance(module, lben.Residual):
        return 1 + product_of_norms(module.body)
    return math.prod(product_of_norms(child) for child in module.children())


def measure(module: nn.Module, x: Tensor) -> tuple[float, float, float]:
    """The product of norms, the tightest bound and a lower bound."""
    net = lben.from_sequential(module)
    tight = lben.tightest_bound(net).gamma
    assert tight is not None
    return product_of_norms(module), tight, lben.lipschitz_lower_bound(net, x, restarts=4, steps=40).value


def draw(rows: dict[str, list[tuple[float, float, float]]], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    labels = ("product of norms", "tightest bound (LipSDP)", "shown by two inputs")
    figure, axes = plt.subplots(1, len(rows), figsize=(8, 3.2), sharey=True, layout="constrained")
    for ax, (name, values) in zip(axes, rows.items(), strict=True):
        for label, line, style in zip(labels, zip(*values, strict=True), ("s--", "o-", "v:"), strict=True):
            ax.semilogy(list(DEPTHS), line, style, label=label)
        ax.set(title=name, xlabel="hidden layers or blocks", xticks=list(DEPTHS))
        ax.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("Lipschitz constant")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    target, console = folder(__doc__), Console()
    data = embedded_mnist()
    x, y = pixels(data.train_images), data.train_labels
    bounds: dict[str, list[tuple[float, float, float]]] = {"plain": [], "residual": []}
    table = Table("network", "layers", "test error", "product of norms", "tightest bound", "two inputs")
    cases = [(name, depth) for name in bounds for depth in DEPTHS]
    for name, depth in track(cases, "Training and certifying", console=console):
        torch.manual_seed(SEED)
        module = build(depth, residual=name == "residual")
        train(module, x, y)
        error = float((module(pixels(data.test_images)).argmax(dim=-1) != data.test_labels).double().mean())
        bounds[name].append(measure(module.eval(), x[:100]))
        table.add_row(name, str(depth), f"{100 * error:.1f} %", *(f"{bound:.2f}" for bound in bounds[name][-1]))
    console.print(table)
    draw(bounds, target / "feedforward.png")
    record(target / "feedforward.json", "make feedforward", SEED, depths=list(DEPTHS), bounds=bounds)
    console.print(f"The picture is {target / 'feedforward.png'}.")


if __name__ == "__main__":
    main()
