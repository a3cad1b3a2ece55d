"""A solver built on the half-space oracle of the neural ODE: no inverse, and at ease where the skew part rules."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.numerics.norms import row_scale
from lben.operators.base import Operator
from lben.solvers.base import Iteration, Problem, Solved
from lben.solvers.splitting import Splitting, SplittingIteration, starting_z

_SHARE = 0.9  # of 1/L: beyond it a cut may leave the point it was made to remove


@dataclass(frozen=True, eq=False)
class Cut:
    """All z with <z - point, normal>_Lam >= m |z - point|_Lam^2: a ball, or for m = 0 a half-space, row by row.

    The equilibrium is one of them. Shapes: point and normal (..., n), lam (n,) or None for the Euclidean metric.
    """

    point: Tensor
    normal: Tensor
    m: float
    lam: Tensor | None

    def inner(self, one: Tensor, other: Tensor) -> Tensor:
        """<one, other>_Lam, of shape (..., 1)."""
        product = one * other if self.lam is None else one * other * self.lam
        return product.sum(dim=-1, keepdim=True)

    def excess(self, z: Tensor) -> Tensor:
        """<z - point, normal>_Lam - m |z - point|_Lam^2, of shape (batch,): negative where z is cut off."""
        step = z - self.point
        return (self.inner(step, self.normal) - self.m * self.inner(step, step))[:, 0]

    def project(self, z: Tensor) -> Tensor:
        """The nearest member in the Lam norm; no member is farther from it than from z.

        The ball has centre point + normal/(2m) and radius |normal|/(2m); with e = z - point, s = <e, normal> and
        q = |2 m e - normal|, a z outside goes to point + (normal + |normal| (2 m e - normal)/q)/(2 m), which is written
        here so that m may be as small as it likes. A common factor of e and the normal cancels, and is taken out so
        that no square under- or overflows.
        """
        scale = row_scale(z - self.point, self.normal)
        e, g = (z - self.point) / scale, self.normal / scale
        s, ee, gg = self.inner(e, g), self.inner(e, e), self.inner(g, g)
        outside = self.m * ee - s  # how far, times |normal|, for a small m
        length = gg.sqrt()
        q = (gg + 4 * self.m * outside).clamp(min=0).sqrt()
        shrink = 2 * outside / (q * (q + length))  # 1 - |normal|/q = 4 m outside/(q (q + |normal|))
        moved = self.point + scale * (e * (length / q) + g * shrink)
        return torch.where((outside > 0) & (q > 0), moved, z)


def oracle(problem: Problem, v: Tensor, m: float) -> Cut:
    """What the value f(v) = -v + W sigma(v) + b of the ODE at v tells of the equilibrium z*.

    <z* - sigma(v), f(v)>_Lam >= m |z* - sigma(v)|_Lam^2, for every v, if I - W is monotone with m in the metric.
    """
    z = problem.activation(v)
    return Cut(z, problem.operator.affine(z, problem.b) - v, m, problem.operator.lam)


@dataclass(frozen=True, kw_only=True)
class Extragradient(Splitting):
    """A projection method without any inverse, at ease where the skew part of W rules.

    z+ is the projection of z, in the Lambda norm, on what the half-space oracle of the neural ODE leaves at the test
    point of a forward step, ``prox^alpha(z - alpha A(z))`` with A(z) = (I - W) z - b; for alpha < 1/L its cut separates
    z from the equilibrium. Two products with W an iteration, and about L/m iterations where forward-backward takes up
    to (L/m)^2.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.
        alpha: the step, a number above 0; "auto" chooses it from the weights.

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> net = lben.MON(2, 4, 1, solver=lben.Extragradient(tolerance=1e-5))
        >>> bool(net.solve(torch.tensor([[1.0, -1.0]])))
        True
    """

    def automatic_alpha(self, operator: Operator) -> float:
        """0.9/L; with m <= 0 nothing is proved.

        Args:
            operator: that of W.

        Returns:
            A step above 0.
        """
        return _SHARE / operator.norm if operator.norm > 0 else 1.0

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        return _Extragradient(problem, self.step_size(problem.operator), start)


class _Extragradient(SplittingIteration):
    def __init__(self, problem: Problem, alpha: float, start: Tensor | Solved | None) -> None:
        super().__init__(problem, alpha)
        self.u = starting_z(problem, start)
        self.m = max(problem.operator.sure_monotonicity, 0.0)
        self.lam = problem.operator.lam

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        """The state v of the test point is z + (u - z)/alpha, u the argument of the prox: then z = sigma(v)."""
        u = torch.lerp(self.u, self.product(self.u, self.problem.b), self.alpha)
        point = self.problem.activation.prox(u, self.alpha)
        v = point + (u - point) / self.alpha
        self.u = Cut(point, self.product(point, self.problem.b) - v, self.m, self.lam).project(self.u)

    def candidate(self) -> Tensor:
        return self.u
