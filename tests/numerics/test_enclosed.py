"""Enclosed matrices: they contain the exact results, and no verdict on them is wrong."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lben.numerics.enclosed import Enclosed, definite, solve
from tests.rational import Matrix, decades, draw, exact, is_definite, seeds, times


def contains(found: Enclosed, truth: Matrix) -> bool:
    mids, errors = found.mid.tolist(), found.error.tolist()
    return all(
        not (math.isfinite(mid) and math.isfinite(error)) or abs(Fraction(mid) - value) <= Fraction(error)
        for row in zip(mids, errors, truth, strict=True)
        for mid, error, value in zip(*row, strict=True)
    )


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=50, deadline=None)
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


@settings(max_examples=100, deadline=None)
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
