"""The explicit weights of a convolutional equilibrium network: kernels in place of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.errors import InvalidInput
from lben.operators.base import Operator
from lben.operators.fourier import FourierOperator
from lben.operators.grid import Grid, gram
from lben.operators.pixelwise import PixelOperator
from lben.weights.dense import Weights
from lben.weights.record import Record, image_rows

Metric = Literal["channel", "pixel", "identity"]
"""Which entries the metric Lambda of a convolution has: one a "channel", one a "pixel", or "identity"."""
_LARGEST_DENSE = 2**26  # entries of a W that `dense` is willing to form


@dataclass(frozen=True)
class Geometry:
    """The image that a convolutional network takes, what is put around it, and what is averaged for the output.

    Args:
        in_shape: channels, height and width of an image.
        padding: how many zeros are put around it on all sides.
        pool: the side of the squares that are averaged; it divides the padded image.

    Raises:
        InvalidInput: if these are no sizes, or do not fit each other.

    Examples:
        >>> geometry = lben.Geometry((3, 32, 32), padding=2, pool=4)
        >>> geometry.shape, geometry.in_features
        ((36, 36), 3072)
    """

    in_shape: tuple[int, int, int]
    padding: int
    pool: int

    def __post_init__(self) -> None:
        if not isinstance(self.in_shape, tuple | list) or len(self.in_shape) != 3:
            raise InvalidInput(f"in_shape must be (channels, height, width), not {self.in_shape!r}.")
        object.__setattr__(self, "in_shape", tuple(checks.count("Every size in in_shape", s) for s in self.in_shape))
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise InvalidInput(f"padding must be an integer of at least 0, not {self.padding!r}.")
        checks.count("pool", self.pool)
        high, wide = self.shape
        checks.affordable("The image with its padding", self.in_shape[0], high, wide)
        if high % self.pool or wide % self.pool:
            raise InvalidInput(f"pool = {self.pool} does not divide the image, {high} x {wide} with its padding.")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the hidden layer."""
        return self.in_shape[1] + 2 * self.padding, self.in_shape[2] + 2 * self.padding

    @property
    def pixels(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def in_features(self) -> int:
        return self.in_shape[0] * self.in_shape[1] * self.in_shape[2]

    def rows(self, name: str, x: Tensor) -> Tensor:
        """Images, or rows of their features, as rows.

        Args:
            name: what an error calls them.
            x: of shape (..., channels, height, width) or (..., features).

        Returns:
            A tensor of shape (..., features).
        """
        return image_rows(name, x, self.in_shape)

    def inject(self, x: Tensor, U: Tensor, bz: Tensor | None) -> Tensor:
        """U x + bz for rows x: zeros around the image, then a circular convolution.

        Where a patch of the image has no more entries than the hidden layer has channels, patches are multiplied from
        the left, in the order in which hidden units lie in memory: half of the time, with nothing to be transposed.

        Args:
            x: rows of features.
            U: the kernel, of shape (C, c, k, k).
            bz: one a channel, of shape (C,), or None.

        Returns:
            Rows of hidden units.
        """
        image = F.pad(x.reshape(len(x), *self.in_shape), (self.padding,) * 4)
        image = F.pad(image, (U.shape[-1] // 2,) * 4, mode="circular")
        if U[0].numel() > len(U):
            hidden = F.conv2d(image, U, bz).permute(2, 3, 1, 0)
        else:
            (high, wide), taps = self.shape, U.shape[-1]
            image = image.permute(2, 3, 1, 0)
            pieces = [image[i : i + high, j : j + wide] for i in range(taps) for j in range(taps)]
            patches = torch.stack(pieces, dim=2).view(self.pixels, -1, len(x))
            kernel = U.permute(0, 2, 3, 1).flatten(1).expand(self.pixels, -1, -1)
            hidden = kernel @ patches if bz is None else torch.baddbmm(bz[:, None], kernel, patches)
        return hidden.reshape(len(U) * self.pixels, len(x)).T

    def readout(self, z: Tensor, Wo: Tensor, by: Tensor) -> Tensor:
        """Wo z + by for rows z, as a product from the left: that is how they lie in memory.

        Args:
            z: rows of hidden units.
            Wo: of shape (p, C, height/pool, width/pool).
            by: of shape (p,).

        Returns:
            Rows of outputs.
        """
        return torch.addmm(by[:, None], self.spread(Wo), z.T).T

    def spread(self, Wo: Tensor) -> Tensor:
        """Average pooling and linear output as one matrix.

        Args:
            Wo: of shape (p, C, height/pool, width/pool).

        Returns:
            A matrix of shape (p, n).
        """
        wide = (Wo / self.pool**2).permute(0, 2, 3, 1)
        return wide.repeat_interleave(self.pool, 1).repeat_interleave(self.pool, 2).flatten(1)


class ConvSizes:
    """The sizes of whatever has the geometry of an image, channels and outputs."""

    geometry: Geometry
    bz: Tensor
    by: Tensor

    @property
    def channels(self) -> int:
        return len(self.bz)

    @property
    def in_features(self) -> int:
        return self.geometry.in_features

    @property
    def hidden_features(self) -> int:
        return self.channels * self.geometry.pixels

    @property
    def out_features(self) -> int:
        return len(self.by)


@dataclass(frozen=True, eq=False)
class ConvWeights(ConvSizes, Record):
    """The explicit weights of a convolutional network: kernels in place of matrices.

    ``z = sigma(W z + U x + bz)``, ``y = Wo z + by``, with W given by
    ``Lam (I - W) = T + (Wo'Wo + Lam U U' Lam)/(2 gamma)``; without gamma the last term is missing. T and U are circular
    convolutions, U after zeros were put around the image. Hidden units are ordered by row, column and channel:
    ``z.reshape(..., *geometry.shape, channels)``.

    Args:
        T: a kernel, of shape (C, C, l, l), l odd; in a `ConvLBEN` and a `ConvMON` it is 2 k - 1.
        U: a kernel, of shape (C, c, k, k), k odd.
        bz: one a channel, of shape (C,).
        Wo: of shape (p, C, height/pool, width/pool).
        by: of shape (p,).
        entries: those of the metric Lam: of shape (C,), or (height, width) for metric="pixel"; None where no metric is
            known: W = I - T then.
        metric: which entries these are, a `Metric`.
        geometry: the image, its padding and its pooling.
        gamma: the Lipschitz bound that the metric is meant to prove; None where only well-posedness is meant.

    Raises:
        InvalidInput: if shapes, dtypes or devices do not fit each other.

    Examples:
        A small one is the same function as dense weights.

        >>> weights = lben.ConvLBEN((1, 4, 4), 2, 3, gamma=1.0).weights()
        >>> weights.T.shape, weights.dense().W.shape
        (torch.Size([2, 2, 5, 5]), torch.Size([32, 32]))
    """

    T: Tensor
    U: Tensor
    bz: Tensor
    Wo: Tensor
    by: Tensor
    entries: Tensor | None
    metric: Metric
    geometry: Geometry
    gamma: float | None = None
    options = ("gamma", "metric", "geometry")

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if not isinstance(self.geometry, Geometry):
            raise InvalidInput(f"geometry must be an lben.Geometry, not {self.geometry!r}.")
        for name in ("T", "U", "bz", "Wo", "by"):
            checks.floating(name, getattr(self, name))
        checks.alike(self.tensors())
        C, p = (tensor.shape[-1] if tensor.dim() else 0 for tensor in (self.bz, self.by))
        if min(C, p) < 1:
            raise InvalidInput(f"A network needs channels and outputs, but has {C} and {p} of them.")
        taps, into = (kernel.shape[-1] if kernel.dim() else 0 for kernel in (self.T, self.U))
        if taps % 2 == 0 or into % 2 == 0:
            raise InvalidInput(f"Kernels must be of odd size, so that they have a middle, not {taps} and {into}.")
        (high, wide), pool = self.geometry.shape, self.geometry.pool
        expected = {
            "T": (C, C, taps, taps),
            "U": (C, self.geometry.in_shape[0], into, into),
            "bz": (C,),
            "Wo": (p, C, high // pool, wide // pool),
            "by": (p,),
            "entries": (high, wide) if self.metric == "pixel" else (C,),
        }
        checks.shapes(self.tensors(), expected)
        if self.gamma is not None:
            checks.positive("gamma", self.gamma)

    @property
    def lam(self) -> Tensor | None:
        """The diagonal of Lambda, shape (n,); None where none is known."""
        if self.entries is None:
            return None
        if self.metric == "pixel":
            return self.entries.reshape(-1).repeat_interleave(self.channels)
        return self.entries.repeat(self.geometry.pixels)

    def metric_entries(self) -> Tensor:
        """The entries of the metric.

        Returns:
            Ones where none is known.
        """
        return torch.ones_like(self.bz) if self.entries is None else self.entries

    def metric_diagonal(self) -> Tensor:
        """The diagonal of Lambda.

        Returns:
            Of shape (n,); ones where none is known.
        """
        lam = self.lam
        return self.bz.new_ones(self.hidden_features) if lam is None else lam

    @property
    def output(self) -> Tensor:
        """Wo as a matrix, shape (p, n)."""
        return self.geometry.spread(self.Wo)

    @property
    def rho(self) -> float:
        """1/(2 gamma), or 0 without one."""
        return 0.0 if self.gamma is None else 0.5 / self.gamma

    def inject(self, x: Tensor) -> Tensor:
        return self.geometry.inject(x, self.U, self.bz)

    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        return self.geometry.readout(z, self.Wo, self.by)

    def operator(self, *, monotonicity_bound: float | None = None) -> FourierOperator | PixelOperator:
        """W as an operator in its metric.

        Args:
            monotonicity_bound: a lower bound of m that is known already.

        Returns:
            What solvers take.
        """
        shape, bounded = self.geometry.shape, self.gamma is not None
        if self.metric == "pixel" and self.lam is not None:
            return PixelOperator(
                self.T,
                shape,
                self.lam,
                G=gram(self.U) if bounded else None,
                Wo=self.output if bounded else None,
                rho=self.rho,
                monotonicity_bound=monotonicity_bound,
            )
        lam = self.metric_entries()
        kernel = -self.T / lam[:, None, None, None]
        P = Q = None
        if bounded:
            kernel = add_kernels(kernel, -self.rho * gram(self.U) * lam[:, None, None])
            Q = self.output
            P = (-self.rho * Q / lam.repeat(self.geometry.pixels)).T
        kernel = add_kernels(kernel, identity_kernel(kernel))
        return FourierOperator(kernel, shape, self.entries, P=P, Q=Q, monotonicity_bound=monotonicity_bound)

    def dense(self) -> Weights:
        """The same weights as matrices, for small networks.

        Returns:
            A `Weights`.

        Raises:
            InvalidInput: if W would have more than 2^26 entries.
        """
        n = self.hidden_features
        if n**2 > _LARGEST_DENSE:
            raise InvalidInput(f"A dense W would have {n} x {n} entries: use the convolutional weights as they are.")
        eye = torch.eye(n, dtype=self.T.dtype, device=self.T.device)
        operator: Operator = self.operator()
        W = operator.affine(eye, torch.zeros_like(eye)).T
        images = torch.eye(self.in_features, dtype=self.T.dtype, device=self.T.device)
        U = self.geometry.inject(images, self.U, None).T
        bz = self.bz.repeat(self.geometry.pixels)
        return Weights(W, U, bz, self.output, self.by, self.lam, self.gamma)

    def symbols(self) -> tuple[Tensor, Tensor, Grid]:
        """T and U at every frequency, complex.

        Returns:
            Tensors of shape (frequencies, C, C) and (frequencies, C, c), and the grid of frequencies.
        """
        grid = Grid(*self.geometry.shape, self.T)
        return torch.complex(*grid.symbol(self.T)), torch.complex(*grid.symbol(self.U)), grid


def check_metric(metric: Metric) -> Metric:
    """`metric` if it is the name of one."""
    if not isinstance(metric, str) or metric not in get_args(Metric):
        raise InvalidInput(f'metric must be "channel", "pixel" or "identity", not {metric!r}.')
    return metric


def identity_kernel(like: Tensor) -> Tensor:
    """The 1 x 1 kernel of the identity."""
    return torch.eye(len(like), dtype=like.dtype, device=like.device)[:, :, None, None]


def add_kernels(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two kernels of odd sizes."""
    size = max(one.shape[-1], other.shape[-1])
    grown = [F.pad(k, ((size - k.shape[-1]) // 2,) * 4) for k in (one, other)]
    return grown[0] + grown[1]
