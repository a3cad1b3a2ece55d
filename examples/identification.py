"""Learn a nonlinear oscillator from noisy records: by networks that promise something of all signals, and by others.

    make identification

A mass on a spring that hardens (Duffing's oscillator) is pushed, and its position measured with noise. Four models of
like size see the same records of random steps: a REN that contracts, a REN of incremental gain at most 2, a REN
without a promise, and an nn.LSTM. The best of each on validation records (sums of sines) is tested on what none has
seen: a sine that sweeps through the resonance. Then each is started from a wrong state, and its input is attacked, by
ascent through time. build/identification.png shows what becomes of the four, and what was promised.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import lben

SEED, STEP, NOISE, GAMMA = 0, 0.25, 0.02, 2.0
RECORDS, TIMES, TEST_TIMES = 48, 80, 400
STATES, HIDDEN, UNITS = 8, 16, 14  # of the RENs, and of the LSTM
ITERATIONS, RATE = 500, 1e-2
ATTACK, ATTACK_STEPS = 0.2, 30  # the length of an attack, relative to that of the input
WRONG = 2.0  # the standard deviation of a wrong state's entries


def oscillator(u: Tensor) -> Tensor:
    """Positions of q'' = -q - q^3 - 0.8 q' + u from rest, u constant between samples; shape (times, records, 1)."""
    q, speed, seen = torch.zeros_like(u[0]), torch.zeros_like(u[0]), []
    for push in u:
        seen.append(q)
        for _ in range(10):
            speed = speed + STEP / 10 * (push - q - q**3 - 0.8 * speed)
            q = q + STEP / 10 * speed
    return torch.stack(seen)


def steps(records: int, generator: torch.Generator) -> Tensor:
    """Random levels, held for random times."""
    level = 3 * torch.rand(TIMES, records, generator=generator) - 1.5
    jumps = torch.rand(TIMES, records, generator=generator) < 0.15
    held = torch.cummax(torch.where(jumps, torch.arange(TIMES)[:, None], 0), dim=0).values
    return level.gather(0, held)[:, :, None]


def sines(records: int, generator: torch.Generator) -> Tensor:
    t = STEP * torch.arange(TIMES)[:, None, None]
    strength, speed, phase = torch.rand(3, records, 4, generator=generator)
    waves: Tensor = 0.8 * strength * torch.sin((0.2 + 2.5 * speed) * t + 2 * math.pi * phase)
    return waves.sum(dim=-1, keepdim=True)


def sweep() -> Tensor:
    t = STEP * torch.arange(TEST_TIMES)
    return torch.sin(0.1 * t + 0.5 * 2.4 / float(t[-1]) * t**2)[:, None, None]


class LSTM(nn.Module):
    """An nn.LSTM with a linear output, started as a REN is; its state is h and c together."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head, self.state_features = nn.LSTM(1, UNITS), nn.Linear(UNITS, 1), 2 * UNITS

    def forward(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        start = None if x0 is None else tuple(part[None].contiguous() for part in x0.chunk(2, dim=-1))
        y: Tensor = self.head(self.lstm(u, start)[0])
        return y


MODELS: dict[str, Callable[[], nn.Module]] = {
    "REN, contracting": lambda: lben.REN(1, STATES, HIDDEN, 1, behaviour=lben.Contracting()),
    f"REN, gain {GAMMA:g}": lambda: lben.REN(1, STATES, HIDDEN, 1, behaviour=lben.Lipschitz(GAMMA)),
    "REN, no promise": lambda: lben.REN(1, STATES, HIDDEN, 1, behaviour=None, acyclic=True),
    "LSTM": LSTM,
}


@dataclass(frozen=True)
class Outcome:
    """Errors are root mean squares, relative to that of the true signal; `forgotten` is the distance that a wrong state
    leaves, over time, and `moved` how far the attack moved the output, relative to the attack's length."""

    name: str
    parameters: int
    error: float
    wrong_error: float
    attacked_error: float
    moved: float
    forgotten: Tensor
    test: Tensor
    certificate: str
    seconds: float


def relative(y: Tensor, truth: Tensor) -> float:
    return float((y - truth).square().mean().sqrt() / truth.square().mean().sqrt())


def train(model: nn.Module, name: str) -> nn.Module:
    generator = torch.Generator().manual_seed(SEED)
    u, check = steps(RECORDS, generator), sines(24, generator)
    y, truth = oscillator(u), oscillator(check)
    y, seen = (part + NOISE * torch.randn(part.shape, generator=generator) for part in (y, truth))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=ITERATIONS)
    best, kept = math.inf, model
    for iteration in track(range(ITERATIONS), description=name):
        optimizer.zero_grad()
        (model(u) - y).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if iteration % 10 == 9:
            with torch.no_grad():
                error = relative(model(check), seen)
            if error < best:
                best, kept = error, copy.deepcopy(model)
    return kept


def attacked(model: nn.Module, u: Tensor) -> Tensor:
    """The input with an addition of length ATTACK |u| that moves the output far."""
    with torch.no_grad():
        y = model(u)
    size = ATTACK * torch.linalg.vector_norm(u)
    delta = torch.randn(u.shape, generator=torch.Generator().manual_seed(SEED))
    for _ in range(ATTACK_STEPS):
        delta = (delta * size / torch.linalg.vector_norm(delta)).detach().requires_grad_()
        (grad,) = torch.autograd.grad((model(u + delta) - y).square().sum().sqrt(), delta)
        delta = delta.detach() + 0.5 * size * grad / torch.linalg.vector_norm(grad)
    moved: Tensor = u + delta * size / torch.linalg.vector_norm(delta)
    return moved


def examine(name: str) -> Outcome:
    torch.manual_seed(SEED)
    started = time.perf_counter()
    model = train(MODELS[name](), name).eval()
    seconds = time.perf_counter() - started
    u = sweep()
    truth, bad = oscillator(u), attacked(model, u)
    states: int = model.state_features  # type: ignore[assignment]
    start = WRONG * torch.randn(20, states, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y, wrong, hit = model(u), model(u.expand(-1, 20, -1), start), model(bad)
    apart = (wrong - y).square().mean(dim=(1, 2)).sqrt()
    moved = float(torch.linalg.vector_norm(hit - y) / torch.linalg.vector_norm(bad - u))
    certificate = str(lben.certify(model, rigorous=True)) if isinstance(model, lben.REN) else "nothing can be proved"
    size = sum(parameter.numel() for parameter in model.parameters())
    errors = (relative(y, truth), relative(wrong, truth.expand_as(wrong)), relative(hit, oscillator(bad)))
    return Outcome(name, size, *errors, moved, apart, y[:, 0, 0], certificate, seconds)


def draw(found: list[Outcome], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6), layout="constrained", width_ratios=(1.5, 1, 1))
    colours = ("#0b6e99", "#2a9d5c", "#c8553d", "#8a6fb0")
    t = STEP * torch.arange(TEST_TIMES)
    axes[0].plot(t, oscillator(sweep())[:, 0, 0], color="black", linewidth=1.2, label="truth")
    for o, colour in zip(found, colours, strict=True):
        axes[0].plot(t, o.test, color=colour, linewidth=0.8, label=f"{o.name}: {100 * o.error:.0f} %")
        axes[1].semilogy(t, o.forgotten.clamp(min=1e-8), color=colour, linewidth=1)
    axes[0].set(title="test: a sweep through the resonance", xlabel="time, s", ylabel="position")
    axes[0].set_ylim(-2.2, 2.2)
    axes[0].legend(frameon=False, fontsize=7, loc="upper left", ncols=2)
    axes[1].set(title="what a wrong state leaves", xlabel="time, s", ylabel="distance of outputs")
    bars = axes[2].barh([o.name for o in found], [o.moved for o in found], color=colours)
    axes[2].bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes[2].axvline(GAMMA, color=colours[1], linestyle="--", linewidth=1)
    axes[2].set(title="gain that an attack reaches", xlabel="dashed: promised by the second")
    axes[2].set_xlim(0, 1.2 * max(GAMMA, *(o.moved for o in found)))
    axes[2].invert_yaxis()
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    target, console = folder(__doc__), Console()
    found = [examine(name) for name in MODELS]
    table = Table(
        "", "parameters", "test error", "from a wrong state", "attacked input", "gain of the attack", "training"
    )
    for o in found:
        errors = [f"{100 * error:.1f} %" for error in (o.error, o.wrong_error, o.attacked_error)]
        table.add_row(o.name, str(o.parameters), *errors, f"{o.moved:.2f}", f"{o.seconds:.0f} s")
    console.print(table)
    for o in found:
        console.print(f"[bold]{o.name}[/]: {o.certificate}", highlight=False)
    draw(found, target / "identification.png")
    models = [
        {
            "name": o.name,
            "parameters": o.parameters,
            "test error": o.error,
            "error from a wrong state": o.wrong_error,
            "error under attack": o.attacked_error,
            "gain of the attack": o.moved,
            "distance that a wrong state leaves": float(o.forgotten[-1]),
            "certificate": o.certificate,
        }
        for o in found
    ]
    record(target / "identification.json", "make identification", SEED, attack=ATTACK, models=models)
    console.print(f"The picture is {target / 'identification.png'}.")
    if found[1].moved > GAMMA:
        raise SystemExit("The promised gain was not kept: this must not happen, please report it.")


if __name__ == "__main__":
    main()
