"""Back-substitution: the equilibrium of a feed-forward network, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.activations.base import Gain, Scalar
from lben.errors import InvalidInput
from lben.solvers.base import Iteration, Problem, Solved, Solver


@dataclass(frozen=True, kw_only=True)
class BackSubstitution(Solver):
    """One sweep over the layers of a feed-forward network, exact to rounding.

    ``z_k = sigma(W_k1 z_1 + .. + W_k,k-1 z_k-1 + b_k)`` for the layers k = 1, 2, .., for a strictly block lower
    triangular W alone, as `from_sequential` and an acyclic `REN` have it; the gradient is swept backwards.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.

    Raises:
        InvalidInput: for a value outside these ranges; and, when a network is called, if W has another form.

    Examples:
        >>> module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> net = lben.from_sequential(module)
        >>> net.solve(torch.tensor([[1.0, -1.0]])).iterations
        1
    """

    max_iterations: int = 1

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        layers = problem.operator.layers
        if layers is None:
            raise InvalidInput(
                "BackSubstitution needs a strictly block lower triangular W, as a feed-forward network has it, and "
                "this one is not: use lben.PeacemanRachford()."
            )
        if len(layers) == problem.operator.size > 1 and isinstance(problem.activation, Scalar | Gain):
            return _UnitSweep(problem)
        return _Sweep(problem, layers)

    def first_burst(self, problem: Problem) -> int:
        return 1


class _Sweep(Iteration):
    """Every layer applies the activation to all units, of which only its own count: it may differ from unit to unit."""

    def __init__(self, problem: Problem, layers: tuple[tuple[int, int], ...]) -> None:
        self.problem = problem
        self.layers = layers
        self.z = torch.zeros_like(problem.b)

    def advance(self, steps: int) -> None:
        operator, sigma = self.problem.operator, self.problem.activation
        W, v = operator.matrix(), self.problem.b.clone()
        assert W is not None
        for first, end in reversed(self.layers) if operator.transposed else self.layers:
            known = slice(end, None) if operator.transposed else slice(0, first)
            v[:, first:end] += self.z[:, known] @ W[first:end, known].T
            self.z[:, first:end] = sigma(v)[:, first:end]

    def candidate(self) -> Tensor:
        return self.z


class _UnitSweep(Iteration):
    """The same where every unit is a layer of its own: units are rows here, so that each is one product with a vector.

    Rows that are not known yet are zero, and so are their weights: nothing needs to be cut out of either.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.z = torch.zeros_like(problem.b.T, memory_format=torch.contiguous_format)

    def advance(self, steps: int) -> None:
        operator, sigma = self.problem.operator, self.problem.activation
        W = operator.matrix()
        assert W is not None
        v = torch.empty_like(self.z)
        slopes = sigma.j.T.unbind() if isinstance(sigma, Gain) else [None] * len(v)
        parts = [self.problem.b.T.unbind(), W.contiguous().unbind(), v.unbind(), self.z.unbind(), slopes]
        rows, known = list(zip(*parts, strict=True)), self.z.T
        for b, weight, before, after, slope in reversed(rows) if operator.transposed else rows:
            torch.addmv(b, known, weight, out=before)
            if slope is None:
                after.copy_(sigma(before))
            else:
                torch.mul(before, slope, out=after)

    def candidate(self) -> Tensor:
        return self.z.T
