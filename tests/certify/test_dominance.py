"""Diagonal dominance: it proves what holds for every image size, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lben
from lben.certify.dominance import dominated
from lben.weights.image import ImageWeights
from tests.layers.climbing import trained


def layer(kernel_size: int = 3, dtype: torch.dtype = torch.float32) -> lben.ConvSLL:
    torch.manual_seed(0)
    made = lben.ConvSLL(3, 4, kernel_size=kernel_size, dtype=dtype)
    with torch.no_grad():
        made.log_q.normal_()
    return trained(made, (3, 5, 4))


def proved(weights: ImageWeights, gamma: float = 1.0) -> bool:
    w = weights.precise()
    assert w.lam is not None
    return dominated(w, w.lam, gamma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_it_proves_what_the_frequencies_prove(kernel_size: int, dtype: torch.dtype) -> None:
    sll = layer(kernel_size, dtype)
    for shape in ((5, 4), (2, 3), (1, 1)):
        weights = sll.weights(shape)
        assert proved(weights)
        certificate = lben.certify(weights, rigorous=True)
        assert certificate
        assert certificate.method.startswith("diagonal dominance")
        assert certificate.margin > 0
        assert lben.certify(weights.dense())


def test_it_proves_no_more_than_is_true() -> None:
    weights = layer().weights((6, 6))
    assert not proved(weights, 1 - 1e-5)
    assert weights.D is not None
    for wrong in (
        replace(weights, Wo=weights.Wo * 1.01),
        replace(weights, U=-weights.U),
        replace(weights, D=weights.D * 1.001),
        replace(weights, D=None),
        replace(weights, D=weights.D + 1e-3),
    ):
        assert not proved(wrong)
    one = lben.ConvSLL(1, 1, kernel_size=1, dtype=torch.float64)  # there dominance is no loss: T = K'K
    weights = one.weights((2, 2)).detach()
    assert proved(weights)
    for factor in (1 + 1e-4, 2.0):
        larger = replace(weights, U=weights.U * factor, Wo=weights.Wo * factor)
        assert not proved(larger)
        assert not lben.certify(larger)


def test_it_knows_residual_layers_alone() -> None:
    assert not proved(lben.ConvSandwich(2, 2).weights((4, 4)))
