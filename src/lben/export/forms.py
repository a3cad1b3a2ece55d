"""What an exported equilibrium is made of, one form a kind of weights: U x + bz, W z, Wo z + D x + by, and C."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor, nn

from lben.activations.base import Scalar
from lben.activations.scalar import PerUnit
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.verified import norm_above
from lben.errors import InvalidInput
from lben.export.contraction import MatrixStep, Step, best_step, contraction, metric_norm, slack
from lben.export.domains import UP
from lben.export.fourier import FourierStep, Spectrum, Transformed
from lben.export.images import Injected, ReadOut, kernel_norm, kernel_terms
from lben.export.parts import Affine, Product
from lben.export.prox import free_step
from lben.numerics.enclosed import EPS, TINY, Enclosed
from lben.operators.fourier import FourierOperator
from lben.weights.convolutional import ConvWeights
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights

MOST_UNITS = 500  # of an equilibrium of images that is exported as a matrix


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
        return Injected(w.U, w.bz, w.geometry.in_shape, w.geometry.padding)

    def out(self) -> nn.Module:
        return Affine(self.weights.output, self.weights.by)

    @property
    def into_norm(self) -> float:
        return kernel_norm(self.weights.U, self._root)

    @property
    def _root(self) -> Tensor:
        """Of the metric, one entry a channel: its largest where it has one a pixel."""
        root = self.weights.metric_entries().sqrt()
        return root.max().expand(self.weights.channels) if self.weights.metric == "pixel" else root

    @property
    def into_terms(self) -> tuple[float, int]:
        w = self.weights
        return kernel_terms(w.U, self._root, torch.ones(w.U.shape[1], dtype=torch.float64), w.geometry.shape)

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
        return Injected(w.U, w.bz, w.in_shape, w.padding, inner=w.inner)

    def out(self) -> nn.Module:
        return ReadOut(self.weights)

    @property
    def into_norm(self) -> float:
        return kernel_norm(self.weights.U, self.weights.metric_entries().sqrt())

    @property
    def into_terms(self) -> tuple[float, int]:
        w = self.weights
        return kernel_terms(w.U, w.metric_entries().sqrt(), torch.ones(w.in_shape[0], dtype=torch.float64), w.shape)

    @property
    def out_terms(self) -> tuple[float, float, int]:
        w, ones = self.weights, torch.ones(len(self.weights.by), dtype=torch.float64)
        out, count = kernel_terms(w.Wo, ones, w.metric_entries().sqrt(), w.shape)
        if w.D is None:
            return out, 0.0, count
        past, more = kernel_terms(w.D, ones, torch.ones(w.in_shape[0], dtype=torch.float64), w.shape)
        return out, past, count + more

    @cached_property
    def W(self) -> Enclosed:
        return Enclosed.exact(self.weights.dense().W)  # every entry is one of the kernel's

    @cached_property
    def W_terms(self) -> float:
        return 0.0 if self.weights.W is None else super().W_terms

    def layers(self) -> tuple[tuple[int, int], ...] | None:
        return ((0, self.units),) if self.weights.W is None else None


class Large(Form):
    """An equilibrium of many units, of which W is never a matrix."""

    @cached_property
    def spectrum(self) -> Spectrum:
        operator, w = self.subject.operator, self.subject.weights
        assert isinstance(operator, FourierOperator)
        assert isinstance(w, ConvWeights | ImageWeights)
        kernel, *rest = operator.tensors
        P, Q = rest or (None, None)
        shape, wrong = (w.shape, 0.0) if isinstance(w, ImageWeights) else (w.geometry.shape, _made_wrong(w, P, Q))
        return Spectrum(kernel, P, Q, shape, w.metric_entries(), wrong)

    @cached_property
    def alpha(self) -> float:
        if not free_step(self.subject.activation):
            return 1.0
        return best_step(self.spectrum.slack, self.guess(), self.units)

    @cached_property
    def rho(self) -> float:
        return self.spectrum.contraction(self.alpha)

    def step(self, dtype: torch.dtype) -> Step:
        return FourierStep(self.spectrum, self.alpha, self.rho, dtype)

    def product(self) -> nn.Module:
        found = self.spectrum
        return Transformed(found.grid, found.grid.blocks(found.kernel), found.P, found.Q)


class LargeConvForm(Large, ConvForm):
    pass


class LargeImageForm(Large, ImageForm):
    pass


def _made_wrong(w: ConvWeights, P: Tensor | None, Q: Tensor | None) -> float:
    """A bound on what rounding has changed in W, in the metric, when it was made of T, U and Wo."""
    lam = w.metric_entries()
    root = lam.sqrt()
    sums, into = w.T.abs().sum(dim=(2, 3)), w.U.abs().sum(dim=(2, 3))
    terms = sums / lam[:, None] + w.rho * (into @ into.T) * lam + torch.eye(len(lam), dtype=torch.float64)
    count = 8 * (w.U[0].numel() + 16)
    lost = metric_norm(count * (EPS * terms + TINY), root, root)
    if P is None or Q is None:
        return lost * UP
    wide = root.repeat(w.geometry.pixels)
    sizes = [float(torch.linalg.matrix_norm(part)) for part in (wide[:, None] * P, Q / wide)]
    return (lost + 16 * EPS * sizes[0] * sizes[1]) * UP


def form_of(subject: EquilibriumSubject, name: str) -> Form:
    """The form of the kind of these weights; raises InvalidInput where a W is too large for a matrix, and no other."""
    w = subject.weights
    if isinstance(w, Weights):
        return DenseForm(subject)
    image = isinstance(w, ImageWeights)
    small: Form = ImageForm(subject) if image else ConvForm(subject)
    if small.layers() is not None or small.units <= MOST_UNITS:
        return small
    if not isinstance(subject.operator, FourierOperator):
        raise InvalidInput(
            f'{name} cannot be exported: without a resolvent in the Fourier domain, as with metric="pixel", it may '
            f"have {MOST_UNITS} units at most, and has {small.units:,}."
        )
    return LargeImageForm(subject) if image else LargeConvForm(subject)
