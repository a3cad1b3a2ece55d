"""LMT: its bound is true, and its loss is what its authors wrote."""

from __future__ import annotations

import math

import pytest
import torch

import lben
from lben.data import MNIST_MEAN, MNIST_STD, pixels
from lben.experiments.baselines import LMT, FeedForward, LipschitzMargin
from lben.train import TrainConfig, fit
from tests.problems import few_images


@pytest.mark.parametrize("c", [0.01, 1.0])
def test_lmt_trains_under_a_true_bound(c: float) -> None:
    torch.manual_seed(0)
    net = LMT(784, 40, 10, normalize=lben.Normalize(MNIST_MEAN, MNIST_STD))
    history = fit(net, few_images(2000, 1000), TrainConfig(epochs=2, learning_rate=5e-3, loss=LipschitzMargin(c)))
    assert history[-1].test_error < 0.25
    x = pixels(few_images(2000, 1000).test_images[:200])
    lower, tight = lben.lipschitz_lower_bound(net, x, restarts=8, steps=50), lben.tightest_bound(net)
    assert 0 < lower.value <= (tight.gamma or 0) <= net.bound() * (1 + 1e-6)
    assert net.lipschitz().item() == pytest.approx(net.bound(), rel=0.05)  # power iteration has followed


def test_lmt_norms_are_spectral_norms_and_differentiable() -> None:
    torch.manual_seed(0)
    net = LMT(6, 5, 3).double()
    for _ in range(300):
        value = net.lipschitz()
    U, Wo = net.hidden.weight, net.output.weight
    exact = torch.linalg.matrix_norm(U, 2) * torch.linalg.matrix_norm(Wo, 2)
    assert value.item() == pytest.approx(exact.item(), rel=1e-9)
    ours = torch.autograd.grad(value, [U, Wo])
    theirs = torch.autograd.grad(exact, [U, Wo])
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_lipschitz_margin_is_added_to_the_other_logits() -> None:
    torch.manual_seed(0)
    net = LMT(6, 5, 3)
    for _ in range(200):
        net.lipschitz()
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    added = logits + math.sqrt(2) * 0.5 * net.bound() * (1 - torch.nn.functional.one_hot(labels, 3))
    expected = torch.nn.functional.cross_entropy(added, labels)
    assert LipschitzMargin(0.5)(net, logits, labels).item() == pytest.approx(expected.item(), rel=1e-3)
    with pytest.raises(lben.InvalidInput, match="not FeedForward"):
        LipschitzMargin(0.5)(FeedForward(6, 5, 3), logits, labels)
