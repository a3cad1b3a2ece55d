"""Choose the recipe `certified` on training images kept aside: no test image is looked at.

    python scripts/certified_choice.py --data DIRECTORY [--file docs/results/mnist-certified/choice.json]

Networks of 250 units learn from the first 50,000 training images of MNIST, seed 0, and are judged on the other 10,000:
the share certified by sqrt(2) gamma, and what 20 steps of projected gradient leave of the first 1,000 within the pixel
range. DIRECTORY holds MNIST's idx files. One thread; a candidate that is in the file is not tried again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import lben
from lben.data import ImageData, mnist, pixels
from lben.disk import write_bytes
from lben.experiments.measure import EVALUATION_TOLERANCE, RADII
from lben.experiments.mnist import Equilibrium
from lben.train import CrossEntropy, TrainConfig, fit

ROOT = Path(__file__).parent.parent
KEPT, ATTACKED, UNITS = 10_000, 1_000, 250


@dataclass(frozen=True)
class Candidate:
    gamma: float
    margin: float
    epsilon: float = 1.0
    rate: float = 5e-3
    epochs: int = 8
    batch: int = 256


CANDIDATES = [
    Candidate(0.55, 4.1),
    Candidate(0.4, 3.0),
    Candidate(0.8, 6.0),
    Candidate(2.0, 6.0),
    Candidate(2.0, 4.0),
    Candidate(3.0, 9.0),
    Candidate(0.55, 5.0),
    Candidate(0.55, 3.3),
    Candidate(0.55, 4.1, epsilon=1e-1),
    Candidate(0.55, 4.1, epsilon=1e-2),
    Candidate(0.55, 4.1, epsilon=1e-3),
    Candidate(0.55, 4.1, epsilon=1e-3, rate=1e-2),
    Candidate(0.55, 4.1, epsilon=1e-3, rate=2e-2),
    Candidate(0.55, 4.1, epsilon=1e-3, rate=1e-2, epochs=20),
    Candidate(2.0, 6.0, epsilon=1e-3, rate=1e-2, epochs=20),
    Candidate(0.55, 4.1, epsilon=1e-3, rate=2e-2, epochs=20, batch=512),
    Candidate(2.0, 8.0, epsilon=1e-3, rate=1e-2, epochs=20),
    Candidate(1.2, 5.0, epsilon=1e-3, rate=1e-2, epochs=20),
    Candidate(0.55, 4.1, epsilon=1e-3, rate=4e-2, epochs=20, batch=512),
]


def divided(data: ImageData) -> ImageData:
    """The training images alone, the last of them in the place of test images."""
    x, y = data.train_images, data.train_labels
    return ImageData(x[:-KEPT], y[:-KEPT], x[-KEPT:], y[-KEPT:])


def tried(one: Candidate, data: ImageData) -> dict[str, Any]:
    loss = CrossEntropy(one.margin)
    config = TrainConfig(
        epochs=one.epochs, batch_size=one.batch, learning_rate=one.rate, schedule="one-cycle", loss=loss
    )  # fmt: skip
    row = Equilibrium(name="candidate", config=config, gamma=one.gamma, hidden=UNITS, epsilon=one.epsilon)
    net, started = row.network(), time.perf_counter()
    history = fit(net, data, config, progress=False)
    seconds = time.perf_counter() - started
    net.solver = lben.PeacemanRachford(tolerance=EVALUATION_TOLERANCE)
    x, y = pixels(data.test_images), data.test_labels
    certified = lben.certified_accuracy(net.eval(), x, y, RADII, domain="pixels", pairwise=False)
    few = slice(ATTACKED)
    left = 1 - lben.attack(net, x[few], y[few], RADII, domain="pixels", steps=20, restarts=1).error
    return {
        **asdict(one),
        "error": history[-1].test_error,
        "certified": dict(zip(map(str, RADII), certified.accuracy.tolist(), strict=True)),
        "attacked": dict(zip(map(str, RADII), left.tolist(), strict=True)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with MNIST")
    parser.add_argument("--file", type=Path, default=ROOT / "docs" / "results" / "mnist-certified" / "choice.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = divided(mnist(given.data))
    known: list[dict[str, Any]] = json.loads(given.file.read_text()) if given.file.exists() else []
    for one in CANDIDATES:
        if not any({**found, **asdict(one)} == found for found in known):
            known.append(tried(one, data))
            write_bytes(given.file, (json.dumps(known, indent=1) + "\n").encode())
            print(known[-1], flush=True)


if __name__ == "__main__":
    main()
