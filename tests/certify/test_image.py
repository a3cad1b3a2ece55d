"""The certificate of a layer of images, frequency by frequency, against that of its matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lben
from lben.certify.kinds import subject_of

SIZES = [((2, 4, 5), 0, (4, 5)), ((2, 3, 4), 1, (3, 3)), ((1, 3, 3), 0, (3, 1))]


def kernel(*shape: int) -> Tensor:
    return 0.1 * torch.randn(*shape, dtype=torch.float64)


def drawn(
    in_shape: tuple[int, int, int], padding: int, sides: tuple[int, int], *, explicit: bool = False, past: bool = True
) -> lben.ImageWeights:
    torch.manual_seed(1)
    c = in_shape[0]
    return lben.ImageWeights(
        W=None if explicit else 0.5 * kernel(3, 3, *sides),
        U=kernel(3, c, *sides),
        bz=kernel(3),
        Wo=kernel(2, 3, *sides),
        by=kernel(2),
        in_shape=in_shape,
        padding=padding,
        D=kernel(2, c, 1, 1) if past else None,
        lam=torch.rand(3, dtype=torch.float64) + 0.5,
    )


@pytest.fixture(params=SIZES, ids=str)
def size(request: pytest.FixtureRequest) -> tuple[tuple[int, int, int], int, tuple[int, int]]:
    found: tuple[tuple[int, int, int], int, tuple[int, int]] = request.param
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
def test_frequencies_and_matrices_agree(
    size: tuple[tuple[int, int, int], int, tuple[int, int]], explicit: bool, past: bool
) -> None:
    weights = drawn(*size, explicit=explicit, past=past)
    dense = weights.dense()
    wanted = lben.tightest_bound(dense).gamma
    found = lben.tightest_bound(weights).gamma
    assert wanted is not None
    assert found is not None
    assert found == pytest.approx(wanted, rel=2e-3)
    assert lben.certify(weights).verdict == lben.certify(dense).verdict == "holds"
    for gamma in (0.5 * wanted, 0.99 * wanted, 3 * wanted, 30 * wanted):
        ours, theirs = lben.certify(weights, gamma), lben.certify(dense, gamma)
        assert ours.verdict == theirs.verdict or (weights.padding > 0 and ours.verdict == "undecided")
    below = lben.lipschitz_lower_bound(weights, restarts=2, steps=10)
    assert 0 < below.value <= found <= lben.product_bound(weights)


def test_outputs_are_enclosed_whichever_way_they_are_computed() -> None:
    for sides in ((3, 3), (6, 5)):
        weights = drawn((2, 6, 5), 0, sides)
        weights = replace(weights, W=None if weights.W is None else weights.W / sides[0])
        x = torch.randn(4, weights.in_features, dtype=torch.float64)
        found, exact = lben.enclose(weights, x), lben.enclose(weights.dense(), x)
        assert found.proved
        assert bool(((found.y - exact.y).abs() <= found.error + exact.error).all())
        assert float(found.error.max()) < 1e-8


def test_outputs_that_nothing_reaches_have_every_bound() -> None:
    weights = drawn((2, 4, 5), 0, (3, 3))
    assert weights.D is not None
    for name in ("U", "Wo"):
        alone = replace(weights, **{name: torch.zeros_like(getattr(weights, name))})  # type: ignore[arg-type]
        norm = float(torch.linalg.matrix_norm(weights.D[:, :, 0, 0], 2))
        assert lben.tightest_bound(alone).gamma == pytest.approx(norm, rel=1e-5)
        assert lben.product_bound(alone) >= norm
        assert (lben.tightest_bound(replace(alone, D=None)).gamma or 0.0) <= 1e-20


def test_a_metric_that_proves_nothing_is_refused() -> None:
    weights = drawn((2, 4, 5), 0, (3, 3))
    W = torch.zeros(3, 3, 1, 1, dtype=torch.float64)
    W[:, :, 0, 0] = 2 * torch.eye(3)
    expansive = replace(weights, W=W)
    assert lben.certify(expansive).verdict == "fails"
    for verb in (lben.tightest_bound, lben.product_bound):
        with pytest.raises(lben.NotWellPosed):
            verb(expansive)
    assert not subject_of(expansive).proved
    with pytest.raises(lben.InvalidInput, match="the same at all pixels"):
        lben.certify(weights, 1.0, lam=torch.arange(1.0, 61.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"U": torch.zeros(3, 2, 2, 2, dtype=torch.float64)}, "U must have sides that are odd and fit"),
        ({"W": torch.zeros(3, 3, 7, 7, dtype=torch.float64)}, "W must have sides that are odd and fit"),
        ({"Wo": torch.zeros(2, 3, dtype=torch.float64)}, "Wo must be a kernel of four dimensions"),
        ({"in_shape": (2, 4)}, "in_shape must be"),
        ({"padding": -1}, "padding must be"),
        ({"gamma": 0.0}, "gamma must be"),
    ],
)
def test_bad_weights_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(lben.InvalidInput, match=message):
        replace(drawn((2, 4, 5), 0, (3, 3)), **changes)  # type: ignore[arg-type]
