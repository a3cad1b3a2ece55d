"""Free variables that are kernels.

All convolutions are circular, so that they are diagonal in the Fourier domain; zeros around the image, put there before
the first of them, change no distance. With kernels V, N and U and Psi = Lam^-1 = diag(e^d),

    Lam (I - W) = V'V + eps I + (N - N')/2 + (Wo'Wo + Lam U U' Lam)/(2 gamma)        (`direct_gamma`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lben import checks
from lben.operators.base import Operator
from lben.operators.grid import correlate, transposed
from lben.parameterize.base import Form
from lben.parameterize.starts import balance, uniform
from lben.weights.convolutional import ConvSizes, ConvWeights, Geometry, Metric, add_kernels, identity_kernel


class ConvForm(ConvSizes, Form):
    """U, Wo and the biases, which every convolutional network has."""

    metric: Metric = "identity"
    smallest_gamma: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-2, torch.float64: 1e-4}

    def __init__(
        self,
        geometry: Geometry,
        channels: int,
        out_features: int,
        kernel_size: int,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.geometry = geometry
        checks.count("channels", channels)
        p = checks.count("out_features", out_features)
        colours, (height, width), pool = geometry.in_shape[0], geometry.shape, geometry.pool
        checks.affordable("The kernel of W", channels, channels, (2 * kernel_size - 1) ** 2)
        checks.affordable("U", channels, colours, kernel_size, kernel_size)
        checks.affordable("Wo", p, channels, height, width)
        self.U = uniform(channels, colours, kernel_size, kernel_size, dtype=dtype)
        self.bz: Tensor = uniform(channels, fan_in=colours * kernel_size**2, dtype=dtype)
        self.Wo = uniform(p, channels, height // pool, width // pool, dtype=dtype)
        self.by: Tensor = uniform(p, fan_in=self.Wo[0].numel(), dtype=dtype)

    def options(self) -> dict[str, Any]:
        geometry = self.geometry
        return {
            "sizes": (geometry.in_shape, self.channels, self.out_features),
            "gamma": self.gamma,
            "kernel_size": self.U.shape[-1],
            "pool": geometry.pool,
            "padding": geometry.padding,
            "metric": self.metric,
        }

    def forward(self) -> ConvWeights:
        return ConvWeights(
            self.kernel(), self.U, self.bz, self.Wo, self.by, self.entries(), self.metric, self.geometry, self.gamma
        )

    @abstractmethod
    def kernel(self) -> Tensor:
        """T, with its history."""

    def entries(self) -> Tensor | None:
        """The entries of the metric."""
        return None

    def monotonicity(self) -> float | None:
        """A cheap lower bound on m; None if none is known."""
        return None

    def inject(self, x: Tensor) -> Tensor:
        return self.geometry.inject(x, self.U, self.bz)

    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        return self.geometry.readout(z, self.Wo, self.by)

    def operator(self) -> Operator:
        weights: ConvWeights = self()
        return weights.operator(monotonicity_bound=self.monotonicity())


class ConvDirect(ConvForm):
    """T = V'V + eps I + (N - N')/2, in the metric e^(-d), with the terms of gamma if there is one."""

    epsilon: Tensor

    def __init__(
        self,
        geometry: Geometry,
        channels: int,
        out_features: int,
        kernel_size: int,
        metric: Metric,
        gamma: float | None,
        epsilon: float,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(geometry, channels, out_features, kernel_size, dtype=dtype)
        self.metric = metric
        if gamma is not None:
            self.gamma = gamma
            balance(gamma, self.U, self.Wo)
        self.register_buffer("epsilon", torch.tensor(checks.positive("epsilon", epsilon), dtype=dtype))
        self.V = uniform(channels, channels, kernel_size, kernel_size, dtype=dtype)
        self.N = uniform(channels, channels, kernel_size, kernel_size, dtype=dtype)
        if metric != "identity":
            self.d = nn.Parameter(self.bz.new_zeros((channels,) if metric == "channel" else geometry.shape))

    def kernel(self) -> Tensor:
        T = add_kernels(correlate(self.V, self.V), (self.N - transposed(self.N)) / 2)
        return add_kernels(T, self.epsilon * identity_kernel(T))

    def entries(self) -> Tensor | None:
        return torch.ones_like(self.bz) if self.metric == "identity" else torch.exp(-self.d)

    def monotonicity(self) -> float | None:
        epsilon = checks.peeled(self.epsilon).min().item()
        if self.metric == "identity":
            return epsilon
        return epsilon * checks.peeled(self.d).detach().min().double().exp().item()


class ConvFree(ConvForm):
    """W is a free convolution: nothing is proved of it."""

    def __init__(
        self,
        geometry: Geometry,
        channels: int,
        out_features: int,
        kernel_size: int,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(geometry, channels, out_features, kernel_size, dtype=dtype)
        fan_in = 4 * channels * kernel_size**2
        self.W = uniform(channels, channels, kernel_size, kernel_size, fan_in=fan_in, dtype=dtype)

    def kernel(self) -> Tensor:
        return add_kernels(-self.W, identity_kernel(self.W))
