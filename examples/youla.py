"""Learn to control an unstable system within limits of its input, so that every policy on the way stabilises it.

    make youla

The plant is linear, with two states of which one is measured, and flies away by itself; its input should stay within
[-1, 1]. A linear controller K with an observer L stabilises it, but pushes far beyond the limits after a knock. Added
to it is a contracting REN, driven by what the observer did not foresee (the Youla parameterization). That signal does
not depend on what the REN does, so the loop is a chain of stable systems for every REN that contracts: all policies
that training passes through stabilise the plant, at any size of knock. Beside it, an nn.LSTM from measurement to input
learns the same task with the same knocks, and is then tried on larger ones. build/youla.png shows costs, inputs and
states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import lben

A = torch.tensor([[1.1, 0.3], [0.0, 1.05]])
B, C = torch.tensor([[0.0], [0.5]]), torch.tensor([[1.0, 0.0]])
LIMIT, NOISE, TIMES, LONG, BATCH, ITERATIONS = 1.0, 0.01, 40, 120, 48, 120
SEEDS, KNOCK, LARGE = 3, 0.35, 5.0  # knocks of training are of this size, and those of the test so many times as large


def riccati(F: Tensor, G: Tensor, Q: Tensor, R: Tensor) -> Tensor:
    """The gain K of u = -K x for x+ = F x + G u and the cost x'Q x + u'R u, by iteration."""
    P, K = Q, torch.zeros(G.shape[1], F.shape[0])
    for _ in range(500):
        K = torch.linalg.solve(R + G.T @ P @ G, G.T @ P @ F)
        P = Q + F.T @ P @ (F - G @ K)
    return K


K = riccati(A, B, torch.eye(2), torch.eye(1))
L = riccati(A.T, C.T, torch.eye(2), NOISE * torch.eye(1)).T


def knocks(batch: int, times: int, size: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Disturbances of the states, large at time 0 and small later, and noise of the measurement."""
    w = NOISE * torch.randn(times, batch, 2, generator=generator)
    angle = 2 * math.pi * torch.rand(batch, generator=generator)
    w[0] += size * torch.stack([angle.cos(), angle.sin()], dim=1)
    return w, NOISE * torch.randn(times, batch, 1, generator=generator)


def closed_loop(policy: lben.REN | None, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """States and inputs with u = -K x^ + policy(y - C x^): the surprise is known before the policy acts on it."""
    e, errors, surprises = torch.zeros(w.shape[1], 2), [], []
    for now, noise in zip(w, v, strict=True):
        surprise = e @ C.T + noise
        errors.append(e)
        surprises.append(surprise)
        e = e @ A.T - surprise @ L.T + now
    added = torch.zeros_like(v) if policy is None else policy(torch.stack(surprises))
    guess, states, inputs = torch.zeros(w.shape[1], 2), [], []
    for error, surprise, more in zip(errors, surprises, added, strict=True):
        u = more - guess @ K.T
        states.append(guess + error)
        inputs.append(u)
        guess = guess @ A.T + u @ B.T + surprise @ L.T
    return torch.stack(states), torch.stack(inputs)


class Direct(nn.Module):
    """u = a linear map of an LSTM of y."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(1, 16), nn.Linear(16, 1)

    def run(self, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        x, memory, states, inputs = torch.zeros(w.shape[1], 2), None, [], []
        for now, noise in zip(w, v, strict=True):
            memory = self.cell(x @ C.T + noise, memory)
            u = self.head(memory[0])
            states.append(x)
            inputs.append(u)
            x = x @ A.T + u @ B.T + now
        return torch.stack(states), torch.stack(inputs)


def cost(states: Tensor, inputs: Tensor) -> Tensor:
    """Squares of states, and of what inputs exceed their limits by, with a large weight."""
    beyond = (inputs.abs() - LIMIT).clamp(min=0)
    return states.square().sum(dim=-1).mean() + 0.01 * inputs.square().mean() + 200 * beyond.square().mean()


@dataclass
class Outcome:
    """What became of one policy: costs while it trained, and for policies on the way what a large knock leaves in the
    end, relative to the most that it did."""

    name: str
    costs: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    certificate: str = ""
    sizes: Tensor = field(default_factory=lambda: torch.zeros(0))
    inputs: Tensor = field(default_factory=lambda: torch.zeros(0))


def loop_of(model: nn.Module | None, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return model.run(w, v) if isinstance(model, Direct) else closed_loop(model, w, v)  # type: ignore[arg-type]


def tried(model: nn.Module | None) -> Tensor:
    """How far states are, over a long time after large knocks, from where they would be without; (times, batch)."""
    w, v = knocks(16, LONG, LARGE * KNOCK, torch.Generator().manual_seed(99))
    calm = w.clone()
    calm[0] = 0.0
    with torch.no_grad():
        apart = loop_of(model, w, v)[0] - loop_of(model, calm, v)[0]
    sizes: Tensor = torch.linalg.vector_norm(apart, dim=-1)
    return sizes.clamp(max=1e12)


def learn(name: str, model: nn.Module, seed: int) -> Outcome:
    generator, outcome = torch.Generator().manual_seed(seed), Outcome(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for iteration in track(range(ITERATIONS), description=name):
        found = cost(*loop_of(model, *knocks(BATCH, TIMES, KNOCK, generator)))
        outcome.costs.append(float(found.detach()))
        if iteration % 20 == 0:
            sizes = tried(model)
            outcome.left.append(float((sizes[-20:].amax(dim=0) / sizes.amax(dim=0)).max()))
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    outcome.sizes = tried(model)
    outcome.left.append(float((outcome.sizes[-20:].amax(dim=0) / outcome.sizes.amax(dim=0)).max()))
    if isinstance(model, lben.REN):
        outcome.certificate = str(lben.certify(model, rigorous=True))
    return outcome


def test_cost(model: nn.Module | None) -> tuple[float, Tensor]:
    with torch.no_grad():
        states, inputs = loop_of(model, *knocks(400, TIMES, KNOCK, torch.Generator().manual_seed(7)))
    return float(cost(states, inputs)), inputs[..., 0]


def draw(found: list[Outcome], linear: Outcome, path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    blue, red, grey = "#0b6e99", "#c8553d", "#777777"
    for o in found:
        colour = blue if o.certificate else red
        axes[0].semilogy(o.costs, color=colour, linewidth=0.9, label=None if o.name.endswith(("2", "3")) else o.name)
        axes[2].semilogy(o.sizes.clamp(min=1e-9), color=colour, linewidth=0.5, alpha=0.6)
    axes[0].axhline(linear.costs[0], color=grey, linestyle="--", label="K and L alone")
    axes[0].set(title="cost while learning", xlabel="iterations")
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].plot(linear.inputs[:, :30], color=grey, linewidth=0.5)
    axes[1].plot(found[0].inputs[:, :30], color=blue, linewidth=0.5)
    for side in (-LIMIT, LIMIT):
        axes[1].axhline(side, color="black", linestyle=":")
    axes[1].set(title="inputs: grey K and L, blue learned", xlabel="time steps", xlim=(0, 25))
    axes[2].set(title=f"what knocks {LARGE:g} times as large leave", xlabel="time steps", ylim=(1e-8, 1e6))
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    target, console = folder(__doc__), Console()
    linear, found = Outcome("K and L alone"), []
    value, linear.inputs = test_cost(None)
    linear.costs = [value]
    table = Table("", "test cost", "left of large knocks, worst policy on the way")
    table.add_row(linear.name, f"{value:.3f}", "")
    rows: list[dict[str, object]] = [{"name": linear.name, "test cost": value}]
    for seed in range(SEEDS + 1):
        torch.manual_seed(seed)
        youla = seed < SEEDS
        model: nn.Module = lben.REN(1, 6, 10, 1, behaviour=lben.Contracting(0.9)) if youla else Direct()
        outcome = learn(f"Youla REN {seed + 1}" if youla else "LSTM", model, seed)
        value, outcome.inputs = test_cost(model.eval())
        found.append(outcome)
        table.add_row(outcome.name, f"{value:.3f}", f"{max(outcome.left):.2g}")
        content = {"name": outcome.name, "test cost": value, "left": outcome.left, "certificate": outcome.certificate}
        rows.append(content)
    console.print(table)
    console.print(found[0].certificate, highlight=False)
    draw(found, linear, target / "youla.png")
    record(target / "youla.json", "make youla", 0, limit=LIMIT, policies=rows)
    console.print(f"The picture is {target / 'youla.png'}.")
    if max(left for o in found if o.certificate for left in o.left) > 1e-3:
        raise SystemExit("A policy of the Youla parameterization did not stabilise: please report it.")


if __name__ == "__main__":
    main()
