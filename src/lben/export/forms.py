"""What an exported equilibrium is made of, one form a kind of weights: U x + bz, W z, Wo z + D x + by, and C."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben.activations.base import Scalar
from lben.activations.scalar import PerUnit
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.verified import norm_above
from lben.errors import InvalidInput
from lben.export.contraction import MatrixStep, Step, best_step, contraction, metric_norm, slack
from lben.export.domains import UP
from lben.export.parts import Affine, Product
from lben.export.prox import free_step
from lben.export.stages import Convolved, window, wrapped
from lben.numerics.enclosed import EPS, TINY, Enclosed
from lben.weights.convolutional import ConvWeights
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights

MOST_UNITS = 1500  # of an equilibrium of images that is exported as a matrix


class Form(ABC):
    """The weights of a subject in plain operations, with the norms that an a priori error needs."""

    def __init__(self, subject: EquilibriumSubject) -> None:
        self.subject = subject
        self.lam = subject.diagonal
        self.root = self.lam.sqrt()

    @property
    def units(self) -> int:
        return len(self.lam)

    @abstractmethod
    def into(self) -> nn.Module:
        """x -> U x + bz for rows."""

    @abstractmethod
    def out(self) -> nn.Module:
        """(z, x) -> Wo z + D x + by for rows."""

    @property
    @abstractmethod
    def into_norm(self) -> float:
        """A proved bound on |Lam^(1/2) U|."""

    @property
    @abstractmethod
    def into_terms(self) -> tuple[float, int]:
        """The same of |U|, entry by entry, and how many terms a sum of it has."""

    @property
    @abstractmethod
    def out_terms(self) -> tuple[float, float, int]:
        """Proved bounds on |Wo Lam^(-1/2)| and |D| with their entries so, and how many terms an output has."""

    @cached_property
    def W_terms(self) -> float:
        """A proved bound on |Lam^(1/2) W Lam^(-1/2)| with its entries so."""
        return metric_norm(self.W.mid.abs(), self.root, self.root, self.W.error)

    @cached_property
    def out_norm(self) -> float:
        """A proved bound on |Wo Lam^(-1/2)|."""
        reach = self.subject.reach
        if reach.rows is None:
            return reach.most
        return norm_above(reach.rows[None], 8 * EPS * float(torch.linalg.matrix_norm(reach.rows)))

    @cached_property
    def W(self) -> Enclosed:
        """W as a matrix."""
        eye = torch.eye(self.units, dtype=torch.float64)
        mid, terms = (self.subject.product(eye, absolute=absolute).T for absolute in (False, True))
        return Enclosed(mid.contiguous(), (self.subject.longest * (EPS * terms + TINY)).contiguous())

    def layers(self) -> tuple[tuple[int, int], ...] | None:
        """The blocks of units that can be found one after another; None where z must be solved for."""
        layers, sigma = self.subject.operator.layers, self.subject.activation
        return layers if layers is None or len(layers) == 1 or isinstance(sigma, Scalar | PerUnit) else None

    def product(self) -> nn.Module:
        """(b, z) -> W z + b for rows."""
        return Product(self.W.mid)

    def guess(self) -> float:
        """A step that is worth starting a search from."""
        return self.subject.operator.exact().balanced_step()

    @cached_property
    def alpha(self) -> float:
        """The step with the best contraction; 1 where the activation has no plain proximal operator for others."""
        if not free_step(self.subject.activation):
            return 1.0
        A = self.root[:, None] * (torch.eye(self.units, dtype=torch.float64) - self.W.mid) / self.root
        return best_step(lambda alpha: slack(A, alpha), self.guess(), self.units)

    @cached_property
    def rho(self) -> float:
        """A proved bound on |C|."""
        return contraction(self.W, self.lam, self.alpha)

    def step(self, dtype: torch.dtype) -> Step:
        return MatrixStep(self.W, self.lam, self.alpha, self.rho, dtype)


class DenseForm(Form):
    """Matrices."""

    @property
    def weights(self) -> Weights:
        assert isinstance(self.subject.weights, Weights)
        return self.subject.weights

    def into(self) -> nn.Module:
        return Affine(self.weights.U, self.weights.bz)

    def out(self) -> nn.Module:
        return Affine(self.weights.Wo, self.weights.by, self.weights.D)

    @property
    def into_norm(self) -> float:
        U = self.weights.U
        return metric_norm(U, self.root, torch.ones(U.shape[1], dtype=torch.float64))

    @property
    def into_terms(self) -> tuple[float, int]:
        U = self.weights.U
        return metric_norm(U.abs(), self.root, torch.ones(U.shape[1], dtype=torch.float64)), U.shape[1]

    @property
    def out_terms(self) -> tuple[float, float, int]:
        w, ones = self.weights, torch.ones(len(self.weights.by), dtype=torch.float64)
        past = 0.0 if w.D is None else metric_norm(w.D.abs(), ones, torch.ones(w.in_features, dtype=torch.float64))
        return metric_norm(w.Wo.abs(), ones, self.root), past, self.units + w.in_features

    @cached_property
    def W(self) -> Enclosed:
        return Enclosed.exact(self.weights.W)


class ConvForm(Form):
    """Kernels, and one linear output of averages."""

    @property
    def weights(self) -> ConvWeights:
        assert isinstance(self.subject.weights, ConvWeights)
        return self.subject.weights

    def into(self) -> nn.Module:
        w = self.weights
        return _Inject(w.U, w.bz, w.geometry.in_shape, w.geometry.padding)

    def out(self) -> nn.Module:
        return Affine(self.weights.output, self.weights.by)

    @property
    def into_norm(self) -> float:
        w = self.weights
        root = w.metric_entries().sqrt()
        return kernel_norm(w.U, root.max().expand(len(w.U)) if w.metric == "pixel" else root)

    @property
    def into_terms(self) -> tuple[float, int]:
        return self.into_norm, self.weights.U[0].numel()

    @property
    def out_terms(self) -> tuple[float, float, int]:
        ones = torch.ones(len(self.weights.by), dtype=torch.float64)
        return metric_norm(self.weights.output.abs(), ones, self.root), 0.0, self.units

    def layers(self) -> None:
        return None


class ImageForm(Form):
    """Kernels alone; W may be none."""

    @property
    def weights(self) -> ImageWeights:
        assert isinstance(self.subject.weights, ImageWeights)
        return self.subject.weights

    def into(self) -> nn.Module:
        w = self.weights
        return _Inject(w.U, w.bz, w.in_shape, w.padding, inner=w.inner)

    def out(self) -> nn.Module:
        return _Images(self.weights)

    @property
    def into_norm(self) -> float:
        return kernel_norm(self.weights.U, self.weights.metric_entries().sqrt())

    @property
    def into_terms(self) -> tuple[float, int]:
        return self.into_norm, self.weights.U[0].numel()

    @property
    def out_terms(self) -> tuple[float, float, int]:
        w = self.weights
        ones = torch.ones(len(w.by), dtype=torch.float64)
        past = 0.0 if w.D is None else kernel_norm(w.D, ones)
        count = w.Wo[0].numel() + (0 if w.D is None else w.D[0].numel())
        return metric_norm(w.Wo.abs().sum(dim=(2, 3)), ones, w.metric_entries().sqrt()) * UP, past, count

    @cached_property
    def W(self) -> Enclosed:
        return Enclosed.exact(self.weights.dense().W)  # every entry is one of the kernel's

    @cached_property
    def W_terms(self) -> float:
        return 0.0 if self.weights.W is None else super().W_terms

    def layers(self) -> tuple[tuple[int, int], ...] | None:
        return ((0, self.units),) if self.weights.W is None else None


def form_of(subject: EquilibriumSubject, name: str) -> Form:
    """The form of the kind of these weights."""
    w = subject.weights
    if isinstance(w, Weights):
        return DenseForm(subject)
    form: Form
    if isinstance(w, ImageWeights):
        form = ImageForm(subject)
    else:
        form = ConvForm(subject)
    if form.layers() is None and form.units > MOST_UNITS:
        raise InvalidInput(
            f"{name} cannot be exported: an equilibrium of images has at most {MOST_UNITS} units then, and this one "
            f"has {form.units}."
        )
    return form


def kernel_norm(kernel: Tensor, root: Tensor) -> float:
    """A proved bound on |R U| for a circular convolution U, R with one entry a channel: that of the sums of its taps."""
    return metric_norm(kernel.abs().sum(dim=(2, 3)), root, torch.ones(kernel.shape[1], dtype=torch.float64)) * UP


class Circular(nn.Module):
    """A circular convolution of images (batch, c, *size)."""

    def __init__(self, kernel: Tensor, bias: Tensor | None, size: tuple[int, int]) -> None:
        super().__init__()
        high, wide = kernel.shape[2] - 1, kernel.shape[3] - 1
        above, left = kernel.shape[2] // 2, kernel.shape[3] // 2
        self.size, self.ends = size, (above, high - above, left, wide - left)
        self.kernel = Convolved(kernel, bias, (size[0] + high, size[1] + wide))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.kernel(wrapped(images, self.size, *self.ends))
        return found


class _Inject(nn.Module):
    """U x + bz: zeros around the image, then a circular convolution; hidden units by row, column and channel."""

    def __init__(self, U: Tensor, bz: Tensor, shape: tuple[int, int, int], padding: int, inner: bool = False) -> None:
        super().__init__()
        self.size = (shape[1] + 2 * padding, shape[2] + 2 * padding)
        self.kernel = Circular(U, bz, self.size)
        self.shape, self.padding, self.taken = shape, padding, padding if inner else 0
        kept = [size - 2 * self.taken for size in self.size]
        self.units = len(U) * kept[0] * kept[1]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.kernel(F.pad(x.reshape(-1, *self.shape), (self.padding,) * 4))
        return cropped(hidden, self.size, self.taken).permute(0, 2, 3, 1).reshape(-1, self.units)


class _Images(nn.Module):
    """Wo z + D x + by, from hidden units and rows of images to rows of images."""

    def __init__(self, w: ImageWeights) -> None:
        super().__init__()
        self.kernel = Circular(w.Wo, w.by, w.shape)
        self.past = None if w.D is None else Circular(w.D, None, w.shape)
        self.shape, self.hidden, self.size = w.in_shape, (*w.hidden_shape, w.channels), w.shape
        self.padding, self.inner, self.features = w.padding, w.inner, w.out_features

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        hidden = z.reshape(-1, *self.hidden).permute(0, 3, 1, 2)
        y: Tensor = self.kernel(F.pad(hidden, (self.padding,) * 4) if self.inner else hidden)
        if self.past is not None:
            y = y + self.past(F.pad(x.reshape(-1, *self.shape), (self.padding,) * 4))
        return cropped(y, self.size, self.padding).reshape(-1, self.features)


def cropped(images: Tensor, size: tuple[int, int], padding: int) -> Tensor:
    """Images of a size without their padding."""
    if padding == 0:
        return images
    return window(window(images, 2, padding, size[0] - 2 * padding), 3, padding, size[1] - 2 * padding)
