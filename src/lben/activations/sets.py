"""Convex sets that activations project onto: each with its projection and the Jacobian of that, block by block."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from lben import checks
from lben.activations.polyhedron import Faces, active_constraints, dual_projection, settle, sharp_set
from lben.described import describe_record
from lben.errors import InvalidInput, NotConverged

_LARGEST = 1e20  # of what a polyhedron is made of, once rows of C have length one; DAQP takes 1e30 for infinity


def _close(z: Tensor) -> float:
    """How far outside still counts as inside, relatively, since points on the boundary are rounded."""
    return max(1e-9, 64 * torch.finfo(z.dtype).eps)


def lengths(v: Tensor) -> Tensor:
    """The Euclidean lengths of blocks, shape (..., 1), of entries whose squares may overflow."""
    largest = v.detach().abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(v.dtype).tiny)
    length: Tensor = largest * torch.linalg.vector_norm(v / largest, dim=-1, keepdim=True)
    return length


class ConvexSet(ABC):
    """A closed convex set in R^k. Blocks have shape (..., k), Jacobians (..., k, k)."""

    size: int
    separable: bool = False
    """Whether it is a product of intervals: its units then act alone."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checks.unchanged(cls, "a set of lben's as it is")

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """The nearest point of the set.

        Args:
            v: blocks, of shape (..., k).

        Returns:
            A tensor of the same shape, differentiable in v.
        """

    @abstractmethod
    def jacobian(self, v: Tensor) -> Tensor:
        """A generalised Jacobian of the projection: the Jacobian wherever there is one.

        Args:
            v: blocks, of shape (..., k).

        Returns:
            A tensor of shape (..., k, k).
        """

    @abstractmethod
    def contains(self, z: Tensor) -> Tensor:
        """Whether each block lies in the set, to rounding.

        Args:
            z: blocks, of shape (..., k).

        Returns:
            Booleans of shape (...).
        """

    def describe(self) -> dict[str, Any]:
        """Its name and its numbers.

        Returns:
            Plain values, as a file keeps them.
        """
        return describe_record(self)


@dataclass(frozen=True)
class Box(ConvexSet):
    """``{z : low <= z <= high}``, for `Projection`; an end may be infinite.

    Args:
        low: a number, or one for each dimension, of shape (d,).
        high: a number, or one for each dimension, of shape (d,).

    Raises:
        InvalidInput: if the box is empty, or the two differ in length.

    Examples:
        >>> box = lben.Box([0.0, -1.0], [1.0, torch.inf])
        >>> box.project(torch.tensor([2.0, -3.0]))
        tensor([ 1., -1.])
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    separable = True

    def __init__(self, low: float | Sequence[float] | Tensor, high: float | Sequence[float] | Tensor) -> None:
        ends = [_vector(name, value) for name, value in (("low", low), ("high", high))]
        size = max(len(end) for end in ends)
        low_end, high_end = (end * size if len(end) == 1 else end for end in ends)
        if len(low_end) != len(high_end):
            raise InvalidInput(f"low has {len(low_end)} entries, high {len(high_end)}: they must be as many, or one.")
        for a, b in zip(low_end, high_end, strict=True):
            if not a <= b or (math.isinf(a) and a == b):
                raise InvalidInput(f"The box is empty: low = {a:g} is not below high = {b:g}.")
        object.__setattr__(self, "low", low_end)
        object.__setattr__(self, "high", high_end)

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.low)

    def project(self, v: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(v, v.new_tensor(self.low)), v.new_tensor(self.high))

    def jacobian(self, v: Tensor) -> Tensor:
        inside = (v > v.new_tensor(self.low)) & (v < v.new_tensor(self.high))
        return torch.diag_embed(inside.to(v.dtype))

    def contains(self, z: Tensor) -> Tensor:
        return ((z >= z.new_tensor(self.low)) & (z <= z.new_tensor(self.high))).all(dim=-1)


@dataclass(frozen=True)
class Ball(ConvexSet):
    """``{z in R^size : |z| <= radius}``, for `Projection`.

    Args:
        size: the number of dimensions.
        radius: above 0.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> lben.Ball(2, radius=5.0).project(torch.tensor([6.0, 8.0]))
        tensor([3., 4.])
    """

    size: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.count("size", self.size)
        checks.positive("radius", self.radius)

    def _stretch(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each block is outside, and its length (where it is inside, one, which has a gradient)."""
        outside = lengths(v.detach()) > self.radius
        return outside, lengths(torch.where(outside, v, torch.ones_like(v)))

    def project(self, v: Tensor) -> Tensor:
        outside, length = self._stretch(v)
        return torch.where(outside, v * (self.radius / length), v)

    def jacobian(self, v: Tensor) -> Tensor:
        outside, length = self._stretch(v)
        eye = torch.eye(self.size, dtype=v.dtype, device=v.device)
        unit = v / length
        across = (self.radius / length)[..., None] * (eye - unit[..., :, None] * unit[..., None, :])
        return torch.where(outside[..., None], across, eye)

    def contains(self, z: Tensor) -> Tensor:
        inside: Tensor = torch.linalg.vector_norm(z, dim=-1) <= self.radius * (1 + _close(z))
        return inside


@dataclass(frozen=True)
class Simplex(ConvexSet):
    """``{z in R^size : z >= 0, sum z = total}``, for `Projection`.

    Args:
        size: the number of dimensions.
        total: above 0.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> lben.Simplex(3).project(torch.tensor([1.0, 1.0, -1.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """

    size: int
    total: float = 1.0

    def __post_init__(self) -> None:
        checks.count("size", self.size)
        checks.positive("total", self.total)

    def _support(self, v: Tensor) -> Tensor:
        """Which entries of the projection are positive: the largest, as long as they exceed their own threshold."""
        v = self._from_top(v.detach())
        ordered = v.sort(dim=-1, descending=True).values
        counts = torch.arange(1, self.size + 1, dtype=v.dtype, device=v.device)
        thresholds = (ordered.cumsum(dim=-1) - self.total) / counts
        last = (ordered > thresholds).sum(dim=-1, keepdim=True).clamp(min=1) - 1
        return ~(v <= thresholds.gather(-1, last))  # so that NaN stays NaN

    @staticmethod
    def _from_top(v: Tensor) -> Tensor:
        """v less its largest entry, which changes no projection, and keeps `total` from drowning in large ones."""
        return v - v.detach().amax(dim=-1, keepdim=True)

    def project(self, v: Tensor) -> Tensor:
        support, v = self._support(v), self._from_top(v)
        share = (torch.where(support, v, 0.0).sum(dim=-1, keepdim=True) - self.total) / support.sum(-1, keepdim=True)
        return torch.where(support, v - share, 0.0)

    def jacobian(self, v: Tensor) -> Tensor:
        s = self._support(v).to(v.dtype)
        return torch.diag_embed(s) - s[..., :, None] * s[..., None, :] / s.sum(dim=-1)[..., None, None]

    def contains(self, z: Tensor) -> Tensor:
        near = (z.sum(dim=-1) - self.total).abs() <= self.total * _close(z)
        return near & (z >= -self.total * _close(z)).all(dim=-1)


@dataclass(frozen=True)
class Polyhedron(ConvexSet):
    """``{z : C z <= d}``, as model predictive control has it, for `Projection`; it needs the extra `qp`.

    The projection is a quadratic program, in double precision whatever v is; it lies in the set but for rounding, of
    the size of v where that is large, and of z where it is not double. Its Jacobian is the orthogonal projector onto
    the directions along which the active constraints stay active.

    Args:
        C: rows of numbers, of shape (r, k).
        d: as many numbers as C has rows.

    Raises:
        InvalidInput: if the set is empty, a row of C is zero, shapes do not fit, or constraints meet at an angle below
            about 1e-5, but not 0, which would magnify rounding.

    Examples:
        >>> triangle = lben.Polyhedron([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]], [0.0, 0.0, 1.0])
        >>> triangle.project(torch.tensor([[2.0, 2.0], [0.2, 0.3]]))
        tensor([[0.5000, 0.5000],
                [0.2000, 0.3000]])
    """

    C: tuple[tuple[float, ...], ...]
    d: tuple[float, ...]

    def __init__(self, C: Sequence[Sequence[float]] | Tensor, d: Sequence[float] | Tensor) -> None:
        matrix, offsets = _numbers("C", C), _numbers("d", d)
        if matrix.dim() != 2 or matrix.numel() == 0 or offsets.shape != matrix.shape[:1]:
            shapes = f"{tuple(matrix.shape)} and {tuple(offsets.shape)}"
            raise InvalidInput(f"C must have shape (r, k) and d shape (r,), with r and k at least 1, not {shapes}.")
        checks.finite("C", matrix)
        checks.finite("d", offsets)
        for i, row in enumerate(matrix):
            if not bool((row != 0).any()):
                what = "constrains nothing: leave it out" if float(offsets[i]) >= 0 else "no z satisfies: d is negative"
                raise InvalidInput(f"Row {i} of C is zero, which {what}.")
        length = torch.linalg.vector_norm(matrix, dim=1)
        if not bool(((length > 1 / _LARGEST) & (length < _LARGEST) & (offsets.abs() < _LARGEST * length)).all()):
            raise InvalidInput(f"A row of C, or its d, is too large or too small, beyond {_LARGEST:g}: scale them.")
        object.__setattr__(self, "C", tuple(tuple(row) for row in matrix.tolist()))
        object.__setattr__(self, "d", tuple(offsets.tolist()))
        self._check()

    def _check(self) -> None:
        """Refuse a set that is empty, or that cannot be projected onto to rounding."""
        C, d = self._constraints
        origin = torch.zeros(1, self.size, dtype=torch.float64)
        empty = f"The polyhedron is empty: no z satisfies all {len(self.d)} constraints C z <= d."
        if active_constraints(C, d, origin) is None:
            raise InvalidInput(empty)
        sharp = sharp_set(C, d)
        if sharp is not None:
            chosen, least = sharp
            rows = ", ".join(map(str, chosen))
            raise InvalidInput(
                f"Rows {rows} of C are too nearly parallel, or dependent, to be projected onto in double precision: "
                f"the smallest singular value of their normals is {least:.3g}, and must be at least 1e-05, or 0."
            )
        try:
            self.project(origin)
        except NotConverged as error:
            raise InvalidInput(f"{empty[:-1]}, or too few to be told from none in double precision.") from error

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.C[0])

    @cached_property
    def _constraints(self) -> tuple[Tensor, Tensor]:
        """C and d with rows of C of length one."""
        C, d = torch.tensor(self.C, dtype=torch.float64), torch.tensor(self.d, dtype=torch.float64)
        length = torch.linalg.vector_norm(C, dim=1)
        return C / length[:, None], d / length

    @cached_property
    def _faces(self) -> Faces | None:
        return Faces.of(*self._constraints)

    def _pieces(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows v in double precision, with M and z0 of the projection M v + z0 of each; any where v is not finite."""
        rows = v.reshape(-1, self.size).double()
        if checks.transformed():
            M, z0 = _Pieces.apply(rows.detach(), self)  # type: ignore[no-untyped-call]
        else:
            M, z0 = self.pieces(rows.detach())
        return rows, M, z0

    def pieces(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """M and z0 of the projection M v + z0 of rows without history.

        Args:
            points: rows, of shape (rows, k), in double precision.

        Returns:
            Tensors of shape (rows, k, k) and (rows, k).
        """
        C, d = (part.to(points.device) for part in self._constraints)
        missed = points.isfinite().all(dim=1)
        if self._faces is None:
            M, z0 = points.new_full((*points.shape, self.size), torch.nan), torch.full_like(points, torch.nan)
        else:
            M, z0, far = self._faces.to(points.device).choose(points)
            missed &= far
        if bool(missed.any()):
            M[missed], z0[missed] = self._solve(C, d, points[missed])
        return M, z0

    @staticmethod
    def _solve(C: Tensor, d: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """By DAQP, verified; what cannot be verified in double precision, row by row in rational arithmetic."""
        active = active_constraints(C, d, rows)
        found = None if active is None else settle(C, d, rows, active)
        if found is not None or active is None:
            return found or _no_projection(rows)
        pieces = []
        for row, guess in zip(rows.split(1), active.split(1), strict=True):
            piece = settle(C, d, row, guess) or dual_projection(C, d, row)
            pieces.append(_no_projection(row) if piece is None else piece)
        M, z0 = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        return M, z0

    def project(self, v: Tensor) -> Tensor:
        rows, M, z0 = self._pieces(v)
        z = torch.einsum("nk,nkl->nl", rows, M) + z0
        z = torch.where(rows.detach().isfinite().all(dim=1, keepdim=True), z, torch.nan)
        return z.to(v.dtype).reshape(v.shape)

    def jacobian(self, v: Tensor) -> Tensor:
        _, M, _ = self._pieces(v)
        result: Tensor = M.to(v.dtype).reshape(*v.shape, self.size)
        return result

    def contains(self, z: Tensor) -> Tensor:
        C, d = (part.to(z.device) for part in self._constraints)
        inside: Tensor = (z.double() @ C.T - d <= _close(z) * (1 + d.abs())).all(dim=-1)
        return inside


class _Pieces(torch.autograd.Function):
    """The active constraints of rows within transforms of torch.func: they are found by looking at plain numbers.

    Where they can be differentiated, they do not move.
    """

    @staticmethod
    def forward(points: Tensor, polyhedron: Polyhedron) -> tuple[Tensor, Tensor]:
        return polyhedron.pieces(points)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Polyhedron], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None], points: Tensor, polyhedron: Polyhedron
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        slices = points.movedim(in_dims[0], 0)
        M, z0 = _Pieces.apply(slices.flatten(0, 1), polyhedron)  # type: ignore[no-untyped-call]
        return (M.unflatten(0, slices.shape[:2]), z0.unflatten(0, slices.shape[:2])), (0, 0)


def _no_projection(rows: Tensor) -> NoReturn:
    raise NotConverged(
        f"No projection onto the polyhedron was found: v is too large, at {float(rows.abs().max()):.3g}, for double "
        "precision, or the polyhedron is empty.",
        math.nan,
    )


def _numbers(name: str, value: Sequence[Sequence[float]] | Sequence[float] | Tensor | float) -> Tensor:
    try:
        if isinstance(value, Tensor) and (value.is_complex() or value.layout is not torch.strided):
            raise TypeError
        return torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must hold numbers, not {value!r}.") from error


def _vector(name: str, value: float | Sequence[float] | Tensor) -> tuple[float, ...]:
    vector = _numbers(name, value).reshape(-1)
    if vector.numel() == 0 or bool(vector.isnan().any()):
        raise InvalidInput(f"{name} must be a number or one number a unit, not {value!r}.")
    return tuple(vector.tolist())
