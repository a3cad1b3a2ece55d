"""W as a circular convolution, plus a matrix of low rank: block-diagonal in the Fourier domain but for that.

The resolvent is exact: see `factors.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from lben import checks
from lben.numerics.spectrum import inner, lowest_eigenvalue, quadratic_factors, symmetric_factors
from lben.operators.base import Affine, Facts, Operator, OwnSteps
from lben.operators.factors import Cayley, Factor
from lben.operators.grid import Grid, Scratch, complex_form


@dataclass(frozen=True, eq=False)
class _OwnSteps:
    """1/(I - W)_ii, one a channel, and what is expected of an iteration with them."""

    steps: Tensor
    rate: float
    rounding: float


@dataclass
class _FourierFacts(Facts):
    """`kernel`, P and Q without history; `entries` of the metric, one a channel."""

    kernel: Tensor
    P: Tensor | None
    Q: Tensor | None
    grid: Grid
    entries: Tensor | None
    monotonicity_bound: float | None
    single: tuple[float, float] | None = None
    factors: dict[float | None, Factor] = field(default_factory=dict)
    scratch: Scratch = field(default_factory=Scratch)

    @property
    def lam(self) -> Tensor | None:  # type: ignore[override]
        if self.entries is None:
            return None
        return self.entries.repeat(self.grid.height * self.grid.width)

    @cached_property
    def blocks(self) -> Tensor:
        return self.grid.blocks(self.kernel)

    @cached_property
    def precise(self) -> tuple[Tensor, Tensor, Tensor]:
        """A at each frequency in double precision on the CPU, and L and R with A = blocks + L R'."""
        kernel = checks.finite("W", self.kernel).to("cpu", torch.float64)
        grid = Grid(self.grid.height, self.grid.width, kernel)
        symbol = -torch.complex(*grid.symbol(kernel))
        symbol.diagonal(dim1=1, dim2=2).add_(1)
        root = torch.ones(len(kernel), dtype=kernel.dtype)
        if self.entries is not None:
            root = self.entries.to("cpu", torch.float64).sqrt()
        blocks = root[:, None] * symbol / root
        checks.bounded("I - W in its metric", blocks)
        if self.P is None or self.Q is None:
            empty = blocks.new_zeros(*blocks.shape[:2], 0)
            return blocks, empty, empty
        pixels = grid.height * grid.width
        wide = root.repeat(pixels)[:, None]
        P, Q = self.P.to("cpu", torch.float64), self.Q.to("cpu", torch.float64)
        L, R = complex_form(grid.forward(-wide * P)), complex_form(grid.forward(Q.T / wide))
        checks.bounded("Wo in its metric", L, R)
        return blocks, L, R

    @cached_property
    def quick(self) -> tuple[float, float]:
        """The mean of A's diagonal for m, and as for a dense matrix, frequency by frequency, c = 1/L.

        One frequency in hundreds has the smallest m and the largest norm: the mean tells more of the pace.
        """
        scaled = self.blocks
        if self.entries is not None:
            root = self.entries.sqrt().repeat(2)
            scaled = (scaled / root).mul_(root[:, None])
        columns = torch.linalg.vector_norm(scaled, dim=1)
        frobenius = torch.linalg.vector_norm(columns, dim=1) / math.sqrt(2)
        norm = 1 + float((columns.amax(dim=1) * frobenius).sqrt().max()) + self._low_rank_norm()
        high, wide = self.kernel.shape[2:]
        return 1 - float(self.kernel[:, :, high // 2, wide // 2].diagonal().mean()), 1 / norm

    @cached_property
    def mean_norm(self) -> float:
        """The root of the mean square of the singular values of A, but for P Q: by Parseval that of the kernel."""
        kernel = -self.kernel
        high, wide = kernel.shape[2:]
        kernel[:, :, high // 2, wide // 2].diagonal().add_(1)
        if self.entries is not None:
            root = self.entries.sqrt()
            kernel = kernel * (root[:, None] / root)[:, :, None, None]
        return float(torch.linalg.vector_norm(kernel)) / math.sqrt(len(kernel))

    def _low_rank_norm(self) -> float:
        """|P Q| in the metric."""
        if self.P is None or self.Q is None:
            return 0.0
        lam, P, Q = self.lam, self.P, self.Q
        if lam is not None:
            P, Q = P * lam.sqrt()[:, None], Q / lam.sqrt()
        small = (P.T @ P).double().cpu() @ (Q @ Q.T).double().cpu()
        checks.bounded("Wo in its metric", small)
        return math.sqrt(max(float(torch.linalg.eigvals(small).real.max()), 0.0))

    @cached_property
    def norm_bound(self) -> float:
        blocks, _, _ = self.precise
        return float(torch.linalg.matrix_norm(blocks, 2).max()) + self._low_rank_norm()

    @cached_property
    def monotonicity(self) -> float:
        return self._lowest_symmetric(*self.precise)

    @cached_property
    def norm(self) -> float:
        """The root of the largest eigenvalue of A'A = K'K + [K'L, R] [[0, I], [I, L'L]] [K'L, R]'."""
        K, L, R = self.precise
        gram = K.mH @ K
        if L.shape[-1] == 0:
            checks.bounded("The square of I - W", gram)
            return math.sqrt(max(float(torch.linalg.eigvalsh(gram)[:, -1].max()), 0.0))
        eye = torch.eye(L.shape[-1], dtype=torch.float64)
        middle = torch.cat([torch.cat([0 * eye, eye], 1), torch.cat([eye, inner(L, L)], 1)])
        F, J = quadratic_factors(torch.cat([K.mH @ L, R], dim=-1), middle)
        return math.sqrt(max(-lowest_eigenvalue(-gram, F, -J, self.grid.multiplicity), 0.0))

    @cached_property
    def cocoercivity(self) -> float:
        """A^-1 = K^-1 - K^-1 L (I + R' K^-1 L)^-1 R' K^-1, by Woodbury's identity."""
        K, L, R = self.precise
        inverse, info = torch.linalg.inv_ex(K)
        if bool((info != 0).any()) or not bool(torch.isfinite(inverse).all()):
            return -math.inf
        through = inverse @ L
        small = torch.eye(L.shape[-1], dtype=torch.float64) + inner(R, through)
        middle, bad = torch.linalg.inv_ex(small)
        if int(bad) != 0:
            return -math.inf
        return self._lowest_symmetric(inverse, -through @ middle.to(through.dtype), inverse.mH @ R)

    def _lowest_symmetric(self, blocks: Tensor, L: Tensor, R: Tensor) -> float:
        """The smallest eigenvalue of the symmetric part of blocks + L R'."""
        F, J = symmetric_factors(L, R)
        return lowest_eigenvalue((blocks + blocks.mH) / 2, F, J, self.grid.multiplicity)

    def factor(self, alpha: float | None) -> Factor:
        """With one step for all, or the channels' own."""
        if alpha not in self.factors:
            own = None if alpha is not None else self.own_steps
            steps = self.kernel.new_full((len(self.kernel),), alpha or 0.0) if own is None else own.steps
            self.factors[alpha] = Factor.build(self.kernel, self.P, self.Q, self.grid, steps)
        return self.factors[alpha]

    @cached_property
    def own_steps(self) -> _OwnSteps | None:
        """None where no metric is known or some (I - W)_ii is not a positive number.

        With D these steps and D (I - W) = I + E, C = -E (2 I + E)^-1. Where E is skew its singular values s make
        s/sqrt(4 + s^2) of C; the root of their mean square, by Parseval that of the kernel, tells the pace.
        """
        if self.entries is None:
            return None
        high, wide = (side // 2 for side in self.kernel.shape[2:])
        diagonal = 1 - self.kernel[:, :, high, wide].diagonal()
        rest = self.kernel / diagonal[:, None, None, None]
        rest[:, :, high, wide].diagonal().zero_()
        root = (self.entries * diagonal).sqrt()
        mean = torch.linalg.vector_norm(rest * (root[:, None] / root)[:, :, None, None]) / math.sqrt(len(root))
        largest = rest.abs().flatten(1).sum(1).max() + self._low_rank_size() / diagonal.min()
        low, high, s, norm = torch.stack([diagonal.min(), diagonal.max(), mean, 1 + largest]).tolist()
        if not (low > 0 and high < math.inf and norm < math.inf):
            return None
        rounding = torch.finfo(diagonal.dtype).eps * norm * max(high, 1.0)
        return _OwnSteps(diagonal.reciprocal(), s / math.sqrt(4 + s**2), rounding)

    def _low_rank_size(self) -> Tensor:
        """A bound on |P Q|."""
        if self.P is None or self.Q is None:
            return self.kernel.new_zeros(())
        bound: Tensor = torch.linalg.vector_norm(self.P) * torch.linalg.vector_norm(self.Q)
        return bound


class FourierOperator(Operator):
    """W = circular convolution by `kernel`, plus P Q.

    Rows are ordered by row, column and channel, and kept batch by batch in memory: see `grid.py`.
    Shapes: kernel (C, C, k, l) with k and l odd or as large as the image, `entries` of the metric (C,) or None,
    P (n, p), Q (p, n).
    """

    def __init__(
        self,
        kernel: Tensor,
        shape: tuple[int, int],
        entries: Tensor | None = None,
        *,
        P: Tensor | None = None,
        Q: Tensor | None = None,
        monotonicity_bound: float | None = None,
    ) -> None:
        self._tensors: tuple[Tensor, ...] = (kernel,) if P is None or Q is None else (kernel, P, Q)
        self.transposed = False
        own = [None if t is None else t.detach() for t in (P, Q, entries)]
        grid = Grid(*shape, kernel.detach())
        self._facts = _FourierFacts(kernel.detach(), own[0], own[1], grid, own[2], monotonicity_bound)
        self._constants: tuple[Tensor, ...] = () if own[2] is None else (own[2],)

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def size(self) -> int:
        return len(self._tensors[0]) * self._facts.grid.height * self._facts.grid.width

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self._tensors

    @property
    def norm_bound(self) -> float:
        """The paper's bound on L, with the Psi it left out: the largest norm of a block plus |Wo Psi Wo'|/(2 gamma)."""
        return self._facts.norm_bound

    def balanced_step(self) -> float:
        """1/sqrt(a r) with the means a of A's diagonal and r of its singular values, where sqrt(c/m) has the extremes.

        Both agree on fresh weights. Of trained ones a few low frequencies have norms ten times the mean, and for the
        others sqrt(c/m) is a third of the best step: 24 iterations of a trained network where 1/sqrt(a r) takes 13.
        """
        a, _ = self._facts.quick
        return 1 / math.sqrt(a * self._facts.mean_norm) if a > 0 else self._guess()

    def _pace(self) -> tuple[float, float]:
        return self._facts.quick

    def single_steps(self) -> tuple[float, ...]:
        """The balanced one, and 1/sqrt(m L), for the frequencies that converge last."""
        bound, inverse = self._facts.monotonicity_bound, self._facts.quick[1]
        m = self.monotonicity if bound is None else bound
        if not (m > 0 and inverse > 0 and inverse / m < math.inf):
            return ()
        return self.balanced_step(), math.sqrt(inverse / m)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        return self._constants

    def rebind(self, *tensors: Tensor, constants: tuple[Tensor, ...] | None = None) -> FourierOperator:
        other = self._share(tensors, self.transposed, self._facts)
        other._constants = self._constants if constants is None else constants
        return other

    def remake(self, *tensors: Tensor) -> FourierOperator:
        count, grid, bound = len(self._tensors), self._facts.grid, self._facts.monotonicity_bound
        (kernel, *low_rank), entries = tensors[:count], (*tensors[count:], None)[0]
        P, Q = low_rank or (None, None)
        other = FourierOperator(kernel, (grid.height, grid.width), entries, P=P, Q=Q, monotonicity_bound=bound)
        return other.transpose() if self.transposed else other

    def transpose(self) -> FourierOperator:
        return self._share(self._tensors, not self.transposed, self._facts)

    def exact(self) -> FourierOperator:
        return self._share(self._tensors, self.transposed, replace(self._facts, monotonicity_bound=None))

    def _share(self, tensors: tuple[Tensor, ...], transposed: bool, facts: _FourierFacts) -> FourierOperator:
        other = object.__new__(FourierOperator)
        other._tensors, other.transposed, other._facts = tensors, transposed, facts
        other._constants = self._constants
        return other

    def matrix(self) -> Tensor | None:
        return None

    def affine(self, z: Tensor, b: Tensor) -> Tensor:
        grid, x = self._facts.grid, z.T
        kernel = self._tensors[0]
        moves = checks.transformed() or (torch.is_grad_enabled() and kernel.requires_grad)
        blocks = grid.blocks(kernel) if moves else self._facts.blocks
        y = grid.convolve(blocks.mT if self.transposed else blocks, x)
        if len(self._tensors) > 1:
            _, P, Q = self._tensors
            y = y + (Q.T @ (P.T @ x) if self.transposed else P @ (Q @ x))
        return y.T + b

    def pullback(self, q: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        if self.transposed:
            q, z = z, q
        grid, kernel = self._facts.grid, self._tensors[0]
        if checks.transformed():
            outer = grid.forward(q.T) @ grid.forward(z.T).mT
        else:
            with self._scratch().of(grid.scratch_size(z.T), z) as (memory, _):
                first = grid.forward(q.T, memory)
                outer = first @ grid.forward(z.T, memory).mT
        gradient = grid.kernel_gradient(outer, *kernel.shape[2:])
        if len(self._tensors) == 1:
            return (gradient,)
        _, P, Q = self._tensors
        return gradient, q.T @ (Q @ z.T).T, (P.T @ q.T) @ z

    def cayley(self, alpha: float) -> Affine:
        return self._cayley(self._facts.factor(alpha))

    def own_steps(self) -> OwnSteps | None:
        own = self._facts.own_steps
        if own is None:
            return None
        steps = own.steps.repeat(self.size // len(own.steps))
        return OwnSteps(steps, self._cayley(self._facts.factor(None)), self.transposed, own.rate, own.rounding)

    def own_rate(self) -> float | None:
        own = self._facts.own_steps
        return None if own is None else own.rate

    def _cayley(self, factor: Factor) -> Affine:
        return Cayley(factor.transpose() if self.transposed else factor, self._facts.grid, self._scratch())

    def _scratch(self) -> Scratch:
        """Buffers that are kept in an operator of one training step alone, for its backward pass."""
        return Scratch() if self._facts.monotonicity_bound is None else self._facts.scratch
