"""The weights of a layer from images to images under examination."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lben.activations.base import Activation, refuse_blocks
from lben.certify.certificate import BoundSolver, Certificate, Domain, confirmed, known
from lben.certify.convolutional import around, in_domain
from lben.certify.dense import DenseSubject
from lben.certify.dominance import dominated
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.evaluation import Reach
from lben.certify.frequencies import TINY, UNIT
from lben.certify.image_condition import condition, norm_of, smallest_gamma, sums
from lben.certify.subject import Bound
from lben.certify.verified import decide, exceeds, refuted
from lben.errors import InvalidInput, NotWellPosed
from lben.normalize import Normalize
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights, by_transform, circular
from lben.weights.record import Record

_SHARES = (1 - 1e-12, 1 - 1e-10, 1 - 1e-8, 1 - 1e-6, 1 - 1e-3, 0.5)
_DENSE_MOST = 200  # units whose matrices are searched in seconds
_ROOT_TWO = math.nextafter(math.sqrt(2), 2)
_METHOD = "Cholesky factors of frequency blocks, with a bound of every rounding error"
_QUICK = "diagonal dominance for every image size, with a bound of every rounding error"


@dataclass(frozen=True, eq=False)
class ImageSubject(EquilibriumSubject):
    """Kernels, and a metric of one entry a channel.

    pair: two outputs whose difference is meant, in place of all outputs; None for all of them.
    """

    weights: ImageWeights
    pair: tuple[int, int] | None = None

    @classmethod
    def of(cls, weights: Record, activation: Activation, normalize: Normalize | None) -> ImageSubject:
        assert isinstance(weights, ImageWeights)
        refuse_blocks(activation.groups(weights.hidden_features))
        return cls(weights.precise(), activation, normalize)

    @property
    def matrices(self) -> Weights:
        raise InvalidInput("This is for dense weights: give it the dense() of a small layer's weights.")

    def flat(self, x: Tensor) -> Tensor:
        """Images become rows."""
        return super().flat(self.weights.rows("x", x))

    @property
    def small(self) -> DenseSubject | None:
        """The same as matrices, where those are so small that more is known of them; else None."""
        w = self.weights
        if max(w.hidden_features, w.in_features, w.out_features) > _DENSE_MOST:
            return None
        return DenseSubject(self._euclidean().weights.dense(), self.activation, self.normalize)

    def _euclidean(self) -> ImageSubject:
        """This subject, with the Euclidean metric where it carries none."""
        if self.weights.lam is not None:
            return self
        return replace(self, weights=replace(self.weights, lam=torch.ones_like(self.weights.bz)))

    def settled(self) -> ImageSubject:
        tried = self._euclidean()
        return tried if tried.monotonicity > 0 else self

    @property
    def has_metric(self) -> bool:
        return self.weights.lam is not None

    @cached_property
    def monotonicity(self) -> float:
        """The largest m a little below an estimate that is proved; zero at most where none above zero is."""
        if self.weights.W is None:
            return 1.0
        lam = self.weights.metric_entries()
        matrix = condition(self.weights, lam, None)
        root = lam.rsqrt()
        scaled = replace(matrix, D=root[:, None] * matrix.D * root)
        if not bool(torch.isfinite(torch.view_as_real(scaled.D)).all()):
            return 0.0
        estimate = scaled.margin() / 2
        for share in _SHARES if 0 < estimate < math.inf else ():
            if exceeds(matrix, 2 * (share * estimate) * lam):
                return share * estimate
        return min(estimate, 0.0)

    def check(self, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain) -> Certificate:
        own = self.weights.gamma
        if gamma is None and own is not None:
            gamma = in_domain(own, self.scale_of(domain))
        entries = self.weights.metric_entries() if lam is None else self._entries(lam)
        return self.check_entries(entries, gamma, rigorous=rigorous, domain=domain)

    def _entries(self, lam: Tensor) -> Tensor:
        """The entries of a user's metric of full size, if it has one a channel."""
        w = self.weights
        if not isinstance(lam, Tensor) or tuple(lam.shape) != (w.hidden_features,):
            found = tuple(getattr(lam, "shape", ()))
            raise InvalidInput(f"lam must be a tensor of shape ({w.hidden_features},), not {found}.")
        table = lam.detach().to("cpu", torch.float64).reshape(-1, w.channels)
        if not bool(((table == table[0]) & (table > 0) & torch.isfinite(table)).all()):
            raise InvalidInput("lam must be positive, finite and the same at all pixels of a channel.")
        return table[0]

    def check_entries(self, entries: Tensor, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
        """The certificate for one entry of the metric a channel; gamma is meant in `domain`."""
        w = self.weights
        below, above = (None, None) if gamma is None else around(gamma, self.scale_of(domain))
        method, given_away = _METHOD, gamma is not None and (w.padding > 0 or self.pair is not None)
        if self.pair is not None and below is not None:
            below = below / _ROOT_TWO * (1 - 4 * UNIT)
            method += "; a difference of two outputs moves at most sqrt(2) times as far as all of them"
        matrix = condition(w, entries, below)
        if not bool(torch.isfinite(torch.view_as_real(matrix.D)).all()):
            raise InvalidInput("The matrix of the condition overflows: the weights or lam are too large.")
        quick = below is not None and dominated(w, entries, below)
        verdict = "holds" if quick else decide(matrix)
        method = method.replace(_METHOD, _QUICK) if quick else method
        if verdict == "fails" and (given_away or (above != below and not refuted(condition(w, entries, above)))):
            verdict = "undecided"
        if gamma is not None and w.padding > 0:
            method += "; what lies around the image counts as input and output, which can only lower the margin"
        return Certificate(verdict, gamma, matrix.margin(), entries.repeat(w.pixels), domain, method, rigorous)

    def tightest(self, *, solver: BoundSolver, rigorous: bool, domain: Domain) -> Certificate:
        """Over all metrics with one entry a channel; of a small layer with zeros around its images, one a unit.

        Without padding no other metric does better: every shift of one proves the same, and so does their mean.
        """
        if solver != "barrier":
            raise InvalidInput(f'solver must be "barrier" for a convolutional layer, not {solver!r}.')
        small = self.small
        if small is not None and (self.weights.padding > 0 or self.pair is not None):
            found = small if self.pair is None else small.difference(*self.pair)
            return found.tightest(solver=solver, rigorous=rigorous, domain=domain)
        entries, gamma, finished = smallest_gamma(self.weights)
        gamma = gamma if self.pair is None else gamma * _ROOT_TWO
        name = "barrier method over metrics with one entry a channel, a few frequencies at a time"
        name += ", within 0.1 per cent of the smallest" if finished else ", which may not be the smallest"
        scale = self.scale_of(domain)
        return confirmed(
            gamma, name, lambda g: self.check_entries(entries, g / scale, rigorous=rigorous, domain=domain)
        )

    def product_bound(self) -> float:
        w, m = self.weights, self.monotonicity
        if not m > 0:
            raise NotWellPosed(
                f"No bound is known for these weights: in their metric I - W is not proved monotone (m = {m:.6g}).",
                2 * m,
            )
        past = 0.0
        if w.D is not None:
            past = norm_of(w, w.D, torch.ones_like(w.by), torch.ones(w.in_shape[0], dtype=torch.float64))
        root = w.metric_entries().sqrt()
        into = norm_of(w, w.U, root, torch.ones(w.in_shape[0], dtype=torch.float64)) if bool(w.U.any()) else 0.0
        out = self.reach.norm if bool(w.Wo.any()) else 0.0
        bound = (out * into / m * (1 + 8 * UNIT) + past) * (1 + 4 * UNIT)
        if out * into == 0 and not (bool(w.U.any()) and bool(w.Wo.any())):
            return bound if past > 0 else 0.0
        if not (out * into > TINY and TINY < bound < math.inf):
            raise InvalidInput(f"The bound {out:.3g} * {into:.3g} / {m:.3g} lies beyond the range of double precision.")
        return bound if self.pair is None else bound * _ROOT_TWO * (1 + 4 * UNIT)

    def bound(self, near: Bound | None = None) -> Bound:
        """The tightest; of a difference of outputs sqrt(2) times that of all of them, unless the layer is small."""
        if self.pair is not None and near is not None and self.small is None:
            return Bound(near.gamma * _ROOT_TWO * (1 + 4 * UNIT), None)
        certificate = self.tightest(solver="barrier", rigorous=False, domain="input")
        return Bound(known(certificate), certificate.lam)

    def difference(self, i: int, j: int) -> ImageSubject:
        return replace(self, pair=(i, j))

    @property
    def diagonal(self) -> Tensor:
        return self.weights.metric_diagonal()

    @cached_property
    def reach(self) -> Reach:
        w = self.weights
        return Reach(None, norm_of(w, w.Wo, torch.ones_like(w.by), w.metric_entries().rsqrt()))

    @property
    def longest(self) -> int:
        w = self.weights
        return 16 + sum(_roundings(kernel, w.shape) for kernel in (w.W, w.U) if kernel is not None)

    @property
    def longest_output(self) -> int:
        w = self.weights
        return 16 + sum(_roundings(kernel, w.shape) for kernel in (w.Wo, w.D) if kernel is not None)

    def product(self, z: Tensor, *, absolute: bool) -> Tensor:
        w = self.weights
        if w.W is None:
            return torch.zeros_like(z)
        return w.hidden_rows(_convolved(w.hidden_images(z), w.W, absolute))

    def injection(self, x: Tensor, *, absolute: bool) -> Tensor:
        w = self.weights
        bz = w.bz.abs() if absolute else w.bz
        return w.hidden_rows(_convolved(w.padded(x), w.U, absolute) + bz[:, None, None])

    def readout(self, z: Tensor, x: Tensor, *, absolute: bool) -> Tensor:
        w = self.weights
        y = _convolved(w.hidden_images(z), w.Wo, absolute) + (w.by.abs() if absolute else w.by)[:, None, None]
        return w.cropped(y if w.D is None else y + _convolved(w.padded(x), w.D, absolute))


def _convolved(images: Tensor, kernel: Tensor, absolute: bool) -> Tensor:
    """A circular convolution; or what bounds all its terms, and the result for every input that is not larger.

    Of a transform only the norm of its error is bounded. Each of its stages is an isometry but for the kernel, so that
    it is at most what `_roundings` counts times |E| |K| |x|, |E| the norm of a stage with its entries taken absolute.
    """
    if not absolute:
        return circular(images, kernel)
    high, wide = images.shape[2:]
    if not by_transform(kernel, (high, wide)):
        return circular(images, kernel.abs())
    stages = 2 * math.sqrt(2 * high + 4) + 4 * math.sqrt(wide) + 4
    sizes = torch.linalg.vector_norm(images.flatten(1), dim=1) * (1 + images.shape[1:].numel() * UNIT)
    most: Tensor = stages * float(torch.linalg.matrix_norm(sums(kernel))) * sizes + TINY / UNIT
    return most[:, None, None, None].expand(len(images), len(kernel), high, wide)


def _roundings(kernel: Tensor, shape: tuple[int, int]) -> int:
    """How many roundings any term of a convolution goes through, at most."""
    taps, channels = kernel[0, 0].numel(), kernel.shape[1]
    if by_transform(kernel, shape):
        return taps + 2 * channels + 2 * shape[0] + 4 * shape[1] + 128
    return taps * channels + 8
