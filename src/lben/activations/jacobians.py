"""Jacobians of activations whose units act in blocks, or differ: block diagonal, and several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lben.activations.base import Jacobian


class BlockGain(Jacobian):
    """v -> J v with one symmetric block for every k units: J has shape (batch, blocks, k, k)."""

    def __init__(self, J: Tensor) -> None:
        self.J = J
        self.tensors = (J,)
        self._resolvents: dict[float, Tensor] = {}

    def __call__(self, v: Tensor) -> Tensor:
        return _apply(self.J, v)

    def derivative(self, v: Tensor) -> Tensor:
        return self.J

    def potential(self, z: Tensor) -> Tensor:
        """z'(J^+ - I)z/2 for each block, infinite off the range of J."""
        pieces = z.unflatten(-1, self.J.shape[-3:-1])[..., None]
        back = torch.linalg.pinv(self.J, hermitian=True) @ pieces
        value = (pieces * (back - pieces)).sum(dim=(-2, -1)) / 2
        inside = torch.isclose(self.J @ back, pieces).all(dim=-2)[..., 0]
        return torch.where(inside, value, torch.inf)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        """J (alpha I + (1 - alpha) J)^-1 u: what follows from v -> J v alone, once for each alpha."""
        if alpha not in self._resolvents:
            eye = torch.eye(self.J.shape[-1], dtype=u.dtype, device=u.device)
            self._resolvents[alpha] = torch.linalg.solve(torch.lerp(self.J, eye, alpha), self.J)
        return _apply(self._resolvents[alpha], u)

    def rows(self, index: Tensor) -> Jacobian:
        return BlockGain(self.J[index])

    def rebind(self, *tensors: Tensor) -> Jacobian:
        return BlockGain(*tensors)

    def pullback(self, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        blocks = self.J.shape[-3:-1]
        return (w.unflatten(-1, blocks)[..., :, None] * v.unflatten(-1, blocks)[..., None, :],)

    def times(self, W: Tensor) -> Tensor:
        product: Tensor = (self.J @ W.unflatten(0, self.J.shape[-3:-1])).flatten(1, 2)
        return product


class SideBySide(Jacobian):
    """Jacobians of so many units each, one after the other."""

    def __init__(self, parts: Sequence[tuple[Jacobian, int]]) -> None:
        self.parts = tuple(parts)
        self.widths = [width for _, width in self.parts]
        self.tensors = tuple(tensor for part, _ in self.parts for tensor in part.tensors)

    def _each(self, change: Callable[[Jacobian, Tensor], Tensor], v: Tensor) -> Tensor:
        pieces = v.split(self.widths, dim=-1)
        return torch.cat([change(part, piece) for (part, _), piece in zip(self.parts, pieces, strict=True)], dim=-1)

    def __call__(self, v: Tensor) -> Tensor:
        return self._each(lambda part, piece: part(piece), v)

    def derivative(self, v: Tensor) -> Tensor:
        return self.times(torch.eye(v.shape[-1], dtype=v.dtype, device=v.device))

    def potential(self, z: Tensor) -> Tensor:
        return self._each(lambda part, piece: part.potential(piece), z)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return self._each(lambda part, piece: part.prox(piece, alpha), u)

    def rows(self, index: Tensor) -> Jacobian:
        return SideBySide([(part.rows(index), width) for part, width in self.parts])

    def rebind(self, *tensors: Tensor) -> Jacobian:
        left = iter(tensors)
        return SideBySide([(part.rebind(*(next(left) for _ in part.tensors)), width) for part, width in self.parts])

    def pullback(self, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        pieces = zip(self.parts, w.split(self.widths, dim=-1), v.split(self.widths, dim=-1), strict=True)
        return tuple(grad for (part, _), a, b in pieces for grad in part.pullback(a, b))

    def times(self, W: Tensor) -> Tensor:
        pieces = zip(self.parts, W.split(self.widths), strict=True)
        return torch.cat([part.times(piece) for (part, _), piece in pieces], dim=1)


def _apply(J: Tensor, v: Tensor) -> Tensor:
    product: Tensor = (J @ v.unflatten(-1, J.shape[-3:-1])[..., None])[..., 0].flatten(-2)
    return product
