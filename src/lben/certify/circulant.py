"""Matrices that are a circular convolution plus a matrix of low rank, and sums over the pixels of their entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.spectrum import inner


@dataclass(frozen=True, eq=False)
class Circulant:
    """blocks + left right', all as transforms (see `grid.py`).

    Shapes: blocks (frequencies, C, C), left and right (frequencies, C, r) complex; multiplicity (frequencies,).
    """

    blocks: Tensor
    left: Tensor
    right: Tensor
    multiplicity: Tensor

    @staticmethod
    def of(blocks: Tensor, multiplicity: Tensor) -> Circulant:
        """A convolution and nothing else."""
        empty = blocks.new_zeros(*blocks.shape[:2], 0)
        return Circulant(blocks, empty, empty, multiplicity)

    @property
    def T(self) -> Circulant:
        return Circulant(self.blocks.mH, self.right, self.left, self.multiplicity)

    def __matmul__(self, other: Circulant) -> Circulant:
        left = torch.cat([self.blocks @ other.left, self.left], dim=-1)
        through = other.blocks.mH @ self.right + other.right @ inner(other.left, self.right).to(other.right.dtype)
        right = torch.cat([other.right, through], dim=-1)
        return Circulant(self.blocks @ other.blocks, left, right, self.multiplicity)

    def plus(self, blocks: Tensor) -> Circulant:
        return Circulant(self.blocks + blocks, self.left, self.right, self.multiplicity)

    def diagonal_sums(self) -> Tensor:
        """The sum of the diagonal entries of every channel, shape (C,)."""
        own = self.blocks.diagonal(dim1=1, dim2=2).real * self.multiplicity[:, None]
        return own.sum(dim=0) + (self.left * self.right.conj()).real.sum(dim=(0, 2))

    def entrywise_sums(self, other: Circulant) -> Tensor:
        """The sum of the products of equal entries, over all pixels of every pair of channels, shape (C, C)."""
        own = (self.blocks * other.blocks.conj()).real * self.multiplicity[:, None, None]
        result = own.sum(dim=0) + _mixed(self, other) + _mixed(other, self)
        left, right = _channel_products(self.left, other.left), _channel_products(self.right, other.right)
        return result + left.flatten(1) @ right.flatten(1).T


def _mixed(one: Circulant, other: Circulant) -> Tensor:
    """The products of the convolution of one with the low rank of the other."""
    outer = other.left.conj() @ other.right.transpose(1, 2)
    return (outer * one.blocks).real.sum(dim=0)


def _channel_products(one: Tensor, other: Tensor) -> Tensor:
    """Inner products over the pixels of every channel, shape (C, r, s)."""
    first = torch.view_as_real(one.transpose(0, 1)).permute(0, 2, 1, 3).flatten(2)
    second = torch.view_as_real(other.transpose(0, 1)).permute(0, 2, 1, 3).flatten(2)
    return first @ second.mT
