"""Records of what is proved: as truth values, and as they are printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import lben
from lben.numerics.rounding import at_least, at_most
from tests.problems import plain
from tests.rational import draw


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


def test_what_is_printed_is_a_bound_too() -> None:
    assert at_most(0.841268178) == "0.841269"
    assert at_least(0.9999999) == "0.999999"
    assert [at_most(bound) for bound in (0.1, 1.0, 2.5, 1e-30, math.inf)] == ["0.1", "1", "2.5", "1e-30", "inf"]
    assert float(at_most(1 + 1e-12)) > 1
    net = lben.LBEN(5, 6, 3, gamma=1.0)
    found = lben.tightest_bound(net)
    assert found.gamma is not None
    printed = re.search(r"at most (\S+) times", str(found))
    assert printed is not None
    assert found.gamma <= float(printed[1]) <= found.gamma * (1 + 1e-5)
