"""Convolutional equilibrium networks: their free variables are kernels, their hidden layers images.

All convolutions are circular, so that they are diagonal in the Fourier domain; zeros around the image, put there before
the first of them, change no distance. With kernels V, N and U and Psi = Lam^-1 = diag(e^d),

    Lam (I - W) = V'V + eps I + (N - N')/2 + (Wo'Wo + Lam U U' Lam)/(2 gamma)        (`direct_gamma`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations import Activation, ReLU
from lben.convweights import ConvWeights, Geometry, Metric, add_kernels, check_metric, identity_kernel
from lben.equilibrium import BaseNetwork, check_form
from lben.errors import InvalidInput
from lben.grid import correlate, transposed
from lben.normalize import Normalize
from lben.operators import Operator
from lben.parameterize import Form, describe_epsilon
from lben.pixelwise import WITHOUT_RESOLVENT
from lben.solvers.base import Solver, check_solver
from lben.solvers.fista import FISTA
from lben.starts import balance, uniform


class ConvForm(Form):
    """U, Wo and the biases, which every convolutional network has."""

    metric: Metric = "identity"

    def __init__(self, geometry: Geometry, channels: int, out_features: int, kernel_size: int) -> None:
        super().__init__()
        self.geometry, self.channels = geometry, checks.count("channels", channels)
        p = checks.count("out_features", out_features)
        colours, (height, width), pool = geometry.in_shape[0], geometry.shape, geometry.pool
        checks.affordable("The kernel of W", channels, channels, (2 * kernel_size - 1) ** 2)
        checks.affordable("U", channels, colours, kernel_size, kernel_size)
        checks.affordable("Wo", p, channels, height, width)
        self.U = uniform(channels, colours, kernel_size, kernel_size)
        self.bz: Tensor = uniform(channels, fan_in=colours * kernel_size**2)
        self.Wo = uniform(p, channels, height // pool, width // pool)
        self.by: Tensor = uniform(p, fan_in=self.Wo[0].numel())

    @property
    def in_features(self) -> int:
        return self.geometry.in_features

    @property
    def hidden_features(self) -> int:
        return self.channels * self.geometry.pixels

    @property
    def out_features(self) -> int:
        return len(self.Wo)

    def describe(self) -> dict[str, Any]:
        g = self.geometry
        sizes = {"in_shape": g.in_shape, "padding": g.padding, "pool": g.pool}
        return {**super().describe(), **sizes, "metric": self.metric}

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

    def readout(self, z: Tensor) -> Tensor:
        return F.linear(z, self.geometry.spread(self.Wo), self.by)

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
    ) -> None:
        super().__init__(geometry, channels, out_features, kernel_size)
        self.metric = metric
        if gamma is not None:
            self.gamma = gamma
            balance(gamma, self.U, self.Wo)
        self.register_buffer("epsilon", torch.tensor(checks.positive("epsilon", epsilon)))
        self.V = uniform(channels, channels, kernel_size, kernel_size)
        self.N = uniform(channels, channels, kernel_size, kernel_size)
        if metric != "identity":
            self.d = nn.Parameter(torch.zeros((channels,) if metric == "channel" else geometry.shape))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **describe_epsilon(self.epsilon)}

    def kernel(self) -> Tensor:
        T = add_kernels(correlate(self.V, self.V), (self.N - transposed(self.N)) / 2)
        return add_kernels(T, self.epsilon * identity_kernel(T))

    def entries(self) -> Tensor | None:
        return torch.ones_like(self.bz) if self.metric == "identity" else torch.exp(-self.d)

    def monotonicity(self) -> float | None:
        return self.epsilon.item() * (1.0 if self.metric == "identity" else self.d.detach().min().double().exp().item())

    def extra_repr(self) -> str:
        return "" if self.epsilon.is_meta else f"epsilon={float(self.epsilon):.4g}"


class ConvFree(ConvForm):
    """W is a free convolution: nothing is proved of it."""

    def __init__(self, geometry: Geometry, channels: int, out_features: int, kernel_size: int) -> None:
        super().__init__(geometry, channels, out_features, kernel_size)
        self.W = uniform(channels, channels, kernel_size, kernel_size, fan_in=4 * channels * kernel_size**2)

    def kernel(self) -> Tensor:
        return add_kernels(-self.W, identity_kernel(self.W))


class ConvExplicit(ConvForm):
    """Weights as they are; nothing is free."""

    def __init__(self, weights: ConvWeights) -> None:
        nn.Module.__init__(self)
        self.geometry, self.channels, self.metric = weights.geometry, weights.channels, weights.metric
        self.gamma = weights.gamma
        self.T: Tensor
        self.given: Tensor | None
        for name in ("T", "U", "bz", "Wo", "by"):
            self.register_buffer(name, getattr(weights, name))
        self.register_buffer("given", weights.entries)

    def kernel(self) -> Tensor:
        return self.T

    def entries(self) -> Tensor | None:
        return self.given


class ConvNetwork(BaseNetwork):
    """A convolutional equilibrium network.

    x has shape (..., channels, height, width), or (..., features) with the features of an image in that order; memory
    in the channels-last format is welcome. Hidden units are ordered by row, column and channel.
    """

    parameterization: ConvForm

    def __init__(
        self, parameterization: ConvForm, activation: Activation, solver: Solver | None, normalize: Normalize | None
    ) -> None:
        check_form(parameterization, ConvForm)
        if solver is None and parameterization.metric == "pixel":
            solver = FISTA()
        colours, high, wide = parameterization.geometry.in_shape
        if isinstance(normalize, Normalize) and normalize.features == colours > 1:
            normalize = normalize.repeated(high * wide)
        super().__init__(parameterization, activation, solver, normalize)

    @property
    def in_shape(self) -> tuple[int, int, int]:
        return self.parameterization.geometry.in_shape

    @property
    def solver(self) -> Solver:
        """The method that finds equilibria, forward and backward; assign another at any time."""
        return self._solver

    @solver.setter
    def solver(self, solver: Solver) -> None:
        for one in (check_solver(solver), solver.adjoint):
            if self.parameterization.metric == "pixel" and one.needs_resolvent:
                raise InvalidInput(
                    f'{type(one).__name__} needs the resolvent of I - W, which metric="pixel" does not have: '
                    f"{WITHOUT_RESOLVENT}"
                )
        self._solver = solver

    def weights(self) -> ConvWeights:
        """The explicit weights, as differentiable functions of the free variables."""
        weights: ConvWeights = self.parameterization()
        return weights

    def _flat(self, x: Tensor) -> Tensor:
        return self.parameterization.geometry.rows("x", x)

    def extra_repr(self) -> str:
        g, p = self.parameterization.geometry, self.parameterization
        gamma = "" if self.gamma is None else f", gamma={self.gamma:.4g}"
        sizes = f"{g.in_shape}, {p.channels}, {self.out_features}{gamma}, kernel_size={p.U.shape[-1]}"
        rest = f"pool={g.pool}, padding={g.padding}, metric={p.metric!r}"
        return f"{sizes}, {rest}, activation={self.activation!r}, solver={self.solver!r}"


class ConvLBEN(ConvNetwork):
    """A convolutional Lipschitz-bounded equilibrium network.

    With `gamma`, the map from image to output is gamma-Lipschitz in the l2 norm, whatever the free variables are.
    in_shape: channels, height and width of an image. padding: zeros put around it on all sides.
    pool: the side of the squares that are averaged before the linear output; it divides the padded image.
    metric: one entry of Lambda a "channel", which every solver can treat; a "pixel", the paper's, for forward-backward,
        FISTA and extragradient alone; or "identity".
    """

    def __init__(
        self,
        in_shape: tuple[int, int, int],
        channels: int,
        out_features: int,
        *,
        gamma: float | None = None,
        epsilon: float = 1.0,
        kernel_size: int = 3,
        pool: int = 4,
        padding: int = 0,
        metric: Metric = "channel",
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> None:
        check_metric(metric)
        geometry = _geometry(in_shape, kernel_size, pool, padding)
        form = ConvDirect(geometry, channels, out_features, kernel_size, metric, gamma, epsilon)
        super().__init__(form, activation, solver, normalize)


class ConvMON(ConvNetwork):
    """A convolutional monotone operator network (Winston & Kolter 2020): well-posed in the Euclidean metric."""

    def __init__(
        self,
        in_shape: tuple[int, int, int],
        channels: int,
        out_features: int,
        *,
        epsilon: float = 1.0,
        kernel_size: int = 3,
        pool: int = 4,
        padding: int = 0,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> None:
        geometry = _geometry(in_shape, kernel_size, pool, padding)
        form = ConvDirect(geometry, channels, out_features, kernel_size, "identity", None, epsilon)
        super().__init__(form, activation, solver, normalize)


class ConvUnconstrainedEN(ConvNetwork):
    """A convolutional equilibrium network whose W is free: it may have no equilibrium, and nothing is proved of it."""

    def __init__(
        self,
        in_shape: tuple[int, int, int],
        channels: int,
        out_features: int,
        *,
        kernel_size: int = 3,
        pool: int = 4,
        padding: int = 0,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
    ) -> None:
        geometry = _geometry(in_shape, kernel_size, pool, padding)
        super().__init__(ConvFree(geometry, channels, out_features, kernel_size), activation, solver, normalize)


def _geometry(in_shape: tuple[int, int, int], kernel_size: int, pool: int, padding: int) -> Geometry:
    """The geometry of a network, if its parts fit each other."""
    geometry = Geometry(in_shape, padding, pool)
    if checks.count("kernel_size", kernel_size) % 2 == 0:
        raise InvalidInput(f"kernel_size must be odd, so that it has a middle, not {kernel_size}.")
    high, wide = geometry.shape
    if kernel_size > min(high, wide):
        raise InvalidInput(
            f"The image, {high} x {wide} with its padding, is smaller than the kernel, {kernel_size} x {kernel_size}."
        )
    return geometry
