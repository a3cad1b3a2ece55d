"""Activations of several units together: sigma is the proximal operator of a convex f of a whole block.

Such a sigma is monotone and non-expansive in its block, so that Conditions `W` and `lipschitz` prove the same for them
as for scalar functions, as long as Lambda is constant on every block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, Jacobian, check_activation
from lben.activations.jacobians import BlockGain, SideBySide
from lben.activations.sets import ConvexSet, lengths
from lben.described import plain
from lben.errors import InvalidInput

_NEWTON_STEPS = 200
_HALVINGS = 40


class Multivariable(Activation):
    """An activation that acts on every `size` units in turn, which are a block.

    derivative: a generalised Jacobian of each block, shape (..., blocks, size, size). potential: f of each block.
    """

    size: int

    @property
    def block_size(self) -> int:  # type: ignore[override]
        return self.size

    def __call__(self, v: Tensor) -> Tensor:
        return self._value(self._split(v)).flatten(-2)

    def derivative(self, v: Tensor) -> Tensor:
        return self._jacobian(self._split(v))

    def potential(self, z: Tensor) -> Tensor:
        return self._potential(self._split(z))

    def total_potential(self, z: Tensor, lam: Tensor) -> Tensor:
        return (lam[..., :: self.size] * self.potential(z)).sum(dim=-1)

    def gain(self, v: Tensor) -> Jacobian:
        return BlockGain(self.derivative(v))

    def groups(self, units: int) -> Tensor | None:
        return torch.arange(units, device="cpu") // self.size if self.size > 1 else None

    def _split(self, v: Tensor) -> Tensor:
        checks.floating("v", v)
        if v.dim() == 0 or v.shape[-1] == 0 or v.shape[-1] % self.size:
            raise InvalidInput(f"{self!r} takes blocks of {self.size}, but the tensor's shape is {tuple(v.shape)}.")
        blocks: Tensor = v.unflatten(-1, (-1, self.size))
        return blocks

    @abstractmethod
    def _value(self, v: Tensor) -> Tensor:
        """sigma of blocks, shape (..., blocks, size)."""

    @abstractmethod
    def _jacobian(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _potential(self, z: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Projection(Multivariable):
    """sigma(v) = the nearest point of a convex set, with f = 0 there: constraints that hidden units cannot break.

    Every block of as many units as the set has dimensions is projected onto the same set, a `Box`, `Ball`, `Simplex` or
    `Polyhedron`.

    Args:
        set: what to project onto.

    Raises:
        InvalidInput: if it is no such set.

    Examples:
        Pairs of hidden units that stay in the unit disc.

        >>> sigma = lben.Projection(lben.Ball(2))
        >>> sigma(torch.tensor([3.0, 4.0, 0.1, 0.2]))
        tensor([0.6000, 0.8000, 0.1000, 0.2000])
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, activation=sigma)
    """

    set: ConvexSet
    own_prox = True
    rounding = 1e6  # the angles between active constraints enter, too

    def __post_init__(self) -> None:
        if not isinstance(self.set, ConvexSet):
            raise InvalidInput(f"Projection takes an lben.Box, Ball, Simplex or Polyhedron, not {self.set!r}.")

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.set.size

    def groups(self, units: int) -> Tensor | None:
        return None if self.set.separable else super().groups(units)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        checks.positive("alpha", alpha)
        return self(u)

    def _value(self, v: Tensor) -> Tensor:
        return self.set.project(v)

    def _jacobian(self, v: Tensor) -> Tensor:
        return self.set.jacobian(v)

    def _potential(self, z: Tensor) -> Tensor:
        return torch.where(self.set.contains(z), 0.0, torch.inf).to(z.dtype)


@dataclass(frozen=True)
class GroupSoftThreshold(Multivariable):
    """``sigma(v) = max(1 - threshold/|v|, 0) v`` in every block, with ``f(z) = threshold |z|``: blocks that may vanish.

    Args:
        size: how many units a block has.
        threshold: the length that is taken from every block, above 0.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> lben.GroupSoftThreshold(2)(torch.tensor([3.0, 4.0, 0.1, 0.2]))
        tensor([2.4000, 3.2000, 0.0000, 0.0000])
    """

    size: int
    threshold: float = 1.0

    def __post_init__(self) -> None:
        checks.count("size", self.size)
        checks.positive("threshold", self.threshold)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        checks.positive("alpha", alpha)
        return _shrink(self._split(u), alpha * self.threshold)[0].flatten(-2)

    def _value(self, v: Tensor) -> Tensor:
        return _shrink(v, self.threshold)[0]

    def _jacobian(self, v: Tensor) -> Tensor:
        _, away, length = _shrink(v, self.threshold)
        eye = torch.eye(self.size, dtype=v.dtype, device=v.device)
        unit = v / length
        along, share = unit[..., :, None] * unit[..., None, :], (self.threshold / length)[..., None]
        return torch.where(away[..., None], (1 - share) * eye + share * along, 0.0)

    def _potential(self, z: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return self.threshold * length


def _shrink(v: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """The shortened blocks, which of them are not zero, and their length (where they are, one with a gradient)."""
    away = ~(lengths(v.detach()) <= threshold)  # so that NaN stays NaN
    length = lengths(torch.where(away, v, torch.ones_like(v)))
    return torch.where(away, v - v * (threshold / length), 0.0), away, length


@dataclass(frozen=True)
class Softmax(Multivariable):
    """``sigma(v)_i = e^v_i / sum of e^v_j`` in every block, with f(z) = sum of z ln z - z^2/2 on the simplex.

    Args:
        size: how many units a block has.

    Raises:
        InvalidInput: if size is not at least 1.

    Examples:
        Hidden units that are two distributions over two outcomes each.

        >>> lben.Softmax(2)(torch.tensor([0.0, 0.0, 1.0986, 0.0]))
        tensor([0.5000, 0.5000, 0.7500, 0.2500])
    """

    size: int

    def __post_init__(self) -> None:
        checks.count("size", self.size)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        """softmax(v) with alpha v + (1 - alpha) softmax(v) = u, by Newton's method.

        Args:
            u: of shape (..., n).
            alpha: a number above 0.

        Returns:
            A tensor of the shape of u, differentiable in u.
        """
        checks.positive("alpha", alpha)
        if alpha == 1:
            return self(u)
        v: Tensor = _SoftmaxPreimage.apply(self._split(u), alpha)  # type: ignore[no-untyped-call]
        return torch.softmax(v, dim=-1).flatten(-2)

    def _value(self, v: Tensor) -> Tensor:
        return torch.softmax(v, dim=-1)

    def _jacobian(self, v: Tensor) -> Tensor:
        s = torch.softmax(v, dim=-1)
        return torch.diag_embed(s) - s[..., :, None] * s[..., None, :]

    def _potential(self, z: Tensor) -> Tensor:
        inside = (z >= 0).all(dim=-1) & ((z.sum(dim=-1) - 1).abs() <= 1e3 * torch.finfo(z.dtype).eps)
        s = z.clamp(0, 1)
        return torch.where(inside, (torch.xlogy(s, s) - s**2 / 2).sum(dim=-1), torch.inf)


class _SoftmaxPreimage(torch.autograd.Function):
    """The v of every block with alpha v + (1 - alpha) softmax(v) = u."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, alpha: float) -> Tensor:
        v = _solve_softmax(u, alpha)
        ctx.alpha = alpha
        ctx.save_for_backward(v)
        return v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (v,) = ctx.saved_tensors
        return _unmix(torch.softmax(v, dim=-1), grads[0], ctx.alpha), None


def _unmix(s: Tensor, g: Tensor, alpha: float) -> Tensor:
    """(alpha I + (1 - alpha)(diag(s) - s s'))^-1 g, a diagonal and a rank-one term (Sherman and Morrison)."""
    D = torch.lerp(s, torch.ones_like(s), alpha)
    share = (s * g / D).sum(dim=-1, keepdim=True) / (alpha * (s / D).sum(dim=-1, keepdim=True))
    return (g + (1 - alpha) * share * s) / D


def _solve_softmax(u: Tensor, alpha: float) -> Tensor:
    """Newton's method on F(v) = alpha v + (1 - alpha) softmax(v) - u, each step halved until |F| falls.

    F has a symmetric Jacobian between min(alpha, 1) and max(alpha, 1), so that a short enough step always falls.
    """

    def residual(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = torch.softmax(v, dim=-1)
        F = alpha * (v - s) + s - u
        return s, F, torch.linalg.vector_norm(F, dim=-1, keepdim=True)

    v = u.clone()
    eps = 4 * torch.finfo(u.dtype).eps
    s, F, size = residual(v)
    for _ in range(_NEWTON_STEPS):
        scale = torch.linalg.vector_norm(torch.cat([u, alpha * v], dim=-1), dim=-1, keepdim=True)
        moving = size > eps * (scale + 1)
        if not bool(moving.any()):
            break
        step, length = _unmix(s, F, alpha), torch.ones_like(size)
        for _ in range(_HALVINGS):
            moved = v - length * step
            s, F, new = residual(moved)
            short = moving & (new > (1 - length / 4) * size)
            if not bool(short.any()):
                break
            length = torch.where(short, length / 2, length)
        keep = moving & (new < size)  # what cannot fall any more has come as far as rounding lets it
        v = torch.where(keep, moved, v)
        if not bool(keep.any()):
            break
        s, F, size = residual(v)
    return v


class Blocks(Activation):
    """Several activations side by side: each takes as many units as it is listed with, in turn.

    Args:
        parts: pairs of an activation and its number of units.

    Raises:
        InvalidInput: if the list is empty, holds anything else, or an activation does not fit its number of units.

    Examples:
        >>> sigma = lben.Blocks([(lben.ReLU(), 2), (lben.Softmax(2), 2)])
        >>> sigma(torch.tensor([-1.0, 2.0, 0.0, 0.0]))
        tensor([0.0000, 2.0000, 0.5000, 0.5000])
    """

    def __init__(self, parts: Sequence[tuple[Activation, int]]) -> None:
        if not isinstance(parts, Sequence) or not all(isinstance(part, Sequence) and len(part) == 2 for part in parts):
            raise InvalidInput(f"Blocks takes a list of pairs (activation, units), not {parts!r}.")
        if not parts:
            raise InvalidInput("Blocks needs at least one activation, but the list is empty.")
        self.parts = tuple(
            (check_activation(part, checks.count("The units of a block", width)), int(width)) for part, width in parts
        )
        self.widths = [width for _, width in self.parts]
        self.units = sum(self.widths)
        self.rounding = max(part.rounding for part, _ in self.parts)
        self.inner_terms = max(part.inner_terms for part, _ in self.parts)

    @property
    def linear(self) -> tuple[bool, ...]:  # type: ignore[override]
        flags: list[bool] = []
        for part, width in self.parts:
            flags += [part.linear] * width if isinstance(part.linear, bool) else part.linear
        return tuple(flags)

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "parts": plain(self.parts)}

    def __repr__(self) -> str:
        return f"Blocks({', '.join(f'{width} x {part!r}' for part, width in self.parts)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def _each(self, change: Callable[[Activation, Tensor], Tensor], v: Tensor) -> Tensor:
        pieces = zip(self.parts, self._split(v), strict=True)
        return torch.cat([change(part, piece) for (part, _), piece in pieces], dim=-1)

    def _split(self, v: Tensor) -> tuple[Tensor, ...]:
        checks.floating("v", v)
        if v.dim() == 0 or v.shape[-1] != self.units:
            raise InvalidInput(f"Blocks has {self.units} units, but the tensor's shape is {tuple(v.shape)}.")
        pieces: tuple[Tensor, ...] = v.split(self.widths, dim=-1)
        return pieces

    def __call__(self, v: Tensor) -> Tensor:
        return self._each(lambda part, piece: part(piece), v)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return self._each(lambda part, piece: part.prox(piece, alpha), u)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        own = [part.reflection(alpha) for part, _ in self.parts]
        return lambda u: torch.cat([reflect(piece) for reflect, piece in zip(own, self._split(u), strict=True)], dim=-1)

    def potential(self, z: Tensor) -> Tensor:
        """f of every unit, or of every block where units act together.

        Args:
            z: values of hidden units, of shape (..., n).

        Returns:
            A tensor with one entry a unit or block.
        """
        return self._each(lambda part, piece: part.potential(piece), z)

    def total_potential(self, z: Tensor, lam: Tensor) -> Tensor:
        pieces = zip(self.parts, self._split(z), lam.split(self.widths, dim=-1), strict=True)
        return torch.stack([part.total_potential(piece, own) for (part, _), piece, own in pieces]).sum(dim=0)

    def derivative(self, v: Tensor) -> Tensor:
        """The whole Jacobian.

        Args:
            v: pre-activations, of shape (..., n).

        Returns:
            A tensor of shape (..., n, n).
        """
        self._split(v)
        rows = v.reshape(-1, v.shape[-1])
        J = self.gain(rows).times(torch.eye(v.shape[-1], dtype=v.dtype, device=v.device))
        return J.reshape(*v.shape, v.shape[-1])

    def gain(self, v: Tensor) -> Jacobian:
        pieces = zip(self.parts, self._split(v), strict=True)
        return SideBySide([(part.gain(piece), width) for (part, width), piece in pieces])

    def groups(self, units: int) -> Tensor | None:
        found, count = [], 0
        for part, width in self.parts:
            own = part.groups(width)
            own = torch.arange(width, device="cpu") if own is None else own
            found.append(own + count)
            count += int(own[-1]) + 1
        return None if count == units else torch.cat(found)
