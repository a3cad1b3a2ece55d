"""Train an LBEN with skorch: its classifier takes the network as it is.

    make skorch

In the words of scikit-learn, on the MNIST images that ship with lben; then a proof of the bound, and how far every test
image may move.
"""

from __future__ import annotations

import torch
from skorch import NeuralNetClassifier

import lben
from lben.data import MNIST_MEAN, MNIST_STD, embedded_mnist, pixels


def run(hidden: int = 80, epochs: int = 3, images: int = 6000) -> tuple[float, lben.Certificate, float]:
    """The accuracy, the certificate, and the share of test images proved to keep their class within half a pixel."""
    torch.manual_seed(0)
    data = embedded_mnist()
    model = NeuralNetClassifier(
        lben.LBEN,
        module__in_features=784,
        module__hidden_features=hidden,
        module__out_features=10,
        module__gamma=1.0,
        module__normalize=lben.Normalize(MNIST_MEAN, MNIST_STD),
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=4e-3,
        batch_size=64,
        max_epochs=epochs,
        train_split=None,
    )
    model.fit(pixels(data.train_images[:images]), data.train_labels[:images])

    net, x, y = model.module_.eval(), pixels(data.test_images[:images]), data.test_labels[:images]
    accuracy = model.score(x, y)
    radius = lben.certified_radius(net, x, y, domain="pixels").radius
    return accuracy, lben.certify(net), float((radius > 0.5).double().mean())


if __name__ == "__main__":
    accuracy, certificate, share = run()
    print(certificate)
    print(f"{100 * accuracy:.1f} % right; {100 * share:.1f} % proved to stay so within 0.5 pixels.")
