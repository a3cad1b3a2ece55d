"""The search over angles."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lben.numerics.angles import largest_eigenvalue

D = torch.float64


@given(n=st.integers(1, 6), scale=st.floats(0.01, 10), seed=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_the_search_over_angles_brackets_the_maximum(n: int, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    M = scale * torch.randn(n, n, dtype=D)
    bound, attained, theta = largest_eigenvalue((M + M.T) / 4, M / 2)
    grid = torch.linspace(0, torch.pi, 301, dtype=D)
    turned = (1 + torch.exp(-1j * grid))[:, None, None] * M / 2
    values = torch.linalg.eigvalsh((turned + turned.mH) / 2)[:, -1]
    assert bound >= float(values.max()) - 1e-12 * scale * n
    assert bound - attained <= 1e-7 * scale * n
    assert 0 <= theta <= torch.pi + 1e-12
