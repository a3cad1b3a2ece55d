"""Exported networks in onnxruntime against the networks themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from measuring import Row, Step, compare, interleave
from torch import Tensor

import lben
from lben.data import MNIST_MEAN, MNIST_STD, embedded_mnist, pixels
from lben.train import TrainConfig, fit

SEED = 0
GAMMAS = (1.0, 5.0)
BATCHES = (1, 128)


def network(gamma: float, epochs: int) -> lben.LBEN:
    """Trained on the images that ship inside."""
    torch.manual_seed(SEED)
    net = lben.LBEN(784, 80, 10, gamma=gamma, normalize=lben.Normalize(MNIST_MEAN, MNIST_STD))
    fit(net, embedded_mnist(), TrainConfig(epochs=epochs, seed=SEED))
    return net.eval()


def session(made: lben.Exported) -> onnxruntime.InferenceSession:
    """An ONNX file of it in onnxruntime, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        made.to_onnx(file)
        return onnxruntime.InferenceSession(file, options)


def steps_of(net: lben.LBEN, made: lben.Exported, x: Tensor) -> dict[str, Step]:
    """The same images through the network, the exported module and its file."""
    running, given = session(made), {"x": x.numpy()}

    @torch.inference_mode()
    def ours() -> None:
        net(x)

    @torch.inference_mode()
    def module() -> None:
        made(x)

    count = f"{len(x)} image{'s' if len(x) > 1 else ''}, gamma={net.gamma:g}"
    return {
        f"net.eval(), {count}": ours,
        f"lben.export(net), {count}": module,
        f"its ONNX file, {count}": lambda: running.run(None, given),
    }


def export_rows(epochs: int = 4, repeats: int = 80) -> list[Row]:
    """The file, and the module, against the network at its own tolerance, of 1e-4."""
    rows = []
    images = pixels(embedded_mnist().test_images)
    for gamma in GAMMAS:
        net = network(gamma, epochs)
        made = lben.export(net, accuracy=1e-3)
        for batch in BATCHES:
            steps = steps_of(net, made, images[:batch])
            times = interleave(steps, repeats)
            base, module, file = steps
            note = f"{made.iterations} iterations in {str(made.inner)[6:]}"
            rows += [compare(times, file, base, note=note), compare(times, module, base)]
    return rows


if __name__ == "__main__":
    for row in export_rows(epochs=1, repeats=4):
        print(row)


DEPLOYMENT: dict[str, Callable[[], list[Row]]] = {
    "Exported ONNX in onnxruntime, LBEN of 80 units, accuracy 1e-3 proved": export_rows,
}
