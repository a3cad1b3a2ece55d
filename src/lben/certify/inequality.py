"""The inequality that proves what two trajectories of a recurrent network do, and constant slopes that refute it.

With V = dx'P dx, Lam the multiplier of the hidden units and s(du, dy) = dy'Q dy + 2 du'S dy + du'R du, it holds that
V(x+) - rate^2 V(x) <= s along any two trajectories, for all activations with slopes in [0, 1], if

    [[rate^2 P + C2'Q C2, C2'Q D21 - C1'Lam, C2'T,             A'P],
     [.,                  M + D21'Q D21,     D21'T - Lam D12,  B1'P],
     [.,                  .,                 K,                B2'P],
     [.,                  .,                 .,                P   ]]  > 0   and   M > 0,

M = 2 Lam - Lam D11 - D11'Lam, T = Q D22 + S', K = R + S D22 + D22'S' + D22'Q D22. Without a supply, rows and columns
of u and all of Q, S and R are left out, and inputs must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lben.numerics.enclosed import EPS, Enclosed, solve, stacked
from lben.weights.recurrent import RENWeights, Supply

_PATTERNS = 24  # of slopes that are tried, besides none and all
_ANGLES = 33
Claim = Supply | float | None
"""A supply; a gain g, which is that of g^2 |du|^2 - |dy|^2; or None, of equal inputs."""


def matrices(
    weights: RENWeights, P: Tensor, lam: Tensor, rate: float, claim: Claim, exact: Callable[[Tensor], Any]
) -> tuple[list[list[Any]], Any | None]:
    """The blocks of the matrix above its diagonal and below, and M where it is no block by itself.

    `exact` makes of a matrix of doubles what is to be computed with: something that knows @, +, -, its negative and T.
    """
    w = {name: exact(part) for name, part in weights.tensors().items() if part.dim() == 2}
    metric, L = exact((P + P.T) / 2), exact(torch.diag(lam))
    r = exact(rate * torch.eye(len(P), dtype=P.dtype))
    half, coupling = L - L @ w["D11"], -(L @ w["C1"])
    M = half + half.T
    move = [(metric @ w[name]).T for name in ("A", "B1", "B2")]
    first = (r @ metric) @ r
    if claim is None:
        return [
            [first, coupling.T, move[0]],
            [coupling, M, move[1]],
            [move[0].T, move[1].T, metric],
        ], None
    Q, S, R = _supply(weights, claim, exact)
    D22 = w["D22"] if "D22" in w else exact(weights.feedthrough())
    C2, D21, T = w["C2"], w["D21"], Q @ D22 + S.T
    side = S @ D22
    corner = (R + D22.T @ (Q @ D22)) + (side + side.T)
    xw, xu, wu = coupling.T + C2.T @ (Q @ D21), C2.T @ T, D21.T @ T - L @ w["D12"]
    return [
        [first + C2.T @ (Q @ C2), xw, xu, move[0]],
        [xw.T, M + D21.T @ (Q @ D21), wu, move[1]],
        [xu.T, wu.T, corner, move[2]],
        [move[0].T, move[1].T, move[2].T, metric],
    ], M


def _supply(weights: RENWeights, claim: Supply | float, exact: Callable[[Tensor], Any]) -> tuple[Any, Any, Any]:
    if isinstance(claim, Supply):
        return exact(claim.Q), exact(claim.S), exact(claim.R)
    d, p = weights.in_features, weights.out_features
    like = weights.A
    g = exact(claim * torch.eye(d, dtype=like.dtype))
    return exact(-torch.eye(p, dtype=like.dtype)), exact(like.new_zeros(d, p)), g @ g


def enclosed(
    weights: RENWeights, P: Tensor, lam: Tensor, rate: float, claim: Claim
) -> tuple[Enclosed, Enclosed | None]:
    """The two matrices with a bound on the error of every entry."""
    rows, M = matrices(weights, P, lam, rate, claim, Enclosed.exact)
    return stacked(rows), M


@dataclass(frozen=True, eq=False)
class _Linear:
    """x+ = A x + B u, y = C x + D u: the network with constant slopes, as enclosed matrices."""

    A: Enclosed
    B: Enclosed
    C: Enclosed
    D: Enclosed


def refuted(weights: RENWeights, rate: float, claim: Claim) -> bool:
    """Whether slopes in [0, 1], the same at all times, are found that no P and no Lam can forgive, beyond rounding.

    They make a linear system of the network. Without a claim it must have an eigenvalue beyond rate; with one, there
    must be a z with |z| = rate and an input u z^t whose s(u, y) is negative.
    """
    generator = torch.Generator().manual_seed(0)
    q = weights.hidden_features
    patterns = (torch.rand(_PATTERNS, q, generator=generator) < torch.linspace(0.1, 0.9, _PATTERNS)[:, None]).double()
    for slopes in (torch.zeros(q).double(), torch.ones(q).double(), *patterns):
        linear = _with_slopes(weights, slopes)
        if linear is not None and (_grows(linear, rate) if claim is None else _takes(weights, linear, rate, claim)):
            return True
    return False


def _with_slopes(weights: RENWeights, slopes: Tensor) -> _Linear | None:
    """w = S v, v = C1 x + D11 w + D12 u, solved for v."""
    w = {name: Enclosed.exact(part) for name, part in weights.tensors().items() if part.dim() == 2}
    chosen = Enclosed.exact(torch.diag(slopes))
    system = Enclosed.exact(torch.eye(len(slopes), dtype=slopes.dtype)) - w["D11"] @ chosen
    through = solve(system, stacked([[w["C1"], w["D12"]]]))
    if through is None:
        return None
    n = weights.state_features
    moved = chosen @ through
    C1, D12 = moved[:, :n], moved[:, n:]
    D22 = Enclosed.exact(weights.feedthrough())
    return _Linear(w["A"] + w["B1"] @ C1, w["B2"] + w["B1"] @ D12, w["C2"] + w["D21"] @ C1, D22 + w["D21"] @ D12)


def _grows(linear: _Linear, rate: float) -> bool:
    """Whether A surely has an eigenvalue of at least `rate` in size, by Gershgorin's discs in its eigenvectors."""
    if len(linear.A.mid) == 0 or not bool(torch.isfinite(linear.A.mid).all()):
        return False
    values, vectors = torch.linalg.eig(linear.A.mid)
    if not float(values.abs().max()) > rate:
        return False
    V = Enclosed.exact(_real_form(vectors))
    turned = solve(V, stacked([[linear.A, _zero(linear.A)], [_zero(linear.A), linear.A]]) @ V)
    if turned is None:
        return False
    n = len(values)
    size = (turned.size()[:n, :n] + turned.size()[n:, :n]) * (1 + 8 * EPS)
    centre = torch.complex(turned.mid[:n, :n].diagonal(), turned.mid[n:, :n].diagonal())
    radius = size.sum(dim=1) - size.diagonal() + turned.error[:n, :n].diagonal() + turned.error[n:, :n].diagonal()
    radius = radius * (1 + 4 * n * EPS) + 4 * EPS * centre.abs()
    apart = (centre[:, None] - centre[None]).abs() > (radius[:, None] + radius[None]) * (1 + 8 * EPS)
    alone = (apart | torch.eye(n, dtype=torch.bool)).all(dim=1)
    return bool((alone & (centre.abs() - radius > rate * (1 + 8 * EPS))).any())


def _takes(weights: RENWeights, linear: _Linear, rate: float, claim: Supply | float) -> bool:
    """Whether some u at some z of size `rate` gets a negative s(u, G(z) u), G(z) = C (z - A)^-1 B + D."""
    Q, S, R = _supply(weights, claim, lambda part: part.to(torch.complex128))
    angles = torch.linspace(0, math.pi, _ANGLES, dtype=torch.float64)
    z = rate * torch.exp(1j * angles)[:, None, None]
    A, B, C, D = (part.mid.to(z.dtype) for part in (linear.A, linear.B, linear.C, linear.D))
    inner, _ = torch.linalg.solve_ex(z * torch.eye(len(A)) - A, B.expand(_ANGLES, *B.shape))
    G = C @ inner + D
    cross = S @ G
    form = G.mH @ Q @ G + cross + cross.mH + R
    form = torch.where(torch.isfinite(form.abs()).all(dim=(1, 2), keepdim=True), form, torch.eye(len(R)).to(form))
    values, vectors = torch.linalg.eigh(form)
    worst = int(values[:, 0].argmin())
    if not float(values[worst, 0]) < 0:
        return False
    return _surely_takes(weights, linear, rate, claim, float(angles[worst]), vectors[worst, :, :1])


def _surely_takes(
    weights: RENWeights, linear: _Linear, rate: float, claim: Supply | float, angle: float, u: Tensor
) -> bool:
    """s(u, G(z) u) with all errors, in real numbers of twice the size."""
    n = len(linear.A.mid)
    cosine, sine = torch.tensor(math.cos(angle)).double(), torch.tensor(math.sin(angle)).double()
    turn = _real_form(torch.complex(cosine, sine) * torch.eye(n, dtype=torch.float64))
    z = Enclosed(rate * turn, 8 * EPS * (turn != 0).double())
    A, B, C, D = (
        stacked([[part, _zero(part)], [_zero(part), part]]) for part in (linear.A, linear.B, linear.C, linear.D)
    )
    given = Enclosed.exact(torch.cat([u.real, u.imag]))
    y = D @ given
    if n:
        x = solve(z - A, B @ given)
        if x is None:
            return False
        y = C @ x + y
    Q, S, R = (stacked([[p, _zero(p)], [_zero(p), p]]) for p in _supply(weights, claim, Enclosed.exact))
    cross = given.T @ (S @ y)
    total = y.T @ (Q @ y) + (cross + cross) + given.T @ (R @ given)
    return float(total.mid + total.error) < 0


def _zero(part: Enclosed) -> Enclosed:
    return Enclosed.exact(torch.zeros_like(part.mid))


def _real_form(matrix: Tensor) -> Tensor:
    """[[Re, -Im], [Im, Re]]."""
    re, im = matrix.real, matrix.imag
    return torch.cat([torch.cat([re, -im], dim=1), torch.cat([im, re], dim=1)])
