"""Convolutional weights under examination."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from lben.activations.base import Activation, refuse_blocks
from lben.certify.certificate import BoundSolver, Certificate, Domain, confirmed, known
from lben.certify.channelwise import smallest_gamma
from lben.certify.dense import DenseSubject
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.evaluation import Reach
from lben.certify.frequencies import FAINT, TINY, UNIT, Condition
from lben.certify.subject import Bound, Subject
from lben.certify.verified import decide, exceeds, norm_above, refuted
from lben.errors import InvalidInput, NotWellPosed
from lben.normalize import Normalize
from lben.numerics.enclosed import Verdict
from lben.operators.grid import real_form
from lben.weights.convolutional import ConvWeights
from lben.weights.dense import Weights
from lben.weights.record import Record

_SHARES = (1 - 1e-12, 1 - 1e-10, 1 - 1e-8, 1 - 1e-6, 1 - 1e-3, 0.5)
_LARGEST_IMAGE = 2**20  # hidden units that are convolved directly at once
_DENSE_MOST = 500  # units of which a matrix is quicker than many iterations


@dataclass(frozen=True, eq=False)
class ConvSubject(EquilibriumSubject):
    """Kernels, and a metric of one entry a channel, or a pixel.

    mix: which outputs are meant, as combinations of the network's own, shape (p', p).
    """

    weights: ConvWeights
    mix: Tensor

    @classmethod
    def of(cls, weights: Record, activation: Activation, normalize: Normalize | None) -> ConvSubject:
        assert isinstance(weights, ConvWeights)
        refuse_blocks(activation.groups(weights.hidden_features))
        eye = torch.eye(weights.out_features, dtype=torch.float64)
        return cls(weights.precise(), activation, normalize, eye)

    @property
    def matrices(self) -> Weights:
        raise InvalidInput("This is for dense weights: give it net.weights().dense() of a small convolutional network.")

    def flat(self, x: Tensor) -> Tensor:
        """Images become rows."""
        return super().flat(self.weights.geometry.rows("x", x))

    def _euclidean(self) -> ConvSubject:
        """This subject, with the Euclidean metric where it carries none."""
        if self.weights.entries is not None:
            return self
        return replace(self, weights=replace(self.weights, entries=torch.ones_like(self.weights.bz)))

    def settled(self) -> ConvSubject:
        tried = self._euclidean()
        return tried if tried.monotonicity > 0 else self

    @property
    def has_metric(self) -> bool:
        return self.weights.entries is not None

    @cached_property
    def monotonicity(self) -> float:
        """The largest m a little below an estimate that is proved; zero at most where none above zero is.

        Lam (I - W) + its transpose > 2 m Lam; for metric "pixel" from T + T' > 2 m max(lam), which is more.
        """
        lam = self.weights.metric_entries()
        if self.weights.metric == "pixel":
            condition, lam = self._without_bound(), lam.max().expand_as(self.weights.bz)
        else:
            condition = Condition.of(self.weights, self.mix, lam, None)
        root = lam.rsqrt()
        scaled = replace(condition, D=root[:, None] * condition.D * root, F=root[:, None] * condition.F)
        if not all(bool(torch.isfinite(torch.view_as_real(part)).all()) for part in (scaled.D, scaled.F)):
            return 0.0
        estimate = scaled.margin() / 2
        for share in _SHARES if 0 < estimate < math.inf else ():
            if exceeds(condition, 2 * (share * estimate) * lam):
                return share * estimate
        return min(estimate, 0.0)

    def _without_bound(self) -> Condition:
        """T + T': Condition `W` but for terms that are positive semidefinite."""
        one = torch.ones_like(self.weights.bz)
        return Condition.of(replace(self.weights, entries=one, metric="identity", gamma=None), self.mix, one, None)

    def check(self, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain) -> Certificate:
        scale, own = self.scale_of(domain), self.weights.gamma
        if gamma is None and own is not None:
            gamma = in_domain(own, scale)
        subject = self._euclidean()
        if subject.weights.metric == "pixel":
            if lam is not None:
                raise InvalidInput('lam cannot be chosen for metric="pixel": its own is the one that can be checked.')
            return subject._check_pixelwise(gamma, rigorous=rigorous, domain=domain)
        entries = subject.weights.metric_entries() if lam is None else channel_entries(subject.weights, lam)
        return subject.check_entries(entries, gamma, rigorous=rigorous, domain=domain)

    def check_entries(self, entries: Tensor, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
        """The certificate for one entry of the metric a channel; gamma is meant in `domain`."""
        below, above = (None, None) if gamma is None else around(gamma, self.scale_of(domain))
        condition = Condition.of(self.weights, self.mix, entries, below)
        if not bool(torch.isfinite(torch.view_as_real(condition.D)).all()):
            raise InvalidInput("The matrix of the condition overflows: the weights or lam are too large.")
        margin = condition.margin()
        lam = entries.repeat(self.weights.geometry.pixels)
        verdict = decide(condition)
        if verdict == "fails" and above != below:
            sure = refuted(Condition.of(self.weights, self.mix, entries, above))
            verdict = verdict if sure else "undecided"
        method = "Cholesky factors of frequency blocks, with a bound of every rounding error"
        if gamma is not None and self.weights.geometry.padding:
            verdict = "undecided" if verdict == "fails" else verdict
            method += "; the zeros around the image count as inputs, which can only lower the margin"
        return Certificate(verdict, gamma, margin, lam, domain, method, rigorous)

    def _check_pixelwise(self, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
        """T + T' + (1/own gamma - 1/gamma) (Wo'Wo + Lam U U' Lam): the second term is bounded by its norm, from above.

        At the network's own gamma it vanishes, and the margin is exact; `method` says how much is given away elsewhere.
        """
        w = self.weights
        blocks, lam = self._without_bound(), w.metric_diagonal()
        share = Fraction(0) if w.gamma is None else 1 / Fraction(w.gamma)
        if gamma is not None:
            share -= 1 / (Fraction(gamma) * Fraction(self.scale_of(domain)))
        slack = float(abs(share)) * _input_output_norm(w, lam) * (1 + 1e-9)
        taken = slack if share < 0 else 0.0
        margin = blocks.margin() - taken
        verdict: Verdict = "holds" if exceeds(blocks, taken) else "undecided"
        padded = gamma is not None and w.geometry.padding > 0
        if verdict == "undecided" and share == 0 and not padded and refuted(blocks):
            verdict = "fails"
        method = f"frequency blocks; the margin is a lower bound, at most {slack:.3g} below the smallest eigenvalue"
        return Certificate(verdict, gamma, margin, lam, domain, method, rigorous)

    def tightest(self, *, solver: BoundSolver, rigorous: bool, domain: Domain) -> Certificate:
        """To half a per cent, over all metrics with one entry a channel."""
        if solver != "barrier":
            raise InvalidInput(f'solver must be "barrier" for a convolutional network, not {solver!r}.')
        return self._tightest(None, rigorous=rigorous, domain=domain)

    def _tightest(self, multiples_of: Tensor | None, *, rigorous: bool, domain: Domain) -> Certificate:
        """multiples_of: one metric, shape (C,); only its multiples are searched then, in a tenth of the time."""
        subject, scale = self._euclidean(), self.scale_of(domain)
        w = subject.weights
        if w.metric == "pixel":
            raise InvalidInput(
                'tightest_bound has no method for metric="pixel": lben.certify(net, gamma) checks a gamma, '
                'lben.product_bound(net) needs none, and metric="channel" or "identity" can be searched.'
            )
        entries, gamma, finished = smallest_gamma(w, self.mix, multiples_of)
        name = "small programs over metrics with one entry a channel"
        name += ", within half a per cent of the smallest" if finished else ", which may not be the smallest"
        name += " for inputs around the image, too" if finished and w.geometry.padding > 0 else ""
        return confirmed(
            gamma, name, lambda g: subject.check_entries(entries, g / scale, rigorous=rigorous, domain=domain)
        )

    def product_bound(self) -> float:
        """For metric "pixel" with Lam <= max(lam)."""
        subject = self._euclidean()
        w, m = subject.weights, subject.monotonicity
        if not m > 0:
            raise NotWellPosed(
                f"No bound is known for these weights: in their metric I - W is not proved monotone (m = {m:.6g}).",
                2 * m,
            )
        if not (bool(w.U.any()) and bool(w.Wo.any())):
            return 0.0
        entries = w.metric_entries()
        out = _out_norm(w, self.mix, w.metric_diagonal().sqrt())
        into = _into_norm(w, entries.max().sqrt().expand_as(w.bz) if w.metric == "pixel" else entries.sqrt())
        bound = out * into / m * (1 + 8 * UNIT)
        if not (out * into > TINY and TINY < bound < math.inf):
            raise InvalidInput(f"The bound {out:.3g} * {into:.3g} / {m:.3g} lies beyond the range of double precision.")
        return bound

    def bound(self, near: Bound | None = None) -> Bound:
        """The tightest; of a difference that among the multiples of the whole network's metric.

        For metric "pixel" gamma or the product bound.
        """
        if self.weights.metric != "pixel":
            entries = None if near is None or near.lam is None else channel_entries(self.weights, near.lam)
            certificate = self._tightest(entries, rigorous=False, domain="input")
            return Bound(known(certificate), certificate.lam)
        gamma, product = self.weights.gamma, self.product_bound()
        whole = len(self.mix) == self.weights.out_features
        if gamma is None or not whole or not self.check(gamma, None, rigorous=False, domain="input"):
            return Bound(product, None)
        return Bound(min(gamma, product), None)

    def difference(self, i: int, j: int) -> ConvSubject:
        return replace(self, mix=self.mix[i : i + 1] - self.mix[j : j + 1])

    @property
    def diagonal(self) -> Tensor:
        return self.weights.metric_diagonal()

    @cached_property
    def reach(self) -> Reach:
        return Reach(self.weights.output / self.diagonal.sqrt())

    @property
    def longest(self) -> int:
        w = self.weights
        taps = w.T[0].numel() + 2 * w.U[0].numel() + len(w.U) * w.U[0, 0].numel()
        return taps + w.hidden_features + w.out_features + 64

    @property
    def longest_output(self) -> int:
        return self.weights.hidden_features + 8

    def product(self, z: Tensor, *, absolute: bool) -> Tensor:
        size = max(1, _LARGEST_IMAGE // self.weights.hidden_features)
        return torch.cat([_convolve(self.weights, rows, absolute=absolute) for rows in z.split(size)])

    def injection(self, x: Tensor, *, absolute: bool) -> Tensor:
        w = self.weights
        return w.geometry.inject(x, w.U.abs(), w.bz.abs()) if absolute else w.inject(x)

    def readout(self, z: Tensor, x: Tensor, *, absolute: bool) -> Tensor:
        w = self.weights
        return F.linear(z, w.output.abs(), w.by.abs()) if absolute else w.readout(z, x)

    def searched(self) -> Subject:
        """Of a small network without a resolvent the matrices, which have one."""
        if self.weights.hidden_features > _DENSE_MOST or self.operator.has_resolvent:
            return self
        return DenseSubject(self.weights.dense(), self.activation, self.normalize)


def channel_entries(weights: ConvWeights, lam: Tensor) -> Tensor:
    """The entries of a metric of full size, if it has one a channel."""
    n, C = weights.hidden_features, weights.channels
    if not isinstance(lam, Tensor) or tuple(lam.shape) != (n,):
        raise InvalidInput(f"lam must be a tensor of shape ({n},), not {tuple(getattr(lam, 'shape', ()))}.")
    table = lam.detach().to("cpu", torch.float64).reshape(-1, C)
    if not bool((table == table[0]).all()) or not bool((table > 0).all()) or not bool(torch.isfinite(table).all()):
        raise InvalidInput("lam must be positive, finite and the same at all pixels of a channel.")
    return table[0]


def in_domain(own: float, scale: float) -> float:
    """own/scale, rounded up: no smaller one is proved."""
    gamma = own / scale
    return gamma if Fraction(gamma) * Fraction(scale) >= Fraction(own) else math.nextafter(gamma, math.inf)


def around(gamma: float, scale: float) -> tuple[float, float]:
    """The doubles next to gamma times scale, below and above; that number twice if it is one."""
    near, exact = gamma * scale, Fraction(gamma) * Fraction(scale)
    if not math.isfinite(near) or near == exact:
        return near, near
    return (near, math.nextafter(near, math.inf)) if near < exact else (math.nextafter(near, 0.0), near)


def _input_output_norm(w: ConvWeights, lam: Tensor) -> float:
    """A proved upper bound on |Wo'Wo + Lam U U' Lam|."""
    out = _out_norm(w, torch.eye(w.out_features, dtype=lam.dtype), torch.ones_like(lam))
    into = _into_norm(w, lam.max().expand_as(w.bz))
    return (out**2 + into**2) * (1 + 8 * UNIT) + FAINT


def _out_norm(w: ConvWeights, mix: Tensor, root: Tensor) -> float:
    """A proved upper bound on |mix Wo R^-1|, R = diag(root)."""
    terms = mix.abs() @ w.output.abs() / root
    lost = 4 * (w.out_features + 16) * (UNIT * terms + TINY * (1 + (1 + mix.abs().sum(dim=1))[:, None] / root))
    return norm_above((mix @ w.output / root)[None], float(torch.linalg.matrix_norm(lost)))


def _into_norm(w: ConvWeights, root: Tensor) -> float:
    """A proved upper bound on |R U|, R with one entry a channel."""
    U = root[:, None] * w.symbols()[1]
    terms = root[:, None] * w.U.abs().sum(dim=(2, 3))
    lost = 16 * (w.U[0, 0].numel() + 8) * (UNIT * terms + TINY * (1 + root[:, None]))
    return norm_above(real_form(U.real, U.imag).mT, 2 * float(torch.linalg.matrix_norm(lost)))


def _convolve(w: ConvWeights, z: Tensor, *, absolute: bool) -> Tensor:
    """W z = z - Psi (T + rho Wo'Wo) z - rho U U' Lam z by its definition, without transforms; or with plus signs."""
    T, U, out = (part.abs() if absolute else part for part in (w.T, w.U, w.output))
    sign, lam, shape = (1.0 if absolute else -1.0), w.metric_diagonal(), (len(z), *w.geometry.shape, w.channels)

    def images(rows: Tensor) -> Tensor:
        return rows.reshape(shape).permute(0, 3, 1, 2)

    def rows(images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1).reshape(len(images), w.hidden_features)

    total = rows(_circular(images(z), T))
    if w.gamma is None:
        return z + sign * total / lam
    total = (total + w.rho * F.linear(F.linear(z, out), out.T)) / lam
    back = _circular(images(lam * z), U.transpose(0, 1).flip(2, 3))
    return z + sign * (total + w.rho * rows(_circular(back, U)))


def _circular(images: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(F.pad(images, (kernel.shape[-1] // 2,) * 4, mode="circular"), kernel)
