"""Certificates of convolutional networks: every frequency block, then a small Schur complement; nothing dense.

For one entry of the metric a channel the matrix of Condition `lipschitz` is D + F M F', D a convolution and F M F' of
rank at most 2p. For one entry a pixel it is so at the network's own metric and gamma alone; elsewhere it is bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from lben.activations import Activation, check_activation, refuse_blocks
from lben.certify.certificate import Certifiable, Certificate, Domain, Subject, Verdict, domain_scale
from lben.certify.verified import decide, exceeds, norm_above, refuted
from lben.convweights import ConvWeights
from lben.errors import InvalidInput, NotWellPosed
from lben.grid import Grid, complex_form, real_form
from lben.spectrum import lowest_eigenvalue, quadratic_factors
from lben.weights import Weights

_UNIT = torch.finfo(torch.float64).eps
_TINY = torch.finfo(torch.float64).tiny  # what an underflow may take, at most
_FAINT = 1e-140
_SHARES = (1 - 1e-12, 1 - 1e-10, 1 - 1e-8, 1 - 1e-6, 1 - 1e-3, 0.5)


@dataclass(frozen=True, eq=False)
class ConvSubject:
    """Convolutional weights under examination, in double precision on the CPU.

    mix: which outputs are meant, as combinations of the network's own, shape (p', p).
    scale: the smallest std of `Normalize`, None without one.
    """

    weights: ConvWeights
    mix: Tensor
    scale: float | None

    @staticmethod
    def of(net: object, activation: Activation | None = None) -> ConvSubject | None:
        """The subject that a convolutional network or its weights are; None for everything else."""
        module = isinstance(net, nn.Module) and callable(getattr(net, "weights", None))
        with torch.no_grad():
            weights = net.weights() if module else net  # type: ignore[attr-defined]
        if not isinstance(weights, ConvWeights):
            return None
        if module:
            Subject.refuse(net, activation)
        elif activation is not None:
            units = weights.hidden_features
            refuse_blocks(check_activation(activation, units).groups(units))
        normalize = getattr(net, "normalize", None)
        scale = None if normalize is None else normalize.scale
        weights = weights.detach().validate()
        own: dict[str, Any] = {
            name: tensor.to("cpu", torch.float64, copy=True) for name, tensor in weights.tensors().items()
        }
        weights = replace(weights, **own)
        return ConvSubject(weights, torch.eye(weights.out_features, dtype=torch.float64), scale)

    def scale_of(self, domain: Domain) -> float:
        return domain_scale(self.scale, domain)

    def with_metric(self) -> ConvSubject:
        """This subject, with the Euclidean metric where it carries none."""
        if self.weights.entries is not None:
            return self
        return replace(self, weights=replace(self.weights, entries=torch.ones_like(self.weights.bz)))

    def without_bound(self) -> Condition:
        """T + T': Condition `W` but for terms that are positive semidefinite."""
        one = torch.ones_like(self.weights.bz)
        alone = replace(self.weights, entries=one, metric="identity", gamma=None)
        return Condition.of(replace(self, weights=alone), one, None)

    def sure_monotonicity(self) -> float:
        """The largest m a little below an estimate that is proved; zero at most where none above zero is.

        Lam (I - W) + its transpose > 2 m Lam; for metric "pixel" from T + T' > 2 m max(lam), which is more.
        """
        lam = self.weights.metric_entries()
        if self.weights.metric == "pixel":
            condition, lam = self.without_bound(), lam.max().expand_as(self.weights.bz)
        else:
            condition = Condition.of(self, lam, None)
        root = lam.rsqrt()
        scaled = replace(condition, D=root[:, None] * condition.D * root, F=root[:, None] * condition.F)
        if not all(bool(torch.isfinite(torch.view_as_real(part)).all()) for part in (scaled.D, scaled.F)):
            return 0.0
        estimate = scaled.margin() / 2
        for share in _SHARES if 0 < estimate < math.inf else ():
            if exceeds(condition, 2 * (share * estimate) * lam):
                return share * estimate
        return min(estimate, 0.0)


@dataclass(frozen=True, eq=False)
class Condition:
    """The matrix that must be positive definite: D + F M F'.

    Shapes: D (frequencies, C, C), F (frequencies, C, r) complex, M (r, r). `terms` has D's entries with every term of
    every sum in absolute value, shape (C, C), and `middle` bounds the norm of M with its terms so. `lost` bounds what
    rounding, underflow included, has changed in D's entries.
    """

    D: Tensor
    F: Tensor
    M: Tensor
    terms: Tensor
    middle: float
    lost: Tensor
    grid: Grid

    @staticmethod
    def of(subject: ConvSubject, entries: Tensor, gamma: float | None) -> Condition:
        """For the metric `entries`, one a channel, and a gamma at the network's input; None for Condition `W`."""
        w, mine = subject.weights, entries
        own = w.metric_entries()
        T, U, grid = w.symbols()
        G = U @ U.mH
        share = 0.0 if gamma is None else 1 / gamma
        ratio = mine / own
        both = torch.outer(mine, own)
        D = ratio[:, None] * T
        weight, square = w.rho * (both + both.T), share * torch.outer(mine, mine)
        D = D + D.mH + (weight - square) * G
        sums, into = w.T.abs().sum(dim=(2, 3)), w.U.abs().sum(dim=(2, 3))
        half, reach = ratio[:, None] * sums, into @ into.T
        terms = half + half.T + (weight + square) * reach
        longest = 2 * (w.T[0, 0].numel() + 2 * w.U[0, 0].numel() + w.U.shape[1]) + 128
        # a factor that underflows is off by _TINY, and what multiplies it is among these
        under = 1 + ratio.max() + sums + sums.T + weight + square + (1 + w.rho + share) * reach
        lost = longest * (_UNIT * terms + _TINY * under)
        same = (
            gamma == w.gamma and torch.equal(mine, own) and torch.equal(subject.mix, torch.eye(w.out_features).double())
        )
        F, M, middle = Condition._low_rank(subject, grid, ratio, share)
        if same:  # both terms are one: what cancels in M does so without rounding, and elsewhere its error counts
            F, M = F[:, :, :0], M[:0, :0]
        return Condition(D, F, M, terms, middle, lost, grid)

    @staticmethod
    def _low_rank(subject: ConvSubject, grid: Grid, ratio: Tensor, share: float) -> tuple[Tensor, Tensor, float]:
        """rho (E Wo'Wo + Wo'Wo E) - share O'O, with E = `ratio` the metric relative to that in W, and O = mix Wo.

        E is divided by its largest entry, by which M is multiplied, so that neither factor is larger than it must be.
        """
        w, mix = subject.weights, subject.mix
        p = w.out_features
        out = complex_form(grid.forward(w.output.T.contiguous()))
        N, eye = mix.T @ mix, torch.eye(p, dtype=torch.float64)
        most = float(ratio.max())
        middle = math.sqrt(p) * (2 * w.rho * most + share * float(torch.linalg.matrix_norm(mix)) ** 2)
        if bool((ratio == ratio[0]).all()) or w.rho == 0:
            return out, 2 * w.rho * most * eye - share * N, middle
        side = w.rho * most * eye
        M = torch.cat([torch.cat([0 * eye, side], 1), torch.cat([side, -share * N], 1)])
        return torch.cat([(ratio / most)[:, None] * out, out], dim=-1), M, middle

    def factors(self) -> tuple[Tensor, Tensor]:
        """F J F' with J = diag(+-1) in place of F M F'."""
        return (self.F, self.M.new_zeros(0)) if self.M.numel() == 0 else quadratic_factors(self.F, self.M)

    def margin(self) -> float:
        """The smallest eigenvalue."""
        return lowest_eigenvalue(self.D, *self.factors(), self.grid.multiplicity)

    def scaled(self) -> tuple[Condition, Tensor]:
        """S (D + F M F') S, and the diagonal S of powers of two, one a channel, that gives D a diagonal near one.

        It changes no verdict and, being exact, loses nothing: a metric may spread over many decades.
        """
        halves = [-round(math.log2(term) / 2) if term > 0 else 0 for term in self.terms.diagonal().tolist()]
        S = torch.tensor([math.ldexp(1.0, half) for half in halves], dtype=torch.float64)
        grown = [S[:, None] * part * S for part in (self.D, self.terms, self.lost)]
        return replace(self, D=grown[0], F=S[:, None] * self.F, terms=grown[1], lost=grown[2]), S

    def error(self) -> float:
        """A bound on the norm of all that rounding has changed in D + F M F', where D is near one (see `scaled`).

        F comes of two products with the matrices of the transform, and its factors with J in place of M of a few more;
        what underflow takes from F and M is far below the last term.
        """
        h, w = self.grid.height, self.grid.width
        transform = 2 * (h + 8) * math.sqrt(h) + 2 * (2 * w + 8) * math.sqrt(2 * w)
        columns = float(torch.linalg.vector_norm(self.F)) ** 2 * self.middle
        low_rank = _UNIT * 4 * (transform + 64 * len(self.M) + 8) * columns
        return float(torch.linalg.matrix_norm(self.lost)) + low_rank + _FAINT


def certify_convolution(
    subject: ConvSubject, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain
) -> Certificate:
    """`certify` for a convolutional network: gamma in `domain`, lam of shape (n,), constant on every channel."""
    scale, own = subject.scale_of(domain), subject.weights.gamma
    if gamma is None and own is not None:
        gamma = _in_domain(own, scale)
    subject = subject.with_metric()
    if subject.weights.metric == "pixel":
        if lam is not None:
            raise InvalidInput('lam cannot be chosen for metric="pixel": its own is the one that can be checked.')
        return _check_pixelwise(subject, gamma, rigorous=rigorous, domain=domain)
    entries = subject.weights.metric_entries() if lam is None else channel_entries(subject.weights, lam)
    return check_convolution(subject, entries, gamma, rigorous=rigorous, domain=domain)


def _in_domain(own: float, scale: float) -> float:
    """own/scale, rounded up: no smaller one is proved."""
    gamma = own / scale
    return gamma if Fraction(gamma) * Fraction(scale) >= Fraction(own) else math.nextafter(gamma, math.inf)


def _around(gamma: float, scale: float) -> tuple[float, float]:
    """The doubles next to gamma times scale, below and above; that number twice if it is one."""
    near, exact = gamma * scale, Fraction(gamma) * Fraction(scale)
    if not math.isfinite(near) or near == exact:
        return near, near
    return (near, math.nextafter(near, math.inf)) if near < exact else (math.nextafter(near, 0.0), near)


def channel_entries(weights: ConvWeights, lam: Tensor) -> Tensor:
    """The entries of a metric of full size, if it has one a channel."""
    n, C = weights.hidden_features, weights.channels
    if not isinstance(lam, Tensor) or tuple(lam.shape) != (n,):
        raise InvalidInput(f"lam must be a tensor of shape ({n},), not {tuple(getattr(lam, 'shape', ()))}.")
    table = lam.detach().to("cpu", torch.float64).reshape(-1, C)
    if not bool((table == table[0]).all()) or not bool((table > 0).all()) or not bool(torch.isfinite(table).all()):
        raise InvalidInput("lam must be positive, finite and the same at all pixels of a channel.")
    return table[0]


def check_convolution(
    subject: ConvSubject, entries: Tensor, gamma: float | None, *, rigorous: bool, domain: Domain
) -> Certificate:
    """The certificate for one entry of the metric a channel; gamma is meant in `domain`."""
    below, above = (None, None) if gamma is None else _around(gamma, subject.scale_of(domain))
    condition = Condition.of(subject, entries, below)
    if not bool(torch.isfinite(torch.view_as_real(condition.D)).all()):
        raise InvalidInput("The matrix of the condition overflows: the weights or lam are too large.")
    margin = condition.margin()
    lam = entries.repeat(subject.weights.geometry.pixels)
    verdict = decide(condition)
    if verdict == "fails" and above != below and not refuted(Condition.of(subject, entries, above)):
        verdict = "undecided"
    method = "Cholesky factors of frequency blocks, with a bound of every rounding error"
    if gamma is not None and subject.weights.geometry.padding:
        verdict = "undecided" if verdict == "fails" else verdict
        method += "; the zeros around the image count as inputs, which can only lower the margin"
    return Certificate(verdict, gamma, margin, lam, domain, method, rigorous)


def _check_pixelwise(subject: ConvSubject, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
    """T + T' + (1/own gamma - 1/gamma) (Wo'Wo + Lam U U' Lam): the second term is bounded by its norm, from above.

    At the network's own gamma it vanishes and the margin is exact; `method` states how much is given away elsewhere.
    """
    w = subject.weights
    blocks = subject.without_bound()
    lam = w.metric_diagonal()
    share = Fraction(0) if w.gamma is None else 1 / Fraction(w.gamma)
    if gamma is not None:
        share -= 1 / (Fraction(gamma) * Fraction(subject.scale_of(domain)))
    slack = float(abs(share)) * _input_output_norm(w, lam) * (1 + 1e-9)
    taken = slack if share < 0 else 0.0
    margin = blocks.margin() - taken
    verdict: Verdict = "holds" if exceeds(blocks, taken) else "undecided"
    padded = gamma is not None and w.geometry.padding > 0
    if verdict == "undecided" and share == 0 and not padded and refuted(blocks):
        verdict = "fails"
    method = f"frequency blocks; the margin is a lower bound, at most {slack:.3g} below the smallest eigenvalue"
    return Certificate(verdict, gamma, margin, lam, domain, method, rigorous)


def _input_output_norm(w: ConvWeights, lam: Tensor) -> float:
    """A proved upper bound on |Wo'Wo + Lam U U' Lam|."""
    out = _out_norm(w, torch.eye(w.out_features, dtype=lam.dtype), torch.ones_like(lam))
    into = _into_norm(w, lam.max().expand_as(w.bz))
    return (out**2 + into**2) * (1 + 8 * _UNIT) + _FAINT


def _out_norm(w: ConvWeights, mix: Tensor, root: Tensor) -> float:
    """A proved upper bound on |mix Wo R^-1|, R = diag(root)."""
    terms = mix.abs() @ w.output.abs() / root
    lost = 4 * (w.out_features + 16) * (_UNIT * terms + _TINY * (1 + (1 + mix.abs().sum(dim=1))[:, None] / root))
    return norm_above((mix @ w.output / root)[None], float(torch.linalg.matrix_norm(lost)))


def _into_norm(w: ConvWeights, root: Tensor) -> float:
    """A proved upper bound on |R U|, R with one entry a channel."""
    U = root[:, None] * w.symbols()[1]
    terms = root[:, None] * w.U.abs().sum(dim=(2, 3))
    lost = 16 * (w.U[0, 0].numel() + 8) * (_UNIT * terms + _TINY * (1 + root[:, None]))
    return norm_above(real_form(U.real, U.imag).mT, 2 * float(torch.linalg.matrix_norm(lost)))


def convolution_product_bound(subject: ConvSubject) -> float:
    """|Wo Lam^(-1/2)| |Lam^(1/2) U| / m, at the network's input, proved; for metric "pixel" Lam <= max(lam)."""
    subject = subject.with_metric()
    w = subject.weights
    m = subject.sure_monotonicity()
    if not m > 0:
        raise NotWellPosed(
            f"No bound is known for these weights: in their metric I - W is not proved monotone (m = {m:.6g}).", 2 * m
        )
    if not (bool(w.U.any()) and bool(w.Wo.any())):
        return 0.0
    entries = w.metric_entries()
    out = _out_norm(w, subject.mix, w.metric_diagonal().sqrt())
    into = _into_norm(w, entries.max().sqrt().expand_as(w.bz) if w.metric == "pixel" else entries.sqrt())
    bound = out * into / m * (1 + 8 * _UNIT)
    if not (out * into > _TINY and _TINY < bound < math.inf):
        raise InvalidInput(f"The bound {out:.3g} * {into:.3g} / {m:.3g} lies beyond the range of double precision.")
    return bound


def refuse_convolution(net: Certifiable | Weights | ConvWeights | Tensor, what: str) -> None:
    """Say by name that a verb is for dense weights, if it was asked of a convolutional network."""
    if isinstance(net, ConvWeights) or (isinstance(net, nn.Module) and ConvSubject.of(net) is not None):
        raise InvalidInput(
            f"{what} searches the metrics of a dense W: give it net.weights().dense() of a small network, "
            "or use lben.certify(net), which checks a convolutional one."
        )
