"""A proof of Condition `lipschitz` for explicit residual layers of images, for every image size at once.

With W = 0 and D = d I the condition is, by a Schur complement,

    2 Lam - Wo'Wo/gamma - Z Z'/(gamma - d^2/gamma) > 0,    Z = Lam U + Wo' d/gamma,

and true if some q > 0 makes it diagonally dominant: 2 lam_i q_i > sum_j S_ij q_j, S_ij the sum of the absolute values
of what is subtracted, over all shifts between pixels of channels i and j. Images that end, or close to a torus, see
parts and sums of the same entries. That is how SLL layers are made, and takes no transform and no eigenvalue.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lben.numerics.enclosed import EPS, Enclosed
from lben.operators.grid import transposed
from lben.weights.image import ImageWeights

_SMALLEST = 1e-100  # of q, relative to its largest entry: far above underflow


def dominated(w: ImageWeights, lam: Tensor, gamma: float) -> bool:
    """Whether diagonal dominance proves gamma for these weights, in double precision; False proves nothing.

    lam: the entries of the metric, one a channel.
    """
    d = _multiple_of_identity(w.D)
    taps = tuple(w.U.shape[2:])
    if w.W is not None or d is None or tuple(w.Wo.shape[2:]) != taps or not all(side % 2 for side in taps):
        return False
    bound, past = (Enclosed.exact(torch.tensor(value, dtype=torch.float64)) for value in (gamma, d))
    inverse = bound.inverse()
    room = bound - past * past * inverse
    if not float(room.mid) > float(room.error):
        return False
    out = Enclosed.exact(transposed(w.Wo))
    Z = Enclosed.exact(lam[:, None, None, None]) * Enclosed.exact(w.U) + past * inverse * out
    S = _sums(out) * inverse.size() + _sums(Z) * room.inverse().size()
    return bool(torch.isfinite(S).all()) and _dominates(2 * lam, S * (1 + 8 * EPS))


def _dominates(diagonal: Tensor, S: Tensor) -> bool:
    """Whether some q > 0 has diagonal * q > S q, entry by entry: found by a linear system, and checked."""
    q, info = torch.linalg.solve_ex(torch.diag(diagonal) - S, diagonal)
    if int(info) != 0 or not bool(torch.isfinite(q).all()) or not bool((q > _SMALLEST * q.max()).all()):
        return False
    q = q / q.max()
    return bool((S @ q * (1 + (len(q) + 8) * EPS) < diagonal * q * (1 - 8 * EPS)).all())


def _sums(kernel: Enclosed) -> Tensor:
    """Bounds on the sums over all shifts of a kernel's autocorrelation: from (a, m, k, l) to (a, a)."""
    a, k, shifts = len(kernel.mid), kernel.mid.shape[2:], 0
    patches = []
    for part in (kernel.mid, kernel.error):
        wide = F.pad(part, (k[1] - 1, k[1] - 1, k[0] - 1, k[0] - 1))
        moved = F.unfold(wide, (k[0], k[1])).transpose(1, 2)
        shifts = moved.shape[1]
        patches.append(moved.reshape(a * shifts, -1))
    flat = Enclosed(kernel.mid.flatten(1), kernel.error.flatten(1))
    products = (Enclosed(*patches) @ flat.T).size().reshape(a, shifts, a)
    return products.sum(dim=1) * (1 + (shifts + 8) * EPS)


def _multiple_of_identity(D: Tensor | None) -> float | None:
    """The d of D = d I, a kernel of one tap; None if it is none."""
    if D is None or tuple(D.shape[2:]) != (1, 1) or D.shape[0] != D.shape[1]:
        return None
    d = float(D[0, 0, 0, 0])
    same = torch.equal(D[:, :, 0, 0], d * torch.eye(len(D), dtype=D.dtype, device=D.device))
    return d if same else None
