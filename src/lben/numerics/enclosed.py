"""Matrices with a bound on the error of every entry, so that what double precision computes of them is proved.

|fl(A B) - A B| <= k u |A| |B| for every order of summation, k the length of the sums and u the unit roundoff; what
underflow adds is far below `TINY` an operation. Overflow leaves an infinity or a NaN, of which nothing is ever proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Verdict = Literal["holds", "fails", "undecided"]
EPS = torch.finfo(torch.float64).eps  # twice the unit roundoff: every bound below is twice what is needed
TINY = 2.0**-1000


@dataclass(frozen=True, eq=False)
class Enclosed:
    """Every matrix that differs from `mid` by at most `error`, entry by entry."""

    mid: Tensor
    error: Tensor

    @staticmethod
    def exact(matrix: Tensor) -> Enclosed:
        return Enclosed(matrix, torch.zeros_like(matrix))

    @staticmethod
    def within(matrix: Tensor, error: Tensor | None) -> Enclosed:
        """What may be off by `error`; exact for None."""
        return Enclosed.exact(matrix) if error is None else Enclosed(matrix, error)

    @property
    def T(self) -> Enclosed:
        return Enclosed(self.mid.T, self.error.T)

    def __getitem__(self, where: tuple[slice, slice]) -> Enclosed:
        return Enclosed(self.mid[where], self.error[where])

    def __neg__(self) -> Enclosed:
        return Enclosed(-self.mid, self.error)

    def __add__(self, other: Enclosed) -> Enclosed:
        mid = self.mid + other.mid
        return Enclosed(mid, _above(self.error + other.error + EPS * mid.abs() + TINY, 1))

    def __sub__(self, other: Enclosed) -> Enclosed:
        return self + -other

    def __mul__(self, other: Enclosed) -> Enclosed:
        """Entry by entry."""
        mid = self.mid * other.mid
        error = self.size() * other.error + self.error * other.mid.abs()
        return Enclosed(mid, _above(error + EPS * mid.abs() + TINY, 1))

    def __matmul__(self, other: Enclosed) -> Enclosed:
        terms = self.mid.shape[-1]
        first, second = self.mid.abs(), other.mid.abs()
        error = self.size() @ other.error + self.error @ second + (terms + 2) * EPS * (first @ second)
        return Enclosed(self.mid @ other.mid, _above(error + (terms + 1) * TINY, terms))

    def size(self) -> Tensor:
        """A bound on the absolute values."""
        return _above(self.mid.abs() + self.error, 1)

    def inverse(self) -> Enclosed:
        """1 / x, entry by entry; infinite errors where zero is not excluded."""
        least = self.mid.abs() - self.error * (1 + 4 * EPS)
        mid = 1 / self.mid
        error = _above(self.error / (self.mid.abs() * least) + EPS * mid.abs() + TINY, 4)
        return Enclosed(mid, torch.where(least > 0, error, torch.inf))

    def shifted(self, exponents: Tensor) -> Enclosed:
        """x 2^k, entry by entry, which is exact unless it underflows."""
        half = torch.div(exponents, 2, rounding_mode="floor")
        one, two = _power(half), _power(exponents - half)
        mid, error = self.mid * one * two, self.error * one * two
        lost = (self.mid != 0) & (mid.abs() < 1 / _LARGE)
        return Enclosed(mid, torch.where(lost | (self.error > 0), error * (1 + EPS) + TINY, error))

    def finite(self) -> bool:
        return bool(torch.isfinite(self.mid).all() and torch.isfinite(self.error).all())


_LARGE = 2.0**900


def _above(bound: Tensor, terms: int) -> Tensor:
    """A bound of sums of so many positive terms, raised by what rounding may have taken from it."""
    return bound * (1 + (terms + 8) * EPS)


def _power(exponents: Tensor) -> Tensor:
    """2^k, exactly."""
    return ((exponents.clamp(-1022, 1023).to(torch.int64) + 1023) << 52).view(torch.float64)


def balance(lam: Tensor) -> Tensor:
    """The k for which lam 4^k lies between 1/2 and 2."""
    exponents: Tensor = -torch.div(torch.frexp(lam).exponent.to(torch.int64), 2, rounding_mode="floor")
    return exponents


def stacked(rows: list[list[Enclosed]]) -> Enclosed:
    """A matrix of blocks."""
    mid, error = (
        torch.cat([torch.cat([getattr(block, part) for block in row], dim=1) for row in rows])
        for part in ("mid", "error")
    )
    return Enclosed(mid, error)


def solve(A: Enclosed, B: Enclosed) -> Enclosed | None:
    """A^-1 B; None where A is not proved to be regular.

    With R an approximate inverse, X = R B, E >= |I - R A| and w >= |R (B - A X)|, the error is at most (I - E)^-1 w <=
    w + v max(E w/(v - E v)), for any v with E v < v: that is proof that A is regular. v has the size of the unknowns.
    """
    identity = torch.eye(len(A.mid), dtype=A.mid.dtype)
    inverse, info = torch.linalg.inv_ex(A.mid)
    if int(info) != 0 or not bool(torch.isfinite(inverse).all()):
        return None
    R = Enclosed.exact(inverse)
    X = inverse @ B.mid
    E = (Enclosed.exact(identity) - R @ A).size()
    w = (R @ (B - A @ Enclosed.exact(X))).size()
    v = (inverse.abs() @ (A.mid.abs() @ torch.ones(len(identity), 1, dtype=A.mid.dtype))).clamp(min=1 / _LARGE)
    room = v - _above(E @ v + TINY, len(v)) - EPS * v
    if not bool((room > 0).all()):
        return None
    worst = (_above(E @ w + TINY, len(v)) / room).amax(dim=0, keepdim=True)
    return Enclosed(X, _above(w + v * worst + TINY, 4))


def definite(X: Enclosed) -> Verdict:
    """Whether an enclosed symmetric matrix is positive definite: "fails" where it is proved not to be.

    Rows and columns are scaled by powers of two to diagonal entries between 1/2 and 2. A Cholesky factorisation that
    runs to its end proves that what it was given, plus (n + 1) u/(1 - (n + 1) u) times the trace, is positive
    semidefinite (Demmel 1989; Rump 2006); twice that and the sums of the errors in each row were subtracted before.
    """
    size = len(X.mid)
    if size == 0:
        return "holds"
    if not X.finite():
        return "undecided"
    X = Enclosed(*((part.tril() + part.tril(-1).T) for part in (X.mid, X.error)))
    diagonal = X.mid.diagonal()
    if bool((diagonal + X.error.diagonal() <= 0).any()):
        return "fails"
    if not bool((diagonal > 0).all()):
        return _refuted(X)
    k = balance(diagonal)
    X = X.shifted(k[:, None] + k)
    if not X.finite():
        return "undecided"
    trace = float(X.mid.diagonal().sum())
    taken = _above(X.error.sum(dim=1), size) + 2 * (size + 4) * EPS * trace
    _, info = torch.linalg.cholesky_ex(X.mid - torch.diag(taken))
    return "holds" if int(info) == 0 else _refuted(X)


def _refuted(X: Enclosed) -> Verdict:
    """Whether some v shows v' X v < 0 for every enclosed matrix."""
    v = Enclosed.exact(torch.linalg.eigh(X.mid).eigenvectors[:, :1])
    quotient = v.T @ (X @ v)
    return "fails" if float(quotient.mid + quotient.error) < 0 else "undecided"
