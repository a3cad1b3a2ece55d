"""The convolutional network of the paper's SVHN study against plain convolutions: time and memory, as ratios.

Its images are those of MNIST that ship inside, padded to 32 x 32 and given three channels, for SVHN is too large to.
Trained weights are those of the study's row with gamma = 2, after `lben reproduce svhn --third --seed 0`.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from measuring import Row, Step, compare, interleave
from torch import Tensor, nn
from torch.nn import functional as F

import lben
from lben.data import embedded_mnist, pixels
from lben.experiments.svhn import EPSILON, POOL, plain_convolution
from lben.solvers.base import Problem
from lben.solvers.loop import solve

IN_SHAPE, CHANNELS, OUTPUTS, BATCH, GAMMA = (3, 32, 32), 40, 10, 64, 2.0
SEED = 0
TRAINED = Path(__file__).parent / "svhn-gamma-2.safetensors"
Kind = Literal["plain", "lben"]


def network(tolerance: float = 1e-2) -> lben.ConvLBEN:
    torch.manual_seed(SEED)
    solver = lben.PeacemanRachford(tolerance=tolerance)
    return lben.ConvLBEN(IN_SHAPE, CHANNELS, OUTPUTS, gamma=GAMMA, epsilon=EPSILON, pool=POOL, solver=solver)


def plain() -> nn.Module:
    torch.manual_seed(SEED)
    return plain_convolution(IN_SHAPE, CHANNELS, OUTPUTS)


def images(index: Tensor) -> tuple[Tensor, Tensor]:
    data = embedded_mnist()
    x = pixels(data.train_images[index]).reshape(-1, 1, 28, 28)
    return F.pad(x, (2, 2, 2, 2)).expand(-1, *IN_SHAPE).contiguous(), data.train_labels[index]


def training_step(net: nn.Module) -> Step:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED)

    def step() -> None:
        x, y = images(torch.randint(6000, (BATCH,), generator=generator))
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def trained() -> lben.ConvLBEN:
    net = lben.load(TRAINED)
    assert isinstance(net, lben.ConvLBEN)
    net.solver = network().solver
    return net


def resolvent_rows() -> list[Row]:
    """One application of (I + alpha (I - W))^-1, with Woodbury's low rank, against one 3 x 3 convolution."""
    weights = network().weights().detach()
    operator = weights.operator()
    apply = operator.cayley(0.1)
    w = torch.randn(operator.size, BATCH).T
    out = torch.empty_like(w)
    x = torch.randn(BATCH, CHANNELS, *IN_SHAPE[1:])
    default = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    x_last, kernel = (t.contiguous(memory_format=torch.channels_last) for t in (x, default.weight))
    ours, first, second, factor = "resolvent", "3 x 3 convolution", "3 x 3 convolution, channels last", "factor"
    with torch.no_grad():
        steps: dict[str, Step] = {
            ours: lambda: apply(w, w, out),
            first: lambda: default(x),
            second: lambda: F.conv2d(x_last, kernel, padding=1),
            factor: lambda: weights.operator().cayley(0.1),
        }
        times = interleave(steps, repeats=15, block=2)
    return [
        compare(times, ours, first, 1.5),
        compare(times, ours, second, 2.5),
        compare(times, factor, ours, note="W and the factor, once a training step"),
    ]


def splitting_rows() -> list[Row]:
    """The equilibria of one batch at a tolerance of 1e-3, from weights whose steps and factors are known."""
    rows = []
    for when, net in (("fresh", network()), ("trained", trained())):
        with torch.no_grad():
            weights, x = net.weights(), images(torch.arange(BATCH))[0]
            x = x if net.normalize is None else net.normalize(x)
            problem = Problem(weights.operator(), lben.ReLU(), weights.inject(x.flatten(1)))
            solvers: dict[str, lben.Solver] = {
                f"PeacemanRachford, {when}": lben.PeacemanRachford(tolerance=1e-3),
                f"FISTA, {when}": lben.FISTA(tolerance=1e-3),
                f"ForwardBackward, {when}": lben.ForwardBackward(tolerance=1e-3),
            }
            found = {name: solve(solver, problem).iterations for name, solver in solvers.items()}
            times = interleave({n: partial(solve, s, problem) for n, s in solvers.items()}, repeats=5, block=1)
        ours, *others = solvers
        condition = problem.operator.norm / problem.operator.monotonicity
        for other in others:
            note = f"{found[ours]} and {found[other]} iterations, L/m = {condition:.1f}"
            rows.append(compare(times, ours, other, 1 / 5 if when == "trained" else None, note))
    return rows


def step_rows() -> list[Row]:
    """A training step against that of a plain network with two convolutions of the same shape."""
    rows = []
    for when, net in (("fresh", network()), ("trained", trained())):
        ours, base = f"ConvLBEN, {when}", f"plain convolutional network, {when}"
        times = interleave({ours: training_step(net), base: training_step(plain())}, repeats=5, block=1)
        rows.append(compare(times, ours, base, 4.5 if when == "fresh" else 8.0))
    return rows


def peak_memory(kind: Kind, tolerance: float) -> int:
    """By how much two training steps raise the peak memory of a process of their own, in kilobytes."""
    net: nn.Module = plain() if kind == "plain" else network(tolerance)
    if isinstance(net, lben.ConvLBEN):
        net.solver = lben.PeacemanRachford(tolerance=tolerance, on_failure="warn", max_iterations=200)
    step = training_step(net)
    before = _peak()
    for _ in range(2):
        step()
    return _peak() - before


def _peak() -> int:
    """The peak memory of this process; that of getrusage would begin with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def memory_rows() -> list[Row]:
    """Peak memory against a plain network's, and of a step of many iterations against one of few."""
    cases: list[tuple[str, Kind, float]] = [
        ("plain convolutional network", "plain", 1e-2),
        ("ConvLBEN at 1e-2", "lben", 1e-2),
        ("ConvLBEN at 1e-5", "lben", 1e-5),
    ]
    found = {}
    for name, kind, tolerance in cases:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            found[name] = process.submit(peak_memory, kind, tolerance).result()
    base, few, many = found
    rows = []
    for what, against, target in ((few, base, None), (many, few, 1.1)):
        ratio = found[what] / found[against]
        rows.append(Row(what, against, ratio, ratio, ratio, target, f"{found[what] / 1024:.0f} MB"))
    return rows
