"""Lipschitz bounds from explicit weights alone; nothing here trusts a parameterization."""

from __future__ import annotations

import torch

from lben.errors import BoundNotMet, NotWellPosed
from lben.operators import DenseOperator
from lben.weights import Weights


def check_bound(weights: Weights, gamma: float) -> float:
    """gamma, if the matrix of Condition `lipschitz` is positive definite for these double-precision weights."""
    smallest = float(torch.linalg.eigvalsh(weights.condition(gamma))[0])
    if not smallest > 0:
        raise BoundNotMet(
            f"Rounding has broken the bound gamma = {gamma}: the smallest eigenvalue of Condition lipschitz is "
            f"{smallest:.6g}. Use float64, or smaller free variables.",
            smallest,
        )
    return gamma


def product_bound(weights: Weights) -> float:
    """|Wo Lam^(-1/2)| |Lam^(1/2) U| / m, for any weights whose metric proves m > 0."""
    m = DenseOperator(weights.W, weights.lam).monotonicity
    if not m > 0:
        raise NotWellPosed(
            f"No bound is known for these weights: in their metric I - W is not monotone (m = {m:.6g}).", 2 * m
        )
    root = weights.metric().sqrt()
    out = torch.linalg.matrix_norm(weights.Wo / root, 2)
    into = torch.linalg.matrix_norm(root[:, None] * weights.U, 2)
    return float(out * into / m)
