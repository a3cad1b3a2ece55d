"""A plain network, certified and attacked."""

from __future__ import annotations

import torch

import lben
from lben.data import MNIST_MEAN, MNIST_STD, pixels
from lben.experiments.baselines import FeedForward
from lben.train import TrainConfig, fit
from tests.problems import few_images


def test_a_plain_network_is_certified_and_attacked_like_any_other() -> None:
    torch.manual_seed(0)
    net = FeedForward(784, 30, 10, normalize=lben.Normalize(MNIST_MEAN, MNIST_STD))
    fit(net, few_images(2000, 1000), TrainConfig(epochs=2, learning_rate=5e-3))
    x, y = pixels(few_images(2000, 1000).test_images[:100]), few_images(2000, 1000).test_labels[:100]
    radius = lben.certified_radius(net.eval(), x, y)
    assert torch.equal(radius.predicted, net(x).argmax(-1))
    result = lben.attack(net, x, y, [0.5, 2.0], steps=10, restarts=1)
    assert not bool((result.success & (radius.radius > result.epsilons.input[:, None])).any())
    assert bool((result.error > result.clean_error).any())
