"""Small tables, and options with which estimators learn them in no time."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import datasets

SMALL: dict[str, Any] = {"epochs": 6, "batch_size": 32, "learning_rate": 3e-2, "hidden": 8, "random_state": 0}


def iris() -> tuple[Any, Any]:
    X, y = datasets.load_iris(return_X_y=True)
    return X, y


def two_classes() -> tuple[Any, Any]:
    X, y = datasets.load_breast_cancer(return_X_y=True)  # columns of very different units
    return X[:200], y[:200]


def two_targets() -> tuple[Any, Any]:
    X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    return X[:200], np.column_stack([y[:200], 1e-3 * X[:200, 0] ** 2])
