"""Bounds: what is certified and what is refused, and the order in which all of them stand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from lben.activations.base import Scalar
from tests.problems import ACTIVATIONS, mnist_network, random_network


def largest_slope(net: lben.EquilibriumNetwork, seed: int) -> float:
    """The largest slope between any two of 24 random inputs, some close together."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, net.in_features, generator=generator, dtype=torch.float64)
    x = 3 * torch.cat([x, x + 1e-3 * torch.randn(x.shape, generator=generator, dtype=torch.float64)])
    net.solver = lben.Newton(tolerance=1e-11)
    with torch.no_grad():
        y = net(x)
    return float((torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)).max())


@st.composite
def networks(draw: st.DrawFn) -> lben.EquilibriumNetwork:
    n = draw(st.integers(1, 8))
    activation = draw(st.sampled_from(ACTIVATIONS))
    if activation.units is not None:
        scalars = [a for a in ACTIVATIONS if isinstance(a, Scalar)]
        activation = lben.PerUnit([draw(st.sampled_from(scalars)) for _ in range(n)])
    return random_network(
        draw(st.sampled_from(["LBEN", "LBEN", "MON"])),
        (draw(st.integers(1, 8)), n, draw(st.integers(1, 4))),
        activation,
        gamma=draw(st.sampled_from([None, 0.1, 1.0, 5.0])),
        size=draw(st.sampled_from([0.3, 1.0, 3.0])),
        spread=draw(st.sampled_from([0.0, 0.5, 1.5])),
        trained=draw(st.sampled_from([0, 0, 1, 5])),
        seed=draw(st.integers(0, 10**6)),
    )


@settings(max_examples=10, deadline=None)
@given(networks(), st.integers(0, 10**6))
def test_lower_bound_tightest_bound_gamma_and_product_bound_are_in_order(
    net: lben.EquilibriumNetwork, seed: int
) -> None:
    check_order(net, seed)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(networks(), st.integers(0, 10**6))
def test_bounds_of_many_networks_are_in_order(net: lben.EquilibriumNetwork, seed: int) -> None:
    check_order(net, seed)


def check_order(net: lben.EquilibriumNetwork, seed: int) -> None:
    tight = lben.tightest_bound(net)
    assert tight.holds
    assert tight.gamma is not None
    assert lben.certify(net, tight.gamma, lam=tight.lam).holds
    lower = lben.lipschitz_lower_bound(net, restarts=4, steps=10, seed=seed)
    assert lower.proved
    rounding = 1 + 1e-6  # the tightest bound is found to about six digits
    assert lower.value <= tight.gamma
    assert tight.gamma <= lben.product_bound(net) * rounding
    if net.gamma is not None:
        assert tight.gamma <= net.gamma * rounding
        assert lben.certify(net).holds
    assert largest_slope(net, seed) <= tight.gamma * (1 + 1e-7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gamma", [0.2, 1.0, None])
def test_order_on_mnist(gamma: float | None) -> None:
    net = mnist_network(gamma)
    tight = lben.tightest_bound(net, rigorous=True)
    assert tight.holds
    assert tight.rigorous
    assert tight.gamma is not None
    assert tight.gamma <= lben.product_bound(net)
    assert lben.certify(net).holds
    assert lben.certify(net, rigorous=True).holds
    if gamma is not None:
        assert tight.gamma <= gamma


def test_condition_w_is_checked_without_gamma() -> None:
    net = lben.MON(4, 6, 2).double()
    certificate = lben.certify(net)
    assert certificate.gamma is None
    assert certificate.holds
    assert certificate.margin == pytest.approx(float(torch.linalg.eigvalsh(net.weights().detach().condition(None))[0]))
    assert "exactly one equilibrium" in str(certificate)


def test_a_metric_is_found_where_none_is_carried() -> None:
    torch.manual_seed(0)
    weights = lben.LBEN(4, 6, 2, gamma=1.0).double().weights().detach()
    bare = replace(weights, lam=None, gamma=None)
    assert lben.certify(bare).holds
    assert lben.certify(bare, 1.0).holds
    tight = lben.tightest_bound(weights).gamma
    assert tight is not None
    assert lben.tightest_bound(bare).gamma == pytest.approx(tight, rel=1e-5)
    assert not lben.certify(bare, 0.99 * tight).holds


def broken(weights: lben.Weights, how: str) -> lben.Weights:
    W = weights.W.clone()
    if how == "W":
        W[1, 2] += 50.0
        return replace(weights, W=W)
    if how == "lam":
        assert weights.lam is not None
        return replace(weights, lam=100 * weights.lam)
    if how == "U":
        return replace(weights, U=10 * weights.U)
    return replace(weights, Wo=10 * weights.Wo)


@pytest.mark.parametrize("rigorous", [False, True])
@pytest.mark.parametrize("how", ["W", "lam", "U", "Wo"])
def test_broken_weights_are_refused(how: str, rigorous: bool) -> None:
    torch.manual_seed(0)
    weights = lben.LBEN(20, 12, 4, gamma=1.0).double().weights().detach()
    assert lben.certify(weights, rigorous=rigorous).holds
    certificate = lben.certify(broken(weights, how), rigorous=rigorous)
    assert certificate.verdict == "fails"
    assert certificate.margin < 0
    assert "not proved" in str(certificate)


@pytest.mark.parametrize("rigorous", [False, True])
@pytest.mark.parametrize("gamma", [0.2, 1.0, None])
def test_one_per_cent_below_the_tightest_bound_is_refused(gamma: float | None, rigorous: bool) -> None:
    net = mnist_network(gamma)
    tight = lben.tightest_bound(net)
    assert tight.gamma is not None
    assert not lben.certify(net, 0.99 * tight.gamma, rigorous=rigorous).holds
    assert not lben.certify(net, 0.99 * tight.gamma, lam=tight.lam, rigorous=rigorous).holds


def test_pixels_are_accounted_for() -> None:
    net = mnist_network(1.0)
    scale = float(net.normalize.std) if net.normalize is not None else math.nan
    tight, in_pixels = lben.tightest_bound(net), lben.tightest_bound(net, domain="pixels")
    assert (tight.gamma or 0) / scale == pytest.approx(in_pixels.gamma)
    assert in_pixels.domain == "pixels"
    assert lben.certify(net, domain="pixels", rigorous=True).gamma == pytest.approx(1 / scale)
    assert lben.product_bound(net, domain="pixels") == pytest.approx(lben.product_bound(net) / scale)
    assert "pixels" in str(in_pixels)
