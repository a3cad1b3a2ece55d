"""Convolutional equilibrium networks: their hidden layers are images."""

from __future__ import annotations

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import ReLU
from lben.errors import InvalidInput
from lben.networks.base import BaseNetwork, check_form
from lben.normalize import Normalize
from lben.operators.pixelwise import WITHOUT_RESOLVENT
from lben.parameterize.convolutional import ConvDirect, ConvForm, ConvFree
from lben.solvers.base import Solver, check_solver
from lben.solvers.fista import FISTA
from lben.weights.convolutional import ConvWeights, Geometry, Metric, check_metric


class ConvNetwork(BaseNetwork):
    """A convolutional equilibrium network.

    x has shape (..., channels, height, width), or (..., features) with the features of an image in that order; memory
    in the channels-last format is welcome. Hidden units are ordered by row, column and channel.
    """

    parameterization: ConvForm

    def __init__(
        self,
        parameterization: ConvForm,
        activation: Activation,
        solver: Solver | None,
        normalize: Normalize | None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_form(parameterization, ConvForm)
        if solver is None and parameterization.metric == "pixel":
            solver = FISTA()
        colours, high, wide = parameterization.geometry.in_shape
        if isinstance(normalize, Normalize) and normalize.features == colours > 1:
            normalize = normalize.repeated(high * wide)
        super().__init__(parameterization, activation, solver, normalize, device=device, dtype=dtype)

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        check_metric(metric)
        geometry = _geometry(in_shape, kernel_size, pool, padding)
        form = ConvDirect(geometry, channels, out_features, kernel_size, metric, gamma, epsilon, dtype=dtype)
        super().__init__(form, activation, solver, normalize, device=device, dtype=dtype)


class ConvMON(ConvNetwork):
    """A convolutional monotone operator network (Winston & Kolter 2020): well-posed in the Euclidean metric."""

    def __init__(
        self,
        in_shape: tuple[int, int, int],
        channels: int,
        out_features: int,
        *,
        kernel_size: int = 3,
        pool: int = 4,
        padding: int = 0,
        epsilon: float = 1.0,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        geometry = _geometry(in_shape, kernel_size, pool, padding)
        form = ConvDirect(geometry, channels, out_features, kernel_size, "identity", None, epsilon, dtype=dtype)
        super().__init__(form, activation, solver, normalize, device=device, dtype=dtype)


class ConvUnconstrainedEN(ConvNetwork):
    """A convolutional equilibrium network whose W is free: it may have no equilibrium, and nothing is proved of it."""

    def __init__(
        self,
        in_shape: tuple[int, int, int],
        channels: int,
        out_features: int,
        *,
        activation: Activation = ReLU(),  # noqa: B008
        solver: Solver | None = None,
        normalize: Normalize | None = None,
        kernel_size: int = 3,
        pool: int = 4,
        padding: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.placement(device, dtype)
        geometry = _geometry(in_shape, kernel_size, pool, padding)
        form = ConvFree(geometry, channels, out_features, kernel_size, dtype=dtype)
        super().__init__(form, activation, solver, normalize, device=device, dtype=dtype)


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
