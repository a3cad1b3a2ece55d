"""Train the networks that ship with the package, and measure what their cards say.

    python scripts/pretrain.py --data DIRECTORY               the seven of recipe `ours`, into src/lben/data
    python scripts/pretrain.py --data DIRECTORY --certified   the two of recipe `certified`, into docs/results

DIRECTORY holds MNIST's idx files. `--only NAME` makes one of them. One thread, seed 0; an interrupted command goes on
where it stopped. The results are committed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch

import lben
from lben.data import ImageData, mnist, pixels
from lben.experiments.measure import EVALUATION_TOLERANCE, RADII
from lben.experiments.mnist import Recipe, rows
from lben.experiments.running import slug
from lben.experiments.study import Row
from lben.networks.base import BaseNetwork
from lben.train import error_rate, fit

ROOT = Path(__file__).parent.parent
NAMES = {
    "LBEN γ=0.2": "mnist-gamma-0.2",
    "LBEN γ=0.4": "mnist-gamma-0.4",
    "LBEN γ=0.8": "mnist-gamma-0.8",
    "LBEN γ=1": "mnist-gamma-1",
    "LBEN γ=5": "mnist-gamma-5",
    "LBEN γ<∞": "mnist-gamma-none",
    "MON": "mnist-mon",
}


def train(row: Row, data: ImageData, folder: Path) -> BaseNetwork:
    net = row.network()
    assert isinstance(net, BaseNetwork)
    fit(net, data, row.config, folder=folder, resume=True, progress="lines", name=row.name)
    net.solver = lben.PeacemanRachford(tolerance=EVALUATION_TOLERANCE)
    return net.eval()


def write(net: BaseNetwork, data: ImageData, file: Path, recipe: Recipe, seed: int) -> None:
    """The network and, beside it, its card: what made it, and what was measured of it on all test images."""
    lben.save(net, file)
    x, y = pixels(data.test_images), data.test_labels
    certified = lben.certified_accuracy(net, x, y, RADII, domain="pixels", progress=False).accuracy.tolist()
    card = {
        "name": file.stem if recipe == "ours" else file.parent.name,
        "kind": type(net).__name__,
        "hidden": net.hidden_features,
        "gamma": net.gamma,
        "command": "python scripts/pretrain.py --data DIRECTORY" + " --certified" * (recipe == "certified"),
        "recipe": recipe,
        "seed": seed,
        "versions": {"lben": version("lben"), "torch": torch.__version__, "Python": platform.python_version()},
        "images": len(y),
        "error": error_rate(net, data.test_images, y)[0],
        "bound": lben.tightest_bound(net).gamma,
        "certified": {str(radius): share for radius, share in zip(RADII, certified, strict=True)},
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    file.with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n")
    print(f"{file}: {card}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with MNIST")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "pretrained", help="for checkpoints")
    parser.add_argument("--certified", action="store_true", help="the wide networks: an hour or two")
    parser.add_argument("--only", metavar="NAME", help="of one network alone: mnist-gamma-1, for-0.3-pixels, ...")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = mnist(given.data)
    recipe: Recipe = "certified" if given.certified else "ours"
    results = ROOT / "docs" / "results" / "mnist-certified"
    for row in rows(recipe):
        if recipe == "certified":
            file = results / slug(row.name) / "network.safetensors"
        elif row.name in NAMES:
            file = ROOT / "src" / "lben" / "data" / f"{NAMES[row.name]}.safetensors"
        else:
            continue
        if given.only not in (None, file.stem, file.parent.name):
            continue
        write(train(row, data, given.runs / slug(row.name)), data, file, recipe, row.config.seed)


if __name__ == "__main__":
    main()
