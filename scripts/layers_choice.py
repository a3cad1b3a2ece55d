"""Choose how the study of layers is trained on training images kept aside: no test image is looked at.

    python scripts/layers_choice.py --data DIRECTORY [--only NUMBER] [--file docs/results/layers-cifar10/choice.json]

The row "mix" learns from the first 40,000 training images of CIFAR-10, seed 0, and is judged on the other 10,000: its
error, and the shares certified by sqrt(2) gamma alone, the pairwise bounds of the report being a little better.
DIRECTORY holds the binary files of CIFAR-10. One thread; a candidate that is in the file is not tried again.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import lben
from lben.data import ImageData, cifar10, pixels
from lben.disk import write_bytes
from lben.experiments.layers import CIFAR, RADII, rows, shaped
from lben.train import Augmentation, CrossEntropy, fit

ROOT = Path(__file__).parent.parent
KEPT = 10_000


@dataclass(frozen=True)
class Candidate:
    margin: float
    augment: Augmentation
    gamma: float = 1.5
    epochs: int = 12


CANDIDATES = [
    Candidate(1.5, "flip"),
    Candidate(1.5, "flip and shift"),
]


def divided(data: ImageData) -> ImageData:
    """The training images alone, the last of them in the place of test images."""
    x, y = data.train_images, data.train_labels
    return ImageData(x[:-KEPT], y[:-KEPT], x[-KEPT:], y[-KEPT:])


def tried(one: Candidate, data: ImageData) -> dict[str, Any]:
    row = next(row for row in rows("cifar10") if row.name == "mix")
    config = replace(row.config, loss=CrossEntropy(one.margin), augment=one.augment, epochs=one.epochs)
    net = replace(row, architecture=replace(CIFAR, gamma=one.gamma)).network()
    history = fit(net, data, config, progress="lines")
    logits = torch.cat([net.eval()(x).detach() for x in pixels(data.test_images).split(1000)])
    right = logits.gather(1, data.test_labels[:, None])[:, 0]
    gap = right - logits.scatter(1, data.test_labels[:, None], -math.inf).amax(dim=1)
    shares = [float((gap > math.sqrt(2) * one.gamma / CIFAR.std * radius).double().mean()) for radius in RADII]
    return {
        **asdict(one),
        "error": history[-1].test_error,
        "train_error": history[-1].train_error,
        "certified": {f"{255 * radius:.0f}/255": share for radius, share in zip(RADII, shares, strict=True)},
        "seconds": sum(epoch.seconds for epoch in history),
        "lben": lben.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with CIFAR-10")
    parser.add_argument("--only", type=int, help="the number of one candidate, from 0")
    parser.add_argument("--file", type=Path, default=ROOT / "docs" / "results" / "layers-cifar10" / "choice.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = shaped(divided(cifar10(given.data)), CIFAR.in_shape)
    for one in CANDIDATES if given.only is None else [CANDIDATES[given.only]]:
        if not any({**found, **asdict(one)} == found for found in _known(given.file)):
            result = tried(one, data)
            write_bytes(given.file, (json.dumps([*_known(given.file), result], indent=1) + "\n").encode())
            print(result, flush=True)


def _known(file: Path) -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return known


if __name__ == "__main__":
    main()
