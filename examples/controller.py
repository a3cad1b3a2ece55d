"""A controller that cannot break its limits, trained through the system it controls, with a certified gain.

    make controller

A point mass in the plane is pushed by two thrusters, whose pushes must stay in a polyhedron: each at most one in size,
and at most 1.4 together. The controller is an equilibrium network: 24 units are ReLUs, and the last two are projected
onto the polyhedron and are the push itself, y = z_25, z_26. So every push is admissible, whatever the weights; the
projection is differentiated exactly, so the controller learns by gradients through the whole closed loop; and gamma,
chosen before training, bounds how far the push moves when the state does. build/controller.png shows trajectories,
pushes, and how the cost depends on gamma.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch
from recording import folder, record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import lben

STEPS, STEP, HIDDEN, ITERATIONS, BATCH = 30, 0.2, 24, 60, 32
GAMMAS = (0.5, 1.0, 2.0)
LIMITS = lben.Polyhedron(
    [[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, 1, 1, 1.4, 1.4, 1.4, 1.4]
)
SEED = 0


def controller(gamma: float) -> lben.LBEN:
    """From a state (position and velocity) to a push; the output is fixed to be the projected units."""
    activation = lben.Blocks([(lben.ReLU(), HIDDEN), (lben.Projection(LIMITS), 2)])
    net = lben.LBEN(4, HIDDEN + 2, 2, gamma=gamma, epsilon=0.1, activation=activation)
    net.double().solver = lben.PeacemanRachford(tolerance=1e-3)
    with torch.no_grad():
        net.get_parameter("parameterization.Wo").copy_(torch.eye(HIDDEN + 2, dtype=torch.float64)[HIDDEN:])
        net.get_parameter("parameterization.by").zero_()
    for name in ("Wo", "by"):
        net.get_parameter(f"parameterization.{name}").requires_grad_(False)
    return net


def simulate(net: lben.LBEN, state: Tensor) -> tuple[Tensor, Tensor]:
    """States and pushes over time, (steps + 1, batch, 4) and (steps, batch, 2), by half an implicit Euler method."""
    states, pushes = [state], []
    for _ in range(STEPS):
        push = net(state)
        velocity = state[:, 2:] + STEP * push
        state = torch.cat([state[:, :2] + STEP * velocity, velocity], dim=1)
        states.append(state)
        pushes.append(push)
    return torch.stack(states), torch.stack(pushes)


def cost(states: Tensor, pushes: Tensor) -> Tensor:
    """The mean over time of the squared distance from rest at the origin, and of a tenth of the squared push."""
    return (states[1:] ** 2).sum(dim=-1).mean() + 0.1 * (pushes**2).sum(dim=-1).mean()


def starts(count: int, seed: int) -> Tensor:
    return 1.2 * torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def train(gamma: float) -> lben.LBEN:
    torch.manual_seed(SEED)
    net = controller(gamma)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=2e-2)
    for iteration in track(range(ITERATIONS), f"Training with gamma = {gamma:g}"):
        optimizer.zero_grad()
        cost(*simulate(net, starts(BATCH, 1 + iteration))).backward()
        optimizer.step()
    net.solver = lben.PeacemanRachford(tolerance=1e-8)
    return net.eval()


def draw(net: lben.LBEN, costs: list[float], bounds: list[float], slopes: list[float], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with torch.no_grad():
        states, pushes = simulate(net, starts(12, 0))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.3), layout="constrained")
    left.plot(*states[:, :, :2].permute(2, 0, 1).numpy(), lw=1, color="C0", alpha=0.7)
    left.plot(*states[0, :, :2].T.numpy(), "k.", ms=5)
    left.plot(0, 0, "k+", ms=10)
    left.set(title="positions, from dots to 0", xlabel="$p_1$", ylabel="$p_2$", aspect="equal")
    corners = torch.tensor([[1, 0.4], [0.4, 1], [-0.4, 1], [-1, 0.4], [-1, -0.4], [-0.4, -1], [0.4, -1], [1, -0.4]])
    middle.fill(*corners.T.numpy(), color="0.93", ec="0.5")
    middle.plot(*pushes.reshape(-1, 2).T.numpy(), ".", ms=2.5, color="C3")
    middle.set(title="pushes, and their limits", xlabel="$u_1$", ylabel="$u_2$", aspect="equal")
    right.plot(GAMMAS, bounds, "o-", label="proved")
    right.plot(GAMMAS, slopes, "v:", label="shown by two states")
    right.set(title="gain from state to push", xlabel="γ asked for", ylabel="gain")
    right.set(xscale="log", yscale="log", xticks=GAMMAS, xlim=(0.4, 3.6), ylim=(0.35, 2.4))
    right.set_xticklabels([f"{gamma:g}" for gamma in GAMMAS])
    right.set_yticks(GAMMAS, [f"{gamma:g}" for gamma in GAMMAS])
    right.minorticks_off()
    for gamma, bound, value in zip(GAMMAS, bounds, costs, strict=True):
        right.annotate(f"cost {value:.2f}", (gamma, bound), xytext=(8, -14), textcoords="offset points", fontsize=8)
    right.legend(frameon=False)
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    target, console = folder(__doc__), Console()
    nets, costs, bounds, slopes = [], [], [], []
    for gamma in GAMMAS:
        net = train(gamma)
        with torch.no_grad():
            states, pushes = simulate(net, starts(200, 0))
        certificate = lben.tightest_bound(net)
        assert certificate.gamma is not None
        if not bool(LIMITS.contains(pushes).all()):
            raise SystemExit("A push left its limits: this must not happen, please report it.")
        nets.append(net)
        costs.append(float(cost(states, pushes)))
        bounds.append(certificate.gamma)
        slopes.append(lben.lipschitz_lower_bound(net, starts(100, 0), restarts=4, steps=20).value)
    table = Table("gamma", "cost", "proved gain from state to push", "shown by two states")
    for row in zip(GAMMAS, costs, bounds, slopes, strict=True):
        table.add_row(*(f"{value:.4g}" for value in row))
    console.print(table)
    draw(nets[-1], costs, bounds, slopes, target / "controller.png")
    numbers = {"gammas": GAMMAS, "costs": costs, "proved": bounds, "shown": slopes}
    record(target / "controller.json", "make controller", SEED, **numbers)
    console.print(f"The picture is {target / 'controller.png'}.")


if __name__ == "__main__":
    main()
