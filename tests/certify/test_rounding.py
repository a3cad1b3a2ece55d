"""Certificates in double precision against exact rational numbers: whatever rounds, under- or overflows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import lben
from lben.certify.dense import _difference
from lben.certify.wellposed import MOST_UNITS
from lben.numerics import barrier
from lben.numerics.enclosed import Enclosed, definite, solve

Exact = list[list[Fraction]]


def exact(matrix: Tensor) -> Exact:
    return [[Fraction(entry) for entry in row] for row in matrix.tolist()]


def times(A: Exact, B: Exact) -> Exact:
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in zip(*B, strict=True)]
        for row in A
    ]


def contains(found: Enclosed, truth: Exact) -> bool:
    mids, errors = found.mid.tolist(), found.error.tolist()
    return all(
        not (math.isfinite(mid) and math.isfinite(error)) or abs(Fraction(mid) - value) <= Fraction(error)
        for row in zip(mids, errors, truth, strict=True)
        for mid, error, value in zip(*row, strict=True)
    )


def is_definite(X: Exact) -> bool:
    X = [list(row) for row in X]
    for k in range(len(X)):
        if X[k][k] <= 0:
            return False
        for i in range(k + 1, len(X)):
            factor = X[i][k] / X[k][k]
            X[i] = [a - factor * b for a, b in zip(X[i], X[k], strict=True)]
    return True


def draw(seed: int, *shape: int, decades: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (decades * (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * sizes


def plain(W: Any, U: Any, Wo: Any, lam: Any = None) -> lben.Weights:
    W, U, Wo = (torch.as_tensor(part, dtype=torch.float64) for part in (W, U, Wo))
    bz, by = torch.zeros(len(W), dtype=torch.float64), torch.zeros(len(Wo), dtype=torch.float64)
    return lben.Weights(W, U, bz, Wo, by, None if lam is None else torch.as_tensor(lam, dtype=torch.float64))


seeds, decades = st.integers(0, 10**6), st.sampled_from([0.0, 3.0, 100.0, 160.0, 300.0])


@settings(max_examples=200, deadline=None)
@given(seeds, decades)
def test_enclosures_contain_the_exact_results(seed: int, decades: float) -> None:
    a, b = draw(seed, 3, 4, decades=decades), draw(seed + 1, 4, 2, decades=decades)
    A, B = Enclosed.exact(a), Enclosed.exact(b)
    product = times(exact(a), exact(b))
    assert contains(A @ B, product)
    assert contains(A @ B @ Enclosed.exact(b.T), times(product, exact(b.T)))
    c = draw(seed + 2, 3, 4, decades=decades)
    C = Enclosed.exact(c)
    pairs = [list(zip(*rows, strict=True)) for rows in zip(exact(a), exact(c), strict=True)]
    assert contains(A + C, [[x + y for x, y in row] for row in pairs])
    assert contains(A - C, [[x - y for x, y in row] for row in pairs])
    assert contains(A * C, [[x * y for x, y in row] for row in pairs])
    assert contains(C.inverse(), [[1 / y for _, y in row] for row in pairs])
    k = torch.randint(-1500, 1500, (3, 4), generator=torch.Generator().manual_seed(seed))
    shifted = [
        [x * Fraction(2) ** j for (x, _), j in zip(*rows, strict=True)] for rows in zip(pairs, k.tolist(), strict=True)
    ]
    assert contains(A.shifted(k), shifted)


@settings(max_examples=100, deadline=None)
@given(seeds, st.sampled_from([1.0, 1e-6, 1e-12, 1e-15]), st.sampled_from([0.0, 8.0]))
def test_a_solution_is_enclosed_or_refused(seed: int, singular: float, decades: float) -> None:
    """X is drawn first: A X, rounded, is B, and the exact A^-1 B is checked by Cramer's rule of a 2 x 2 system."""
    a = draw(seed, 2, 2, decades=decades)
    a[1] = a[0] * float(draw(seed + 1, 1)) + singular * a[1]
    b = draw(seed + 2, 2, 3, decades=decades)
    found = solve(Enclosed.exact(a), Enclosed.exact(b))
    (p, q), (r, s) = exact(a)
    assume(p * s != q * r)
    if singular == 1.0 and decades == 0.0:
        assert found is not None
    if found is not None:
        top, bottom = exact(b)
        det = p * s - q * r
        truth = [
            [(s * x - q * y) / det for x, y in zip(top, bottom, strict=True)],
            [(p * y - r * x) / det for x, y in zip(top, bottom, strict=True)],
        ]
        assert contains(found, truth)


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(1, 5), st.sampled_from([0.0, 1e-16, -1e-16, 1e-15, -1e-14, 1e-12, -1e-9, 0.1]), decades)
def test_definite_is_never_wrong(seed: int, n: int, smallest: float, decades: float) -> None:
    Q = torch.linalg.qr(draw(seed, n, n)).Q
    values = draw(seed + 1, n).abs() + 0.1
    values[0] = smallest
    X = Q @ torch.diag(values) @ Q.T
    scale = draw(seed + 2, n, decades=decades / 3).abs()
    X = scale[:, None] * ((X + X.T) / 2) * scale
    X = X.tril() + X.tril(-1).T
    verdict, truth = definite(Enclosed.exact(X)), is_definite(exact(X))
    assert verdict in ("undecided", "holds" if truth else "fails")
    if smallest == 0.1:
        assert verdict == "holds"
    if smallest == -1e-9:
        assert verdict == "fails"


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
    return abs(big * ((1 - a) * v + c * u) / ((1 - a) * (1 - d) - b * c))


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_no_bound_lies_below_what_eliminated_units_do(seed: int) -> None:
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


@settings(max_examples=150, deadline=None)
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
@settings(max_examples=100, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


def records() -> Iterator[tuple[Any, bool]]:
    torch.manual_seed(0)
    net = lben.LBEN(3, 4, 2, gamma=1.0).double()
    yield lben.certify(net), True
    yield lben.certify(net, 1e-3), False
    yield lben.certify(plain([[1.0]], [[1.0]], [[1.0]], [1.0])), False
    yield lben.well_posed(net), True
    yield lben.well_posed(2 * torch.eye(3)), False
    yield lben.contraction(plain([[0.5]], [[1.0]], [[1.0]])), True
    yield lben.contraction(plain([[2.0]], [[1.0]], [[1.0]])), False
    yield lben.frequency_test(torch.tensor([[0.5]])), True
    yield lben.frequency_test(torch.tensor([[2.0]])), False
    yield lben.incremental_gain(plain([[0.5]], [[1.0]], [[1.0]])), True
    yield lben.incremental_gain(plain([[2.0]], [[1.0]], [[1.0]])), False


def test_a_verdict_is_a_truth_value() -> None:
    for record, truth in records():
        assert bool(record) is record.holds is truth, record


def test_what_has_no_verdict_is_neither_true_nor_false() -> None:
    torch.manual_seed(0)
    net, x = lben.LBEN(3, 4, 2, gamma=1.0).double(), draw(0, 4, 3)
    accuracy = lben.certified_accuracy(net, x, torch.zeros(4, dtype=torch.int64), [0.1])
    for record in (lben.certified_radius(net, x), lben.lipschitz_lower_bound(net, x, restarts=1, steps=1), accuracy):
        with pytest.raises(lben.InvalidInput, match=type(record).__name__):
            bool(record)


VERBS: list[Callable[[Any], object]] = [
    lben.certify,
    lben.tightest_bound,
    lben.product_bound,
    lben.well_posed,
    lben.contraction,
    lben.frequency_test,
    lben.incremental_gain,
    lambda net: lben.certified_radius(net, torch.zeros(1, 2)),
    lben.lipschitz_lower_bound,
]


@pytest.mark.parametrize("verb", VERBS)
def test_networks_beyond_the_stated_size_are_refused_before_any_matrix_is_made(verb: Callable[[Any], object]) -> None:
    zero, n = torch.zeros(1, 1), MOST_UNITS + 1
    weights = lben.Weights(
        zero.expand(n, n), zero.expand(n, 2), zero[0].expand(n), zero.expand(2, n), zero[0].expand(2)
    )
    with pytest.raises(lben.InvalidInput, match=f"{n:,} units are too many.*at most {MOST_UNITS:,}"):
        verb(weights)


@pytest.mark.parametrize("verb", VERBS)
def test_tensors_without_numbers_are_refused(verb: Callable[[Any], object]) -> None:
    with pytest.raises(lben.InvalidInput, match="meta"):
        verb(lben.LBEN(2, 3, 2, gamma=1.0).to("meta"))


def test_a_metric_without_numbers_is_refused() -> None:
    with pytest.raises(lben.InvalidInput, match="meta"):
        lben.certify(lben.LBEN(2, 3, 2, gamma=1.0), lam=torch.ones(3, device="meta"))


def test_a_search_that_is_stopped_still_proves_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lben.LBEN(4, 6, 2, gamma=1.0).double()
    best = lben.tightest_bound(net)
    monkeypatch.setattr(barrier, "_ALL_STEPS", 4)
    found = lben.tightest_bound(net)
    assert "stopped" in found.method
    assert found
    assert found.gamma is not None
    assert best.gamma is not None
    assert found.gamma >= best.gamma * (1 - 1e-6)


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
