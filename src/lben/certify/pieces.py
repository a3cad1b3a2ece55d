"""Inputs at which a network is steep, found among the slopes that its units can have rather than among its inputs.

At pre-activations v with slopes S = diag(sigma'(v)) the Jacobian is Wo P U + D, P = (I - S W)^-1 S. If U has full row
rank, as it does where there are more inputs than units, every v is reached by some x. So the Lipschitz constant is the
largest |Wo P U + D| over all S, and a local search over S, which changes the slope of one unit or of several at a time,
climbs far higher than one over x, for which each S is a small cell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lben.activations.base import Activation
from lben.weights.dense import Weights

_GRID = torch.arange(-8.0, 8.5, 0.5, dtype=torch.float64)


def steep_inputs(weights: Weights, activation: Activation, starts: int, generator: torch.Generator) -> Tensor:
    """One input for each start, shape (starts, d): the local search ends there, or near it where U has not the rank."""
    w = weights
    v, slopes = _extremes(activation, w.hidden_features)
    gram = w.U @ w.U.T
    found = []
    for k in range(starts):
        steep = torch.rand(w.hidden_features, generator=generator) < (2.0 if k == 0 else 0.5)  # first: all of them
        steep = _climb(w, gram, slopes, steep)
        found.append(torch.where(steep, v[1], v[0]))
    pre = torch.stack(found)
    outside = pre - activation(pre) @ w.W.T - w.bz
    inputs: Tensor = outside @ torch.linalg.pinv(w.U).T
    return inputs


def _extremes(activation: Activation, units: int) -> tuple[Tensor, Tensor]:
    """Where each unit is flattest and where steepest, shape (2, units), and its slopes there.

    Among equals the pre-activation nearest to one in size is taken, which is away from the kinks at zero.
    """
    at = _GRID[(_GRID.abs() - 1).abs().argsort(stable=True)][:, None].expand(-1, units)
    slope = activation.derivative(at)
    which = torch.stack([slope.argmin(dim=0), slope.argmax(dim=0)])
    return at.gather(0, which), slope.gather(0, which)


def _climb(w: Weights, gram: Tensor, slopes: Tensor, steep: Tensor) -> Tensor:
    """Change the slopes that raise |Wo P U + D| the most, all of a batch or the one best, until none does."""
    value, gains = _value_and_gains(w, gram, slopes, steep)
    batch = max(1, w.hidden_features // 8)
    while True:
        best = gains.topk(batch)
        chosen = best.indices[best.values > value * (1 + 1e-9)]
        if len(chosen) == 0:
            return steep
        candidate = steep.clone()
        candidate[chosen] = ~candidate[chosen]
        new_value, new_gains = _value_and_gains(w, gram, slopes, candidate)
        if new_value > value:
            steep, value, gains = candidate, new_value, new_gains
        elif batch == 1:
            return steep
        else:
            batch = max(1, batch // 3)


def _value_and_gains(w: Weights, gram: Tensor, slopes: Tensor, steep: Tensor) -> tuple[float, Tensor]:
    """|Wo P U + D|, and what it would be after a change of each single unit: a rank-one update of P for each."""
    S = torch.where(steep, slopes[1], slopes[0])
    eye = torch.eye(w.hidden_features, dtype=w.W.dtype)
    G, bad = torch.linalg.inv_ex(eye - S[:, None] * w.W)
    if int(bad):
        return 0.0, torch.zeros_like(S)
    P = G * S
    M, Q = w.Wo @ P, eye + w.W @ P
    MU = M @ gram if w.D is None else M @ gram + w.D @ w.U.T  # the Jacobian times U'
    squared = MU @ M.T if w.D is None else MU @ M.T + (M @ w.U + w.D) @ w.D.T
    change = torch.where(steep, slopes[0], slopes[1]) - S
    factor = change / (1 - change * (w.W * G.T).sum(dim=1))
    A, B = (w.Wo @ G).T, (MU @ Q.T).T
    cross = A[:, :, None] * B[:, None, :]
    lengths = ((Q @ gram) * Q).sum(dim=1)
    update = factor[:, None, None] * (cross + cross.mT)
    update = update + (factor**2 * lengths)[:, None, None] * (A[:, :, None] * A[:, None, :])
    largest = torch.linalg.eigvalsh(torch.nan_to_num(torch.cat([squared[None], squared + update])))[:, -1]
    sizes = largest.clamp(min=0).sqrt()
    return float(sizes[0]), sizes[1:]
