"""Certificates in double precision against exact rational numbers: whatever rounds, under- or overflows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from lben.certify.dense import _difference
from tests.problems import plain
from tests.rational import decades, draw, exact, is_definite, seeds

LINEAR = lben.PerUnit([lben.Identity(), lben.Identity(), lben.ReLU()])


def nearly_cancelled(seed: int) -> lben.Weights:
    """Two linear units whose second is x times rounding alone, which a third enlarges beyond all bounds."""
    W = torch.zeros(3, 3, dtype=torch.float64)
    W[:2, :2] = 0.4 * draw(seed, 2, 2)
    W[2, 1] = 10 ** (16 + float(draw(seed + 1, 1).clamp(-2, 2)))
    U = torch.zeros(3, 1, dtype=torch.float64)
    U[:2, 0] = torch.eye(2, dtype=torch.float64)[0] - W[:2, 0]
    return plain(W, U, [[0.0, 0.0, 1.0]])


def slope(weights: lben.Weights) -> Fraction:
    """The exact slope of `nearly_cancelled` for the inputs at which its third unit is positive, if they are such."""
    (a, b, _), (c, d, _), (_, big, _) = exact(weights.W)
    (u,), (v,), _ = exact(weights.U)
    found: Fraction = abs(big * ((1 - a) * v + c * u) / ((1 - a) * (1 - d) - b * c))
    return found


@settings(max_examples=6, deadline=None)
@given(seeds)
def test_no_bound_lies_below_what_eliminated_units_do(seed: int) -> None:
    check_eliminated(seed)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seeds)
def test_no_bound_of_many_lies_below_what_eliminated_units_do(seed: int) -> None:
    check_eliminated(seed)


def check_eliminated(seed: int) -> None:
    weights = nearly_cancelled(seed)
    for rigorous in (False, True):
        try:
            bound = lben.tightest_bound(weights, activation=LINEAR, rigorous=rigorous).gamma
        except lben.LbenError:
            continue
        assert bound is not None
        assert Fraction(bound) >= slope(weights)


def test_elimination_that_loses_all_digits_proves_nothing() -> None:
    W = [
        [-0.3228218314296838, 0.12795839534583903, 0],
        [-0.42981157171045203, -0.43911937405135554, 0],
        [0, 8.90074748910952e16, 0],
    ]
    weights = plain(W, [[1.322821831429684], [0.4298115717104521], [0]], [[0, 0, 1.0]])
    assert slope(weights) > Fraction(99, 100)
    with pytest.raises(lben.BoundNotMet):
        lben.tightest_bound(weights, activation=LINEAR)
    lam = torch.tensor([math.nan, math.nan, 1.0], dtype=torch.float64)
    assert lben.certify(weights, 0.5, lam=lam, activation=LINEAR).verdict != "holds"


def test_underflow_proves_nothing() -> None:
    weights = plain([[0.0]], [[1e127]], [[1e-163]], [1e-290])
    assert lben.certify(weights, 1e-37).verdict == "fails"
    assert lben.certify(weights, 1e-37, rigorous=True).verdict == "fails"
    lam = torch.tensor([1e-290], dtype=torch.float64)
    assert (
        lben.certify(weights, 1.01e-36, lam=lam).holds == lben.certify(weights, 1.01e-36, lam=lam, rigorous=True).holds
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(-308, 308), st.integers(-308, 308), st.floats(-3, 0.9))
def test_bounds_of_one_unit_over_the_whole_range(into: int, out: int, w: float) -> None:
    """y = Wo max(0, (U x)/(1 - w)): the truth is known, and whatever is out of range is refused by name."""
    weights = plain([[w]], [[10.0**into]], [[10.0**out]])
    truth = Fraction(10.0**into) * Fraction(10.0**out) / (1 - Fraction(w))
    for bound in (lben.tightest_bound, lben.product_bound):
        try:
            answer: Any = bound(weights)
        except lben.LbenError:
            assert not -140 < into < 140 or not -140 < out < 140
            continue
        found = Fraction(answer if isinstance(answer, float) else answer.gamma)
        assert found >= truth
        if truth > Fraction(1e-290):
            assert found <= truth * (1 + Fraction(1e-4))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [1e-100, 1e-158, 1e-160, 1e-161, 1e-290, 1e-310])
def test_a_lower_bound_from_tiny_inputs_stays_below_the_upper_one(size: float) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        own = lben.LBEN(2, 2, 1, gamma=1.0).double().weights().detach()
        weights = plain(own.W, own.U, own.Wo, own.lam)
        upper = lben.tightest_bound(weights).gamma
        assert upper is not None
        assert lben.lipschitz_lower_bound(weights, size * draw(seed, 6, 2), restarts=2, steps=2).value <= upper


@given(seeds, decades)
@settings(max_examples=30, deadline=None)
def test_what_a_difference_of_outputs_loses_is_known_exactly(seed: int, decades: float) -> None:
    a, b = draw(seed, 1, 6, decades=min(decades, 100.0)), draw(seed + 1, 1, 6, decades=min(decades, 100.0))
    difference, lost = _difference(a, b)
    for x, y, d, error in zip(*(exact(part)[0] for part in (a, b, difference, lost)), strict=True):
        assert abs(x - y - d) == error


def test_older_tests_account_for_rounding() -> None:
    found = lben.well_posed(torch.full((10, 10), 0.1, dtype=torch.float64))
    assert Fraction(0.1) * 10 > 1
    assert not found.perron_frobenius
    assert not found.norm
    below = lben.well_posed(torch.full((10, 10), math.nextafter(0.1, 0), dtype=torch.float64))
    assert Fraction(math.nextafter(0.1, 0)) * 10 < 1
    assert below.norm
    triangle = lben.well_posed(torch.tensor([[0.0, 1e8], [0.0, 0.5]], dtype=torch.float64))
    assert triangle.perron_frobenius
    assert not triangle.norm


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 4), st.sampled_from([1e-16, 1e-15, 1e-12, -1e-16, -1e-13, 0.0]))
def test_well_posedness_near_its_boundary_is_never_wrong(seed: int, n: int, beyond: float) -> None:
    S, N = draw(seed, n, n), draw(seed + 1, n, n)
    S = S @ S.T
    W = S / float(torch.linalg.eigvalsh(S)[-1]) * (1 + beyond) + N - N.T
    found = lben.well_posed(W)
    identity = exact(torch.eye(n))
    for lam, claimed in ((found.lam, found.holds), (torch.ones(n, dtype=torch.float64), found.monotone)):
        half = [
            [Fraction(l) * (i - w) for i, w in zip(*rows, strict=True)]
            for l, *rows in zip(lam.tolist(), identity, exact(W), strict=True)  # noqa: E741
        ]
        assert not claimed or is_definite([[half[i][j] + half[j][i] for j in range(n)] for i in range(n)])


def test_flushed_small_numbers_change_no_verdict() -> None:
    """A coupling of 1e-310 between units of very different size is a large one in their metric."""
    weights = plain([[0.0, 1e-310], [0.0, 0.0]], [[1.0], [1.0]], [[1.0, 1.0]], [1e300, 1e-300])
    plainly = lben.certify(weights).verdict
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush small numbers")
    try:
        assert lben.certify(weights).verdict == plainly
        assert float(torch.tensor(2.0**-1040, dtype=torch.float64) * 1) == 0
    finally:
        torch.set_flush_denormal(False)
