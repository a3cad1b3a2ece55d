"""Rational arithmetic, and doubles over many decades to try it on, shared by the tests."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

Matrix = list[list[Fraction]]

seeds, decades = st.integers(0, 10**6), st.sampled_from([0.0, 3.0, 100.0, 160.0, 300.0])


def draw(seed: int, *shape: int, decades: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (decades * (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * sizes


def exact(numbers: Any) -> Any:
    """The numbers of a tensor as fractions, in lists as deep as it has dimensions."""
    numbers = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    return [exact(part) for part in numbers] if isinstance(numbers, list) else Fraction(numbers)


def times(A: Matrix, B: Matrix) -> Matrix:
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in zip(*B, strict=True)]
        for row in A
    ]


def is_definite(X: Matrix) -> bool:
    """By elimination: every pivot is above zero."""
    X = [list(row) for row in X]
    for k in range(len(X)):
        if X[k][k] <= 0:
            return False
        for i in range(k + 1, len(X)):
            factor = X[i][k] / X[k][k]
            X[i] = [a - factor * b for a, b in zip(X[i], X[k], strict=True)]
    return True
