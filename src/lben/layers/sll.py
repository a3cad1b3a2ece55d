"""SDP-based Lipschitz layers (Araujo et al. 2023): residual, explicit, of the bound 1.

    y = x - 2 K T^-1 sigma(K'x + b),    T = diag(sum_j |K'K|_ij q_j/q_i),    q > 0

is the equilibrium network with W = 0, U = K', Wo = -2 K T^-1, D = I and Lam = 2 T^-1, for which Condition `lipschitz`
says T >= K'K: true since T - K'K is diagonally dominant once rows and columns are scaled by q. For a convolution the
sum runs over the entries of the kernel's autocorrelation, over all channels and all shifts; images with zeros around
them see a part of the same matrix K'K on an endless grid, so that one T serves every image size.

At q = 1, where q starts, T is that of AOL (Prach & Lampert 2022). With q the Perron vector of |K'K|, T is a multiple of
I, its spectral radius, and where no entry of K'K is negative that is |K|^2: the convex potential layer (Meunier et al.
2022). All this is on the boundary of the condition, where no rounding could be afforded: so D is `HAIR` smaller than I
and T a little larger than it need be, and that is the function which the layer computes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import ReLU
from lben.layers.base import Explicit, ExplicitImages, dense_shape, image_shape, kernel_size_of, options_of
from lben.operators.grid import gram, transposed
from lben.parameterize import skip
from lben.parameterize.starts import uniform
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights
from lben.weights.stages import Equilibrium, Shape, Stage

D = 1 - skip.HAIR
"""In place of I."""
ROOM = 1e-5
"""By how much T is larger than the sums: for the hair of D, and for rounding in single precision."""
_LEAST = 1e-12  # is added to T, so that units whose column of K vanishes do not divide by zero


class _Residual(Explicit):
    """What dense and convolutional layers share: K' as `weight`, its rows first; q as its logarithm."""

    def __init__(self, weight: nn.Parameter, activation: Activation, *, images: bool) -> None:
        super().__init__()
        units = len(weight)
        self._accept(activation, units, images=images)
        self.weight = weight
        self.bias = uniform(units, fan_in=weight[0].numel(), dtype=weight.dtype)
        self.log_q = nn.Parameter(weight.new_zeros(units))

    @abstractmethod
    def sums(self) -> Tensor:
        """The sums over the absolute entries of K'K.

        Returns:
            A tensor of shape (units, units).
        """

    def scale(self) -> Tensor:
        """T.

        Returns:
            A tensor of shape (units,).
        """
        q = self.log_q.exp()
        return (1 + ROOM) * (self.sums() @ q / q) + _LEAST

    def _maps(self) -> tuple[Tensor, Tensor]:
        """T and Wo', the latter as K' is stored."""
        T = self.scale()
        return T, self.weight * (-2 / T).reshape(-1, *[1] * (self.weight.dim() - 1))


class SLL(_Residual):
    """An SDP-based Lipschitz layer (Araujo et al. 2023), residual and explicit: ``y = x - 2 K T^-1 sigma(K'x + b)``.

    Its bound is 1, whatever the parameters are. x and y have shape (..., features).

    Args:
        features: the number of inputs and of outputs.
        hidden_features: the number of columns of K; as many as features if not given.
        activation: sigma, one of lben's, of single units.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        Twenty of them in a row are still 1-Lipschitz.

        >>> stack = lben.Sequential(*(lben.SLL(4) for _ in range(20)))
        >>> stack.bound() <= 1.0001
        True
    """

    def __init__(
        self,
        features: int,
        hidden_features: int | None = None,
        *,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        hidden = checks.count("features", features) if hidden_features is None else hidden_features
        checks.affordable("K", features, checks.count("hidden_features", hidden))
        super().__init__(uniform(hidden, features, dtype=dtype), activation, images=False)
        self.to(device=device)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    out_features = in_features

    @property
    def hidden_features(self) -> int:
        return len(self.weight)

    def options(self) -> dict[str, Any]:
        return options_of((self.in_features, self.hidden_features), activation=self.activation)

    def sums(self) -> Tensor:
        return (self.weight @ self.weight.T).abs()

    def _check(self, x: Tensor) -> None:
        checks.features("x", x, self.in_features, self.weight)

    def _compute(self, x: Tensor) -> Tensor:
        T, out = self._maps()
        v = F.linear(x, self.weight, self.bias)
        self._refuse_unfinite(x, v, T)
        return torch.add(self.activation(v) @ out, x, alpha=D)

    def weights(self) -> Weights:
        """The equilibrium network with W = 0 that this layer is.

        Returns:
            A `Weights`, differentiable.
        """
        T, out = self._maps()
        n, d = self.weight.shape
        W, eye = self.weight.new_zeros(n, n), torch.eye(d, dtype=out.dtype, device=out.device)
        return Weights(W, self.weight, self.bias, out.T, self.weight.new_zeros(d), 2 * D / T, 1.0, D * eye)

    def out_shape(self, in_shape: Shape) -> Shape:
        return dense_shape(f"SLL({self.in_features})", in_shape, self.in_features, self.in_features)

    def stage(self, in_shape: Shape) -> Stage:
        self.out_shape(in_shape)
        return Equilibrium("SLL", tuple(in_shape), self.weights(), self.activation)


class ConvSLL(ExplicitImages, _Residual):
    """An SDP-based Lipschitz layer of images (Araujo et al. 2023): ``y = x - 2 K T^-1 sigma(K'x + b)``, of the bound 1.

    K is a convolution with zeros around the image. x and y have shape (batch, channels, height, width), of any size.
    Images in torch's channels_last format take less time.

    Args:
        channels: those of x and y.
        hidden_channels: what K' leads to; as many as channels if not given.
        kernel_size: the side of the kernel, odd.
        activation: sigma, one of lben's, one function for all units.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> layer = lben.ConvSLL(2)
        >>> x = torch.rand(2, 1, 2, 6, 6)
        >>> bool((layer(x[0]) - layer(x[1])).norm() <= (x[0] - x[1]).norm())
        True
    """

    def __init__(
        self,
        channels: int,
        hidden_channels: int | None = None,
        *,
        kernel_size: int = 3,
        activation: Activation = ReLU(),  # noqa: B008
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        hidden = checks.count("channels", channels) if hidden_channels is None else hidden_channels
        k = kernel_size_of(kernel_size)
        checks.affordable("K", channels, checks.count("hidden_channels", hidden), k, k)
        super().__init__(uniform(hidden, channels, k, k, dtype=dtype), activation, images=True)
        self.to(device=device)

    @property
    def channels(self) -> int:
        return self.weight.shape[1]

    @property
    def hidden_channels(self) -> int:
        return len(self.weight)

    @property
    def kernel_size(self) -> int:
        return self.weight.shape[-1]

    def options(self) -> dict[str, Any]:
        sizes = (self.channels, self.hidden_channels)
        return options_of(sizes, kernel_size=self.kernel_size, activation=self.activation)

    def sums(self) -> Tensor:
        """Over the entries of the autocorrelation, which has 2 kernel_size - 1 taps a side.

        Returns:
            A tensor of shape (units, units).
        """
        return gram(self.weight).abs().sum(dim=(2, 3))

    def _compute(self, x: Tensor) -> Tensor:
        T, out = self._maps()
        middle = self.kernel_size // 2
        v = F.conv2d(x, self.weight, self.bias, padding=middle)
        self._refuse_unfinite(x, v, T)
        y = F.conv2d(self.activation(v), transposed(out), padding=middle)  # a little quicker than conv_transpose2d
        return torch.add(y, x, alpha=D)

    def out_shape(self, in_shape: Shape) -> Shape:
        return image_shape(f"ConvSLL({self.channels})", in_shape, self.channels, self.channels)

    def _weights(self, shape: tuple[int, int]) -> ImageWeights:
        T, out = self._maps()
        eye = torch.eye(self.channels, dtype=out.dtype, device=out.device)
        return ImageWeights(
            W=None,
            U=self.weight,
            bz=self.bias,
            Wo=transposed(out),
            by=out.new_zeros(self.channels),
            in_shape=(self.channels, *shape),
            padding=self.kernel_size // 2,
            D=D * eye[:, :, None, None],
            lam=2 * D / T,
            gamma=1.0,
            inner=True,
        )
