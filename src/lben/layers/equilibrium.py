"""Equilibrium layers from images to images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, Scalar, check_activation
from lben.activations.scalar import ReLU
from lben.errors import InvalidInput
from lben.implicit import equilibrium
from lben.layers.base import Layer, check_images, image_shape, image_size, image_stage, kernel_size_of, options_of
from lben.numerics.transforms import as_it_is
from lben.operators.base import Operator
from lben.parameterize.convolutional import ConvForm
from lben.parameterize.image import ImageForm, Padding
from lben.parameterize.skip import Skip
from lben.parameterize.starts import trainable
from lben.solvers.base import OnFailure, Solver, check_solver
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights.image import ImageWeights
from lben.weights.record import same
from lben.weights.stages import Shape, Stage


class ImageLBEN(Layer):
    """A Lipschitz-bounded equilibrium layer from images to images of the same size.

    ``z = sigma(W z + U x + bz)``, ``y = Wo z + D x + by``, all of them convolutions; the map from x to y is
    gamma-Lipschitz in the l2 norm, whatever the free variables are. x has shape (batch, in_channels, h, w), of any h
    and w from kernel_size on, and y (batch, out_channels, h, w).

    Args:
        in_channels: those of x.
        hidden_channels: those of z.
        out_channels: those of y.
        gamma: the Lipschitz bound; None: well-posed, of some finite bound.
        epsilon: the room left in the condition, above 0: larger makes equilibria easier to find, smaller makes more
            networks reachable.
        kernel_size: the side of the free kernels, odd.
        padding: "zeros" around the image, or "circular".
        skip: None for D = 0; "linear" for a free convolution of norm below gamma; "identity" for ``y = x + Wo z + by``,
            with gamma of at least 1 (at gamma = 1, U is tied to Wo).
        activation: sigma, one of lben's, one function for all units.
        solver: how equilibria are found, such as ``lben.PeacemanRachford(tolerance=1e-6)``; None: Peaceman-Rachford
            splitting. It can be assigned later.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        A layer of a deep network of images, whose bound is proved for the size of the images.

        >>> layer = lben.ImageLBEN(1, 2, 3, gamma=1.0)
        >>> layer(torch.rand(5, 1, 6, 6)).shape
        torch.Size([5, 3, 6, 6])
        >>> bool(lben.certify(layer.weights((6, 6))))
        True
    """

    normalize: None = None
    _activation: Activation
    _solver: Solver

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        gamma: float | None = None,
        epsilon: float = 1.0,
        kernel_size: int = 3,
        padding: Padding = "zeros",
        skip: Skip | None = None,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        solver: Solver | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.placement(device, dtype)
        named = {"in_channels": in_channels, "hidden_channels": hidden_channels, "out_channels": out_channels}
        c, C, p = (checks.count(name, value) for name, value in named.items())
        k = kernel_size_of(kernel_size)
        self.parameterization = ImageForm((c, C, p), k, padding, gamma, skip, epsilon, dtype=dtype)
        check_activation(activation, C)
        if not isinstance(activation, Scalar):
            raise InvalidInput(f"A layer of images takes one activation for all its units, not {activation!r}.")
        object.__setattr__(self, "_activation", activation)
        self.solver = PeacemanRachford() if solver is None else solver
        self._kept: tuple[ImageWeights, bool, Operator] | None = None
        self.to(device=device)

    @property
    def in_channels(self) -> int:
        return self.parameterization.injection().shape[1]

    @property
    def hidden_channels(self) -> int:
        return len(self.parameterization.bz)

    @property
    def out_channels(self) -> int:
        return len(self.parameterization.by)

    @property
    def gamma(self) -> float | None:
        """The prescribed Lipschitz bound; None if none was prescribed."""
        return self.parameterization.gamma

    @property
    def activation(self) -> Activation:
        return self._activation

    @property
    def solver(self) -> Solver:
        """The method that finds equilibria, forward and backward; assign another at any time."""
        return self._solver

    @solver.setter
    def solver(self, solver: Solver) -> None:
        object.__setattr__(self, "_solver", check_solver(solver))

    def options(self) -> dict[str, Any]:
        form = self.parameterization
        return options_of(
            (self.in_channels, self.hidden_channels, self.out_channels),
            gamma=form.gamma,
            kernel_size=form.kernel_size,
            padding=form.padding,
            skip=form.skip,
            activation=self.activation,
            solver=self.solver,
        )

    def constants(self) -> dict[str, float]:
        epsilon = self.parameterization.epsilon
        return {} if epsilon.is_meta else {"epsilon": epsilon.float().item()}

    def out_shape(self, in_shape: Shape) -> Shape:
        what = f"ImageLBEN({self.in_channels}, {self.hidden_channels}, {self.out_channels})"
        return image_shape(what, in_shape, self.in_channels, self.out_channels, self.parameterization.kernel_size)

    def weights(self, shape: tuple[int, int] | None = None) -> ImageWeights:
        """The explicit weights for images of one size, differentiable in the free variables.

        Args:
            shape: height and width of the images; it must be given.

        Returns:
            An `ImageWeights`.

        Raises:
            InvalidInput: without a shape, or for one that is smaller than the kernel.
        """
        _, high, wide = self.out_shape((self.in_channels, *image_size(self, shape)))
        return self.parameterization.weights((high, wide))

    def stage(self, in_shape: Shape) -> Stage:
        _, high, wide = self.out_shape(in_shape)
        return image_stage("ImageLBEN", self.weights((high, wide)), self.activation)

    def forward(self, x: Tensor) -> Tensor:
        """y; mixed precision is turned off inside.

        Args:
            x: images, of shape (batch, in_channels, h, w).

        Returns:
            Images of shape (batch, out_channels, h, w).

        Raises:
            InvalidInput: if x does not fit, or is not finite.
            NotConverged: if an equilibrium was not found; see `Solver`.
        """
        form = self.parameterization
        if isinstance(x, Tensor) and torch.is_autocast_enabled("cpu" if x.is_meta else x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.to(form.Wo.dtype))
        check_images(x, form.Wo)
        self.out_shape(tuple(x.shape[1:]))
        if self.training and form.gamma is not None and torch.is_grad_enabled():
            trainable(form.gamma, form.Wo.dtype, ConvForm.smallest_gamma)
        return self._compute(x)

    @as_it_is
    def _compute(self, x: Tensor) -> Tensor:
        """y for an x that fits."""
        weights = self.parameterization.weights((x.shape[2], x.shape[3]))
        b = weights.inject(x)
        checks.finite_sum(b, x=x, **dict(self.named_parameters()))
        z = equilibrium(self._operator(weights), self.activation, b, self.solver, on_failure=self._on_failure())
        return weights.outputs(z, x)

    def _operator(self, weights: ImageWeights) -> Operator:
        """The operator of W; in evaluation it is kept, with its factors, until what decides W changes.

        Within transforms nothing is kept.
        """
        if self.training or checks.transformed():
            return self.parameterization.operator(weights)
        inference = torch.is_inference_mode_enabled()
        if self._kept is None or self._kept[1] != inference or not same(self._kept[0], weights):
            with torch.no_grad():
                own = weights.detach().clone()
                self._kept = own, inference, own.operator()
        kept = self._kept[2]
        if not torch.is_grad_enabled() or weights.W is None or not weights.W.requires_grad:
            return kept
        return kept.rebind(weights.W)

    def _on_failure(self) -> OnFailure:
        return self.solver.on_failure or ("fallback" if self.training else "raise")
