"""A barrier method for the inequality of a recurrent network, in its storage P and the diagonal of its multiplier.

    X = rho J'PJ - K'PK + sum of lam_i (e_i r_i' + r_i e_i') + C + tau U U' > 0,   P > 0, lam > 0,

with J = [I 0 0], K = [A B1 B2], e_i the unit vector of hidden unit i, r_i row i of [-C1, I - D11, -D12], U = [0 0 I],
C constant. Gradient and Hessian of -log det X take products of n x n matrices alone: with G = X^-1 the Hessian in P is
a sum of Kronecker products of J G J', J G K' and K G K'. Every iterate is strictly feasible: every stop is a proof.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.numerics.barrier import newton_direction

_CENTRED = 0.05  # Newton decrement, squared and halved, at which a stage ends
_NEWTON_STEPS = 60
_GROWTH = 8.0
_STAGES = 60
_SHORTEST = 1e-8
_STRETCH = 0.2  # share of the way back from the rho that is proved at which the next centre is looked for


@dataclass(frozen=True, eq=False)
class Point:
    """A P, a lam and a tau, and the Cholesky factors of X and P."""

    P: Tensor
    lam: Tensor
    tau: float
    factor: Tensor
    root: Tensor

    def log_det(self) -> float:
        logs = self.factor.diagonal().log().sum() + self.root.diagonal().log().sum()
        return 2 * float(logs) + float(self.lam.log().sum())


@dataclass(frozen=True, eq=False)
class Storage:
    """The inequality for one rho; shapes K (n, N), rows (q, N), C (N, N), with N = n + q + d; d may be zero."""

    rho: float
    K: Tensor
    rows: Tensor
    C: Tensor

    @property
    def sizes(self) -> tuple[int, int, int]:
        n, q = len(self.K), len(self.rows)
        return n, q, self.K.shape[1] - n - q

    def matrix(self, P: Tensor, lam: Tensor, tau: float) -> Tensor:
        n, q, _ = self.sizes
        X = self.C - self.K.T @ P @ self.K
        X[:n, :n] += self.rho * P
        half = lam[:, None] * self.rows
        X[n : n + q] += half
        X[:, n : n + q] += half.T
        X[n + q :, n + q :].diagonal().add_(tau)
        return X

    def point(self, P: Tensor, lam: Tensor, tau: float = 0.0) -> Point | None:
        """The point, or None where it is not strictly feasible."""
        if not bool((lam > 0).all()):
            return None
        factor, info = torch.linalg.cholesky_ex(self.matrix(P, lam, tau))
        root, other = torch.linalg.cholesky_ex(P)
        return None if int(info) or int(other) else Point(P, lam, tau, factor, root)

    def least_rho(self, P: Tensor, lam: Tensor) -> float:
        """The smallest rho for this P and lam, of an inequality without inputs; infinite if there is none."""
        n = len(P)
        X = replace(self, rho=0.0).matrix(P, lam, 0.0)
        factor, info = torch.linalg.cholesky_ex(X[n:, n:])
        root, other = torch.linalg.cholesky_ex(P)
        if int(info) or int(other):
            return float("inf")
        side = torch.linalg.solve_triangular(factor, X[n:, :n], upper=False)
        inner = torch.linalg.solve_triangular(root, side.T @ side - X[:n, :n], upper=False)
        inner = torch.linalg.solve_triangular(root, inner.T, upper=False)
        return float(torch.linalg.eigvalsh((inner + inner.T) / 2)[-1]) if n else 0.0

    def least_tau(self, P: Tensor, lam: Tensor) -> float:
        """The smallest tau for this P and lam; infinite if there is none."""
        n, q, _ = self.sizes
        X = self.matrix(P, lam, 0.0)
        factor, info = torch.linalg.cholesky_ex(X[: n + q, : n + q])
        if int(info):
            return float("inf")
        side = torch.linalg.solve_triangular(factor, X[: n + q, n + q :], upper=False)
        return float(torch.linalg.eigvalsh(side.T @ side - X[n + q :, n + q :])[-1])

    def derivatives(self, at: Point, t: float, pull: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of t tau - log det X - log det P - sum log lam + <pull, (P, lam)>, tau last if it is."""
        n, q, d = self.sizes
        G = torch.cholesky_inverse(at.factor)
        inverse = torch.cholesky_inverse(at.root) if n else at.P
        GK, GR = G @ self.K.T, G @ self.rows.T
        ee, er, rr = G[n : n + q, n : n + q], GR[n : n + q], self.rows @ GR
        J, M, L = G[:n, :n], GK[:n], self.K @ GK
        cross = torch.kron(M, M)
        H = (
            self.rho**2 * torch.kron(J, J)
            - self.rho * (cross + cross.T)
            + torch.kron(L, L)
            + torch.kron(inverse, inverse)
        )
        beside = self.rho * _pairs(G[:n, n : n + q], GR[:n]) - _pairs(GK.T[:, n : n + q], self.K @ GR)
        square = 2 * (ee * rr + er * er.T) + torch.diag(at.lam**-2)
        slope_P = pull[0] - inverse - (self.rho * J - L)
        slope_lam = pull[1] - 2 * er.diagonal() - 1 / at.lam
        upper = torch.triu_indices(n, n)
        folded, side = _fold(_fold(H, upper, n).T, upper, n), _fold(beside.T, upper, n).T
        gradient = [_fold(slope_P.reshape(1, -1), upper, n)[0], slope_lam]
        if d == 0:
            return torch.cat(gradient), _blocks([[folded, side], [side.T, square]])
        out, Ge, Gr = G[n + q :, n + q :], G[n : n + q, n + q :], GR.T[:, n + q :]
        into_P = self.rho * G[:n, n + q :] @ G[n + q :, :n] - GK.T[:, n + q :] @ GK[n + q :]
        last_P = _fold(into_P.reshape(1, -1), upper, n).T
        last_lam = 2 * (Ge * Gr).sum(dim=1, keepdim=True)
        gradient.append((t - out.trace()).reshape(1))
        rows = [
            [folded, side, last_P],
            [side.T, square, last_lam],
            [last_P.T, last_lam.T, (out * out).sum().reshape(1, 1)],
        ]
        return torch.cat(gradient), _blocks(rows)


def _pairs(one: Tensor, two: Tensor) -> Tensor:
    """The sum of a_j b_k and b_j a_k for every pair of columns a and b, in rows (j, k)."""
    outer = one[:, None] * two[None]
    return (outer + outer.transpose(0, 1)).flatten(0, 1)


def _fold(rows: Tensor, upper: Tensor, n: int) -> Tensor:
    """Rows over all entries of a matrix as rows over its upper half, where entries are meant twice."""
    i, j = upper
    return rows[:, i * n + j] + torch.where(i == j, 0.0, 1.0).to(rows.dtype) * rows[:, j * n + i]


def _blocks(rows: list[list[Tensor]]) -> Tensor:
    return torch.cat([torch.cat(row, dim=1) for row in rows])


def _centre(storage: Storage, at: Point, t: float, pull: tuple[Tensor, Tensor]) -> tuple[Point, bool]:
    """Newton's method with backtracking; whether it got to the centre."""
    n, q, d = storage.sizes
    i, j = torch.triu_indices(n, n)
    for _ in range(_NEWTON_STEPS):
        step, decrement = newton_direction(*storage.derivatives(at, t, pull))
        if not decrement >= 0:
            return at, False
        if decrement <= _CENTRED:
            return at, True
        move = torch.zeros_like(at.P)
        move[i, j] = step[: len(i)]
        move[j, i] = step[: len(i)]
        along, change = step[len(i) : len(i) + q], float(step[-1]) if d else 0.0
        slope = t * change + float((pull[0] * move).sum() + pull[1] @ along)
        length, found = 1.0, None
        while found is None and length > _SHORTEST:
            found = storage.point(at.P + length * move, at.lam + length * along, at.tau + length * change)
            if found is not None and length * slope + at.log_det() - found.log_det() > -0.2 * length * decrement:
                found = None
            length *= 0.5
        if found is None:
            return at, decrement <= 1
        at = found
    return at, False


def best_rho(storage: Storage, P: Tensor, lam: Tensor, gap: float, enough: float = 0.0) -> tuple[Tensor, Tensor, float]:
    """P, lam and the smallest rho that is found, to the relative `gap`, or the first below `enough`.

    The method of centres: at a rho above what P and lam prove, the point in the middle proves a smaller one.
    """
    least, best = storage.least_rho(P, lam), (P, lam)
    rho = 2 * least + 1e-6
    for _ in range(_STAGES):
        if not least < float("inf") or least < enough:
            break
        now = replace(storage, rho=rho)
        start = now.point(*best)
        if start is None:
            break
        pull = torch.cholesky_inverse(start.root) if len(P) else P, 1 / start.lam
        at, _ = _centre(now, start, 0.0, pull)
        reached = storage.least_rho(at.P, at.lam)
        small = not reached < least * (1 - gap)
        if reached < least:
            least, best = reached, (at.P, at.lam)
        next_rho = reached + _STRETCH * (rho - reached)
        if small and rho - reached <= gap * reached:
            break
        rho = max(next_rho, least * (1 + 1e-9))
    return *best, least


def best_tau(storage: Storage, P: Tensor, lam: Tensor, gap: float, enough: float) -> tuple[Tensor, Tensor, float]:
    """P, lam and the smallest tau that is found from a strictly feasible start, to the `gap`, or one below `enough`.

    gap: relative to tau, and to one where tau is smaller.
    """
    n, q, d = storage.sizes
    least = storage.least_tau(P, lam)
    start = storage.point(P, lam, least + max(abs(least), 1e-3))
    if start is None:
        return P, lam, least
    order, at, best = n + q + d + n + q, start, (P, lam)
    t = order / max(abs(at.tau), 1e-3)
    pull = 1e-3 * (torch.cholesky_inverse(start.root) if n else P), 1e-3 / start.lam
    for _ in range(_STAGES):
        at, centred = _centre(storage, at, t, pull)
        reached = storage.least_tau(at.P, at.lam)
        if reached < least:
            least, best = reached, (at.P, at.lam)
        if not centred or least < enough or order / t <= gap * max(abs(least), 1e-6):
            break
        t *= _GROWTH
    return *best, least
