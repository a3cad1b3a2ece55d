"""The nearest weights that satisfy Condition `lipschitz`, for a fixed metric: where to start training from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.certify.metrics import smallest_gamma
from lben.certify.wellposed import best_metric
from lben.errors import NotConverged, NotWellPosed
from lben.weights.dense import Weights

_ITERATIONS = 2000
_EXACT = 1e-9  # of the gradient, relative to the weights: it bounds the distance from the nearest ones
_INSIDE = 1e-9  # how far inside the boundary, relatively, so that rounding does not lose it


@dataclass(frozen=True, eq=False)
class Nearest:
    """Admissible `weights` and their distance from the given ones, in the norm of `nearest_weights`.

    relative: the distance divided by the norm of what was given, (Lam (I - W), Lam U, Wo).
    """

    weights: Weights
    distance: float
    relative: float


def nearest_weights(weights: Weights, gamma: float | None, room: float) -> Nearest:
    """The nearest weights whose condition, for gamma and in their metric, leaves `room`; exact to about nine digits.

    The norm is |Lam dW|^2 + |Lam dU|^2 + |dWo|^2, Frobenius norms all. With X = Lam (I - W) and F = [Wo; U' Lam] the
    admissible set is sym(X) >= F'F/(2 gamma) + room I, which is convex in (X, F) (a Schur complement shows it). For a
    given F the nearest X only lifts eigenvalues, by P = (F'F/(2 gamma) + room I - sym(X0))_+. What is left,
    |P|^2 + |F - F0|^2, is convex and smooth in F, and strongly so: its gradient g proves that F is within |g|/2.
    """
    lam = weights.metric()
    scaled = lam[:, None] * weights.U
    X = torch.diag(lam) - lam[:, None] * weights.W
    F0 = torch.cat([weights.Wo, scaled.T])
    size = math.hypot(*(float(torch.linalg.matrix_norm(part)) for part in (X, F0)))
    lifted = _Lift((X + X.T) / 2, F0, gamma, room)
    F = F0 if gamma is None else lifted.minimise(size)
    P = lifted.excess(F)
    distance = math.hypot(*(float(torch.linalg.matrix_norm(part)) for part in (P, F - F0)))
    if distance == 0:
        return Nearest(weights, 0.0, 0.0)
    X = X + P + _INSIDE * float(torch.linalg.matrix_norm(P)) * torch.eye(len(P), dtype=P.dtype)
    p = weights.out_features
    moved = replace(weights, W=torch.eye(len(P), dtype=P.dtype) - X / lam[:, None], gamma=gamma)
    if gamma is not None:
        moved = replace(moved, Wo=F[:p], U=F[p:].T / lam[:, None])
    return Nearest(moved, distance, distance / size)


@dataclass(frozen=True, eq=False)
class _Lift:
    """The problem in F alone."""

    symmetric: Tensor
    F0: Tensor
    gamma: float | None
    room: float

    def excess(self, F: Tensor) -> Tensor:
        """P, the part above zero of what sym(X0) lacks."""
        lack = self.room * torch.eye(len(self.symmetric), dtype=F.dtype) - self.symmetric
        if self.gamma is not None:
            lack = lack + F.T @ F / (2 * self.gamma)
        values, vectors = torch.linalg.eigh(lack)
        P: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
        return P

    def _start(self, gamma: float) -> Tensor:
        """F0, made so small that F'F/(2 gamma) is no larger than sym(X0): the nearest F is about as small."""
        most = 2 * gamma * (float(torch.linalg.matrix_norm(self.symmetric, 2)) + self.room)
        return self.F0 * min(1.0, math.sqrt(most) / max(float(torch.linalg.matrix_norm(self.F0, 2)), 1e-300))

    def minimise(self, size: float) -> Tensor:
        """L-BFGS until the gradient is small; P has the gradient 2 F P / gamma in F."""
        gamma = self.gamma
        assert gamma is not None
        F = self._start(gamma).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [F],
            max_iter=_ITERATIONS,
            tolerance_grad=0,
            tolerance_change=0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        steepness = math.inf

        def closure() -> float:
            nonlocal steepness
            with torch.no_grad():
                P, moved = self.excess(F), F - self.F0
                F.grad = 2 * (F @ P / gamma + moved)
                steepness = float(torch.linalg.matrix_norm(F.grad))
                if steepness <= _EXACT * size:
                    F.grad.zero_()  # which ends the search
                return float((P**2).sum() + (moved**2).sum())

        optimizer.step(closure)
        if not steepness <= 1e3 * _EXACT * size:
            raise NotConverged(
                f"The nearest weights were not found: the gradient stays at {steepness:.3g} of {size:.3g}. Give a "
                "larger gamma, another metric lam, or scale U and Wo to sizes that are closer to each other.",
                steepness,
            )
        return F.detach()


def choose_metric(weights: Weights, groups: Tensor | None) -> Tensor:
    """The metric for a start: the one that is meant to prove the weights' own gamma, or that of the tightest bound.

    `groups` numbers the blocks of units that act together. Where no metric proves anything, it is the best one for
    Condition `W`, scaled so that |Lam U| = |Wo|.
    """
    if weights.lam is not None and weights.gamma is not None:
        return weights.lam
    try:
        linear = torch.zeros(weights.hidden_features, dtype=torch.bool)  # an LBEN has an entry for linear units, too
        return smallest_gamma(weights, linear, groups, "barrier")[0]
    except NotWellPosed:
        lam = best_metric(weights.W, groups).lam
        into, out = (float(torch.linalg.matrix_norm(m, 2)) for m in (lam[:, None] * weights.U, weights.Wo))
        return lam * (out / into) if into > 0 and out > 0 else lam
