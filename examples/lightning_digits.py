"""Train an LBEN with Lightning: it is a module like any other.

    make lightning

A LightningModule around the network, and the Trainer's own loop, on the MNIST images that ship with lben; then a proof
of the bound, and how far every test image may move.
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lben
from lben.data import MNIST_MEAN, MNIST_STD, embedded_mnist, pixels


class Digits(L.LightningModule):
    """The network, its loss and its optimizer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.net = lben.LBEN(784, hidden, 10, gamma=1.0, normalize=lben.Normalize(MNIST_MEAN, MNIST_STD))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=4e-3)


def run(hidden: int = 80, epochs: int = 3, images: int = 6000) -> tuple[float, lben.Certificate, float]:
    """The accuracy, the certificate, and the share of test images proved to keep their class within half a pixel."""
    L.seed_everything(0, verbose=False)
    data, model = embedded_mnist(), Digits(hidden)
    train = TensorDataset(pixels(data.train_images[:images]), data.train_labels[:images])
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True))

    net, x, y = model.net.eval(), pixels(data.test_images[:images]), data.test_labels[:images]
    with torch.no_grad():
        accuracy = float((net(x).argmax(-1) == y).double().mean())
    radius = lben.certified_radius(net, x, y, domain="pixels").radius
    return accuracy, lben.certify(net), float((radius > 0.5).double().mean())


if __name__ == "__main__":
    accuracy, certificate, share = run()
    print(certificate)
    print(f"{100 * accuracy:.1f} % right; {100 * share:.1f} % proved to stay so within 0.5 pixels.")
