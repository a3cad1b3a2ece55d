"""Sandwich layers (Wang & Manchester 2023): explicit, of the bound 1, with any number of inputs and outputs.

    y = sqrt(2) A' Psi sigma(sqrt(2) Psi^-1 B x + b),    A A' + B B' = I,    Psi diagonal

is the equilibrium network with W = 0, U = sqrt(2) Psi^-1 B, Wo = sqrt(2) A' Psi and Lam = Psi^2, for which
Condition `lipschitz` holds with equality. A and B come of free X and Y by a Cayley transform: with Z = X - X' + Y Y',
whose symmetric part is positive semidefinite, and P = (I + Z)^-1,

    A' = 2 P - I,    B = 2 P' Y.

For images X and Y are kernels, and all this is done at each frequency; zeros around an image are put there before a
circular layer, whose output is cropped: both are contractions. On the boundary of the condition no rounding could be
afforded: so U and Wo are a hair smaller, and that is the function which the layer computes. P is found in double
precision, since the error of an inverse grows with what is inverted, and the hair does not.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import ReLU
from lben.layers.base import Explicit, ExplicitImages, dense_shape, image_shape, kernel_size_of, options_of
from lben.operators.grid import Grid, real_form
from lben.parameterize.skip import HAIR
from lben.parameterize.starts import uniform
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights
from lben.weights.stages import Equilibrium, Shape, Stage

Padding = Literal["zeros", "circular"]
_SIZE = math.sqrt(2) * (1 - HAIR)


class _Sandwich(Explicit):
    """What dense and convolutional layers share: the free X and Y, the bias, and Psi as its logarithm."""

    def __init__(self, X: nn.Parameter, Y: nn.Parameter, activation: Activation, *, images: bool) -> None:
        super().__init__()
        units = len(X)
        self._accept(activation, units, images=images)
        self.X, self.Y = X, Y
        self.bias = uniform(units, fan_in=Y[0].numel(), dtype=Y.dtype)
        self.log_psi = nn.Parameter(X.new_zeros(units))

    def lam(self) -> Tensor:
        """The entries of the metric.

        Returns:
            A tensor of shape (units,).
        """
        return (2 * self.log_psi).exp()

    def _maps(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        """U and Wo of free X and Y, (..., n, n) and (..., n, d), real or complex."""
        P, Q = _cayley(X, Y) if checks.transformed() else _Cayley.apply(X, Y)  # type: ignore[no-untyped-call]
        psi = self.log_psi.exp()
        Wo = P * (2 * _SIZE * psi)
        return (2 * _SIZE / psi)[:, None] * Q, Wo - torch.diag(_SIZE * psi)


class Sandwich(_Sandwich):
    """A sandwich layer (Wang & Manchester 2023): ``y = sqrt(2) A' Psi sigma(sqrt(2) Psi^-1 B x + b)``, of the bound 1.

    A and B come of free matrices by a Cayley transform, with A A' + B B' = I. x has shape (..., in_features), y
    (..., out_features); there are as many hidden units as outputs.

    Args:
        in_features: the number of inputs.
        out_features: the number of outputs.
        activation: sigma, one of lben's, of single units.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> stack = lben.Sequential(lben.Sandwich(2, 8), lben.Sandwich(8, 3))
        >>> bool(lben.certify(stack, 1.0001))
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        d, n = checks.count("in_features", in_features), checks.count("out_features", out_features)
        checks.affordable("X", n, n)
        checks.affordable("Y", n, d)
        X, Y = uniform(n, n, dtype=dtype), uniform(n, d, dtype=dtype)
        super().__init__(X, Y, activation, images=False)
        self.to(device=device)

    @property
    def in_features(self) -> int:
        return self.Y.shape[1]

    @property
    def out_features(self) -> int:
        return len(self.Y)

    hidden_features = out_features

    def options(self) -> dict[str, Any]:
        return options_of((self.in_features, self.out_features), activation=self.activation)

    def _check(self, x: Tensor) -> None:
        checks.features("x", x, self.in_features, self.bias)

    def _compute(self, x: Tensor) -> Tensor:
        U, Wo = self._maps(self.X, self.Y)
        v = F.linear(x, U, self.bias)
        self._refuse_unfinite(x, v)
        return F.linear(self.activation(v), Wo)

    def weights(self) -> Weights:
        """The equilibrium network with W = 0 that this layer is.

        Returns:
            A `Weights`, differentiable.
        """
        U, Wo = self._maps(self.X, self.Y)
        n = self.out_features
        return Weights(U.new_zeros(n, n), U, self.bias, Wo, U.new_zeros(n), self.lam(), 1.0)

    def out_shape(self, in_shape: Shape) -> Shape:
        what = f"Sandwich({self.in_features}, {self.out_features})"
        return dense_shape(what, in_shape, self.in_features, self.out_features)

    def stage(self, in_shape: Shape) -> Stage:
        self.out_shape(in_shape)
        return Equilibrium("Sandwich", tuple(in_shape), self.weights(), self.activation)


class ConvSandwich(ExplicitImages, _Sandwich):
    """A sandwich layer of images (Wang & Manchester 2023), everything a convolution, of the bound 1.

    ``y = sqrt(2) A' Psi sigma(sqrt(2) Psi^-1 B x + b)``. x has shape (batch, in_channels, height, width), y (batch,
    out_channels, height, width), of any size; with circular padding, of at least kernel_size pixels a side.

    Args:
        in_channels: those of x.
        out_channels: those of y.
        kernel_size: the side of the free kernels, odd; A and B reach over the whole image.
        padding: what an image is continued by: "zeros", or itself, "circular".
        activation: sigma, one of lben's, one function for all units.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> layer = lben.ConvSandwich(1, 2)
        >>> layer(torch.rand(5, 1, 6, 6)).shape
        torch.Size([5, 2, 6, 6])
        >>> lben.Sequential(layer, in_shape=(1, 6, 6)).bound() <= 1.0001
        True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int = 3,
        padding: Padding = "zeros",
        activation: Activation = ReLU(),  # noqa: B008
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        d, n = checks.count("in_channels", in_channels), checks.count("out_channels", out_channels)
        k = kernel_size_of(kernel_size)
        checks.affordable("X", n, n, k, k)
        checks.affordable("Y", n, d, k, k)
        checks.choice("padding", padding, ("zeros", "circular"))
        X, Y = uniform(n, n, k, k, dtype=dtype), uniform(n, d, k, k, dtype=dtype)
        super().__init__(X, Y, activation, images=True)
        self.padding: Padding = padding
        self.to(device=device)

    @property
    def in_channels(self) -> int:
        return self.Y.shape[1]

    @property
    def out_channels(self) -> int:
        return len(self.Y)

    @property
    def kernel_size(self) -> int:
        return self.X.shape[-1]

    @property
    def around(self) -> int:
        """How many zeros are put on each side of an image."""
        return self.kernel_size // 2 if self.padding == "zeros" else 0

    def options(self) -> dict[str, Any]:
        sizes = (self.in_channels, self.out_channels)
        return options_of(sizes, kernel_size=self.kernel_size, padding=self.padding, activation=self.activation)

    def _symbols(self, high: int, wide: int) -> tuple[Tensor, Tensor]:
        """U and Wo at every frequency of images with their padding, shape (frequencies, out_channels, .)."""
        grid = Grid(high, wide, self.X)
        return self._maps(torch.complex(*grid.symbol(self.X)), torch.complex(*grid.symbol(self.Y)))

    def _compute(self, x: Tensor) -> Tensor:
        """The batch comes last meanwhile, as `Grid` wants it."""
        p, n, (batch, _, high, wide) = self.around, self.out_channels, x.shape
        shape = (high + 2 * p, wide + 2 * p)
        grid = Grid(*shape, x)
        U, Wo = (real_form(S.real, S.imag) for S in self._symbols(*shape))
        v = grid.convolve(U, _columns(x, p)).reshape(*shape, n, batch) + self.bias[:, None]
        self._refuse_unfinite(x, v)
        y = grid.convolve(Wo, self.activation(v).flatten(0, 2))
        return _images(y.reshape(*shape, n, batch)[p : p + high, p : p + wide])

    def _weights(self, shape: tuple[int, int]) -> ImageWeights:
        high, wide = (size + 2 * self.around for size in shape)
        U, Wo = (_kernel(S, high, wide) for S in self._symbols(high, wide))
        return ImageWeights(
            W=None,
            U=U,
            bz=self.bias,
            Wo=Wo,
            by=torch.zeros_like(self.bias),
            in_shape=(self.in_channels, *shape),
            padding=self.around,
            lam=self.lam(),
            gamma=1.0,
        )

    def out_shape(self, in_shape: Shape) -> Shape:
        what = f"ConvSandwich({self.in_channels}, {self.out_channels})"
        least = 1 if self.padding == "zeros" else self.kernel_size
        return image_shape(what, in_shape, self.in_channels, self.out_channels, least)


class _Cayley(torch.autograd.Function):
    """P = (I + X - X' + Y Y')^-1 and Q = P'Y, found in double precision; gradients need no more than that of X and Y.

    Shapes: X and P (..., n, n), Y and Q (..., n, d), real or complex.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        double = torch.complex128 if X.is_complex() else torch.float64
        wide_X, wide_Y = X.to(double), Y.to(double)
        M = wide_Y @ wide_Y.mH
        M += wide_X
        M -= wide_X.mH
        M.diagonal(dim1=-2, dim2=-1).add_(1)
        P = torch.linalg.inv_ex(M).inverse
        Q, P = (P.mH @ wide_Y).to(Y.dtype), P.to(X.dtype)
        ctx.save_for_backward(P, Y)
        return P, Q

    @staticmethod
    def backward(ctx: Any, grad_P: Tensor, grad_Q: Tensor) -> tuple[Tensor, Tensor]:
        """Made of what can be differentiated again: P is an output, and so has a history."""
        P, Y = ctx.saved_tensors
        grad_M = -(P.mH @ (grad_P + Y @ grad_Q.mH) @ P.mH)
        return grad_M - grad_M.mH, P @ grad_Q + (grad_M + grad_M.mH) @ Y


def _cayley(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """The same by calls that every transform of torch knows."""
    double = torch.complex128 if X.is_complex() else torch.float64
    wide_X, wide_Y = X.to(double), Y.to(double)
    identity = torch.eye(X.shape[-1], dtype=double, device=X.device)
    P = torch.linalg.inv(identity + wide_X - wide_X.mH + wide_Y @ wide_Y.mH)
    return P.to(X.dtype), (P.mH @ wide_Y).to(Y.dtype)


def _columns(x: Tensor, around: int) -> Tensor:
    """From images to columns of shape (height width channels, batch), with zeros around the images.

    In two steps, since a matrix is quickly transposed, and long rows are quickly moved.
    """
    batch, *sizes = x.shape
    rows = x.flatten(1).T.contiguous().reshape(*sizes, batch).permute(1, 2, 0, 3)
    return F.pad(rows, (0, 0, 0, 0, around, around, around, around)).flatten(0, 2)


def _images(columns: Tensor) -> Tensor:
    """From (height, width, channels, batch) to images."""
    high, wide, channels, batch = columns.shape
    rows = columns.permute(2, 0, 1, 3).flatten(0, 2)
    return rows.T.contiguous().reshape(batch, channels, high, wide)


def _kernel(symbol: Tensor, high: int, wide: int) -> Tensor:
    """The kernel of the size of the image, as conv2d has it, of a symbol at the frequencies of `Grid`."""
    frequencies = symbol.conj().reshape(high // 2 + 1, wide, *symbol.shape[1:]).permute(2, 3, 0, 1)
    taps: Tensor = torch.fft.irfft2(frequencies, s=(wide, high), dim=(3, 2))
    return taps.roll((high // 2, wide // 2), dims=(2, 3))
