"""Speed as ratios, each measured side by side in one run: the median of interleaved repeats.

    make bench

Writes one table a subject to benchmarks/results, and all as JSON. A training step is all of it: the batch gathered from
bytes in memory, normalised, forward, loss, backward and Adam with its defaults. Times are not reported, for they say
more about the machine than about the library; the step of the plain network is given once, for scale.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch
import torchdeq
from convolutional import memory_rows, resolvent_rows, splitting_rows, step_rows
from deployment import DEPLOYMENT
from layers import layer_rows, peer_rows
from local import LOCAL
from measuring import Row, Step, compare, interleave
from recurrent import recurrent_rows
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import lben
from lben.activations.scalar import TABLE
from lben.data import MNIST_MEAN, MNIST_STD, embedded_mnist, pixels
from lben.operators.dense import DenseOperator
from lben.solvers.base import Problem, Yardstick
from lben.solvers.loop import solve

RESULTS = Path(__file__).parent / "results"
SEED, BATCH, EPOCHS = 0, 128, 4
DATA = embedded_mnist()
ACTIVATIONS: tuple[lben.Activation, ...] = tuple(kind() for kind in TABLE)


def training_step(net: nn.Module) -> Step:
    optimizer = torch.optim.Adam(net.parameters())
    generator = torch.Generator().manual_seed(SEED)
    count = len(DATA.train_labels)

    def step() -> None:
        index = torch.randint(count, (BATCH,), generator=generator)
        x = (pixels(DATA.train_images[index]) - MNIST_MEAN) / MNIST_STD
        loss = F.cross_entropy(net(x), DATA.train_labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def train(net: nn.Module) -> None:
    step = training_step(net)
    for _ in range(EPOCHS * len(DATA.train_labels) // BATCH):
        step()


def plain(hidden: int = 80) -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def bounded(gamma: float | None, tolerance: float, hidden: int = 80) -> lben.LBEN:
    return lben.LBEN(784, hidden, 10, gamma=gamma, solver=lben.PeacemanRachford(tolerance=tolerance))


def training_rows() -> list[Row]:
    """A step of LBEN against a step of a plain network, from the first step on and after four epochs."""
    rows = []
    for trained in (False, True):
        torch.manual_seed(SEED)
        when = "trained" if trained else "fresh"
        nets: dict[str, nn.Module] = {
            f"plain network, {when}": plain(),
            f"LBEN gamma=1, tolerance 1e-2, {when}": bounded(1.0, 1e-2),
            f"LBEN gamma=1, tolerance 1e-3, {when}": bounded(1.0, 1e-3),
            f"LBEN gamma=None, tolerance 1e-2, {when}": bounded(None, 1e-2),
            f"MON, tolerance 1e-2, {when}": lben.MON(784, 80, 10, solver=lben.PeacemanRachford(tolerance=1e-2)),
        }
        if trained:
            for net in nets.values():
                train(net)
        times = interleave({name: training_step(net) for name, net in nets.items()})
        base, first, second, third, fourth = nets
        rows += [
            compare(times, first, base, 2.5),
            compare(times, second, base, 3.0),
            compare(times, third, base),
            compare(times, fourth, base),
            compare(times, first, third, 1.25),
        ]
    return rows


def activation_rows() -> list[Row]:
    """A step with every activation of the table against one with ReLU, at the default tolerance, fresh and trained."""
    rows = []
    for trained in (False, True):
        when = "trained" if trained else "fresh"
        nets: dict[str, nn.Module] = {}
        for activation in ACTIVATIONS:
            torch.manual_seed(SEED)
            name = f"{type(activation).__name__}, {when}"
            nets[name] = lben.LBEN(784, 80, 10, gamma=1.0, activation=activation)
            if trained:
                train(nets[name])
        times = interleave({name: training_step(net) for name, net in nets.items()}, repeats=40, block=4)
        base, *others = nets
        rows += [compare(times, name, base, 2.0) for name in others]
    return rows


def evaluation_rows() -> list[Row]:
    """10,000 images in one batch at a tolerance of 1e-4."""
    torch.manual_seed(SEED)
    network, net = plain(), bounded(1.0, 1e-4)
    train(net)
    net.eval()
    x = (pixels(DATA.train_images.repeat(2, 1)[:10_000]) - MNIST_MEAN) / MNIST_STD
    with torch.no_grad():
        times = interleave(
            {"plain network, 10,000 images": lambda: network(x), "LBEN gamma=1, 10,000 images at 1e-4": lambda: net(x)},
            block=2,
        )
    what, against = "LBEN gamma=1, 10,000 images at 1e-4", "plain network, 10,000 images"
    return [compare(times, what, against, note=f"{net.solve(x).iterations} iterations")]


def compiled_rows() -> list[Row]:
    """`torch.compile(net)` against the network as it is: a training step, and 1 and 10,000 images in evaluation."""
    torch.manual_seed(SEED)
    net = bounded(1.0, 1e-3)
    steps = {"as it is": training_step(net), "compiled": training_step(cast(nn.Module, torch.compile(net)))}
    times = interleave({f"training step, {how}": step for how, step in steps.items()}, repeats=40)
    rows = [compare(times, "training step, compiled", "training step, as it is")]
    net.eval()
    compiled = torch.compile(net)
    images = (pixels(DATA.train_images.repeat(2, 1)[:10_000]) - MNIST_MEAN) / MNIST_STD
    for count in (1, 10_000):
        x, what = images[:count], f"evaluation, {count:,} images"
        with torch.no_grad():
            times = interleave(
                {f"{what}, as it is": partial(net, x), f"{what}, compiled": partial(compiled, x)}, block=2
            )
        rows.append(compare(times, f"{what}, compiled", f"{what}, as it is"))
    return rows


def solver_rows() -> list[Row]:
    """Every solver on the equilibria of 128 test images of a trained network, in double precision, to 1e-6."""
    torch.manual_seed(SEED)
    net = bounded(1.0, 1e-3)
    train(net)
    weights = net.weights().detach().to(torch.float64)
    x = (pixels(DATA.test_images[:BATCH], torch.float64) - MNIST_MEAN) / MNIST_STD
    problem = Problem(DenseOperator(weights.W, weights.lam), lben.ReLU(), x @ weights.U.T + weights.bz)
    solvers: dict[str, lben.Solver] = {
        "PeacemanRachford": lben.PeacemanRachford(tolerance=1e-6),
        "DouglasRachford": lben.DouglasRachford(tolerance=1e-6),
        "ForwardBackward": lben.ForwardBackward(tolerance=1e-6),
        "FISTA": lben.FISTA(tolerance=1e-6),
        "Anderson of PeacemanRachford": lben.Anderson(tolerance=1e-6),
        "Anderson of ForwardBackward": lben.Anderson(tolerance=1e-6, method=lben.ForwardBackward()),
        "Newton": lben.Newton(tolerance=1e-6),
    }
    times = interleave({n: lambda s=s: solve(s, problem) for n, s in solvers.items()}, repeats=15, block=2)  # type: ignore[misc]
    return [
        compare(times, name, "PeacemanRachford", note=f"{solve(solver, problem).iterations} iterations")
        for name, solver in solvers.items()
    ]


def growth_rows() -> list[Row]:
    """How a training step grows with the number of units."""
    rows = []
    for hidden in (80, 160, 320, 640, 1280):
        torch.manual_seed(SEED)
        steps = {f"plain network, n={hidden}": plain(hidden), f"LBEN gamma=1, n={hidden}": bounded(1.0, 1e-2, hidden)}
        first = {"LBEN gamma=1, n=80 ": bounded(1.0, 1e-2)}
        times = interleave(
            {name: training_step(net) for name, net in (steps | first).items()},
            repeats=8,
            block=10 if hidden < 640 else 3,
        )
        base, this = steps
        rows += [compare(times, this, base), compare(times, this, "LBEN gamma=1, n=80 ")]
    return rows


def torchdeq_rows() -> list[Row]:
    """The same weights by torchdeq's Anderson solver, whose relative stop is our residual, forward and backward."""
    rows = []
    torch.manual_seed(SEED)
    net = bounded(1.0, 1e-2)
    train(net)
    net.eval()
    parameters = net.parameterization
    x = (pixels(DATA.train_images[:BATCH]) - MNIST_MEAN) / MNIST_STD
    y = DATA.train_labels[:BATCH]
    for tolerance in (1e-2, 1e-3):
        deq = torchdeq.get_deq(
            f_solver="anderson",
            b_solver="anderson",
            ift=True,
            f_max_iter=500,
            b_max_iter=500,
            f_tol=tolerance,
            b_tol=tolerance,
            f_stop_mode="rel",
            b_stop_mode="rel",
        )

        def peer(deq: nn.Module = deq) -> Tensor:
            W = parameters.hidden_weight()
            b = F.linear(x, parameters.U, parameters.bz)
            (z,), _ = deq(lambda z: torch.relu(F.linear(z, W) + b), torch.zeros_like(b))
            F.cross_entropy(F.linear(z, parameters.Wo, parameters.by), y).backward()
            result: Tensor = z
            return result

        def ours() -> None:
            F.cross_entropy(net(x), y).backward()

        net.train()
        net.solver = lben.PeacemanRachford(tolerance=tolerance)
        with torch.no_grad():
            weights = net.weights()
            b = F.linear(x, weights.U, weights.bz)
        z = peer().detach()
        hat = torch.relu(F.linear(z, weights.W) + b)
        reached = float(Yardstick(b).residual(z - hat, hat).max())
        ours_name, peer_name = f"LBEN, forward and backward at {tolerance:g}", f"torchdeq Anderson at {tolerance:g}"
        times = interleave({ours_name: ours, peer_name: peer}, repeats=15, block=4)
        note = f"torchdeq's worst residual {reached:.1e}, ours {float(net.solve(x).residual.max()):.1e}"
        rows.append(compare(times, ours_name, peer_name, 1 / 5, note))
    return rows


def certificate_rows() -> list[Row]:
    """The tightest bound of trained networks by the barrier method against SCS at the reduced size."""
    rows = []
    for gamma in (1.0, None):
        torch.manual_seed(SEED)
        net = bounded(gamma, 1e-3)
        train(net)
        ours, peer = f"barrier method, LBEN gamma={gamma}", f"SCS, LBEN gamma={gamma}"
        times = interleave(
            {ours: lambda n=net: lben.tightest_bound(n), peer: lambda n=net: lben.tightest_bound(n, solver="scs")},  # type: ignore[misc]
            repeats=3,
            block=1,
        )
        one, other = lben.tightest_bound(net).gamma, lben.tightest_bound(net, solver="scs").gamma
        assert one is not None
        assert other is not None
        rows.append(compare(times, ours, peer, 1 / 20, f"bounds {one:.6f} and {other:.6f}"))
    return rows


DENSE: dict[str, Callable[[], list[Row]]] = {
    "Training step, 80 units, batch 128, 784 inputs": training_rows,
    "Training step with other activations than ReLU, gamma=1, tolerance 1e-4": activation_rows,
    "Evaluation": evaluation_rows,
    "torch.compile, LBEN gamma=1, 80 units, tolerance 1e-3": compiled_rows,
    "Solvers, 80 units, batch 128, double precision, tolerance 1e-6": solver_rows,
    "Growth of the training step, tolerance 1e-2": growth_rows,
    "Against torchdeq, 80 units, batch 128": torchdeq_rows,
    "Tightest bound, 80 units, 784 inputs": certificate_rows,
}
CONVOLUTION: dict[str, Callable[[], list[Row]]] = {
    "40 channels at 32 x 32, batch 64: a resolvent application": resolvent_rows,
    "gamma=2: equilibria at tolerance 1e-3": splitting_rows,
    "gamma=2: training step at tolerance 1e-2": step_rows,
    "gamma=2: peak memory of a training step": memory_rows,
}
LAYERS: dict[str, Callable[[], list[Row]]] = {
    "64 channels at 16 x 16, batch 128: forward and backward": layer_rows,
    "The same against the layers of others": peer_rows,
}


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.02 else f"{ratio:.4f}"


def markdown(results: dict[str, list[Row]], setting: dict[str, str]) -> str:
    lines = [
        "# Speed, as ratios",
        "",
        "Made by `make bench`: " + ", ".join(f"{k} {v}" for k, v in setting.items()) + ".",
        "Each ratio is the median of interleaved repeats, with the quartiles behind it; 2.0 means twice as long.",
        "A training step gathers its batch from bytes in memory and uses Adam with its defaults.",
        "",
    ]
    for section, rows in results.items():
        lines += [
            f"## {section}",
            "",
            "| what | against | ratio | quartiles | at most | |",
            "|---|---|---:|---|---|---|",
        ]
        for row in rows:
            target = "" if row.target is None else f"{row.target:g}"
            verdict = "" if row.target is None else ("met" if row.ratio <= row.target else "**not met**")
            note = ", ".join(part for part in (verdict, row.note) if part)
            spread = f"{_short(row.low)}–{_short(row.high)}"
            lines.append(f"| {row.what} | {row.against} | {_short(row.ratio)} | {spread} | {target} | {note} |")
        lines.append("")
    return "\n".join(lines)


def measure(name: str, sections: dict[str, Callable[[], list[Row]]]) -> None:
    """Run sections and write them to one file as text, and to one as data."""
    console = Console()
    results = {title: sections[title]() for title in track(sections, description=name, console=console)}
    setting = {
        "on": date.today().isoformat(),
        "seed": str(SEED),
        "lben": version("lben"),
        "torch": torch.__version__,
        "torchdeq": version("torchdeq"),
        "orthogonium": version("orthogonium"),
        "deel-torchlip": version("deel-torchlip"),
        "Python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }
    RESULTS.mkdir(exist_ok=True)
    content = {"setting": setting, "rows": {title: [vars(row) for row in rows] for title, rows in results.items()}}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    text = markdown(results, setting)
    (RESULTS / f"{name}.md").write_text(text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    measure("speed", DENSE)
    measure("convolution", CONVOLUTION)
    measure("layers", LAYERS)
    measure("deployment", DEPLOYMENT)
    measure("local", LOCAL)
    measure("recurrent", {"100 time steps, batch 64, 20 states, 40 hidden units: a training step": recurrent_rows})
