"""Derivatives of layers, shared by their tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def check_gradients(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """First and second derivatives in the input and in all parameters, against differences."""
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        given: Tensor = torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))
        return given

    assert torch.autograd.gradcheck(run, (x, *values))
    assert torch.autograd.gradgradcheck(run, (x, *values), atol=1e-4)
