"""Batch norms count as part of the matrix or the convolution in front of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lben

CONVOLUTIONS: list[tuple[nn.Conv2d, tuple[int, int, int]]] = [
    (nn.Conv2d(2, 5, 3, padding=1), (2, 7, 6)),
    (nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=2, bias=False), (4, 9, 9)),
    (nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), (8, 20, 20)),
    (nn.Conv2d(16, 16, 3, padding=1), (16, 12, 12)),  # too large to be looked at as a matrix
]


@pytest.mark.parametrize(("conv", "shape"), CONVOLUTIONS, ids=range(len(CONVOLUTIONS)))
def test_a_batch_norm_counts_as_part_of_the_convolution_in_front_of_it(
    conv: nn.Conv2d, shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(conv.out_channels)
    for tensor in norm.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape) + 0.05)
    net = lben.Sequential(conv, norm, in_shape=shape).double().eval()
    one = lben.Sequential(torch.nn.utils.fusion.fuse_conv_bn_eval(conv, norm), in_shape=shape).eval()
    assert 1 <= net.bound() / one.bound() <= 1 + 1e-12
    assert "0 Conv2d, with 1 BatchNorm2d (the norm of both as one)" in str(lben.certify(net, rigorous=True))
    x = torch.rand(2, *shape, dtype=torch.float64)
    near = lben.enclose(net, x)
    assert bool(((net(x).flatten(1) - near.y).abs() <= near.error + 1e-13).all())


def test_so_it_does_in_branches_and_behind_matrices() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    norm.running_var.copy_(torch.tensor([0.01, 1.0, 4.0]))  # type: ignore[union-attr]
    body = [nn.Linear(3, 3), norm, nn.ReLU()]
    scaled = torch.diag((torch.tensor([0.01, 1.0, 4.0]) + norm.eps).rsqrt()) @ body[0].weight.detach()  # type: ignore[operator]
    steep = float(torch.linalg.matrix_norm(scaled, 2))
    assert lben.Sequential(*body).eval().bound() == pytest.approx(steep, rel=1e-5)
    assert lben.Sequential(lben.Residual(*body), in_shape=3).eval().bound() == pytest.approx(1 + steep, rel=1e-5)
