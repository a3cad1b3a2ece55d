"""Certificates of convolutional weights against Condition `lipschitz` in rational numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import lben
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.kinds import subject_of
from tests.rational import Matrix, is_definite

METRICS = ["channel", "identity", "pixel"]
FEW = [("channel", 5, 1), ("identity", 5, 1), ("pixel", 10, 2)]  # of many seeds, pixel by pixel, few claim anything
MANY = [pytest.param(metric, 10, 2, marks=pytest.mark.slow) for metric in ("channel", "identity")]


def circular(kernel: Tensor, high: int, wide: int) -> Matrix:
    """The matrix of a circular convolution, units ordered by row, column and channel."""
    out, into, size, _ = kernel.shape
    values, middle = kernel.tolist(), size // 2
    matrix = [[Fraction(0)] * (high * wide * into) for _ in range(high * wide * out)]
    for y, x, a, b in (
        (y, x, a, b) for y in range(high) for x in range(wide) for a in range(size) for b in range(size)
    ):
        place = (y + a - middle) % high * wide + (x + b - middle) % wide
        for o in range(out):
            for i in range(into):
                matrix[(y * wide + x) * out + o][place * into + i] += Fraction(values[o][i][a][b])
    return matrix


def gram(rows: Matrix) -> Matrix:
    return [[sum((a * b for a, b in zip(r, s, strict=True)), Fraction(0)) for s in rows] for r in rows]


def condition(w: lben.ConvWeights, lam: Sequence[float | Fraction], gamma: float | None) -> Matrix:
    """The matrix of Condition `lipschitz`, or of Condition `W`, by the definition of these weights."""
    (high, wide), pool = w.geometry.shape, w.geometry.pool
    T, G, Wo = circular(w.T, high, wide), gram(circular(w.U, high, wide)), w.Wo.tolist()
    places = [(y // pool, x // pool, c) for y in range(high) for x in range(wide) for c in range(w.channels)]
    out = [[Fraction(row[c][y][x]) / pool**2 for row in Wo] for y, x, c in places]
    seen, own, mine = gram(out), [Fraction(v) for v in w.metric_diagonal().tolist()], [Fraction(v) for v in lam]
    rho = Fraction(0) if w.gamma is None else 1 / (2 * Fraction(w.gamma))
    share = 0 if gamma is None else 1 / Fraction(gamma)
    units = range(len(mine))
    A = [[(T[i][j] + rho * (seen[i][j] + own[i] * G[i][j] * own[j])) / own[i] for j in units] for i in units]
    return [
        [mine[i] * A[i][j] + mine[j] * A[j][i] - (seen[i][j] + mine[i] * G[i][j] * mine[j]) * share for j in units]
        for i in units
    ]


def draw(seed: int, metric: lben.Metric) -> tuple[lben.ConvWeights, Tensor | None]:
    """Weights and a metric over many decades."""
    r, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    high, wide = r.choice(((1, 1), (2, 2), (1, 3), (2, 1)))
    C, pool = r.randint(1, 2), r.choice([k for k in (1, 2) if high % k == 0 and wide % k == 0])
    shape = (high, wide) if metric == "pixel" else (C,)
    entries = torch.exp(r.choice((0, 3)) * gaussian(*shape)) * 10.0 ** r.uniform(-12, 6)
    entries = torch.ones(C, dtype=torch.float64) if metric == "identity" else entries
    T = gaussian(C, C, 3, 3)
    T = T - T.flip(2, 3).transpose(0, 1) if r.random() < 0.5 else T
    room = 10.0 ** r.uniform(-14, 0) if r.random() < 0.5 else float(T.abs().sum())
    T[:, :, 1, 1] += room * torch.eye(C, dtype=torch.float64)
    decades = r.choice((6, 6, 120))
    U, Wo = gaussian(C, 1, 3, 3), gaussian(2, C, high // pool, wide // pool)
    U, Wo = 10.0 ** r.uniform(-decades, decades) * U, 10.0 ** r.uniform(-decades, decades) * Wo
    gamma = None if r.random() < 0.2 else 10.0 ** r.uniform(-4, 4)
    geometry = lben.Geometry((1, high, wide), 0, pool)
    w = lben.ConvWeights(T, U, gaussian(C), Wo, gaussian(2), entries, metric, geometry, gamma)
    if metric == "pixel" or r.random() < 0.3:
        return w, None
    other = entries * torch.exp(r.choice((0, 1e-13, 3)) * gaussian(C)) * 10.0 ** r.uniform(-13, 6)
    return w, other.repeat(high * wide)


def check(
    metric: lben.Metric,
    claim: Callable[[lben.ConvWeights, Tensor | None], Matrix | None],
    *,
    seeds: int,
    least: int,
    true: bool = True,
) -> None:
    """What is claimed of drawn weights, and so often at least: matrices that are positive definite, or are not."""
    claimed = 0
    for seed in range(seeds):
        matrix = claim(*draw(seed, metric))
        if matrix is not None:
            claimed += 1
            assert is_definite(matrix) is true, seed
    assert claimed >= least


def bisect(low: float, high: float, above: Callable[[float], bool]) -> tuple[float, float]:
    """The interval around the number from which on `above` is true, a millionth long."""
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("metric", "seeds", "least"), [*FEW, *MANY])
@pytest.mark.parametrize("rigorous", [True, False])
def test_what_holds_is_true(metric: lben.Metric, rigorous: bool, seeds: int, least: int) -> None:
    """At the smallest gamma that is said to hold, found by bisection, where every error shows."""

    def smallest(w: lben.ConvWeights, lam: Tensor | None) -> Matrix | None:
        def holds(exponent: float) -> bool:
            return lben.certify(w, 10.0**exponent, lam=lam, rigorous=rigorous).holds

        if not holds(36.9):
            return None
        _, high = bisect(-37.0, 36.9, holds)
        return condition(w, (w.metric_diagonal() if lam is None else lam).tolist(), 10.0**high)

    check(metric, smallest, seeds=seeds, least=least)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("metric", "seeds", "least"), [*FEW, *MANY])
@pytest.mark.parametrize("rigorous", [True, False])
def test_what_fails_is_false(metric: lben.Metric, rigorous: bool, seeds: int, least: int) -> None:
    """At the largest gamma that is said to fail, found by bisection; pixel by pixel, at the weights' own."""

    def largest(w: lben.ConvWeights, lam: Tensor | None) -> Matrix | None:
        def fails(gamma: float) -> bool:
            return lben.certify(w, gamma, lam=lam, rigorous=rigorous).verdict == "fails"

        searched = w.gamma is None or metric != "pixel"
        gamma = 10.0**-37.0 if searched else w.gamma
        assert gamma is not None
        if not fails(gamma):
            return None
        if searched:
            low, _ = bisect(-37.0, 36.9, lambda exponent: not fails(10.0**exponent))
            gamma = 10.0**low
        return condition(w, (w.metric_diagonal() if lam is None else lam).tolist(), gamma)

    check(metric, largest, seeds=seeds, least=least, true=False)


@pytest.mark.parametrize("metric", METRICS)
def test_the_monotonicity_is_proved(metric: lben.Metric) -> None:
    """Lam (I - W) + its transpose - 2 m Lam is positive definite, and m is nearly all that can be had."""

    def rest(w: lben.ConvWeights, _: Tensor | None) -> Matrix | None:
        subject = subject_of(w).settled()
        assert isinstance(subject, EquilibriumSubject)
        m = subject.monotonicity
        lam = w.metric_diagonal().tolist()
        if not m > 0:
            return None
        matrix = condition(w, lam, None)
        for i, entry in enumerate(lam):
            matrix[i][i] -= 2 * Fraction(m) * Fraction(entry)
        return matrix

    check(metric, rest, seeds=30, least=8)


@pytest.mark.parametrize("metric", METRICS)
def test_the_product_bound_is_proved(metric: lben.Metric) -> None:
    """With the metric times |Wo Lam^(-1/2)|/|Lam^(1/2) U| the condition holds at the bound, by its derivation."""

    def at_the_bound(w: lben.ConvWeights, _: Tensor | None) -> Matrix | None:
        try:
            bound = lben.product_bound(w)
        except lben.LbenError:
            return None
        dense, root = w.dense(), w.metric_diagonal().sqrt()
        out = float(torch.linalg.matrix_norm(dense.Wo / root, 2))
        into = float(torch.linalg.matrix_norm(root[:, None] * dense.U, 2))
        lam = [Fraction(entry) * Fraction(out) / Fraction(into) for entry in w.metric_diagonal().tolist()]
        return condition(w, lam, bound)

    check(metric, at_the_bound, seeds=30, least=8)


@pytest.mark.parametrize("metric", METRICS)
def test_the_product_bound_of_one_pixel_is_not_below_its_constant(metric: lben.Metric) -> None:
    """W = 1 - t, which no double is: y = x/t where x > 0."""
    one, zero = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    entries = torch.ones((1, 1) if metric == "pixel" else (1,), dtype=torch.float64)
    for t in (0.3, 1e-6, 1e-12, 3e-16, 1e-17):
        w = lben.ConvWeights(t * one, one, zero, one, zero, entries, metric, lben.Geometry((1, 1, 1), 0, 1))
        assert 1 / Fraction(t) <= Fraction(lben.product_bound(w)) <= Fraction(1001, 1000) / Fraction(t)


def test_zeros_around_the_image_refute_nothing_pixel_by_pixel() -> None:
    """T + T' < 0 for constant images is made up for by what the zeros do not let in: the condition holds."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    zero, metric = torch.zeros(1, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    T = (-1e-3 / 9) * torch.ones(1, 1, 3, 3, dtype=torch.float64)
    T[:, :, 1, 1] += 5e-4
    Wo, geometry = torch.zeros(1, 1, 3, 3, dtype=torch.float64), lben.Geometry((1, 1, 1), 1, 1)
    w = lben.ConvWeights(T, one, zero, Wo, zero, metric, "pixel", geometry, 1.0)
    assert lben.certify(w.dense()).holds
    assert lben.certify(w).verdict == lben.certify(w, rigorous=True).verdict == "undecided"


def test_a_gamma_just_below_its_own_is_not_its_own() -> None:
    """I - W of one pixel with T = 1e-16: nothing below gamma is proved, however close."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    zero, metric = torch.zeros(1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    w = lben.ConvWeights(1e-16 * one, one, zero, one, zero, metric, "pixel", lben.Geometry((1, 1, 1), 0, 1), 1.0)
    assert lben.certify(w, rigorous=True).holds
    for steps in range(1, 10):
        below = 1.0 - steps * 2.0**-53
        truth = is_definite(condition(w, [1.0], below))
        assert not lben.certify(w, below, rigorous=True).holds or truth
        assert not lben.certify(w, below).holds or truth
    assert not is_definite(condition(w, [1.0], 1.0 - 2.0**-53))


@pytest.mark.parametrize("size", [1.0, 0.0415335])
def test_terms_that_cancel_by_rounding_are_not_taken_for_zero(size: float) -> None:
    """2 rho Wo'Wo times the share of the metric less Wo'Wo/gamma, beside a T that is far smaller than its rounding."""
    one, zero = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for own in (406.5676048632823, 43.7676374564347):
        entries = torch.tensor([0.5244715154812772], dtype=torch.float64)
        geometry = lben.Geometry((1, 1, 1), 0, 1)
        w = lben.ConvWeights(1e-12 * one, 1e-9 * one, zero, 1e5 * one, zero, entries, "channel", geometry, own)
        for lam in (entries * size * (1 + k * 2.0**-52) for k in range(-1, 2)):
            for steps in range(-2, 3):
                gamma = own / size * (1 + steps * 2.0**-52)
                for rigorous in (False, True):
                    found, truth = lben.certify(w, gamma, lam=lam, rigorous=rigorous), condition(w, lam.tolist(), gamma)
                    assert found.verdict == "undecided" or found.holds == is_definite(truth)
        assert lben.certify(w, rigorous=True).holds


def test_the_own_gamma_in_pixels_is_rounded_up() -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        normalize = lben.Normalize(0.0, 0.1 + 0.9 * torch.rand(1).item())
        net = lben.ConvLBEN((1, 3, 3), 1, 2, gamma=0.1 + seed / 7, pool=1, metric="pixel", normalize=normalize)
        found = lben.certify(net, domain="pixels", rigorous=True)
        assert found.holds
        assert found.gamma is not None
        assert net.gamma is not None
        assert Fraction(found.gamma) * Fraction(normalize.scale) >= Fraction(net.gamma)
        assert found.gamma <= math.nextafter(net.gamma / normalize.scale, math.inf)
