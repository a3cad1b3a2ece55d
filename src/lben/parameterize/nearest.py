"""The nearest weights that satisfy Condition `lipschitz`, for a fixed metric: where to start training from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.certify.metrics import smallest_gamma
from lben.certify.wellposed import best_metric
from lben.errors import InvalidInput, NotConverged, NotWellPosed
from lben.weights.dense import Weights

_ITERATIONS = 100
_INNER_STEPS = 2000  # of conjugate gradients
_SHORTEST = 1e-10  # of a line search
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
    if weights.D is not None:
        raise InvalidInput("Weights with a feed-through D have no nearest ones here: LBEN.from_weights takes them.")
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
        values, vectors = self._lack(F)
        P: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
        return P

    def _lack(self, F: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of F'F/(2 gamma) + room I - sym(X0)."""
        lack = self.room * torch.eye(len(self.symmetric), dtype=F.dtype) - self.symmetric
        if self.gamma is not None:
            lack = lack + F.T @ F / (2 * self.gamma)
        values, vectors = torch.linalg.eigh(lack)
        return values, vectors

    def _start(self, gamma: float) -> Tensor:
        """F0, made so small that F'F/(2 gamma) is no larger than sym(X0): the nearest F is about as small."""
        most = 2 * gamma * (float(torch.linalg.matrix_norm(self.symmetric, 2)) + self.room)
        return self.F0 * min(1.0, math.sqrt(most) / max(float(torch.linalg.matrix_norm(self.F0, 2)), 1e-300))

    def minimise(self, size: float) -> Tensor:
        """Newton's method, each step by conjugate gradients, until the gradient 2 (F P/gamma + F - F0) is small.

        The derivative of P in a direction is V (Omega o (V' . V)) V', with Omega the difference quotients of the
        positive parts of the eigenvalues: the objective is strongly convex and smooth but for its second derivative.
        """
        gamma = self.gamma
        assert gamma is not None
        F = self._start(gamma)
        value, gradient, product = self._derivatives(F, gamma)
        for _ in range(_ITERATIONS):
            steepness = float(torch.linalg.matrix_norm(gradient))
            if steepness <= _EXACT * size:
                return F
            step = _conjugate_gradients(product, -gradient, min(0.1, math.sqrt(steepness / size)))
            slope, length = float((gradient * step).sum()), 1.0
            while length > _SHORTEST:
                moved = F + length * step
                found = self._derivatives(moved, gamma)
                if found[0] <= value + 1e-4 * length * slope:
                    break
                length /= 2
            else:
                break  # as far as rounding lets it
            F, (value, gradient, product) = moved, found
        if not steepness <= 1e3 * _EXACT * size:
            raise NotConverged(
                f"The nearest weights were not found: the gradient stays at {steepness:.3g} of {size:.3g}. Give a "
                "larger gamma, another metric lam, or scale U and Wo to sizes that are closer to each other.",
                steepness,
            )
        return F

    def _derivatives(self, F: Tensor, gamma: float) -> tuple[float, Tensor, Callable[[Tensor], Tensor]]:
        """|P|^2 + |F - F0|^2, less |F0|^2, in which digits would drown; its gradient; and its Hessian, as a product."""
        values, V = self._lack(F)
        positive = values.clamp(min=0)
        P = (V * positive) @ V.T
        gaps = values[:, None] - values
        level = ((values[:, None] > 0) & (values > 0)).to(F.dtype)
        omega = torch.where(gaps.abs() > 1e-12, (positive[:, None] - positive) / gaps, level)

        def product(H: Tensor) -> Tensor:
            inner = V.T @ (F.T @ H + H.T @ F) @ V / (2 * gamma)
            return 2 * (H @ P / gamma + F @ (V @ (omega * inner) @ V.T) / gamma + H)

        value = float((positive**2).sum() + (F * (F - 2 * self.F0)).sum())
        return value, 2 * (F @ P / gamma + F - self.F0), product


def _conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, share: float) -> Tensor:
    """x with |A x - b| at most a share of |b|, for a positive definite A."""
    x, r = torch.zeros_like(b), b
    p, squared = r, float((r * r).sum())
    enough = share**2 * squared
    for _ in range(_INNER_STEPS):
        Ap = product(p)
        step = squared / float((p * Ap).sum())
        x, r = x + step * p, r - step * Ap
        before, squared = squared, float((r * r).sum())
        if squared <= enough:
            break
        p = r + (squared / before) * p
    return x


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
