"""Make docs/play.html, of two networks that ship with lben, and docs/surface.html, of two that are trained here.

    python scripts/play.py

Those of the surface learn a function of two inputs from 100 noisy samples, one with a Lipschitz bound and one without.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional as F

import lben

DOCS = Path(__file__).parent.parent / "docs"
SAMPLES, NOISE, STEPS, LEARNING_RATE, SEED = 100, 0.3, 1500, 5e-3, 0


def learned(net: lben.EquilibriumNetwork, generator: torch.Generator) -> lben.EquilibriumNetwork:
    """The network, after it has learned sin(x1) cos(x2/2) from noisy samples."""
    x = 6 * torch.rand(SAMPLES, 2, generator=generator) - 3
    y = x[:, :1].sin() * (x[:, 1:] / 2).cos() + NOISE * torch.randn(SAMPLES, 1, generator=generator)
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    for _ in range(STEPS):
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def main() -> None:
    digits = {"LBEN, γ = 1": lben.pretrained("mnist-gamma-1"), "MON": lben.pretrained("mnist-mon")}
    lben.write_page(DOCS / "play.html", digits)
    torch.manual_seed(SEED)
    surfaces = {"LBEN, γ = 1": lben.LBEN(2, 40, 1, gamma=1.0), "MON": lben.MON(2, 40, 1)}
    trained = {name: learned(net, torch.Generator().manual_seed(SEED)) for name, net in surfaces.items()}
    lben.write_page(DOCS / "surface.html", trained)


if __name__ == "__main__":
    main()
