"""The factor of a resolvent in the Fourier domain, with one step a channel, and how it is applied to rows.

With K the convolution of I + D (I - W) but for W's other part P Q, and D the steps, Woodbury's identity gives
(K - D P Q)^-1 = K^-1 + K^-1 D P (I - Q K^-1 D P)^-1 Q K^-1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.numerics.inverse import inverses
from lben.operators.grid import Grid, Scratch, real_form


@dataclass(frozen=True, eq=False)
class Factor:
    """2 (I + D (I - W))^-1 - I as blocks, one a frequency, and a product of low rank."""

    blocks: Tensor
    left: Tensor | None
    right: Tensor | None

    @classmethod
    def build(cls, kernel: Tensor, P: Tensor | None, Q: Tensor | None, grid: Grid, steps: Tensor) -> Factor:
        """Shapes: kernel (C, C, k, l) and P (n, p), Q (p, n) of W, steps (C,)."""
        system = kernel * -steps[:, None, None, None]
        high, wide = kernel.shape[2:]
        system[:, :, high // 2, wide // 2].diagonal().add_(1 + steps)
        inverse = inverses(torch.complex(*grid.symbol(system)))
        resolvent = real_form(inverse.real, inverse.imag)
        left = right = None
        if P is not None and Q is not None:
            left = grid.convolve(resolvent, P * steps.repeat(len(P) // len(steps))[:, None])
            small = torch.eye(len(Q), dtype=left.dtype, device=left.device) - Q @ left
            left = left @ (2 * torch.linalg.inv_ex(small).inverse)
            right = grid.convolve(resolvent.mT, Q.T).T
        blocks = resolvent.mul_(2)
        blocks.diagonal(dim1=1, dim2=2).sub_(1)
        return cls(blocks, left, right)

    def transpose(self) -> Factor:
        if self.left is None or self.right is None:
            return Factor(self.blocks.mT, None, None)
        return Factor(self.blocks.mT, self.right.T, self.left.T)


@dataclass(frozen=True, eq=False)
class Cayley:
    """(offset, w, out) -> offset + C w for rows, in memory that is used again from one application to the next."""

    factor: Factor
    grid: Grid
    scratch: Scratch

    def __call__(self, offset: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
        x = w.T.contiguous()
        result = torch.empty_like(x) if out is None else out.T
        with self.scratch.of(self.grid.scratch_size(x), x) as memory:
            self.grid.convolve_into(result, offset.T.contiguous(), self.factor.blocks, x, memory)
        if self.factor.left is not None and self.factor.right is not None:
            result.addmm_(self.factor.left, self.factor.right @ x)
        return result.T
