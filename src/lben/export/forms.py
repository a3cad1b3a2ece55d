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
from lben.export.stages import Convolved, wrapped
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


class _Inject(nn.Module):
    """U x + bz: zeros around the image, then a circular convolution; hidden units by row, column and channel."""

    def __init__(self, U: Tensor, bz: Tensor, shape: tuple[int, int, int], padding: int, inner: bool = False) -> None:
        super().__init__()
        self.kernel, self.taps = Convolved(U, bz), tuple(U.shape[2:])
        self.shape, self.padding, self.inner = shape, padding, inner

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.kernel(around(F.pad(x.unflatten(1, self.shape), (self.padding,) * 4), *self.taps))
        hidden = cropped(hidden, self.padding if self.inner else 0)
        return hidden.permute(0, 2, 3, 1).flatten(1)


class _Images(nn.Module):
    """Wo z + D x + by, from hidden units and rows of images to rows of images."""

    def __init__(self, w: ImageWeights) -> None:
        super().__init__()
        self.kernel, self.taps = Convolved(w.Wo, w.by), tuple(w.Wo.shape[2:])
        self.past = None if w.D is None else Convolved(w.D, None)
        self.past_taps = (1, 1) if w.D is None else tuple(w.D.shape[2:])
        self.shape, self.hidden, self.padding, self.inner = w.in_shape, (*w.hidden_shape, w.channels), w.padding, w.inner

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        hidden = z.unflatten(1, self.hidden).permute(0, 3, 1, 2)
        hidden = F.pad(hidden, (self.padding,) * 4) if self.inner else hidden
        y = self.kernel(around(hidden, *self.taps))
        if self.past is not None:
            y = y + self.past(around(F.pad(x.unflatten(1, self.shape), (self.padding,) * 4), *self.past_taps))
        return cropped(y, self.padding).flatten(1)


def around(images: Tensor, high: int, wide: int) -> Tensor:
    """Images with what a circular convolution by a kernel of these sides reads beyond their edges."""
    above, left = high // 2, wide // 2
    return wrapped(images, above, high - 1 - above, left, wide - 1 - left)


def cropped(images: Tensor, padding: int) -> Tensor:
    """Images without their padding."""
    if padding == 0:
        return images
    return images[:, :, padding : images.shape[2] - padding, padding : images.shape[3] - padding]

