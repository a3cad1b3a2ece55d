"""Anderson acceleration of a splitting method."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.numerics.norms import row_norm, row_scale
from lben.solvers.base import Iteration, Problem, Solved, Solver
from lben.solvers.extragradient import Extragradient
from lben.solvers.fista import FISTA
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.solvers.splitting import Splitting, SplittingIteration


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """Anderson acceleration: extrapolates the iteration ``u+ = T(u)`` of another method from its last steps.

    ``u+ = T(u_k) - sum of g_i (T(u_i+1) - T(u_i))``, with g the least-squares fit of the last differences to T(u_k) -
    u_k, sample by sample. A sample whose ``|T(u) - u|`` has grown forgets its memory and makes a plain step, so that it
    converges where the method does.

    Args:
        tolerance: the largest residual ``|c - z| / |z|`` that a sample may have, forward and in the linear equation of
            the gradient; above 0.
        max_iterations: how many iterations to make at most.
        on_failure: what to do when they are not enough: "raise" `NotConverged`; "warn" and return what there is;
            "fallback" to a safe method for the samples that failed, with a warning (Newton's, or forward-backward
            splitting where W has no resolvent). None: fall back in training mode, raise in evaluation.
        backward: the solver of the gradient's equation; None: this one.
        method: `PeacemanRachford`, `DouglasRachford` or `ForwardBackward`; of its options, alpha alone is used.
        memory: how many steps are remembered, at least 1.

    Raises:
        InvalidInput: for another method, or a value outside these ranges.

    Examples:
        >>> solver = lben.Anderson(method=lben.ForwardBackward(), memory=3)
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, solver=solver)
        >>> bool(net.solve(torch.tensor([[1.0, -1.0]])))
        True
    """

    method: Splitting = field(default_factory=PeacemanRachford)
    memory: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "memory", checks.count("memory", self.memory))
        if not isinstance(self.method, Splitting) or isinstance(self.method, FISTA | Extragradient):
            raise InvalidInput(
                f"Anderson accelerates PeacemanRachford, DouglasRachford or ForwardBackward, not {self.method!r}."
            )

    @property
    def needs_resolvent(self) -> bool:
        return self.method.needs_resolvent

    def begin(self, problem: Problem, start: Tensor | Solved | None) -> Iteration:
        inner = self.method.begin(problem, start)
        assert isinstance(inner, SplittingIteration)
        return _Anderson(inner, self.memory)


class _Anderson(Iteration):
    def __init__(self, inner: SplittingIteration, memory: int) -> None:
        self.inner = inner
        self.alpha = inner.alpha
        self.memory = memory
        self.change: Tensor | None = None
        self.image: Tensor | None = None
        self.differences: list[tuple[Tensor, Tensor]] = []
        self.best: Tensor | None = None

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        before = self.inner.u
        self.inner.advance(1)
        image = self.inner.u
        change = image - before
        length = row_norm(change)[:, None]
        grown = torch.zeros_like(length, dtype=torch.bool) if self.best is None else ~(length <= 2 * self.best)
        self.best = length if self.best is None else torch.where(grown, length, torch.minimum(length, self.best))
        if self.change is not None and self.image is not None:
            self.differences.append((change - self.change, image - self.image))
            self.differences = [
                (torch.where(grown, 0.0, df), torch.where(grown, 0.0, dg))
                for df, dg in self.differences[-self.memory :]
            ]
            self.inner.u = image - self._extrapolation(change)
        self.change, self.image = change, image

    def _extrapolation(self, change: Tensor) -> Tensor:
        """The differences of T, combined by the regularised least-squares fit of the differences of T - I.

        The fit does not change if all differences of a sample are scaled, and so no square under- or overflows.
        """
        scale = row_scale(*(df for df, _ in self.differences))
        dF = torch.stack([df / scale for df, _ in self.differences], dim=1)
        dG = torch.stack([dg for _, dg in self.differences], dim=1)
        gram = dF @ dF.mT
        largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None, None].clamp(min=torch.finfo(gram.dtype).tiny)
        ridge = (
            10 * torch.finfo(gram.dtype).eps * largest * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        )
        fit, _ = torch.linalg.solve_ex(gram + ridge, dF @ (change / scale)[:, :, None])
        step = (fit.mT @ dG)[:, 0]
        return torch.where(torch.isfinite(step).all(-1, keepdim=True), step, 0.0)

    def candidate(self) -> Tensor:
        return self.inner.candidate()
