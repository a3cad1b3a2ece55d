"""Inverses of many small matrices, singular ones among them."""

from __future__ import annotations

import pytest
import torch

from lben.numerics.inverse import inverses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_they_are_inverses(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = 3 * torch.eye(7, dtype=dtype) + torch.randn(5, 7, 7, dtype=dtype, generator=generator).mT / 3
    found = inverses(matrices.requires_grad_())
    assert found.dtype == dtype
    assert not found.requires_grad
    assert torch.allclose(found @ matrices.detach(), torch.eye(7, dtype=dtype), atol=1e3 * torch.finfo(dtype).eps)


def test_a_singular_matrix_does_not_spoil_the_others() -> None:
    matrices = torch.stack([torch.eye(3), torch.zeros(3, 3), 2 * torch.eye(3)])
    found = inverses(matrices)
    assert torch.equal(found[0], torch.eye(3))
    assert torch.equal(found[2], torch.eye(3) / 2)
    assert not torch.isfinite(found[1]).all()
