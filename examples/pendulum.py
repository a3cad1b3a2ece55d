"""Learn a damped pendulum from short, noisy records: by an ODE that contracts by construction, and by one that is free.

    make pendulum

Both see the same records of angle and speed, four seconds each. Then both are started from many states, under one
torque, and run for much longer. All trajectories of the ContractingODE meet, at least at the rate that was promised
before training. Nothing is promised of the free ODE: here its W starts lively, as recurrent networks with a memory are
often started, and what the records do not show stays as wild as it was. (From the calm starts of lben.UnconstrainedEN
and of torch.nn.init for tanh it happened to converge as well.) build/pendulum.png shows the outcome.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import lben
from lben.data import RegressionData
from lben.train import MeanSquare, TrainConfig, fit

SEED, UNITS, RATE = 0, 24, 0.02
GAIN = 2.4  # of the start of the free W
DAMPING, NOISE = 0.4, 0.1
STEP = 0.25  # seconds between measurements; also the time constant of the units, so that the leak of the ODE is 1/STEP
RECORD, TEST, LONG = 16, 40, 160  # steps of records to train on, of test records, and of what the picture shows
RECORDS, TESTS, STARTS = 60, 40, 40
CONFIG = TrainConfig(epochs=20, batch_size=6, learning_rate=1e-2, schedule="one-cycle", loss=MeanSquare(), seed=SEED)


def torque(records: int, steps: int, generator: torch.Generator) -> Tensor:
    """Sums of three sines of random strength, speed and phase; shape (records, steps + 1)."""
    t = STEP * torch.arange(steps + 1)
    strength, speed, phase = torch.rand(3, records, 3, 1, generator=generator)
    waves: Tensor = 0.4 * strength * torch.sin((0.2 + 1.3 * speed) * t + 2 * torch.pi * phase)
    return waves.sum(dim=1)


def swing(start: Tensor, u: Tensor) -> Tensor:
    """Angle and speed of theta'' = -sin(theta) - DAMPING theta' + u by small Runge-Kutta steps; (records, times, 2)."""
    parts = 10
    h, states, state = STEP / parts, [start], start

    def field(s: Tensor, push: Tensor) -> Tensor:
        return torch.stack([s[:, 1], -torch.sin(s[:, 0]) - DAMPING * s[:, 1] + push], dim=1)

    for k in range(u.shape[1] - 1):
        for part in range(parts):
            a, c, b = (torch.lerp(u[:, k], u[:, k + 1], (part + x) / parts) for x in (0.0, 0.5, 1.0))
            k1 = field(state, a)
            k2 = field(state + h / 2 * k1, c)
            k3 = field(state + h / 2 * k2, c)
            k4 = field(state + h * k3, b)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(state)
    return torch.stack(states, dim=1)


def records(count: int, steps: int, noise: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (the first measurement, then the torque) and targets (all measurements)."""
    start = torch.tensor([1.2, 0.8]) * (2 * torch.rand(count, 2, generator=generator) - 1)
    u = torque(count, steps, generator)
    measured = swing(start, u)
    measured = measured + noise * torch.randn(measured.shape, generator=generator)
    return torch.cat([measured[:, 0], u], dim=1), measured


def pendulum_data() -> RegressionData:
    generator = torch.Generator().manual_seed(SEED)
    return RegressionData(*records(RECORDS, RECORD, NOISE, generator), *records(TESTS, TEST, 0.0, generator))


class Model(nn.Module):
    """A neural ODE driven by the torque, started where a linear map puts the first measurement."""

    def __init__(self, ode: lben.ODE | lben.ContractingODE) -> None:
        super().__init__()
        self.ode = ode
        self.start = nn.Linear(2, UNITS)

    def states(self, inputs: Tensor, tolerance: float = 1e-4) -> Tensor:
        """Of shape (times, batch, UNITS), from rows of a first measurement and the torque."""
        u = inputs[:, 2:].T[:, :, None]
        t = torch.arange(len(u), dtype=inputs.dtype)
        return self.ode.simulate(u, self.start(inputs[:, :2]), t, tolerance=tolerance)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.ode.output(self.states(inputs)).transpose(0, 1)


@dataclass(frozen=True)
class Outcome:
    """What became of one model: its mean square error on long test records without noise, and where its states went.

    angle: (times, STARTS) in radians. spread: the largest distance between two trajectories, relative to the first, in
    the norm of the certificate's P, or the Euclidean one without a certificate.
    """

    name: str
    error: float
    seconds: float
    certificate: str
    rate: float | None
    angle: Tensor
    spread: Tensor


def examine(name: str, model: Model, data: RegressionData) -> Outcome:
    """Train, certify, and run from many states under one torque."""
    started = time.perf_counter()
    history = fit(model, data, CONFIG, progress=True, name=name)
    seconds = time.perf_counter() - started
    found = lben.contraction(model.ode.network.eval(), rigorous=True)
    generator = torch.Generator().manual_seed(SEED + 1)
    starts = torch.tensor([2.5, 2.5]) * (2 * torch.rand(STARTS, 2, generator=generator) - 1)
    u = torque(1, LONG, generator).expand(STARTS, -1)
    with torch.no_grad():
        model.double()
        states = model.states(torch.cat([starts, u], dim=1).double(), tolerance=1e-9)
        angle = model.ode.output(states)[..., 0]
    metric = torch.eye(UNITS, dtype=states.dtype) if found.P is None else torch.linalg.cholesky(found.P)
    seen = states @ metric
    spread = torch.stack([torch.cdist(row, row).max() for row in seen])
    return Outcome(name, history[-1].test_error, seconds, str(found), found.rate, angle, spread / spread[0])


def draw(found: list[Outcome], path: Path) -> None:
    """The angles of both models from all states, and how far trajectories are apart."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.5), layout="constrained")
    t = STEP * torch.arange(LONG + 1)
    colours = ("#0b6e99", "#c8553d")
    high = 1.08 * max(float(o.angle.abs().max()) for o in found)
    for ax, o, colour in zip(axes, found, colours, strict=False):
        ax.plot(t, o.angle, color=colour, linewidth=0.7, alpha=0.6)
        ax.set(title=o.name, xlim=(0, float(t[-1])), ylim=(-high, high), xlabel="time, s")
        norm = "Euclidean norm" if o.rate is None else "norm of its P"
        axes[2].semilogy(t, o.spread, color=colour, label=f"{o.name}, {norm}")
        if o.rate is not None:
            promised = torch.exp(-o.rate * t / STEP)
            label = f"its certified rate, {o.rate / STEP:.3g} per second"
            axes[2].semilogy(t, promised, "--", color=colour, linewidth=1, label=label)
    axes[0].set_ylabel("angle, rad")
    axes[2].set(title="largest distance of two states", xlim=(0, float(t[-1])), xlabel="time, s")
    axes[2].set(ylim=(1e-9, 5), ylabel="relative to that at time 0")
    axes[2].legend(frameon=False, loc="lower left", fontsize=8)
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def summary(found: list[Outcome]) -> list[dict[str, object]]:
    return [
        {
            "name": o.name,
            "test error": o.error,
            "certificate": o.certificate,
            "rate": o.rate,
            "rate per second": None if o.rate is None else o.rate / STEP,
            "spread at the end": float(o.spread[-1]),
        }
        for o in found
    ]


def free_network() -> lben.UnconstrainedEN:
    """A W without constraints, from a lively start: its eigenvalues fill a disc of radius GAIN."""
    net = lben.UnconstrainedEN(1, UNITS, 2, activation=lben.Tanh())
    with torch.no_grad():
        nn.init.xavier_normal_(net.parameterization.hidden_weight(), gain=GAIN)
    return net


def main() -> None:
    target, console = folder(__doc__), Console()
    data = pendulum_data()
    found = []
    for name in ("ContractingODE", "unconstrained ODE"):
        torch.manual_seed(SEED)
        ode: lben.ODE | lben.ContractingODE = (
            lben.ContractingODE(1, UNITS, 2, rate=RATE) if name == "ContractingODE" else lben.ODE(free_network())
        )
        found.append(examine(name, Model(ode), data))
    table = Table("", "test error, mean square", "distance left after 40 s", "training")
    for o in found:
        table.add_row(o.name, f"{o.error:.4f}", f"{float(o.spread[-1]):.1e}", f"{o.seconds:.0f} s")
    console.print(table)
    for o in found:
        console.print(f"[bold]{o.name}[/]: {o.certificate}", highlight=False)
    console.print(f"The unit of time of these rates is that of the ODE, {STEP} s: {RATE} is {RATE / STEP} per second.")
    draw(found, target / "pendulum.png")
    record(target / "pendulum.json", "make pendulum", SEED, seconds_per_unit=STEP, models=summary(found))
    console.print(f"The picture is {target / 'pendulum.png'}.")
    kept = found[0]
    if kept.rate is None or float(kept.spread[-1]) > torch.exp(torch.tensor(-kept.rate * LONG)).item() * 1.01:
        raise SystemExit("The promised rate was not kept: this must not happen, please report it.")


if __name__ == "__main__":
    main()
