"""Rational arithmetic on stored doubles: the conditions of the paper again, from their formulas and without rounding.

Nothing here calls the library: matrices are rebuilt from the tensors of the weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from flint import fmpq, fmpq_mat
from torch import Tensor

import lben


def rational(value: float) -> Any:
    """A double as the fraction that it is."""
    return fmpq(*float(value).as_integer_ratio())


def matrix(tensor: Tensor) -> Any:
    """The doubles (or floats) of a matrix, exactly; a vector becomes a column."""
    table = tensor.detach().double()
    table = table[:, None] if table.dim() == 1 else table
    return fmpq_mat(table.shape[0], table.shape[1], [rational(x) for x in table.reshape(-1).tolist()])


def zeros(rows: int, columns: int) -> Any:
    return fmpq_mat(rows, columns, [0] * (rows * columns))


def diagonal(entries: Sequence[Any]) -> Any:
    found = zeros(len(entries), len(entries))
    for i, entry in enumerate(entries):
        found[i, i] = entry
    return found


def identity(size: int) -> Any:
    return diagonal([fmpq(1)] * size)


def pick(A: Any, rows: Sequence[int], columns: Sequence[int]) -> Any:
    return fmpq_mat(len(rows), len(columns), [A[i, j] for i in rows for j in columns])


def blocks(table: Sequence[Sequence[Any]]) -> Any:
    """A matrix of matrices as one."""
    rows: list[Any] = []
    for line in table:
        rows += [[x for part in parts for x in part] for parts in zip(*(block.tolist() for block in line), strict=True)]
    return fmpq_mat(rows)


def definite(X: Any, *, strict: bool = True) -> bool:
    """Whether a symmetric matrix is positive definite, or semidefinite where not `strict`.

    Elimination without fractions (Bareiss) on integers: its pivots are the leading minors, whose signs decide. A zero
    pivot of a semidefinite matrix has a zero row, and is left out.
    """
    size = X.nrows()
    common = math.lcm(*(int(X[i, j].q) for i in range(size) for j in range(i, size))) if size else 1
    rows = [[int(X[i, j].p) * (common // int(X[i, j].q)) for j in range(size)] for i in range(size)]
    assert all(rows[i][j] == rows[j][i] for i in range(size) for j in range(i)), "the matrix is not symmetric"
    before = 1
    for k in range(size):
        pivot = rows[k][k]
        if pivot < 0 or (pivot == 0 and (strict or any(rows[k][k + 1 :]))):
            return False
        if pivot == 0:
            continue
        for i in range(k + 1, size):
            factor, above, row = rows[k][i], rows[k], rows[i]
            for j in range(i, size):
                row[j] = (pivot * row[j] - factor * above[j]) // before
        before = pivot
    return True


@dataclass(frozen=True)
class Exact:
    """z = sigma(W z + U x + ..), y = Wo z + D x + .. in rational numbers."""

    W: Any
    U: Any
    Wo: Any
    D: Any

    @staticmethod
    def of(weights: lben.Weights) -> Exact:
        W, U, Wo = matrix(weights.W), matrix(weights.U), matrix(weights.Wo)
        return Exact(W, U, Wo, zeros(Wo.nrows(), U.ncols()) if weights.D is None else matrix(weights.D))

    def without(self, linear: Sequence[bool]) -> Exact | None:
        """The same map with the linear units solved for; None where they have no unique solution."""
        kept = [i for i, flag in enumerate(linear) if not flag]
        gone = [i for i, flag in enumerate(linear) if flag]
        if not gone:
            return self
        inputs, outputs = range(self.U.ncols()), range(self.Wo.nrows())
        system = identity(len(gone)) - pick(self.W, gone, gone)
        if system.det() == 0:
            return None
        back, out = pick(self.W, kept, gone), pick(self.Wo, outputs, gone)
        through = system.inv()
        inner, into = through * pick(self.W, gone, kept), through * pick(self.U, gone, inputs)
        return Exact(
            pick(self.W, kept, kept) + back * inner,
            pick(self.U, kept, inputs) + back * into,
            pick(self.Wo, outputs, kept) + out * inner,
            self.D + out * into,
        )

    def well_posed(self, lam: Sequence[Any]) -> Any:
        """2 Lam - Lam W - W' Lam."""
        half = diagonal(lam) * (identity(len(lam)) - self.W)
        return half + half.transpose()

    def lipschitz(self, lam: Sequence[Any], gamma: Any) -> Any:
        """[[2 Lam - Lam W - W' Lam, -Lam U, Wo'], [., gamma I, D'], [., ., gamma I]], before any Schur complement.

        Where D = 0 it is gamma (2 Lam - Lam W - W' Lam) - Wo'Wo - Lam U U' Lam, the complement times gamma > 0.
        """
        side, out, D = -1 * (diagonal(lam) * self.U), self.Wo.transpose(), self.D.transpose()
        d, p = D.nrows(), D.ncols()
        if not any(any(row) for row in D.tolist()):
            return gamma * self.well_posed(lam) - out * self.Wo - side * side.transpose()
        return blocks(
            [
                [self.well_posed(lam), side, out],
                [side.transpose(), gamma * identity(d), D],
                [self.Wo, self.D, gamma * identity(p)],
            ]
        )

    def jacobian(self, slopes: Sequence[Any]) -> Any | None:
        """Wo (I - S W)^-1 S U + D for the slopes S of all units; None where there is no unique solution."""
        S = diagonal(slopes)
        system = identity(len(slopes)) - S * self.W
        return None if system.det() == 0 else self.Wo * system.inv() * S * self.U + self.D

    def reaches(self, gamma: float, low: Any = 0, high: Any = 1) -> bool:
        """Whether some Jacobian with every slope `low` or `high` has a norm above gamma, or none exists."""
        for slopes in product((fmpq(low), fmpq(high)), repeat=self.W.nrows()):
            J = self.jacobian(slopes)
            if J is None or not norm_at_most(J, gamma):
                return True
        return False


def norm_at_most(J: Any, gamma: float) -> bool:
    """Whether |J| <= gamma, as gamma^2 I - J J' >= 0."""
    return definite(rational(gamma) ** 2 * identity(J.nrows()) - J * J.transpose(), strict=False)


def holds(weights: lben.Weights, lam: Tensor, gamma: float | None, scale: float = 1.0) -> bool:
    """Condition `lipschitz` at gamma times scale, or Condition `W`; units whose lam is NaN are solved for."""
    return exactly(Exact.of(weights), lam, gamma, scale)


def exactly(network: Exact, lam: Tensor, gamma: float | None, scale: float = 1.0) -> bool:
    gone = torch.isnan(lam).tolist()
    if bool(lam.isinf().any()) or (gamma is not None and not math.isfinite(gamma)):
        return False  # no number, and so no claim that could be checked
    reduced = network.without(gone)
    if reduced is None or not bool((lam[~torch.isnan(lam)] > 0).all()):
        return False
    entries = [rational(x) for x, flag in zip(lam.tolist(), gone, strict=True) if not flag]
    if gamma is None:
        return definite(reduced.well_posed(entries))
    return definite(reduced.lipschitz(entries, rational(gamma) * rational(scale)))


def threshold(network: Exact, lam: Tensor, scale: float = 1.0) -> float | None:
    """The smallest double gamma for which the condition holds with this metric; None if none does."""
    low, high = -1000, 1000  # exponents of two
    if not exactly(network, lam, 2.0**high, scale):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exactly(network, lam, 2.0**middle, scale) else (middle, high)
    below, above = 2.0**low, 2.0**high
    while math.nextafter(below, math.inf) < above:
        between = below + (above - below) / 2
        below, above = (below, between) if exactly(network, lam, between, scale) else (between, above)
    return above


def contracts(weights: lben.Weights, P: Tensor, T: Tensor, rate: float) -> bool:
    """[[2 (1 - rate) P, -(P W + T)], [., 2 T]] > 0, which implies P > 0 and T > 0."""
    metric, D = _symmetric(P), diagonal([rational(x) for x in T.tolist()])
    side = -1 * (metric * matrix(weights.W) + D)
    return definite(blocks([[2 * (1 - rational(rate)) * metric, side], [side.transpose(), 2 * D]]))


def gains(weights: lben.Weights, P: Tensor, T: Tensor, gain: float, scale: float = 1.0) -> bool:
    """[[2 P, -(P W + T), -P U], [., 2 T - Wo'Wo, 0], [., ., g^2 I]] > 0."""
    metric, D = _symmetric(P), diagonal([rational(x) for x in T.tolist()])
    W, U, Wo = matrix(weights.W), matrix(weights.U), matrix(weights.Wo)
    side, into = -1 * (metric * W + D), -1 * (metric * U)
    n, d = U.nrows(), U.ncols()
    square = (rational(gain) * rational(scale)) ** 2 * identity(d)
    return definite(
        blocks(
            [
                [2 * metric, side, into],
                [side.transpose(), 2 * D - Wo.transpose() * Wo, zeros(n, d)],
                [into.transpose(), zeros(d, n), square],
            ]
        )
    )


def _symmetric(P: Tensor) -> Any:
    """The metric that |.|_P means: the symmetric part of what is stored."""
    found = matrix(P)
    return (found + found.transpose()) / 2


def at_frequency(W: Tensor, lam: Tensor, omega: float, margin: float) -> bool:
    """2 Lam - Lam W/(1 + i omega) - W' Lam/(1 - i omega) >= margin Lam, as a real matrix of twice the size."""
    w, L = rational(omega), diagonal([rational(x) for x in lam.tolist()])
    half = L * matrix(W) / (1 + w * w)
    real = (2 - rational(margin)) * L - half - half.transpose()
    imaginary = w * (half - half.transpose())
    return definite(blocks([[real, -1 * imaginary], [imaginary, real]]), strict=False)


def perron_below_one(W: Tensor) -> bool:
    """Whether the spectral radius of |W| is below one: I - |W| is an M-matrix, all its leading minors are positive."""
    A = identity(len(W)) - matrix(W.abs())
    return all(pick(A, range(k), range(k)).det() > 0 for k in range(1, len(W) + 1))


def circulant(kernel: Tensor, height: int, width: int) -> Any:
    """A circular convolution of images as a matrix; units by row, column and channel, inputs likewise."""
    out, into, tall, broad = kernel.shape
    entries = kernel.detach().double().tolist()
    found = zeros(height * width * out, height * width * into)
    for row, column, i, j in product(range(height), range(width), range(tall), range(broad)):
        source = ((row + i - tall // 2) % height) * width + (column + j - broad // 2) % width
        for o, c in product(range(out), range(into)):
            found[(row * width + column) * out + o, source * into + c] += rational(entries[o][c][i][j])
    return found


def images(weights: lben.ImageWeights) -> Exact:
    """Circular convolutions of an image in its zeros, and what they make of it without them."""
    _, height, width = weights.in_shape
    high, wide = height + 2 * weights.padding, width + 2 * weights.padding

    def inside(channels: int) -> list[int]:
        return [
            ((row + weights.padding) * wide + column + weights.padding) * channels + c
            for c, row, column in product(range(channels), range(height), range(width))
        ]

    n, into, out = high * wide * len(weights.bz), inside(weights.in_shape[0]), inside(len(weights.by))
    U, Wo = circulant(weights.U, high, wide), circulant(weights.Wo, high, wide)
    W = zeros(n, n) if weights.W is None else circulant(weights.W, high, wide)
    D = zeros(len(out), len(into)) if weights.D is None else pick(circulant(weights.D, high, wide), out, into)
    return Exact(W, pick(U, range(n), into), pick(Wo, out, range(n)), D)


def convolution(weights: lben.ConvWeights) -> Exact:
    """Lam (I - W) = T + (Wo'Wo + Lam U U' Lam)/(2 gamma), the output averaged over squares, the image in its zeros."""
    geometry = weights.geometry
    channels, height, width = geometry.in_shape
    high, wide = height + 2 * geometry.padding, width + 2 * geometry.padding
    T, full = circulant(weights.T, high, wide), circulant(weights.U, high, wide)
    n, C, pool = T.nrows(), weights.T.shape[0], geometry.pool
    Wo = zeros(weights.Wo.shape[0], n)
    table = weights.Wo.detach().double().tolist()
    for k, row, column, c in product(range(Wo.nrows()), range(high), range(wide), range(C)):
        Wo[k, (row * wide + column) * C + c] = rational(table[k][c][row // pool][column // pool]) / pool**2
    lam = [fmpq(1)] * n if weights.lam is None else [rational(x) for x in weights.lam.tolist()]
    right = T
    if weights.gamma is not None:
        scaled = diagonal(lam) * full
        right = T + (Wo.transpose() * Wo + scaled * scaled.transpose()) / (2 * rational(weights.gamma))
    inside = [
        ((row + geometry.padding) * wide + column + geometry.padding) * channels + c
        for c, row, column in product(range(channels), range(height), range(width))
    ]
    U = pick(full, range(n), inside)
    return Exact(identity(n) - diagonal([1 / x for x in lam]) * right, U, Wo, zeros(Wo.nrows(), U.ncols()))
