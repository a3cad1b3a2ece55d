"""Watch a reaction-diffusion equation through two of its points, by a network whose error provably forgets its start.

    make observer

The problem of the examples of RobustNeuralNetworks.jl, on the same grid: v_t = v_xx + v (1 - v)(v - 1/2)/2 on an
interval of length 10, with 51 points and five Euler steps of 0.004 between samples; both ends follow a random walk of
steps 0.05 within [0, 1]. The observer sees the ends and the point in the middle. It is a contracting REN whose 51
states are its estimate, trained to say what comes one sample later. If it says that well, the truth is nearly one of
its own trajectories, and all of its trajectories approach each other at the rate that was promised before training,
and is certified afterwards: so its error forgets where it began. build/observer.png shows truth, estimate and error,
and how far observers with different starts are apart.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.progress import track
from torch import Tensor

import lben

SEED, POINTS, LENGTH, EULER, PARTS, WALK = 0, 51, 10.0, 0.004, 5, 0.05
HIDDEN, RATE = 50, 0.995
RUNS, TIMES, TEST_TIMES, STARTS = 40, 500, 1500, 8
ITERATIONS, BATCH, LEARNING_RATE = 1500, 200, 4e-3
GAP = LENGTH / (POINTS - 1)


def flow(v: Tensor, ends: Tensor) -> Tensor:
    """The profile a sample later, for profiles (batch, 51) and the values at their ends (batch, 1)."""
    for _ in range(PARTS):
        inside = v[:, 1:-1]
        bend = (v[:, :-2] + v[:, 2:] - 2 * inside) / GAP**2
        inside = inside + EULER * (bend + inside * (1 - inside) * (inside - 0.5) / 2)
        v = torch.cat([ends, inside, ends], dim=1)
    return v


def simulate(runs: int, times: int, start: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Profiles (times + 1, runs, 51) and what is measured (times, runs, 2): the ends, and the middle."""
    v, ends = torch.full((runs, POINTS), start), torch.full((runs, 1), start)
    profiles, measured = [v], []
    for _ in range(times):
        measured.append(torch.cat([ends, v[:, POINTS // 2 : POINTS // 2 + 1]], dim=1))
        v = flow(v, ends)
        profiles.append(v)
        ends = (ends + WALK * torch.randn(runs, 1, generator=generator)).clamp(0, 1)
    return torch.stack(profiles), torch.stack(measured)


def train() -> tuple[lben.REN, float]:
    """The observer, and the root mean square of what it says wrongly one sample ahead."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    profiles, measured = simulate(RUNS, TIMES, 0.0, generator)
    now, after, seen = profiles[:-1].flatten(0, 1), profiles[1:].flatten(0, 1), measured.flatten(0, 1)
    observer = lben.REN(2, POINTS, HIDDEN, 1, behaviour=lben.Contracting(RATE), activation=lben.Tanh())
    optimizer = torch.optim.Adam(observer.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=ITERATIONS)
    recent = torch.tensor(0.0)
    for _ in track(range(ITERATIONS), description="Training"):
        chosen = torch.randint(len(now), (BATCH,), generator=generator)
        loss = (observer.step(seen[chosen], now[chosen]).state - after[chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        recent = loss.detach().sqrt()
    return observer.eval(), float(recent)


def draw(truth: Tensor, estimate: Tensor, apart: Tensor, error: Tensor, path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(11, 4), layout="constrained")
    grid = figure.add_gridspec(3, 2, width_ratios=(1.3, 1))
    for row, (name, profile) in enumerate(
        (("truth", truth), ("observer", estimate), ("error", (truth - estimate).abs()))
    ):
        ax = figure.add_subplot(grid[row, 0])
        image = ax.imshow(profile.T, aspect="auto", origin="lower", cmap="inferno", vmin=0, vmax=1)
        ax.set_yticks([])
        ax.set_ylabel(name)
        if row < 2:
            ax.set_xticklabels([])
    ax.set_xlabel("samples")
    figure.colorbar(image, ax=figure.axes[:3], shrink=0.8)
    ax = figure.add_subplot(grid[:, 1])
    t = torch.arange(len(apart))
    ax.semilogy(t, apart / apart[0], color="#0b6e99", label="largest distance of two observers, norm of P")
    ax.semilogy(t, RATE ** t.double(), "--", color="#0b6e99", label=f"promised and certified: {RATE} a sample")
    ax.semilogy(t, error, color="#c8553d", label="error of the estimate, root mean square")
    ax.set(xlabel="samples", ylim=(1e-6, 3), xlim=(0, len(apart)))
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    ax.grid(alpha=0.25)
    ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    target, console = folder(__doc__), Console()
    observer, ahead = train()
    certificate = lben.certify(observer, rigorous=True)
    profiles, measured = simulate(1, TEST_TIMES, 0.5, torch.Generator().manual_seed(SEED + 1))
    starts = torch.rand(STARTS, POINTS, generator=torch.Generator().manual_seed(SEED + 2))
    starts[0] = 0.0
    with torch.no_grad():
        states = observer.double().simulate(measured.expand(-1, STARTS, -1).double(), starts.double()).states
    assert certificate.P is not None
    seen = states @ torch.linalg.cholesky(certificate.P)
    apart = torch.stack([torch.cdist(row, row).max() for row in seen])
    truth, estimate = profiles[:, 0], states[:, 0].float()
    error = (truth - estimate).square().mean(dim=1).sqrt()
    late = float(error[TEST_TIMES // 3 :].mean())
    console.print(str(certificate), highlight=False)
    first = float(error[0])
    console.print(
        f"Off by {ahead:.2g} a sample ahead; estimates by {first:.2g} at first, and by {late:.2g} from 500 on."
    )
    draw(truth, estimate, apart, error, target / "observer.png")
    record(
        target / "observer.json",
        "make observer",
        SEED,
        certificate=str(certificate),
        rate=RATE,
        one_sample_ahead=ahead,
        first_error=first,
        late_error=late,
        distance_left=float(apart[-1] / apart[0]),
        promised_distance=RATE**TEST_TIMES,
    )
    console.print(f"The picture is {target / 'observer.png'}.")
    allowed = apart[0] * RATE ** torch.arange(len(apart)).double()
    if not certificate.holds or bool((apart > allowed * 1.001 + 1e-9 * apart[0]).any()):
        raise SystemExit("The promised rate was not kept: this must not happen, please report it.")


if __name__ == "__main__":
    main()
