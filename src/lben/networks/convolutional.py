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
    """What convolutional equilibrium networks share: their hidden layers are images, and their outputs features.

    x has shape (..., channels, height, width), or (..., features) with the features of an image in that order; memory
    in the channels-last format is welcome. Hidden units are ordered by row, column and channel. Make a `ConvLBEN`, a
    `ConvMON` or a `ConvUnconstrainedEN`; this class is for type hints and isinstance.

    Args:
        parameterization: free variables, and how weights are made of them.
        activation: sigma, one of lben's, of single units. It can be assigned later.
        solver: how equilibria are found; None: Peaceman-Rachford splitting, or FISTA for metric="pixel".
        normalize: a `Normalize` in front, of one value, of one a channel or of one a feature; or None.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if a part is none of lben's, or they do not fit each other.

    Examples:
        >>> net = lben.ConvMON((1, 8, 8), 2, 3)
        >>> isinstance(net, lben.ConvNetwork), net.in_shape, net.hidden_features
        (True, (1, 8, 8), 128)
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
        """The explicit weights, as differentiable functions of the free variables.

        Returns:
            A `ConvWeights`.
        """
        weights: ConvWeights = self.parameterization()
        return weights

    def _flat(self, x: Tensor) -> Tensor:
        return self.parameterization.geometry.rows("x", x)


class ConvLBEN(ConvNetwork):
    """A convolutional Lipschitz-bounded equilibrium network, from an image to features.

    With `gamma`, the map from image to output is gamma-Lipschitz in the l2 norm, whatever the free variables are.
    Hidden layers are images, W and U circular convolutions; their averages over squares lead to a linear output.

    Args:
        in_shape: channels, height and width of an image.
        channels: the number of hidden channels.
        out_features: the number of outputs.
        gamma: the Lipschitz bound from the network's input to its output; None: none is prescribed.
        epsilon: the room left in the condition, above 0: larger makes equilibria easier to find, smaller makes more
            networks reachable.
        kernel_size: the side of the kernels, odd, and no larger than the padded image.
        pool: the side of the squares that are averaged before the linear output; it divides the padded image.
        padding: how many zeros are put around the image on all sides.
        metric: one entry of Lambda a "channel", which every solver can treat; a "pixel", the paper's, for
            forward-backward, FISTA and extragradient alone; or "identity".
        activation: sigma, one of lben's, of single units. It can be assigned later.
        solver: how equilibria are found; None: Peaceman-Rachford splitting, or FISTA for metric="pixel".
        normalize: a `Normalize` in front, of one value, of one a channel or of one a feature; or None.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if the sizes do not fit each other, or another argument is none of these.

    Examples:
        >>> net = lben.ConvLBEN((1, 8, 8), 2, 3, gamma=1.0)
        >>> net(torch.rand(5, 1, 8, 8)).shape
        torch.Size([5, 3])
        >>> bool(lben.certify(net))
        True
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
    """A convolutional monotone operator network (Winston & Kolter 2020): well-posed in the Euclidean metric.

    Args:
        in_shape: channels, height and width of an image.
        channels: the number of hidden channels.
        out_features: the number of outputs.
        kernel_size: the side of the kernels, odd, and no larger than the padded image.
        pool: the side of the squares that are averaged before the linear output; it divides the padded image.
        padding: how many zeros are put around the image on all sides.
        epsilon: the room left in the condition, above 0: larger makes equilibria easier to find, smaller makes more
            networks reachable.
        activation: sigma, one of lben's, of single units. It can be assigned later.
        solver: how equilibria are found; None: Peaceman-Rachford splitting. It can be assigned later.
        normalize: a `Normalize` in front, of one value, of one a channel or of one a feature; or None.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if the sizes do not fit each other, or another argument is none of these.

    Examples:
        >>> net = lben.ConvMON((1, 8, 8), 2, 3, pool=8)
        >>> net(torch.rand(5, 64)).shape, net.gamma
        (torch.Size([5, 3]), None)
    """

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
    """A convolutional equilibrium network whose W is free: it may have no equilibrium, and nothing is promised of it.

    Args:
        in_shape: channels, height and width of an image.
        channels: the number of hidden channels.
        out_features: the number of outputs.
        activation: sigma, one of lben's, of single units. It can be assigned later.
        solver: how equilibria are found; None: Peaceman-Rachford splitting. It can be assigned later.
        normalize: a `Normalize` in front, of one value, of one a channel or of one a feature; or None.
        kernel_size: the side of the kernels, odd, and no larger than the padded image.
        pool: the side of the squares that are averaged before the linear output; it divides the padded image.
        padding: how many zeros are put around the image on all sides.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if the sizes do not fit each other, or another argument is none of these.

    Examples:
        >>> net = lben.ConvUnconstrainedEN((1, 8, 8), 2, 3)
        >>> net.weights().entries is None
        True
    """

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
