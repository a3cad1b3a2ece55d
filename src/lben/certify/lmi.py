"""Conditions `lipschitz` and `W` checked for given weights, and the bound that needs no search."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lben import checks
from lben.activations import Activation
from lben.certify.certificate import Certifiable, Certificate, Domain, Subject, check, confirmed
from lben.certify.convolution import ConvSubject, certify_convolution, convolution_product_bound
from lben.certify.enclosed import EPS
from lben.certify.numerics import undisturbed
from lben.certify.sdp import tightest
from lben.certify.wellposed import best_metric
from lben.convweights import ConvWeights
from lben.errors import InvalidInput, NotWellPosed
from lben.operators import DenseOperator
from lben.weights import Weights, check_constant


@undisturbed
def certify(
    net: Certifiable | Weights | ConvWeights,
    gamma: float | None = None,
    *,
    lam: Tensor | None = None,
    rigorous: bool = False,
    domain: Domain = "input",
    activation: Activation | None = None,
) -> Certificate:
    """Check Condition `lipschitz` from the explicit weights alone, in double precision.

    gamma: the bound to check, in `domain`; else the one the weights carry; else Condition `W` is checked instead.
    lam: the diagonal of the metric, shape (n,), as a certificate has it; else the one the weights carry, at its own
        scale; else the best that is found. `tightest_bound` searches all metrics.
    rigorous: account for every rounding error, by ball arithmetic (extra `sdp`); for a convolutional network by bounds
        on all of them, which needs no extra.
    domain: where distances between inputs are measured, the network's input or pixels before its `Normalize`.
    activation: for bare weights: ReLU if not given.
    """
    if gamma is not None:
        gamma = checks.positive("gamma", gamma)
    checks.flag("rigorous", rigorous)
    if lam is not None:
        checks.there("lam", checks.floating("lam", lam))
    convolution = ConvSubject.of(net, activation)
    if convolution is not None:
        return certify_convolution(convolution, gamma, lam, rigorous=rigorous, domain=domain)
    subject = Subject.of(net, activation)
    scale = subject.scale_of(domain)
    if gamma is None and subject.weights.gamma is not None:
        gamma = subject.weights.gamma / scale
    if lam is not None:
        metric = check_constant(diagonal(lam, subject.weights.hidden_features, subject.linear), subject.groups)
    elif subject.weights.lam is not None:
        metric = subject.weights.lam
    else:
        metric = _find(subject, bounded=gamma is not None)
    return check(subject, metric, gamma, rigorous=rigorous, domain=domain)


def _find(subject: Subject, *, bounded: bool) -> Tensor:
    """A metric for weights that carry none: that of the tightest bound, or, where there is no bound, the best for W."""
    if bounded:
        try:
            return tightest(subject).lam
        except NotWellPosed:
            pass
    return best_metric(subject.weights.W, subject.groups).lam


def diagonal(lam: Tensor, n: int, linear: Tensor) -> Tensor:
    """A user's metric of n units, if it is the diagonal of one; NaN is allowed where the unit is linear."""
    checks.there("lam", checks.floating("lam", lam))
    if lam.shape == (n, n):
        if bool((lam != torch.diag(lam.diagonal())).any()):
            raise InvalidInput(
                "lam must be diagonal: other multipliers prove nothing, since increments of equal activations differ."
            )
        lam = lam.diagonal()
    if lam.shape != (n,):
        raise InvalidInput(f"lam must have shape ({n},), not {tuple(lam.shape)}.")
    lam = lam.detach().to("cpu", torch.float64)
    needed = ~(torch.isnan(lam) & linear)
    checks.finite("lam", lam[needed])
    if not bool((lam[needed] > 0).all()):
        raise InvalidInput(f"lam must be positive in every entry, but its smallest is {float(lam[needed].min()):.6g}.")
    return lam


@undisturbed
def product_bound(
    net: Certifiable | Weights | ConvWeights, *, domain: Domain = "input", activation: Activation | None = None
) -> float:
    """|Wo Lam^(-1/2)| |Lam^(1/2) U| / m: the cheap bound, in the metric the weights carry or one that is found.

    To see what `tightest_bound` gains; rounded up until Condition `lipschitz` proves it.
    Raises NotWellPosed where m <= 0.
    """
    convolution = ConvSubject.of(net, activation)
    if convolution is not None:
        return convolution_product_bound(convolution) / convolution.scale_of(domain) * (1 + 4 * EPS)
    subject = Subject.of(net, activation)
    weights, scale = subject.weights, subject.scale_of(domain)
    lam = weights.lam
    if lam is None:
        found = best_metric(weights.W, subject.groups)
        if not found.holds:
            raise NotWellPosed(str(found), 2 * found.monotonicity)
        lam = found.lam
    m = DenseOperator(weights.W, lam).sure_monotonicity
    if not m > 0:
        raise NotWellPosed(
            f"No bound is known for these weights: in their metric I - W is not monotone (m = {m:.6g}).", 2 * m
        )
    root = lam.sqrt()
    out = float(torch.linalg.matrix_norm(weights.Wo / root, 2))
    into = float(torch.linalg.matrix_norm(root[:, None] * weights.U, 2))
    if not (bool(weights.Wo.any()) and bool(weights.U.any())):
        return 0.0
    bound = out * into / m
    if not 0 < bound < math.inf:
        raise InvalidInput(f"The bound {out:.3g} * {into:.3g} / {m:.3g} lies beyond the range of double precision.")
    metric = lam * (out / into)  # the multiple in which Condition `lipschitz` holds for every larger gamma
    proof = confirmed(bound, "product", lambda g: check(subject, metric, g, rigorous=False, domain="input"))
    assert proof.gamma is not None
    return proof.gamma / scale * (1 + 4 * EPS)
