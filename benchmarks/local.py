"""Local radii: the time of an image, against what it may take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from measuring import Row

import lben
from lben.data import embedded_mnist, pixels
from lben.networks.base import BaseNetwork

ALLOWED = 0.05  # seconds of one core an image
IMAGES, REPEATS = 64, 3
NETWORKS = ("mnist-gamma-1", "mnist-gamma-5", "mnist-mon")


def radius_rows() -> list[Row]:
    """Processor time of local radii on one core, all pairs of classes, less what is found once for a network."""
    data, rows, threads = embedded_mnist(), list[Row](), torch.get_num_threads()
    torch.set_num_threads(1)
    x, y = pixels(data.test_images[:IMAGES]), data.test_labels[:IMAGES]
    for name in NETWORKS:
        net = lben.pretrained(name)

        def seconds(count: int, net: BaseNetwork = net) -> float:
            started = time.process_time()
            lben.certified_radius(net, x[:count], y[:count], local=True)
            return time.process_time() - started

        seconds(1)
        times = [(seconds(IMAGES) - seconds(1)) / (IMAGES - 1) / ALLOWED for _ in range(REPEATS)]
        rows.append(
            Row(f"local radius of an image, {name}", "50 ms", statistics.median(times), min(times), max(times), 1.0)
        )
    torch.set_num_threads(threads)
    return rows


LOCAL: dict[str, Callable[[], list[Row]]] = {
    f"Local radii, 80 units, all pairs, batches of {IMAGES}: processor time": radius_rows,
}
