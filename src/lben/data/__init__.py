"""Samples to learn from and where they come from; how a network learns from them is in `train`."""

from lben.data.columns import Column, Columns, Target, read_columns
from lben.data.learning import TableData, columns_of, table_data
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
from lben.data.tables import Table, read_table

__all__ = [
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "ENVIRONMENT",
    "MNIST_MEAN",
    "MNIST_STD",
    "SVHN_MEAN",
    "SVHN_STD",
    "ClassificationData",
    "Column",
    "Columns",
    "ImageData",
    "RegressionData",
    "Table",
    "TableData",
    "Target",
    "cifar10",
    "columns_of",
    "embedded_mnist",
    "mnist",
    "pixels",
    "read_columns",
    "read_table",
    "svhn",
    "table_data",
]
