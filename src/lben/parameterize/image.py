"""Free variables of a layer from images to images: kernels, of which the weights for every size of images are made.

With R = gamma I - D'D/gamma and Z = Lam U + Wo'D/gamma, all of them convolutions,

    Lam (I - W) = (Wo'Wo/gamma + Z R^-1 Z')/2 + V'V + eps I + (N - N')/2

proves Condition `lipschitz` at every frequency, as `skip.py` says of matrices. Where D is a multiple of I, or 0, the
right side is a kernel of 2k - 1 taps a side, of any image; for any other D it is as large as the image.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import InvalidInput
from lben.operators.base import Operator
from lben.operators.grid import Grid, correlate, gram, transposed
from lben.parameterize.skip import HAIR, Skip
from lben.parameterize.starts import balance, uniform
from lben.weights.convolutional import add_kernels, identity_kernel
from lben.weights.image import ImageWeights

Padding = Literal["zeros", "circular"]


class ImageForm(nn.Module):
    """The equation at the head of this file; without gamma only V'V + eps I + (N - N')/2, and any D.

    Shapes: V and N (C, C, k, k), U (C, c, k, k), Wo (c', C, k, k), d and bz (C,), by (c',), X (c', c, k, k) for
    skip "linear". At skip "identity" and gamma = 1, U = -Psi Wo' is not free.
    """

    epsilon: Tensor

    def __init__(
        self,
        channels: tuple[int, int, int],
        kernel_size: int,
        padding: Padding,
        gamma: float | None,
        skip: Skip | None,
        epsilon: float,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        c, C, p = channels
        self.padding: Padding = checks.choice("padding", padding, get_args(Padding))  # type: ignore[assignment]
        self.skip: Skip | None = None
        if skip is not None:
            self.skip = checks.choice("skip", skip, get_args(Skip))  # type: ignore[assignment]
        self.gamma = None if gamma is None else checks.positive("gamma", gamma)
        self._check_skip(c, p)
        k = kernel_size
        checks.affordable("The kernel of W", C, C, (2 * k - 1) ** 2)
        checks.affordable("U and Wo", C, c + p, k, k)
        self.register_buffer("epsilon", torch.tensor(checks.positive("epsilon", epsilon), dtype=dtype))
        self.V, self.N = uniform(C, C, k, k, dtype=dtype), uniform(C, C, k, k, dtype=dtype)
        self.Wo = uniform(p, C, k, k, dtype=dtype)
        self.d = nn.Parameter(self.Wo.new_zeros(C))
        self.bz = uniform(C, fan_in=c * k**2, dtype=dtype)
        self.by = uniform(p, fan_in=C * k**2, dtype=dtype)
        if not self.tied:
            self.U = uniform(C, c, k, k, dtype=dtype)
            if self.gamma is not None:
                balance(self.gamma, self.U, self.Wo)
        if skip == "linear":
            self.X = uniform(p, c, k, k, dtype=dtype)

    def _check_skip(self, into: int, out: int) -> None:
        if self.skip != "identity":
            return
        if into != out:
            raise InvalidInput(
                f'skip="identity" adds x to y, and needs as many channels in as out, not {into} and {out}.'
            )
        if self.gamma is not None and self.gamma < 1:
            raise InvalidInput(f'gamma must be at least 1 for skip="identity", which adds x to y, not {self.gamma:g}.')

    @property
    def tied(self) -> bool:
        """Whether U is what Wo makes of it."""
        return self.skip == "identity" and self.gamma == 1

    @property
    def kernel_size(self) -> int:
        return self.V.shape[-1]

    @property
    def border(self) -> int:
        """The zeros put around an image on each side."""
        return self.kernel_size // 2 if self.padding == "zeros" else 0

    def metric(self) -> Tensor:
        """The entries of Lambda, one a channel."""
        return torch.exp(-self.d)

    def monotonicity(self) -> float:
        """A cheap lower bound on m."""
        epsilon, d = (checks.peeled(tensor).detach().min().double() for tensor in (self.epsilon, self.d))
        return epsilon.item() * d.exp().item()

    def injection(self) -> Tensor:
        """The kernel of U."""
        if not self.tied:
            return self.U
        return transposed(self.Wo) * ((HAIR - 1) * torch.exp(self.d))[:, None, None, None]

    def weights(self, shape: tuple[int, int]) -> ImageWeights:
        """The explicit weights for images of height and width `shape`, as functions of the free variables."""
        size = (shape[0] + 2 * self.border, shape[1] + 2 * self.border)
        U, lam = self.injection(), self.metric()
        T, D = self._linear(size, U, lam) if self.skip == "linear" else (self._kernel(U, lam), self._multiple())
        T = folded(T, size)
        W = _sum(-T * torch.exp(self.d)[:, None, None, None], identity_kernel(T))
        in_shape = (U.shape[1], *shape)
        return ImageWeights(W, U, self.bz, self.Wo, self.by, in_shape, self.border, D, lam, self.gamma)

    def operator(self, weights: ImageWeights) -> Operator:
        """That of W for one training step, spared the exact m and c."""
        return weights.operator(monotonicity_bound=self.monotonicity())

    def _free(self) -> Tensor:
        """The kernel of V'V + eps I + (N - N')/2."""
        T = add_kernels(correlate(self.V, self.V), (self.N - transposed(self.N)) / 2)
        return add_kernels(T, self.epsilon * identity_kernel(T))

    def _multiple(self) -> Tensor | None:
        """D where it is the identity, but for a hair where U is tied; None where there is none."""
        return None if self.skip is None else (1 - HAIR * self.tied) * identity_kernel(self.Wo)

    def _kernel(self, U: Tensor, lam: Tensor) -> Tensor:
        """Lam (I - W) where R is a multiple of I: of 2k - 1 taps a side."""
        T, gamma = self._free(), self.gamma
        if gamma is None:
            return T
        T = add_kernels(T, correlate(self.Wo, self.Wo) / (2 * gamma))
        if self.tied:
            return T
        Z, R = lam[:, None, None, None] * U, gamma
        if self.skip == "identity":
            Z, R = Z + transposed(self.Wo) / gamma, gamma - 1 / gamma
        return add_kernels(T, gram(Z) / (2 * R))

    def _linear(self, size: tuple[int, int], U: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Lam (I - W) and D where D = gamma C^-1 X with C C' = I + X X' at every frequency: as large as the image.

        R^-1 = (I + (D/gamma)' C'C (D/gamma))/gamma.
        """
        if self.gamma is None:
            return self._free(), self.X
        grid = Grid(*size, self.X)
        X, into, Wo = (torch.complex(*grid.symbol(k)) for k in (self.X, lam[:, None, None, None] * U, self.Wo))
        C = torch.linalg.cholesky(X @ X.mH + torch.eye(X.shape[1], dtype=X.dtype, device=X.device))
        D = torch.linalg.solve_triangular(C, X, upper=False)
        Z = into + Wo.mH @ D
        rows = torch.cat([Wo, Z.mH, C @ D @ Z.mH], dim=1)
        bounding = grid.kernel((rows.mH @ rows) / (2 * self.gamma))
        return _sum(bounding, folded(self._free(), size)), self.gamma * grid.kernel(D)


def folded(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """The same circular convolution by a kernel that is not larger than an image of this size."""
    for dim, length in zip((2, 3), size, strict=True):
        side = kernel.shape[dim]
        if side > length:
            place = (torch.arange(side, device=kernel.device) - side // 2 + length // 2) % length
            shape = [length if one == dim else kernel.shape[one] for one in range(4)]
            kernel = kernel.new_zeros(shape).index_add(dim, place, kernel)
    return kernel


def _sum(whole: Tensor, kernel: Tensor) -> Tensor:
    """A kernel, plus one that is not larger."""
    pads = []
    for dim in (3, 2):
        before = whole.shape[dim] // 2 - kernel.shape[dim] // 2
        pads += [before, whole.shape[dim] - kernel.shape[dim] - before]
    return whole + torch.nn.functional.pad(kernel, pads)
