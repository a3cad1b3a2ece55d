"""The explicit weights of an equilibrium layer from images to images of the same size: everything is a convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.errors import InvalidInput
from lben.operators.absent import AbsentOperator
from lben.operators.base import Operator
from lben.operators.fourier import FourierOperator
from lben.operators.grid import Grid
from lben.weights.dense import Weights
from lben.weights.record import Record, image_rows

_LARGEST_DENSE = 2**26  # entries of a W that `dense` is willing to form
_KERNELS = ("W", "U", "Wo", "D")


@dataclass(frozen=True, eq=False)
class ImageWeights(Record):
    """The explicit weights of a layer from images to images of the same size: everything is a convolution.

    ``z = sigma(W z + U x + bz)``, ``y = Wo z + D x + by``, from images (c, h, w) to images (c', h, w). W, U, Wo and D
    are circular convolutions, as `conv2d` computes them, of images of height h + 2 padding and width w + 2 padding:
    zeros are put around x, and y is cropped. A kernel has sides that are odd, or those of the padded image, and the tap
    that does not shift is always the one at [height // 2, width // 2]. Rows of x and y are ordered by channel, row and
    column; hidden units, all those of the padded image, by row, column and channel.

    Args:
        W: a kernel, of shape (C, C, k, l); None is W = 0, an explicit layer. Each kernel has its own k and l.
        U: a kernel, of shape (C, c, k, l).
        bz: one a hidden channel, of shape (C,).
        Wo: a kernel, of shape (c', C, k, l).
        by: one an output channel, of shape (c',).
        in_shape: (c, h, w) of an image.
        padding: how many zeros are put around it on all sides.
        D: a kernel, of shape (c', c, k, l); None is D = 0.
        lam: the entries of the metric Lambda, one a channel, of shape (C,); None where none is known.
        gamma: the Lipschitz bound that lam is meant to prove; None where only well-posedness is meant.
        inner: whether hidden units are those of the image without its padding, which needs W None: they are fewer rows
            and columns of the condition, and what is proved of all is true of them.

    Raises:
        InvalidInput: if shapes, dtypes or devices do not fit each other.

    Examples:
        >>> weights = lben.ConvSLL(2).weights((4, 4))
        >>> weights.W is None, weights.out_shape, weights.gamma
        (True, (2, 4, 4), 1.0)
        >>> bool(lben.certify(weights))
        True
    """

    W: Tensor | None
    U: Tensor
    bz: Tensor
    Wo: Tensor
    by: Tensor
    in_shape: tuple[int, int, int]
    padding: int = 0
    D: Tensor | None = None
    lam: Tensor | None = None
    gamma: float | None = None
    inner: bool = False
    options = ("gamma", "in_shape", "padding", "inner")

    def __post_init__(self) -> None:
        if not isinstance(self.in_shape, tuple | list) or len(self.in_shape) != 3:
            raise InvalidInput(f"in_shape must be (channels, height, width), not {self.in_shape!r}.")
        object.__setattr__(self, "in_shape", tuple(checks.count("Every size in in_shape", s) for s in self.in_shape))
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise InvalidInput(f"padding must be an integer of at least 0, not {self.padding!r}.")
        if checks.flag("inner", self.inner) and self.W is not None:
            raise InvalidInput("inner is for W None: a circular W needs the hidden units in the padding, too.")
        for name in ("U", "bz", "Wo", "by"):
            checks.floating(name, getattr(self, name))
        tensors = self.tensors()
        checks.alike(tensors)
        C, p = (tensor.shape[-1] if tensor.dim() else 0 for tensor in (self.bz, self.by))
        if min(C, p) < 1:
            raise InvalidInput(f"A layer needs hidden and output channels, but has {C} and {p} of them.")
        c = self.in_shape[0]
        expected: dict[str, tuple[int, ...]] = {"bz": (C,), "by": (p,), "lam": (C,)}
        for name, channels in zip(_KERNELS, ((C, C), (C, c), (p, C), (p, c)), strict=True):
            if name in tensors:
                expected[name] = (*channels, *self._taps(name, tensors[name]))
        checks.shapes(tensors, expected)
        if self.gamma is not None:
            checks.positive("gamma", self.gamma)

    def _taps(self, name: str, kernel: Tensor) -> tuple[int, int]:
        """The sides of a kernel, if it may have them."""
        if kernel.dim() != 4:
            raise InvalidInput(f"{name} must be a kernel of four dimensions, but its shape is {tuple(kernel.shape)}.")
        high, wide = kernel.shape[2:]
        for side, size in zip((high, wide), self.shape, strict=True):
            if side != size and (side % 2 == 0 or side > size):
                raise InvalidInput(
                    f"{name} must have sides that are odd and fit into the image, or those of the image, "
                    f"{self.shape[0]} x {self.shape[1]} with its padding, but they are {high} x {wide}."
                )
        return high, wide

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the padded image, and of the hidden layer unless that is `inner`."""
        return self.in_shape[1] + 2 * self.padding, self.in_shape[2] + 2 * self.padding

    @property
    def hidden_shape(self) -> tuple[int, int]:
        """Height and width of the hidden layer."""
        return self.in_shape[1:] if self.inner else self.shape

    @property
    def out_shape(self) -> tuple[int, int, int]:
        return self.out_channels, *self.in_shape[1:]

    @property
    def channels(self) -> int:
        return len(self.bz)

    @property
    def out_channels(self) -> int:
        return len(self.by)

    @property
    def pixels(self) -> int:
        """Of the hidden layer."""
        return self.hidden_shape[0] * self.hidden_shape[1]

    @property
    def in_features(self) -> int:
        return self.in_shape[0] * self.in_shape[1] * self.in_shape[2]

    @property
    def hidden_features(self) -> int:
        return self.channels * self.pixels

    @property
    def out_features(self) -> int:
        return self.out_channels * self.in_shape[1] * self.in_shape[2]

    def metric_entries(self) -> Tensor:
        """The entries of the metric, one a channel.

        Returns:
            Ones where none is known.
        """
        return torch.ones_like(self.bz) if self.lam is None else self.lam

    def metric_diagonal(self) -> Tensor:
        """The diagonal of Lambda.

        Returns:
            Of shape (n,); ones where none is known.
        """
        return self.metric_entries().repeat(self.pixels)

    def operator(self, *, monotonicity_bound: float | None = None) -> Operator:
        """W as an operator in its metric.

        Args:
            monotonicity_bound: a lower bound of m that is known already.

        Returns:
            What solvers take.
        """
        if self.W is None:
            return AbsentOperator(self.hidden_features, None if self.lam is None else self.metric_diagonal())
        return FourierOperator(self.W, self.shape, self.lam, monotonicity_bound=monotonicity_bound)

    def rows(self, name: str, x: Tensor) -> Tensor:
        """Images, or rows of their features, as rows.

        Args:
            name: what an error calls them.
            x: of shape (..., channels, height, width) or (..., features).

        Returns:
            A tensor of shape (..., features).
        """
        return image_rows(name, x, self.in_shape)

    def padded(self, x: Tensor) -> Tensor:
        """Rows x as images, with zeros around them.

        Args:
            x: rows of features.

        Returns:
            Images of shape ``(batch, c, *shape)``.
        """
        return F.pad(x.reshape(len(x), *self.in_shape), (self.padding,) * 4)

    def hidden_images(self, z: Tensor) -> Tensor:
        """Rows z as images.

        Args:
            z: rows of hidden units.

        Returns:
            Images of shape ``(batch, C, *shape)``.
        """
        images = z.reshape(len(z), *self.hidden_shape, self.channels).permute(0, 3, 1, 2)
        return F.pad(images, (self.padding,) * 4) if self.inner else images

    def hidden_rows(self, images: Tensor) -> Tensor:
        """The reverse of `hidden_images`; rows are kept batch by batch in memory, as operators want them.

        Args:
            images: of shape ``(batch, C, *shape)``.

        Returns:
            Rows of hidden units.
        """
        images = self.without_padding(images) if self.inner else images
        return images.permute(0, 2, 3, 1).reshape(len(images), self.hidden_features).T.contiguous().T

    def cropped(self, images: Tensor) -> Tensor:
        """Rows of images without their padding.

        Args:
            images: of shape ``(batch, channels, *shape)``.

        Returns:
            Rows of features.
        """
        return self.without_padding(images).flatten(1)

    def without_padding(self, images: Tensor) -> Tensor:
        """Images without their padding.

        Args:
            images: of shape ``(batch, channels, *shape)``.

        Returns:
            Images of shape (batch, channels, h, w).
        """
        p, (high, wide) = self.padding, self.in_shape[1:]
        return images[:, :, p : p + high, p : p + wide]

    def inject(self, x: Tensor) -> Tensor:
        return self.hidden_rows(circular(self.padded(x), self.U) + self.bz[:, None, None])

    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        return self.outputs(z, x).flatten(1)

    def outputs(self, z: Tensor, x: Tensor) -> Tensor:
        """y as images.

        Args:
            z: rows of hidden units.
            x: rows or images.

        Returns:
            Images of shape ``(batch, *out_shape)``.
        """
        y = circular(self.hidden_images(z), self.Wo) + self.by[:, None, None]
        y = self.without_padding(y if self.D is None else y + circular(self.padded(x), self.D))
        if y.stride(0) != 1:
            return y
        whole = y.permute(2, 3, 1, 0).reshape(-1, len(y)).T.contiguous()  # two quick copies in place of a slow one
        return whole.reshape(len(y), *self.in_shape[1:], -1).permute(0, 3, 1, 2)

    def dense(self) -> Weights:
        """The same weights as matrices, exactly, for small images.

        Returns:
            A `Weights`.

        Raises:
            InvalidInput: if a matrix would have more than 2^26 entries.
        """
        n, d, p = self.hidden_features, self.in_features, self.out_features
        if max(n, d, p) ** 2 > _LARGEST_DENSE:
            raise InvalidInput(f"A dense W would have {n} x {n} entries: use the convolutional weights as they are.")
        units, inputs = (torch.eye(k, dtype=self.U.dtype, device=self.U.device) for k in (n, d))
        U = self.hidden_rows(direct(self.padded(inputs), self.U)).T
        Wo = self.cropped(direct(self.hidden_images(units), self.Wo)).T
        D = None if self.D is None else self.cropped(direct(self.padded(inputs), self.D)).T
        W = torch.zeros_like(units)
        if self.W is not None:
            W = self.hidden_rows(direct(self.hidden_images(units), self.W)).T
        lam = None if self.lam is None else self.metric_diagonal()
        by = self.by.repeat_interleave(p // self.out_channels)
        return Weights(W, U, self.bz.repeat(self.pixels), Wo, by, lam, self.gamma, D)


def by_transform(kernel: Tensor, shape: tuple[int, int]) -> bool:
    """Whether `circular` works in the Fourier domain: where that takes fewer products, which is so of many channels."""
    out, into, high, wide = kernel.shape
    return (into + out) * (shape[0] + 2 * shape[1]) + 2 * into * out < high * wide * into * out


def circular(images: Tensor, kernel: Tensor) -> Tensor:
    """A circular convolution of images (batch, in, height, width), as `conv2d` computes it, by a kernel whose middle
    is at [k // 2, l // 2].

    In the Fourier domain images are kept as `Grid` has them, and what comes from there or goes there is not copied.
    """
    batch, _, high, wide = images.shape
    if not by_transform(kernel, (high, wide)):
        return direct(images, kernel)
    grid = Grid(high, wide, kernel)
    columns = images.permute(0, 2, 3, 1).flatten(1).T.contiguous()
    moved = grid.convolve(grid.blocks(kernel), columns)
    return moved.T.reshape(batch, high, wide, len(kernel)).permute(0, 3, 1, 2)


def direct(images: Tensor, kernel: Tensor) -> Tensor:
    """The same by its definition, without transforms."""
    above, left = kernel.shape[2] // 2, kernel.shape[3] // 2
    below, right = kernel.shape[2] - 1 - above, kernel.shape[3] - 1 - left
    return F.conv2d(F.pad(images, (left, right, above, below), mode="circular"), kernel)
