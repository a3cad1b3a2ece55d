"""Condition `lipschitz`, in matrices that enclose what rounding leaves open, at a scale at which nothing overflows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lben.errors import NotWellPosed
from lben.numerics.enclosed import EPS, Enclosed, Verdict, balance, definite, solve, stacked
from lben.weights.dense import Weights, condition_matrix

_SHARES = (1.0, 1 - 1e-12, 1 - 1e-9, 1 - 1e-6, 1 - 1e-3, 0.5)


@dataclass(frozen=True, eq=False)
class Balanced:
    """A condition in units of z, x and y that are powers of two: those change no verdict, and round nothing.

    X: the matrix that must be positive definite; None where linear units cannot be eliminated surely.
    exponents: of the scale of its rows and columns.
    """

    X: Enclosed | None
    exponents: Tensor

    @staticmethod
    def of(
        weights: Weights, lam: Tensor, gamma: float | None, scale: float, *, loose: tuple[Tensor, Tensor | None] | None
    ) -> Balanced:
        """The condition for gamma times scale at the network's input; linear units with NaN in lam are eliminated.

        [[M - Lam U U' Lam/g, Wo' + Lam U D'/g], [., g I - D D'/g]] with M = 2 Lam - Lam W - W' Lam, or without D its
        Schur complement. loose: what the entries of Wo and of D may be off by.
        """
        gone = torch.isnan(lam)
        kept = ~gone
        g, e = (Enclosed.exact(lam.new_ones(())), 0) if gamma is None else root_of(gamma, scale)
        k = torch.where(gone, 0, balance(torch.where(gone, 1.0, lam)))
        off_Wo, off_D = (None, None) if loose is None else loose
        U, Wo, D = Enclosed.exact(weights.U), Enclosed.within(weights.Wo, off_Wo), None
        if weights.D is not None:
            D = Enclosed.within(weights.D, off_D).shifted(torch.full_like(weights.D, -2 * e, dtype=torch.int64))
        largest = float(weights.U[gone].abs().max()) if bool(gone.any()) else 0.0
        if largest > 0:
            k[gone] = math.frexp(largest)[1] - e
        W = Enclosed.exact(weights.W).shifted(k - k[:, None])
        U, Wo = U.shifted((-k - e)[:, None]), Wo.shifted(k - e)
        multipliers = Enclosed.exact(lam[kept]).shifted(2 * k[kept])
        exponents = k[kept]
        whole = Network(W, U, Wo, D)
        network = whole.without(gone) if bool(gone.any()) else whole
        if network is None:
            return Balanced(None, exponents)
        if network.D is not None and gamma is not None:
            exponents = torch.cat([exponents, torch.full((weights.out_features,), -e)])
        return Balanced(network.condition(multipliers, None if gamma is None else g), exponents)


def root_of(gamma: float, scale: float) -> tuple[Enclosed, int]:
    """gamma times scale as g 4^e, with g between 1/4 and 2."""
    (first, k), (second, j) = math.frexp(gamma), math.frexp(scale)
    e = (k + j) // 2
    one, two = (torch.tensor(part, dtype=torch.float64) for part in (first, second * 2 ** (k + j - 2 * e)))
    return Enclosed.exact(one) * Enclosed.exact(two), e


@dataclass(frozen=True, eq=False)
class Network:
    """z = sigma(W z + U x + ..), y = Wo z + D x + .., enclosed."""

    W: Enclosed
    U: Enclosed
    Wo: Enclosed
    D: Enclosed | None

    def without(self, gone: Tensor) -> Network | None:
        """z_l = (I - W_ll)^-1 (W_lk z_k + U_l x) put into the equations of the other units and of the output."""
        k, l = (~gone).nonzero()[:, 0], gone.nonzero()[:, 0]  # noqa: E741
        every = slice(None)
        identity = Enclosed.exact(torch.eye(len(l), dtype=torch.float64))
        given = stacked([[_at(self.W, l, k), _at(self.U, l, None)]])
        through = solve(identity - _at(self.W, l, l), given)
        if through is None:
            return None
        W_through, U_through = through[every, : len(k)], through[every, len(k) :]
        back, out = _at(self.W, k, l), _at(self.Wo, None, l)
        return Network(
            W=_at(self.W, k, k) + back @ W_through,
            U=_at(self.U, k, None) + back @ U_through,
            Wo=_at(self.Wo, None, k) + out @ W_through,
            D=out @ U_through if self.D is None else self.D + out @ U_through,
        )

    def condition(self, lam: Enclosed, g: Enclosed | None) -> Enclosed:
        column = Enclosed(lam.mid[:, None], lam.error[:, None])
        half = Enclosed(torch.diag(lam.mid), torch.diag(lam.error)) - column * self.W
        M = half + half.T
        if g is None:
            return M
        scaled, share = column * self.U, g.inverse()
        M = M - scaled @ scaled.T * share
        if self.D is None:
            return M - self.Wo.T @ self.Wo * share
        side = self.Wo.T + scaled @ self.D.T * share
        corner = Enclosed.exact(torch.eye(len(self.D.mid), dtype=torch.float64)) * g - self.D @ self.D.T * share
        return stacked([[M, side], [side.T, corner]])


def _at(matrix: Enclosed, rows: Tensor | None, columns: Tensor | None) -> Enclosed:
    parts = matrix.mid, matrix.error
    if rows is not None:
        parts = parts[0][rows], parts[1][rows]
    if columns is not None:
        parts = parts[0][:, columns], parts[1][:, columns]
    return Enclosed(*parts)


def monotone(W: Tensor, lam: Tensor, least: float = 0.0) -> Verdict:
    """Whether Lam (I - W) + its transpose > 2 least Lam: Condition `W`, with a strong monotonicity of `least`."""
    k = balance(lam)
    scaled, multipliers = Enclosed.exact(W).shifted(k - k[:, None]), Enclosed.exact(lam).shifted(2 * k)
    rest = Enclosed.exact(torch.tensor(1.0, dtype=W.dtype)) - Enclosed.exact(torch.tensor(least, dtype=W.dtype))
    column, diagonal = multipliers.mid[:, None], multipliers * rest
    half = Enclosed(torch.diag(diagonal.mid), torch.diag(diagonal.error)) - Enclosed.exact(column) * scaled
    return definite(half + half.T)


def sure_monotonicity(W: Tensor, lam: Tensor, estimate: float) -> float:
    """The largest m at or a little below an estimate that is proved; zero at most where none above zero is."""
    for share in _SHARES if estimate > 0 else ():
        if monotone(W, lam, share * estimate) == "holds":
            return share * estimate
    return min(estimate, 0.0)


def highest_monotonicity(family: list[Enclosed], witnesses: list[Tensor], groups: Tensor | None) -> float:
    """A proved upper bound on m over all metrics, for a family of A_j, from the Y_j >= 0 that are meant to show it.

    m is at most the largest quotient of the sums over j of (A_j Y_j)_ii and (Y_j)_ii, where the second is positive;
    both summed over the units of a block. For Y stands L L', which is positive semidefinite whatever rounding did to L.
    """
    size = len(family[0].mid)
    used = (torch.stack([Y.diagonal() for Y in witnesses]) > 0).any(dim=0).nonzero()[:, 0]
    own = torch.arange(size) if groups is None else groups
    own = own[used].unique(return_inverse=True)[1]
    if len(family) == len(used) == 1:  # the sign of one entry is that of its midpoint: only one sum was rounded
        entry = float(family[0].mid[used, used])
        return entry * (1 + 4 * EPS) if entry > 0 else entry * (1 - 4 * EPS)
    members = Enclosed.exact((own == torch.arange(int(own.max()) + 1)[:, None]).to(torch.float64))
    ones = Enclosed.exact(torch.ones(len(used), 1, dtype=torch.float64))
    nothing = Enclosed.exact(torch.zeros(len(members.mid), 1, dtype=torch.float64))
    above = below = nothing
    for A, Y in zip(family, witnesses, strict=True):
        values, vectors = torch.linalg.eigh(Y[used][:, used])
        factor = Enclosed.exact(vectors * values.clamp(min=0).sqrt())
        above = above + members @ (((_at(A, used, used) @ factor) * factor) @ ones)
        below = below + members @ ((factor * factor) @ ones)
    top, least, most = above.mid + above.error, below.mid - below.error, below.mid + below.error
    if not bool((least > 0).all()):
        return math.inf
    highest = float(torch.where(top > 0, top / least, top / most).max())
    return highest + 8 * EPS * abs(highest)


@dataclass(frozen=True, eq=False)
class Reduced:
    """A network without its linear units: z = sigma(W z + U x + ..), y = Wo z + D x + ... `kept` are the others.

    Only a search works on it: whatever it finds is proved by `Balanced`.
    """

    W: Tensor
    U: Tensor
    Wo: Tensor
    D: Tensor | None
    kept: Tensor

    @staticmethod
    def of(weights: Weights, linear: Tensor) -> Reduced:
        """z_l = (I - W_ll)^-1 (W_lk z_k + U_l x), put into the equations of the other units and of the output."""
        kept, gone = (~linear).nonzero()[:, 0], linear.nonzero()[:, 0]
        W, U, Wo, D = weights.W, weights.U, weights.Wo, weights.D
        if len(gone) == 0:
            return Reduced(W, U, Wo, D, kept)
        system = torch.eye(len(gone), dtype=W.dtype) - W[gone][:, gone]
        if not 16 * len(gone) * torch.finfo(W.dtype).eps * float(torch.linalg.cond(system)) < 0.1:
            raise NotWellPosed("The linear units alone are unsolvable: to rounding, I - W is singular on them.", 0.0)
        through = torch.linalg.solve(system, torch.cat([W[gone][:, kept], U[gone]], dim=1))
        W_through, U_through = through[:, : len(kept)], through[:, len(kept) :]
        back, past = W[kept][:, gone], Wo[:, gone] @ U_through
        return Reduced(
            W=W[kept][:, kept] + back @ W_through,
            U=U[kept] + back @ U_through,
            Wo=Wo[:, kept] + Wo[:, gone] @ W_through,
            D=past if D is None else D + past,
            kept=kept,
        )

    def condition(self, lam: Tensor, gamma: float | None) -> Tensor:
        """The matrix that must be positive definite."""
        return condition_matrix(self.W, self.U, self.Wo, self.D, lam, gamma)
