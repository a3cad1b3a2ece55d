"""W of the paper's convolutional networks, whose metric has one entry a pixel: products, and bounds in place of norms.

With T and G = U U' convolutions, W = I - Psi (T + rho Wo'Wo) - rho G Lam, rho = 1/(2 gamma) (`direct_gamma`). Psi does
not commute with convolutions, so that there is no resolvent in the Fourier domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.operators.base import Affine, Facts, Operator
from lben.operators.grid import Grid

WITHOUT_RESOLVENT = (
    "use lben.FISTA(), lben.ForwardBackward() or lben.Extragradient(), or a network with "
    'metric="channel" or "identity".'
)


@dataclass
class _PixelFacts(Facts):
    """Bounds, since the exact numbers would need a matrix: m and c from below, L from above.

    In the metric A = Psi^(1/2) (T + rho Wo'Wo) Psi^(1/2) + rho Lam^(1/2) G Lam^(1/2), and all but T is positive
    semidefinite. With T = H + S, H symmetric and S skew, 1/c is the norm of H + S' H^-1 S, in which other
    semidefinite terms add at most their own norms.
    """

    T: Tensor
    G: Tensor | None
    Wo: Tensor | None
    lam: Tensor
    rho: float
    grid: Grid
    monotonicity_bound: float | None

    @cached_property
    def blocks(self) -> tuple[Tensor, Tensor | None]:
        return self.grid.blocks(self.T), None if self.G is None else self.grid.blocks(self.G)

    @cached_property
    def symbol(self) -> Tensor:
        """T in double precision on the CPU."""
        T = checks.finite("W", self.T).to("cpu", torch.float64)
        symbol = torch.complex(*Grid(self.grid.height, self.grid.width, T).symbol(T))
        checks.bounded("W", symbol)
        return symbol

    @cached_property
    def psi(self) -> tuple[float, float]:
        """The smallest and the largest entry of Psi."""
        low, high = float(self.lam.min()), float(self.lam.max())
        if not 0 < low <= high < math.inf:
            raise InvalidInput(f"lam must be positive and finite, but goes from {low:.6g} to {high:.6g}.")
        return 1 / high, 1 / low

    @cached_property
    def semidefinite(self) -> float:
        """A bound on the norm of all but T: rho |Wo Psi Wo'| + rho max(lam) |U|^2."""
        if self.G is None or self.Wo is None:
            return 0.0
        G = self.G.to("cpu", torch.float64)
        into = torch.complex(*Grid(self.grid.height, self.grid.width, G).symbol(G))
        Wo = self.Wo.to("cpu", torch.float64)
        outer = (Wo / self.lam.to("cpu", torch.float64)) @ Wo.T
        checks.bounded("Wo or U in the metric", outer, into)
        out = float(torch.linalg.eigvalsh(outer)[-1])
        return self.rho * (out + float(torch.linalg.eigvalsh(into)[:, -1].max()) / self.psi[0])

    @cached_property
    def monotonicity(self) -> float:
        lowest = float(torch.linalg.eigvalsh(self.symbol + self.symbol.mH)[:, 0].min()) / 2
        return lowest * self.psi[0 if lowest > 0 else 1]

    @cached_property
    def norm(self) -> float:
        return self.psi[1] * float(torch.linalg.matrix_norm(self.symbol, 2).max()) + self.semidefinite

    @cached_property
    def cocoercivity(self) -> float:
        inverse, info = torch.linalg.inv_ex(self.symbol)
        if bool((info != 0).any()) or not bool(torch.isfinite(inverse).all()) or not self.monotonicity > 0:
            return -math.inf
        lowest = float(torch.linalg.eigvalsh(inverse + inverse.mH)[:, 0].min()) / 2
        if not lowest > 0:
            return -math.inf
        return 1 / (self.psi[1] / lowest + self.semidefinite)

    @cached_property
    def quick(self) -> tuple[float, float]:
        return self.monotonicity, self.cocoercivity


class PixelOperator(Operator):
    """W = I - Psi (T + rho Wo'Wo) - rho G Lam, with Lam = Psi^-1 one entry a pixel; without G and Wo, I - Psi T.

    `monotonicity` and `cocoercivity` are lower bounds and `norm` is an upper one.
    Shapes: T and G (C, C, k, k) with k odd, lam (n,), Wo (p, n).
    """

    has_resolvent = False

    def __init__(
        self,
        T: Tensor,
        shape: tuple[int, int],
        lam: Tensor,
        *,
        G: Tensor | None = None,
        Wo: Tensor | None = None,
        rho: float = 0.0,
        monotonicity_bound: float | None = None,
    ) -> None:
        self._tensors: tuple[Tensor, ...] = (T, lam) if G is None or Wo is None else (T, lam, G, Wo)
        self.transposed = False
        own = [None if t is None else t.detach() for t in (G, Wo)]
        grid = Grid(*shape, T.detach())
        self._facts = _PixelFacts(T.detach(), own[0], own[1], lam.detach(), rho, grid, monotonicity_bound)

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def size(self) -> int:
        return len(self._facts.lam)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self._tensors

    @property
    def norm_bound(self) -> float:
        """The bound on L, which here is L."""
        return self.norm

    @property
    def constants(self) -> tuple[Tensor, ...]:
        return ()

    def rebind(self, *tensors: Tensor, constants: tuple[Tensor, ...] | None = None) -> PixelOperator:
        return self._share(tensors, self.transposed)

    def remake(self, *tensors: Tensor) -> PixelOperator:
        facts, (T, lam, *bounding) = self._facts, tensors
        G, Wo = bounding or (None, None)
        other = PixelOperator(
            T,
            (facts.grid.height, facts.grid.width),
            lam,
            G=G,
            Wo=Wo,
            rho=facts.rho,
            monotonicity_bound=facts.monotonicity_bound,
        )
        return other.transpose() if self.transposed else other

    def transpose(self) -> PixelOperator:
        return self._share(self._tensors, not self.transposed)

    def exact(self) -> PixelOperator:
        return self

    def _share(self, tensors: tuple[Tensor, ...], transposed: bool) -> PixelOperator:
        other = object.__new__(PixelOperator)
        other._tensors, other.transposed, other._facts = tensors, transposed, self._facts
        return other

    def matrix(self) -> Tensor | None:
        return None

    def affine(self, z: Tensor, b: Tensor) -> Tensor:
        facts, grid, rho = self._facts, self._facts.grid, self._facts.rho
        if not (checks.transformed() or (torch.is_grad_enabled() and any(t.requires_grad for t in self._tensors))):
            T, G = facts.blocks
        else:
            T = grid.blocks(self._tensors[0])
            G = grid.blocks(self._tensors[2]) if len(self._tensors) > 2 else None
        x, lam = z.T, self._tensors[1][:, None]
        inside = x / lam if self.transposed else x
        y = grid.convolve(T.mT if self.transposed else T, inside)
        if G is not None:
            Wo = self._tensors[3]
            y = y + rho * (Wo.T @ (Wo @ inside))
        y = y if self.transposed else y / lam
        if G is not None:
            y = y + rho * (lam * grid.convolve(G, x) if self.transposed else grid.convolve(G, lam * x))
        return (x - y).T + b

    def pullback(self, q: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        """By `torch.func`: z may depend on the tensors too, and that is not meant."""

        def product(*tensors: Tensor) -> Tensor:
            return self.rebind(*tensors).affine(z, torch.zeros_like(q))

        pull = torch.func.vjp(product, *self._tensors)[1]
        return tuple(pull(q))

    def cayley(self, alpha: float) -> Affine:
        raise InvalidInput(
            f'A solver that needs the resolvent of I - W cannot treat metric="pixel": {WITHOUT_RESOLVENT}'
        )
