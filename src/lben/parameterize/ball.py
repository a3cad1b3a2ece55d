"""Matrices of norm below one from free ones, and back: D = C^-1 X with C C' = I + X X', C lower triangular.

Then I - D D' = (C'C)^-1, and every D of norm below one comes of one X.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lben.errors import BoundNotMet


def inside_ball(X: Tensor) -> tuple[Tensor, Tensor]:
    """C and D, for any X of shape (p, d)."""
    gram = X @ X.T
    C = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
    return C, torch.linalg.solve_triangular(C, X, upper=False)


def out_of_ball(D: Tensor) -> Tensor:
    """The X of a D: C'C is the inverse of I - D D', and X = C D. Raises BoundNotMet where the norm is not below one."""
    gap = torch.eye(len(D), dtype=D.dtype, device=D.device) - D @ D.T
    least = float(torch.linalg.eigvalsh(gap)[0])
    if not least > 0:
        raise BoundNotMet("The norm of D must be below gamma.", least)
    C: Tensor = torch.linalg.cholesky(torch.linalg.inv(gap).flip(0, 1)).flip(0, 1).T
    return C @ D
