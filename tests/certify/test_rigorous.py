"""Verdicts in ball arithmetic: never wrong, and of the weights as they are stored."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from tests.problems import plain


def with_smallest_eigenvalue(value: float, n: int, seed: int, size: float) -> lben.Weights:
    """W with 2I - W - W' of the given smallest eigenvalue, to rounding, and a skew part besides."""
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    values = torch.rand(n, generator=generator, dtype=torch.float64) * size + 0.1
    values[0] = value
    S = Q @ torch.diag(values) @ Q.T
    N = torch.randn(n, n, generator=generator, dtype=torch.float64)
    W = torch.eye(n, dtype=torch.float64) - (S + S.T) / 4 + (N - N.T)
    return plain(W, torch.ones(n, 1), torch.ones(1, n), torch.ones(n))


@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([1.0, 10.0, 1e3]))
@settings(max_examples=30, deadline=None)
def test_rigorous_is_never_wrong(seed: int, n: int, size: float) -> None:
    assert lben.certify(with_smallest_eigenvalue(-1e-9, n, seed, size), rigorous=True).verdict == "fails"
    assert lben.certify(with_smallest_eigenvalue(1e-9, n, seed, size), rigorous=True).verdict == "holds"
    assert not lben.certify(with_smallest_eigenvalue(-1e-9, n, seed, size)).holds


def test_rigorous_decides_what_rounding_hides() -> None:
    """2 - 2 w with w the doubles just below, at and above one: no eigenvalue routine is needed to know the answer."""
    for w, verdict in ((math.nextafter(1, 0), "holds"), (math.nextafter(1, 2), "fails"), (1.0, "undecided")):
        weights = plain(torch.tensor([[w]], dtype=torch.float64), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
        assert lben.certify(weights).verdict == "undecided"
        assert lben.certify(weights, rigorous=True).verdict == verdict


def test_float32_weights_are_certified_as_stored() -> None:
    """Extreme free variables lose the bound to rounding: by construction it holds, of the stored W it does not."""
    torch.manual_seed(0)
    net = lben.LBEN(20, 30, 5, gamma=1.0)
    with torch.no_grad():
        net.get_parameter("parameterization.d").normal_(0, 5)
        net.get_parameter("parameterization.V").zero_()[:3].normal_(0, 3000)
    assert lben.certify(net).verdict == lben.certify(net, rigorous=True).verdict == "fails"
