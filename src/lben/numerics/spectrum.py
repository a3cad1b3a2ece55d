"""Eigenvalues of large symmetric matrices that are one small block a frequency, plus a matrix of low rank.

D has Hermitian blocks, and R J R' is added, with J = diag(+-1). The number of eigenvalues below mu of the sum is known
from that of D and from a small matrix, the Schur complement of D - mu in [[D - mu, R], [R', -J]]:

    below(D + R J R') = below(D) + negative(-J - R' (D - mu)^-1 R) - negative(-J).

So bisection finds the smallest one, and nothing of the size of D is ever formed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lben import checks

_HALVINGS = 200
_SHARP = 4e-16
_BETWEEN = np.linspace(0.25, 0.75, 8)
Array = npt.NDArray[Any]


def lowest_eigenvalue(D: Tensor, R: Tensor, J: Tensor, multiplicity: Tensor) -> float:
    """The smallest eigenvalue of D + R J R'.

    Shapes: D (frequencies, C, C) complex, R (frequencies, C, r) complex, J (r,), multiplicity (frequencies,).
    Products of R sum over frequencies without multiplicity, which its scale contains.
    """
    checks.bounded("The matrix of which an eigenvalue is wanted", D, R)
    if R.shape[-1] == 0:
        return float(torch.linalg.eigvalsh(D)[:, 0].min())
    values, vectors = torch.linalg.eigh(D)
    R = vectors.mH @ R
    rows = torch.cat([R.real, R.imag]).flatten(0, 1)
    gram = rows.T @ rows
    checks.bounded("The matrix of which an eigenvalue is wanted", gram)
    reach, lowest = float(torch.linalg.eigvalsh(gram)[-1]), float(values.min())
    if reach == 0:
        return lowest
    count = multiplicity[:, None].expand_as(values)
    with np.errstate(all="ignore"):
        return _bisect(_array(values.flatten()), _array(rows), _array(J), _array(count.flatten()), reach)


def _array(numbers: Tensor) -> Array:
    array: Array = numbers.detach().numpy()
    return array


def _bisect(values: Array, rows: Array, J: Array, count: Array, reach: float) -> float:
    """By NumPy, whose operations on a few hundred numbers cost a fraction of torch's.

    Shapes: values and count (frequencies C,), rows (2 frequencies C, r), real parts first.
    """
    spread, signs, removed = np.tile(values, 2), np.diag(-J), int((J > 0).sum())
    weight = np.square(rows).sum(axis=1).reshape(2, -1).sum(axis=0)
    poles, weight = values[weight > 0], weight[weight > 0]
    low, high = float(values.min()) - reach, float(values.min()) + reach
    for _ in range(_HALVINGS):
        middle = _away_from(poles, weight, low, high)
        if high - low <= _SHARP * max(abs(low), abs(high)) or not low < middle < high:
            break
        gap = spread - middle
        gap[gap == 0] = _SHARP * reach
        small = torch.from_numpy(signs - rows.T @ (rows / gap[:, None]))
        below = int(count[values < middle].sum()) + int((torch.linalg.eigvalsh(small).numpy() < 0).sum()) - removed
        low, high = (low, middle) if below > 0 else (middle, high)
    return (low + high) / 2


def _away_from(poles: Array, weight: Array, low: float, high: float) -> float:
    """A point well between low and high where the small matrix is not dominated by a pole.

    Its rounding errors grow with the sum of weight/|pole - mu|, and near a pole they would decide the count.
    """
    points = low + (high - low) * _BETWEEN
    return float(points[(weight / np.abs(poles - points[:, None])).sum(axis=1).argmin()])


def symmetric_factors(L: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """F and J with F J F' = (L R' + R L')/2, for columns L and R over all frequencies."""
    left, right = torch.linalg.vector_norm(L), torch.linalg.vector_norm(R)
    balance = torch.where((left > 0) & (right > 0), (right / left).sqrt(), 1.0)
    L, R = L * balance, R / balance
    signs = torch.ones(L.shape[-1], dtype=torch.float64)
    return torch.cat([(L + R) / 2, (L - R) / 2], dim=-1), torch.cat([signs, -signs])


def quadratic_factors(columns: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """F and J with F J F' = columns middle columns', for a symmetric `middle`; what has no weight is left out."""
    checks.bounded("The matrix of which an eigenvalue is wanted", middle)
    values, vectors = torch.linalg.eigh(middle)
    kept = values.abs() > 1e-15 * values.abs().max()
    scaled = vectors[:, kept] * values[kept].abs().sqrt()
    return columns @ scaled.to(columns.dtype), values[kept].sign()


def inner(L: Tensor, R: Tensor) -> Tensor:
    """L'R of real columns, from their transforms, shape (l, r)."""
    product: Tensor = torch.einsum("fcl,fcr->lr", L.conj(), R).real
    return product
