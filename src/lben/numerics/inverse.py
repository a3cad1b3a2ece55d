"""Inverses of many small matrices."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor


def inverses(matrices: Tensor) -> Tensor:
    """A^-1 of each matrix, not finite or of no meaning where one is singular; carries no gradient.

    On a processor by numpy: with several threads torch lets all of them work on one small matrix after the other, which
    is slower than one would be alone, and takes a hundred times as long where others use the processor too.
    """
    inverse: Tensor
    if matrices.device.type == "cpu":
        try:
            inverse = torch.from_numpy(numpy.linalg.inv(matrices.detach().numpy()))
            return inverse
        except numpy.linalg.LinAlgError:
            pass
    inverse = torch.linalg.inv_ex(matrices.detach()).inverse
    return inverse
