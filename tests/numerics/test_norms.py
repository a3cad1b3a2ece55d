"""Norms of rows: of any size, without under- or overflow."""

from __future__ import annotations

import torch

from lben.numerics.norms import row_norm, row_ratio
from tests import problems
from tests.problems import DTYPES, POWERS


@DTYPES
def test_norms_are_those_of_any_size(dtype: torch.dtype) -> None:
    x, y = problems.biases(5, 7).to(dtype), problems.biases(5, 7, 2).to(dtype)
    for power in POWERS[dtype]:
        size = 2.0**power
        assert torch.allclose(row_norm(size * x) / size, x.norm(dim=1))
        assert torch.allclose(row_ratio(size * x, y) / size, x.norm(dim=1) / y.norm(dim=1))
        assert torch.allclose(row_ratio(size * x, size * y), x.norm(dim=1) / y.norm(dim=1))
    assert torch.equal(row_norm(torch.zeros(2, 3, dtype=dtype)), torch.zeros(2, dtype=dtype))
