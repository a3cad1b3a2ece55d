"""Certificates of convolutional networks: every frequency block, then a small Schur complement; nothing dense.

For one entry of the metric a channel the matrix of Condition `lipschitz` is D + F M F', D a convolution and F M F' of
rank at most 2p. For one entry a pixel it is so at the network's own metric and gamma alone; elsewhere it is bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lben.activations import Activation, check_activation, refuse_blocks
from lben.certify.certificate import Certifiable, Certificate, Domain, Subject, Verdict, domain_scale
from lben.certify.verified import decide
from lben.convweights import ConvWeights
from lben.errors import InvalidInput, NotWellPosed
from lben.grid import Grid, complex_form
from lben.spectrum import lowest_eigenvalue, quadratic_factors
from lben.weights import Weights

_UNIT = torch.finfo(torch.float64).eps


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
        scale = None if normalize is None else float(normalize.std.min())
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


@dataclass(frozen=True, eq=False)
class Condition:
    """The matrix that must be positive definite: D + F M F'.

    Shapes: D (frequencies, C, C), F (frequencies, C, r) complex, M (r, r). `terms` has D's entries with every term of
    every sum in absolute value, shape (C, C).
    """

    D: Tensor
    F: Tensor
    M: Tensor
    terms: Tensor
    grid: Grid
    longest: int

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
        D = D + D.mH + (w.rho * (both + both.T) - share * torch.outer(mine, mine)) * G
        sums, into = w.T.abs().sum(dim=(2, 3)), w.U.abs().sum(dim=(2, 3))
        half = ratio[:, None] * sums
        terms = half + half.T + (w.rho * (both + both.T) + share * torch.outer(mine, mine)) * (into @ into.T)
        F, M = Condition._low_rank(subject, grid, ratio, share)
        longest = 2 * (w.T[0, 0].numel() + 2 * w.U[0, 0].numel() + w.U.shape[1]) + 128
        return Condition(D, F, M, terms, grid, longest)

    @staticmethod
    def _low_rank(subject: ConvSubject, grid: Grid, ratio: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """rho (E Wo'Wo + Wo'Wo E) - share O'O, with E = `ratio` the metric relative to that in W, and O = mix Wo."""
        w, mix = subject.weights, subject.mix
        p = w.out_features
        out = complex_form(grid.forward(w.output.T.contiguous()))
        N, eye = mix.T @ mix, torch.eye(p, dtype=torch.float64)
        if bool((ratio == ratio[0]).all()) or w.rho == 0:
            M = 2 * w.rho * float(ratio[0]) * eye - share * N
            return (out, M) if bool((M != 0).any()) else (out[:, :, :0], M[:0, :0])
        M = torch.cat([torch.cat([0 * eye, w.rho * eye], 1), torch.cat([w.rho * eye, -share * N], 1)])
        return torch.cat([ratio[:, None] * out, out], dim=-1), M

    def factors(self) -> tuple[Tensor, Tensor]:
        """F J F' with J = diag(+-1) in place of F M F'."""
        return (self.F, self.M.new_zeros(0)) if self.M.numel() == 0 else quadratic_factors(self.F, self.M)

    def margin(self) -> float:
        """The smallest eigenvalue."""
        return lowest_eigenvalue(self.D, *self.factors(), self.grid.multiplicity)

    def block_error(self) -> float:
        """A bound on what rounding has changed in D, as a norm: entries are sums of known length."""
        return self.longest * _UNIT * float(torch.linalg.matrix_norm(self.terms))

    def column_error(self) -> float:
        """A bound on the relative error of F, from the two products with the matrices of the transform."""
        h, w = self.grid.height, self.grid.width
        return _UNIT * (2 * (h + 8) * math.sqrt(h) + 2 * (2 * w + 8) * math.sqrt(2 * w))

    def rounding(self) -> float:
        """A bound on the error of `margin`, but for what the eigenvalue routine itself loses, which is estimated."""
        size = float(torch.linalg.matrix_norm(self.terms))
        low_rank = 0.0
        if self.M.numel():
            low_rank = float(torch.linalg.vector_norm(self.F)) ** 2 * float(torch.linalg.matrix_norm(self.M))
        return self.block_error() + 16 * len(self.terms) * _UNIT * size + 4 * self.column_error() * low_rank


def certify_convolution(
    subject: ConvSubject, gamma: float | None, lam: Tensor | None, *, rigorous: bool, domain: Domain
) -> Certificate:
    """`certify` for a convolutional network: gamma in `domain`, lam of shape (n,), constant on every channel."""
    scale, own = subject.scale_of(domain), subject.weights.gamma
    if gamma is None and own is not None:
        gamma = own / scale
    subject = subject.with_metric()
    if subject.weights.metric == "pixel":
        if lam is not None:
            raise InvalidInput('lam cannot be chosen for metric="pixel": its own is the one that can be checked.')
        return _check_pixelwise(subject, gamma, rigorous=rigorous, domain=domain)
    entries = subject.weights.metric_entries() if lam is None else channel_entries(subject.weights, lam)
    return check_convolution(subject, entries, gamma, rigorous=rigorous, domain=domain)


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
    at_input = None if gamma is None else gamma * subject.scale_of(domain)
    condition = Condition.of(subject, entries, at_input)
    if not bool(torch.isfinite(torch.view_as_real(condition.D)).all()):
        raise InvalidInput("The matrix of the condition overflows: the weights or lam are too large.")
    margin = condition.margin()
    lam = entries.repeat(subject.weights.geometry.pixels)
    if rigorous:
        verdict = decide(condition)
        method = "Cholesky factors of frequency blocks, with a bound of every rounding error"
    else:
        verdict = _judge(margin, condition.rounding())
        method = "frequency blocks in double precision"
    if gamma is not None and subject.weights.geometry.padding:
        verdict = "undecided" if verdict == "fails" else verdict
        method += "; the zeros around the image count as inputs, which can only lower the margin"
    return Certificate(verdict, gamma, margin, lam, domain, method, rigorous)


def _judge(margin: float, rounding: float) -> Verdict:
    return "holds" if margin > rounding else "fails" if margin < -rounding else "undecided"


def _check_pixelwise(subject: ConvSubject, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
    """T + T' + (1/own gamma - 1/gamma) (Wo'Wo + Lam U U' Lam): the second term is bounded by its norm, from above.

    At the network's own gamma it vanishes and the margin is exact; `method` states how much is given away elsewhere.
    """
    w = subject.weights
    at_input = None if gamma is None else gamma * subject.scale_of(domain)
    convolution = replace(w, entries=torch.ones_like(w.bz), metric="identity", gamma=None)
    blocks = Condition.of(replace(subject, weights=convolution), torch.ones_like(w.bz), None)
    lam = w.metric_diagonal()
    share = (0.0 if w.gamma is None else 1 / w.gamma) - (0.0 if at_input is None else 1 / at_input)
    if abs(share) <= 4 * _UNIT * (2 * w.rho):  # gamma went through another unit and came back
        share = 0.0
    out = float(torch.linalg.eigvalsh(w.output @ w.output.T)[-1])
    norm = out + float(lam.max()) ** 2 * float(torch.linalg.matrix_norm(w.symbols()[1], 2).max()) ** 2
    slack = abs(share) * norm * (1 + 1e-9)
    margin = blocks.margin() - (slack if share < 0 else 0.0)
    rounding = blocks.rounding() + 1e-12 * slack
    verdict: Verdict = "holds" if margin > rounding else "undecided"
    if rigorous and verdict == "holds":
        verdict = decide(blocks, at_least=slack if share < 0 else 0.0)
    elif verdict == "undecided" and share == 0:
        verdict = decide(blocks) if rigorous else _judge(margin, rounding)
    method = f"frequency blocks; the margin is a lower bound, at most {slack:.3g} below the smallest eigenvalue"
    return Certificate(verdict, gamma, margin, lam, domain, method, rigorous)


def convolution_product_bound(subject: ConvSubject) -> float:
    """|Wo Lam^(-1/2)| |Lam^(1/2) U| / m, at the network's input; for metric "pixel" from bounds on each factor."""
    subject = subject.with_metric()
    w = subject.weights
    operator = w.operator()
    m = operator.sure_monotonicity
    if not m > 0:
        raise NotWellPosed(
            f"No bound is known for these weights: in their metric I - W is not monotone (m = {m:.6g}).", 2 * m
        )
    lam = w.metric_diagonal()
    _, U, _ = w.symbols()
    if w.metric == "pixel":
        into = math.sqrt(float(lam.max())) * float(torch.linalg.matrix_norm(U, 2).max())
    else:
        into = float(torch.linalg.matrix_norm(w.metric_entries().sqrt()[:, None] * U, 2).max())
    scaled = (subject.mix @ w.output) / lam.sqrt()
    out = math.sqrt(float(torch.linalg.eigvalsh(scaled @ scaled.T)[-1]))
    return out * into / m * (1 + 1e-12)


def refuse_convolution(net: Certifiable | Weights | ConvWeights | Tensor, what: str) -> None:
    """Say by name that a verb is for dense weights, if it was asked of a convolutional network."""
    if isinstance(net, ConvWeights) or (isinstance(net, nn.Module) and ConvSubject.of(net) is not None):
        raise InvalidInput(
            f"{what} searches the metrics of a dense W: give it net.weights().dense() of a small network, "
            "or use lben.certify(net), which checks a convolutional one."
        )
