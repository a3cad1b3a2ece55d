"""Projection onto a polyhedron {z : C z <= d}: a small quadratic program for every row of a batch, verified.

On every face the projection is affine, z = M v + z0, with M the orthogonal projector along the active constraints.
Small polyhedra are looked through: the maps of all sets of at most k independent constraints, made in rational
arithmetic, are tried at once, for all rows. For large ones DAQP, a dual active-set method, proposes the active
constraints row by row. Either way the optimality conditions decide, to rounding: a proposal that fails them is mended,
or the row is projected in rational arithmetic.

Rounding of size eps moves a face by eps divided by the smallest singular value of its normals, of length one; so
constraints that can be active together must not be too nearly dependent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from lben.checks import need
from lben.errors import NotConverged

_EPS = torch.finfo(torch.float64).eps
_ROUNDING = 64 * _EPS  # by which a constraint may be violated, and a multiplier negative, relative to v, z and d
_DEPENDENT = 16 * _EPS  # the smallest singular value at which normals are dependent but for rounding
_SHARP = 1e-5  # that at which rounding would be seen
_BLUNT = 1e-2  # that below which double precision is not enough
_CLOSE = 1e-11  # DAQP's own tolerances
_MARGIN = 1e-9  # by which sets of constraints that cannot be active together must miss each other
_SOLVED, _INFEASIBLE = 1, -1
_MOST_ENTRIES = 4096  # multipliers of all sets of constraints together, up to which they are looked through
_MOST_SETS = 20_000  # sets of constraints whose angles are looked at
_MENDS = 20


@dataclass(frozen=True, eq=False)
class Faces:
    """Every set of at most k independent constraints, with its affine map and the conditions under which it is active.

    The conditions are lengths, slopes v + offsets <= 0: for a constraint of the set, minus its multiplier times the
    distance of its normal from the span of the others; for another one, by how much z violates it.
    Shapes: M (sets, k, k), z0 (sets, k), slopes (k, sets * r), offsets (sets * r,), sizes (sets, r).
    """

    M: Tensor
    z0: Tensor
    slopes: Tensor
    offsets: Tensor
    sizes: Tensor

    @staticmethod
    def of(C: Tensor, d: Tensor) -> Faces | None:
        """None where there are too many."""
        r, k = C.shape
        if r * sum(math.comb(r, count) for count in range(min(r, k) + 1)) > _MOST_ENTRIES:
            return None
        pieces = []
        for count in range(min(r, k) + 1):
            for chosen, least in _with_least(C, count):
                if least >= _SHARP:
                    pieces.append(_exact_piece(C, d, chosen))
        active, M, z0, heights, base = (torch.stack(parts) for parts in zip(*pieces, strict=True))
        slopes = torch.where(active[..., None], -heights, C @ M)
        offsets = torch.where(active, base, z0 @ C.T - d)
        sizes = z0.abs().amax(dim=-1, keepdim=True) + d.abs()
        return Faces(M, z0, slopes.flatten(0, 1).T.contiguous(), offsets.flatten(), sizes)

    def choose(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """M and z0 of the set whose conditions are violated least, and where that is more than rounding."""
        lengths = torch.addmm(self.offsets, v, self.slopes).unflatten(1, self.sizes.shape)
        worst = _relative(lengths, self.sizes + v.abs().amax(dim=-1)[:, None, None]).amax(dim=-1)
        least, which = worst.min(dim=-1)
        return self.M[which], self.z0[which], ~(least <= _ROUNDING)

    def to(self, device: torch.device) -> Faces:
        return Faces(*(part.to(device) for part in vars(self).values()))


def _relative(length: Tensor, scale: Tensor) -> Tensor:
    return length / scale.clamp(min=torch.finfo(length.dtype).tiny)


def _violation(C: Tensor, d: Tensor, z: Tensor, scale: Tensor, active: Tensor) -> Tensor:
    """By how much z violates each constraint that is not active, relatively."""
    return torch.where(active, -torch.inf, _relative(z @ C.T - d, scale[..., None] + d.abs()))


def _with_least(C: Tensor, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every set of so many rows of C, with the smallest singular value."""
    if count == 0:
        yield (), 1.0
        return
    sets = list(combinations(range(len(C)), count))
    least = torch.linalg.svdvals(C[torch.tensor(sets)])[:, -1]
    yield from zip(sets, least.tolist(), strict=True)


def _exact_piece(C: Tensor, d: Tensor, chosen: tuple[int, ...]) -> tuple[Tensor, ...]:
    """active, M, z0, heights and base of a set of constraints, each entry rounded once.

    With normals A / s and limits l / t, all integers, back = adjugate(A A') A and det = |A A'|:
    M = I - A' back / det, z0 = s back' l / (t det), heights are along back.
    """
    r, k = C.shape
    A, s = _integers(C[list(chosen)])
    (limits,), t = _integers(d[None, list(chosen)])
    back, det = _adjugate_times([[_dot(p, q) for q in A] for p in A], A)
    columns, lines = list(zip(*A, strict=True)), list(zip(*back, strict=True))
    M = [[det * (i == j) - _dot(columns[i], lines[j]) for j in range(k)] for i in range(k)] if A else None
    z0 = [_dot(line, limits) for line in lines] if A else [0] * k
    active, heights, base = torch.zeros(r, dtype=torch.bool), C.new_zeros(r, k), C.new_zeros(r)
    for i, row in zip(chosen, back, strict=True):
        direction = C.new_tensor([p / det for p in row])
        length = torch.linalg.vector_norm(direction)
        active[i], heights[i] = True, direction / length
        base[i] = _dot(row, z0) * s / (det * det * t) / length
    projector = torch.eye(k, dtype=C.dtype) if M is None else C.new_tensor([[m / det for m in line] for line in M])
    return active, projector, C.new_tensor([z * s / (det * t) for z in z0]), heights, base


def _integers(part: Tensor) -> tuple[list[list[int]], int]:
    """Integers in the ratios of the entries of a matrix, and what they are larger by."""
    ratios = [[value.as_integer_ratio() for value in row] for row in part.tolist()]
    scale = max((q for row in ratios for _, q in row), default=1)  # all are powers of two
    return [[p * (scale // q) for p, q in row] for row in ratios], scale


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _adjugate_times(A: list[list[int]], B: list[list[int]]) -> tuple[list[list[int]], int]:
    """det(A) A^-1 B and det(A) for a positive definite A, by elimination without fractions."""
    rows, last = [[*a, *b] for a, b in zip(A, B, strict=True)], 1
    for i in range(len(rows)):
        pivot = rows[i]
        for j, other in enumerate(rows):
            if j != i:
                rows[j] = [(pivot[i] * x - other[i] * y) // last for x, y in zip(other, pivot, strict=True)]  # exact
        last = pivot[i]
    return [row[len(rows) :] for row in rows], last


def sharp_set(C: Tensor, d: Tensor) -> tuple[tuple[int, ...], float] | None:
    """Constraints that can be active together with normals too nearly dependent, and how nearly; None if none is found.

    Sets of one, two, ... constraints are looked at as long as they are not too many.
    """
    r, k = C.shape
    looked = 0
    for count in range(2, min(r, k) + 1):
        looked += math.comb(r, count)
        if looked > _MOST_SETS:
            break
        for chosen, least in _with_least(C, count):
            if _DEPENDENT < least < _SHARP and _meet(C, d, chosen):
                return chosen, least
    return None


def _meet(C: Tensor, d: Tensor, chosen: tuple[int, ...]) -> bool:
    """Whether some point of the polyhedron, or near it, makes all of these constraints active."""
    _, _, z0, _, _ = _exact_piece(C, d, chosen)
    along = torch.linalg.svd(C[list(chosen)]).Vh[len(chosen) :]
    room = d - C @ z0 + _MARGIN * (d.abs() + z0.abs().max())
    room[list(chosen)] = torch.inf
    normals = C @ along.T
    length = torch.linalg.vector_norm(normals, dim=1)
    free = length > _MARGIN
    if bool((room[~free] < 0).any()):
        return False
    free &= room < torch.inf
    if not bool(free.any()):
        return True
    found = active_constraints(
        normals[free] / length[free, None], room[free] / length[free], C.new_zeros(1, len(along))
    )
    return found is not None


def active_constraints(C: Tensor, d: Tensor, v: Tensor) -> Tensor | None:
    """Which constraints DAQP takes for active at the projection of each row of v; None if the polyhedron is empty.

    Shapes: C (r, k) with rows of length one, d (r,), v (batch, k); the result is (batch, r).
    """
    daqp = need("daqp", "The projection onto a polyhedron", extra="qp")
    normals, limits = C.cpu().numpy(), d.cpu().numpy()
    hessian = np.eye(C.shape[1])
    multipliers = np.empty((len(v), len(C)))
    usual = float(np.median(np.abs(limits)))
    for row, point in enumerate(v.cpu().numpy()):
        unit = max(usual, float(np.abs(point).max())) or 1.0  # for its tolerances are absolute
        _, _, flag, info = daqp.solve(
            hessian, -point / unit, normals, limits / unit, primal_tol=_CLOSE, dual_tol=_CLOSE
        )
        if flag == _INFEASIBLE:
            return None
        if flag != _SOLVED:
            raise NotConverged(f"No projection onto the polyhedron was found: DAQP ended with {flag}.", math.nan)
        multipliers[row] = info["lam"]
    return torch.from_numpy(multipliers).to(v.device) > 0


def settle(C: Tensor, d: Tensor, v: Tensor, active: Tensor) -> tuple[Tensor, Tensor] | None:
    """M and z0 for each row of v, from a guess at its active constraints; None where optimality cannot be verified.

    Until the conditions hold to rounding, the constraint with the most negative multiplier is left out or, if there is
    none, the one that z violates most is taken in: what comes close is mended so, and no more is asked for.
    """
    for _ in range(_MENDS):
        least = _smallest_singular_values(C, active)
        if not bool((least >= _SHARP).all()):
            return None
        M, z0, heights = _pieces(C, d, active, least)
        z = torch.einsum("nk,nkl->nl", v, M) + z0
        scale = v.abs().amax(dim=-1) + z.abs().amax(dim=-1)
        above = torch.einsum("nk,nrk->nr", v - z, heights)
        rounding = _ROUNDING / torch.where(least < _BLUNT, 1.0, least)
        pulled, leaving = _relative(-above, scale[:, None]).max(dim=-1)
        pushed, entering = _violation(C, d, z, scale, active).max(dim=-1)
        pull = ~(pulled <= rounding)
        bad = pull | ~(pushed <= rounding)
        if not bool(bad.any()):
            return M, z0
        active = active.clone()
        active[bad, torch.where(pull, leaving, entering)[bad]] ^= True
    return None


def _smallest_singular_values(C: Tensor, active: Tensor) -> Tensor:
    """That of the active normals of each row."""
    both = active[:, :, None] & active[:, None, :]
    eye = torch.eye(len(C), dtype=C.dtype, device=C.device)
    squares: Tensor = torch.linalg.eigvalsh(torch.where(both, C @ C.T, eye))
    return squares[:, 0].clamp(min=0).sqrt()


def _pieces(C: Tensor, d: Tensor, active: Tensor, least: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M, z0 and heights for each row of active constraints, in rational arithmetic where their normals are close."""
    normals, limits = torch.where(active[:, :, None], C, 0.0), torch.where(active, d, 0.0)[..., None]
    back = torch.linalg.pinv(normals, rtol=_SHARP / 10)
    z0 = back @ limits
    z0 = (z0 - back @ (normals @ z0 - limits))[..., 0]
    M = torch.eye(C.shape[1], dtype=C.dtype, device=C.device) - back @ normals
    M = (M + M.mT) / 2
    heights = (back / torch.linalg.vector_norm(back, dim=1, keepdim=True).clamp(min=1)).mT.contiguous()
    sharp = least < _BLUNT
    for pattern in active[sharp].unique(dim=0):
        rows = (active == pattern).all(dim=1)
        _, *exact, _ = _exact_piece(C, d, tuple(pattern.nonzero()[:, 0].tolist()))
        M[rows], z0[rows], heights[rows] = (part.to(C.device) for part in exact)
    return M, z0, heights


def dual_projection(C: Tensor, d: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """M and z0 for one row v, by the dual active-set method of Goldfarb and Idnani (1983) in rational arithmetic.

    From z = v on, the constraint that z violates most is taken in, and those whose multipliers would turn negative are
    left out; without rounding this ends at the projection, however nearly parallel the constraints are. None if there
    is none. It is for the few rows that double precision cannot decide.
    """
    normals = [[Fraction(c) for c in row] for row in C.tolist()]
    limits, z = [Fraction(limit) for limit in d.tolist()], [Fraction(x) for x in v[0].tolist()]
    active: list[int] = []
    multipliers: list[Fraction] = []
    while True:
        above = [_inner(normal, z) - limit for normal, limit in zip(normals, limits, strict=True)]
        entering = max(range(len(above)), key=above.__getitem__)
        if above[entering] <= 0:
            break
        own = Fraction(0)
        while True:
            held = [normals[i] for i in active]
            pulls = _solve_gram(held, normals[entering])
            along = [
                c - _inner(pulls, column) for c, column in zip(normals[entering], _columns(held, len(z)), strict=True)
            ]
            blocking = min(
                ((u / pull, k) for k, (u, pull) in enumerate(zip(multipliers, pulls, strict=True)) if pull > 0),
                default=None,
            )
            length = _inner(along, along)
            full = (_inner(normals[entering], z) - limits[entering]) / length if length else None
            if full is None and blocking is None:
                return None
            step = min(s for s in (full, blocking and blocking[0]) if s is not None)
            z = [x - step * a for x, a in zip(z, along, strict=True)]
            multipliers, own = [u - step * pull for u, pull in zip(multipliers, pulls, strict=True)], own + step
            if step == full:
                active, multipliers = [*active, entering], [*multipliers, own]
                break
            assert blocking is not None
            del active[blocking[1]], multipliers[blocking[1]]
    _, M, z0, _, _ = _exact_piece(C, d, tuple(active))
    return M[None].to(v.device), z0[None].to(v.device)


def _inner(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def _columns(rows: list[list[Fraction]], count: int) -> list[list[Fraction]]:
    return [[row[k] for row in rows] for k in range(count)]


def _solve_gram(rows: list[list[Fraction]], b: list[Fraction]) -> list[Fraction]:
    """The r with A A' r = A b for independent rows A."""
    table = [[*(_inner(p, q) for q in rows), _inner(p, b)] for p in rows]
    for i, pivot in enumerate(table):
        table[i] = pivot = [entry / pivot[i] for entry in pivot]
        for j, other in enumerate(table):
            if j != i:
                table[j] = [x - other[i] * y for x, y in zip(other, pivot, strict=True)]
    return [row[-1] for row in table]
