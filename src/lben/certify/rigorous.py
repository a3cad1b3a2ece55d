"""Condition `lipschitz` decided with every rounding error accounted for, in the ball arithmetic of python-flint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lben.certify.condition import Balanced
from lben.certify.inequality import Claim, matrices
from lben.checks import need
from lben.numerics.enclosed import Enclosed, Verdict, balance
from lben.weights.dense import Weights
from lben.weights.recurrent import RENWeights

BITS = 192  # sums of products of doubles are nearly exact, and their error far below any margin a double can show


def decide(weights: Weights, lam: Tensor, gamma: float | None, scale: float, condition: Balanced) -> Verdict:
    """Whether the matrix of the stored weights is positive definite, for gamma times scale at the network's input.

    `condition`, the same in double precision, only suggests the proof, and the scale of its rows and columns.
    """
    flint = need("flint", "rigorous=True", extra="sdp")
    with flint.ctx.workprec(BITS):
        X = _condition(flint, weights, lam, gamma, scale)
        return definite_balls(flint, X, condition.X, condition.exponents)


def decide_contraction(
    weights: Weights, P: Tensor, T: Tensor, rate: float, suggested: Enclosed, exponents: Tensor
) -> Verdict:
    """Whether [[2 (1 - rate) P, -(P W + T)], [., 2 T]] of the stored weights is positive definite."""
    flint = need("flint", "rigorous=True", extra="sdp")
    with flint.ctx.workprec(BITS):
        metric, D = balls(flint, P), balls(flint, torch.diag(T))
        side = -(metric * balls(flint, weights.W) + D)
        X = _blocks(flint, 2 * (1 - flint.arb(rate)) * metric, side, 2 * D)
        return definite_balls(flint, X, suggested, exponents)


def decide_gain(
    weights: Weights, P: Tensor, T: Tensor, gain: float, scale: float, suggested: Enclosed, exponents: Tensor
) -> Verdict:
    """Whether [[2 P - P U U' P/g^2, -(P W + T)], [., 2 T - Wo'Wo]] is positive definite, with g = gain times scale."""
    flint = need("flint", "rigorous=True", extra="sdp")
    with flint.ctx.workprec(BITS):
        metric, D = balls(flint, P), balls(flint, torch.diag(T))
        g = flint.arb(gain) * flint.arb(scale)
        into, out = metric * balls(flint, weights.U) / g, balls(flint, weights.Wo)
        side = -(metric * balls(flint, weights.W) + D)
        X = _blocks(flint, 2 * metric - into * into.transpose(), side, 2 * D - out.transpose() * out)
        return definite_balls(flint, X, suggested, exponents)


def definite_balls(flint: Any, X: Any, suggested: Enclosed | None, exponents: Tensor) -> Verdict:
    """Whether the balls of X, a symmetric matrix, are those of a positive definite one.

    Rows and columns are first scaled by 2^exponents, as those of `suggested` are. With P an approximate inverse of the
    Cholesky factor of that, P'XP is close to I; if balls that contain it are diagonally dominant, P'XP and hence X are
    positive definite. A vector v with v'Xv < 0 refutes.
    """
    if X is None or suggested is None:
        return "undecided"
    if len(exponents) == 0:
        return "holds"
    matrix = (suggested.mid + suggested.mid.T) / 2
    if not bool(torch.isfinite(matrix).all()):
        return "undecided"
    X = _scaled(flint, X, exponents.tolist())
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) == 0:
        identity = torch.eye(len(matrix), dtype=matrix.dtype)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False).T
        if bool(torch.isfinite(inverse).all()):
            P = balls(flint, inverse)
            if _dominant(flint, P.transpose() * X * P):
                return "holds"
    v = balls(flint, torch.linalg.eigh(matrix).eigenvectors[:, :1])
    return "fails" if (v.transpose() * X * v)[0, 0] < 0 else "undecided"


def _scaled(flint: Any, X: Any, exponents: list[int]) -> Any:
    """2^k_i X_ij 2^k_j."""
    powers = [flint.arb(2) ** k for k in exponents]
    rows = zip(powers, X.tolist(), strict=True)
    return flint.arb_mat([[one * entry * two for entry, two in zip(row, powers, strict=True)] for one, row in rows])


def _condition(flint: Any, weights: Weights, lam: Tensor, gamma: float | None, scale: float) -> Any:
    """`Reduced.condition` in balls; None where the linear units cannot be eliminated surely."""
    gone = torch.isnan(lam)
    kept = ~gone
    multipliers = lam[kept].tolist()
    count = len(multipliers)
    W, U, Wo = (balls(flint, part) for part in (weights.W[kept][:, kept], weights.U[kept], weights.Wo[:, kept]))
    D = None if weights.D is None else balls(flint, weights.D)
    if bool(gone.any()):
        system = identity(flint, int(gone.sum())) - balls(flint, weights.W[gone][:, gone])
        back, out = balls(flint, weights.W[kept][:, gone]), balls(flint, weights.Wo[:, gone])
        try:
            W_through = system.solve(balls(flint, weights.W[gone][:, kept]))
            U_through = system.solve(balls(flint, weights.U[gone]))
        except ZeroDivisionError:
            return None
        W, U, Wo, past = W + back * W_through, U + back * U_through, Wo + out * W_through, out * U_through
        D = past if D is None else D + past
    half = _scale_rows(flint, multipliers, identity(flint, count) - W)
    M = half + half.transpose()
    if gamma is None:
        return M
    g = flint.arb(gamma) * flint.arb(scale)
    scaled = _scale_rows(flint, multipliers, U)
    M = M - scaled * scaled.transpose() / g
    if D is None:
        return M - Wo.transpose() * Wo / g
    side = Wo.transpose() + scaled * D.transpose() / g
    corner = identity(flint, D.nrows()) * g - D * D.transpose() / g
    return _blocks(flint, M, side, corner)


def _blocks(flint: Any, M: Any, side: Any, corner: Any) -> Any:
    """[[M, side], [side', corner]]."""
    top = [a + b for a, b in zip(M.tolist(), side.tolist(), strict=True)]
    bottom = [a + b for a, b in zip(side.transpose().tolist(), corner.tolist(), strict=True)]
    return flint.arb_mat(top + bottom)


def _dominant(flint: Any, matrix: Any) -> bool:
    """Whether every diagonal entry is surely larger than the absolute values of the rest of its row together."""
    for i, row in enumerate(matrix.tolist()):
        rest = sum((abs(entry) for j, entry in enumerate(row) if j != i), flint.arb(0))
        if not row[i] > rest:
            return False
    return True


def balls(flint: Any, matrix: Tensor) -> Any:
    """The doubles of a matrix, exactly."""
    rows, columns = matrix.shape
    return flint.arb_mat(rows, columns, matrix.reshape(-1).tolist())


def identity(flint: Any, size: int) -> Any:
    return flint.arb_mat(size, size, [float(i == j) for i in range(size) for j in range(size)])


def _scale_rows(flint: Any, multipliers: list[float], matrix: Any) -> Any:
    rows = zip(multipliers, matrix.tolist(), strict=True)
    scaled = [[flint.arb(factor) * entry for entry in row] for factor, row in rows]
    return flint.arb_mat(matrix.nrows(), matrix.ncols(), [entry for row in scaled for entry in row])


class _Balls:
    """A matrix of balls that is written as a tensor is."""

    def __init__(self, flint: Any, matrix: Any) -> None:
        self.flint, self.matrix = flint, matrix

    @property
    def T(self) -> _Balls:
        return _Balls(self.flint, self.matrix.transpose())

    def __neg__(self) -> _Balls:
        return _Balls(self.flint, -1 * self.matrix)

    def __add__(self, other: _Balls) -> _Balls:
        return _Balls(self.flint, self.matrix + other.matrix)

    def __sub__(self, other: _Balls) -> _Balls:
        return _Balls(self.flint, self.matrix - other.matrix)

    def __matmul__(self, other: _Balls) -> _Balls:
        return _Balls(self.flint, self.matrix * other.matrix)


def decide_inequality(
    weights: RENWeights, P: Tensor, lam: Tensor, rate: float, claim: Claim, suggested: tuple[Enclosed, Enclosed | None]
) -> Verdict:
    """Whether the matrices of `inequality.py` are positive definite, for the stored weights."""
    flint = need("flint", "rigorous=True", extra="sdp")
    with flint.ctx.workprec(BITS):
        rows, M = matrices(weights, P, lam, rate, claim, lambda part: _Balls(flint, balls(flint, part)))
        whole = [[entry for part in line for entry in part] for row in rows for line in _lines(row)]
        verdict = _balanced(flint, flint.arb_mat(whole), suggested[0])
        if verdict == "holds" and M is not None and suggested[1] is not None:
            verdict = _balanced(flint, M.matrix, suggested[1])
        return verdict


def _lines(row: list[_Balls]) -> Any:
    """The lines of blocks that stand beside each other."""
    return zip(*(block.matrix.tolist() for block in row), strict=True)


def _balanced(flint: Any, X: Any, suggested: Enclosed) -> Verdict:
    """`definite_balls` with rows and columns scaled to a unit diagonal."""
    diagonal = suggested.mid.diagonal()
    if not bool((diagonal > 0).all() & diagonal.isfinite().all()):
        return definite_balls(flint, X, suggested, torch.zeros(len(diagonal), dtype=torch.int64))
    k = balance(diagonal)
    return definite_balls(flint, X, suggested.shifted(k[:, None] + k), k)
