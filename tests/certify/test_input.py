"""Certificates refuse what is too large, has no numbers, or is no diagonal metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lben
from lben.certify.wellposed import MOST_UNITS

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


def test_a_multiplier_that_is_not_diagonal_is_refused() -> None:
    weights = lben.MON(3, 4, 2).weights().detach()
    assert lben.certify(weights, lam=torch.eye(4)).holds
    with pytest.raises(lben.InvalidInput, match="must be diagonal"):
        lben.certify(weights, lam=torch.eye(4) + 0.01)
