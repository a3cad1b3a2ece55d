"""Samples to learn from and where they come from; how a network learns from them is in `train`."""

from lben.data.records import ImageData, RegressionData, pixels
from lben.data.sources import (
    ENVIRONMENT,
    MNIST_MEAN,
    MNIST_STD,
    SVHN_MEAN,
    SVHN_STD,
    embedded_mnist,
    mnist,
    svhn,
)

__all__ = [
    "ENVIRONMENT",
    "MNIST_MEAN",
    "MNIST_STD",
    "SVHN_MEAN",
    "SVHN_STD",
    "ImageData",
    "RegressionData",
    "embedded_mnist",
    "mnist",
    "pixels",
    "svhn",
]
