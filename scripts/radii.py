"""How far each test image may move: proved everywhere, proved around it, and what attacks reach. Makes docs/radii.png.

    python scripts/radii.py [--images 200] [--folder docs]

Of three networks that ship with the package, on the test images that ship with it: certified radii, global and local,
and the distance at which DeepFool finds another class, in the l2 norm of pixels in [0, 1]. What was computed is written
network by network to radii.json and not computed again. At the sizes of the report, 20 steps of projected gradient
give the accuracy that no certificate can exceed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

import lben
from lben.data import embedded_mnist, pixels
from lben.disk import write_bytes
from lben.experiments.measure import RADII

NETWORKS = {"mnist-gamma-1": "LBEN, γ = 1", "mnist-gamma-5": "LBEN, γ = 5", "mnist-mon": "MON"}
STEPS = 20
COLOURS = {"global": "#9aa5ad", "local": "#0b6e99", "attacked": "#c8553d"}


def measured(name: str, images: int) -> dict[str, Any]:
    """Radii of each image, and accuracies at the sizes of the report; wrong images have radius 0."""
    data = embedded_mnist()
    x, y = pixels(data.test_images[:images]), data.test_labels[:images]
    net = lben.pretrained(name)
    everywhere = lben.certified_radius(net, x, y, domain="pixels").radius
    started = time.process_time()
    around = lben.certified_radius(net, x, y, domain="pixels", local=True).radius
    seconds = time.process_time() - started
    found = lben.attack(net, x, y, [28.0], method="deepfool", domain="pixels")
    broken = lben.attack(net, x, y, RADII, domain="pixels", steps=STEPS, restarts=1)
    distance = found.distances.pixels[0].where(found.success[0], torch.inf).double()
    return {
        "images": images,
        "processor seconds an image, local": seconds / images,
        "sizes": list(RADII),
        "certified, global": [float((everywhere > size).double().mean()) for size in RADII],
        "certified, local": [float((around > size).double().mean()) for size in RADII],
        "attacked": [1 - error for error in broken.error.tolist()],
        "radii": {"global": _short(everywhere), "local": _short(around), "attacked": _short(distance)},
    }


def _short(radii: torch.Tensor) -> list[float | None]:
    return [round(radius, 4) if radius < torch.inf else None for radius in radii.tolist()]


def draw(found: dict[str, Any], path: Path) -> None:
    """A histogram a network."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(9.6, 3.2), layout="constrained", squeeze=False)
    for axes, (name, one) in zip(panels[0], found.items(), strict=True):
        reached = [r for r in one["radii"]["attacked"] if r is not None]
        edges = torch.linspace(0, float(torch.tensor(reached).quantile(0.99)), 21).tolist()
        for kind, colour in COLOURS.items():
            radii = [r for r in one["radii"][kind] if r]
            axes.hist(radii, edges, histtype="step", linewidth=1.6, color=colour, label=kind, density=True)
        axes.set(title=NETWORKS[name], xlabel="radius, $\\ell_2$ in pixels", xlim=(0, edges[-1]), yticks=[])
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    panels[0][0].set_ylabel("share of the test images")
    panels[0][-1].legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    path = asked.folder / "radii.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in NETWORKS:
        if found.get(name, {}).get("images") != asked.images:
            found[name] = measured(name, asked.images)
            write_bytes(path, (json.dumps(found) + "\n").encode())
    draw({name: found[name] for name in NETWORKS}, asked.folder / "radii.png")


if __name__ == "__main__":
    main()
