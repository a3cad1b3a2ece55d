"""Samples to learn from and where they come from; how a network learns from them is in `train`."""

from lben.data.records import ClassificationData, ImageData, RegressionData, pixels
from lben.data.sources import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    ENVIRONMENT,
    MNIST_MEAN,
    MNIST_STD,
    SVHN_MEAN,
    SVHN_STD,
    cifar10,
    embedded_mnist,
    mnist,
    svhn,
)

__all__ = [
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "ENVIRONMENT",
    "MNIST_MEAN",
    "MNIST_STD",
    "SVHN_MEAN",
    "SVHN_STD",
    "ClassificationData",
    "ImageData",
    "RegressionData",
    "cifar10",
    "embedded_mnist",
    "mnist",
    "pixels",
    "svhn",
]
