"""The parts of an exported network: maps of rows in plain operations, with constants as buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben.export.contraction import Step
from lben.export.prox import Prox, constant


class Part(nn.Module):
    """One stage: from rows x and the residuals so far to rows y and residuals, shapes (batch, d) and (batch,)."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Chain(Part):
    """Parts one after another."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        for part in self.parts:
            x, residual = part(x, residual)
        return x, residual


class Added(Part):
    """The sum of several chains."""

    def __init__(self, branches: list[Chain]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        first, *others = self.branches
        y, residual = first(x, residual)
        for branch in others:
            more, residual = branch(x, residual)
            y = y + more
        return y, residual


class Mapped(Part):
    """A stage that is computed as it is written."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(x), residual


class Swept(Part):
    """z_k = sigma(W_k z + U_k x + bz), layer after layer, y = Wo z + D x + by: no equilibrium is left to find.

    blocks: W_k for each layer but the first, as far as the units before it reach; sizes (n_k, n_1 + .. + n_k-1).
    """

    def __init__(self, into: nn.Module, blocks: list[Tensor], widths: list[int], sigma: list[Prox], out: nn.Module):
        super().__init__()
        self.into, self.out, self.widths = into, out, widths
        self.sigma = nn.ModuleList(sigma)
        self.blocks = nn.ModuleList([Product(block) for block in blocks])

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        biases = self.into(x).split(self.widths, dim=1)
        z = self.sigma[0](biases[0])
        for block, bias, sigma in zip(self.blocks, biases[1:], self.sigma[1:], strict=True):
            z = torch.cat([z, sigma(block(bias, z))], dim=1)
        return self.out(z, x), residual


class Iterated(Part):
    """`iterations` of Peaceman-Rachford, u+ = C (2 prox(u) - u) + c with c = alpha (C b + b) and b = U x + bz, from a
    fixed u; then z = prox(u), y = Wo z + D x + by, and the residual |z - s|/|s| with s = sigma(W z + b).

    first: C (2 prox(u) - u) at the start, shape (n,).
    """

    first: Tensor
    alpha: Tensor

    def __init__(
        self,
        into: nn.Module,
        step: Step,
        product: nn.Module,
        out: nn.Module,
        prox: Prox,
        sigma: Prox,
        alpha: float,
        first: Tensor,
        iterations: int,
    ) -> None:
        super().__init__()
        self.into, self.step, self.product, self.out, self.prox, self.sigma = into, step, product, out, prox, sigma
        self.iterations = iterations
        self.register_buffer("first", first)
        self.register_buffer("alpha", constant(alpha))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        b = self.into(x)
        c = self.alpha * self.step(b, b)
        u = c + self.first
        for _ in range(self.iterations - 1):
            u = self.step(c, self.prox.mirror(u))
        z = self.prox(u)
        own = measured(z, self.sigma(self.product(b, z)), b)
        return self.out(z, x), torch.maximum(residual, own)


def measured(candidate: Tensor, z: Tensor, b: Tensor) -> Tensor:
    """|candidate - z|/|z|; where z is zero to rounding, |candidate - z|/min(1, |b|). Shape (batch,)."""
    limits = torch.finfo(z.dtype)
    off, size, given = ((part * part).sum(dim=1).sqrt() for part in (candidate - z, z, b))
    return torch.where(size > 64 * limits.eps * given, off / size, off / given.clamp(limits.tiny, 1.0))


def survives(part: Part, dtype: torch.dtype) -> bool:
    """Give the constants of a part another dtype; whether none has overflowed."""
    before = _infinite(part)
    return _infinite(part.to(dtype)) == before


def _infinite(part: Part) -> int:
    return sum(int((~buffer.isfinite()).sum()) for buffer in part.buffers())


# --- what a stage is made of


class Affine(nn.Module):
    """x A' + a; with two matrices x A' + x2 B' + a, the readout of an equilibrium."""

    weight: Tensor
    bias: Tensor
    past: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor, past: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("past", past)

    def forward(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        y = F.linear(z, self.weight, self.bias)
        return y if self.past is None or x is None else y + F.linear(x, self.past)


class Product(nn.Module):
    """b + W z for rows."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, b: Tensor, z: Tensor) -> Tensor:
        return torch.addmm(b, z, self.weight.T)
