"""The baselines: their bounds are true, and their losses are what their authors wrote."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import lben
from lben.baselines import LMT, FeedForward, LipschitzMargin, halving_search, pool, train_lipnn
from lben.data import MNIST_MEAN, MNIST_STD, pixels
from lben.train import TrainConfig, fit
from tests.problems import few_images, mnist_network


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


def test_pooling_halves_the_images() -> None:
    pooled = pool(few_images(20, 1000))
    assert pooled.train_images.shape == (20, 196)
    assert pooled.train_images.dtype == torch.uint8
    first = few_images(20, 1000).train_images[3].reshape(28, 28)[10:12, 12:14].double().mean()
    assert abs(float(pooled.train_images[3].reshape(14, 14)[5, 6]) - float(first)) <= 0.5


def test_lipnn_keeps_its_bound() -> None:
    """A bound far below what plain training ends with: the feasible weights keep it, and still classify."""
    torch.manual_seed(0)
    net = FeedForward(196, 16, 10, normalize=lben.Normalize(MNIST_MEAN, MNIST_STD))
    config = TrainConfig(schedule="constant", learning_rate=5e-3)
    history, rounds = train_lipnn(
        net, pool(few_images(1500, 1000)), 0.8, rounds=3, epochs=2, penalty=2.0, config=config
    )
    assert len(history) == 6
    tight = lben.tightest_bound(net).gamma
    assert tight is not None
    assert tight <= 0.8
    assert lben.lipschitz_lower_bound(net, restarts=8, steps=50).value <= tight
    assert all(r.bound <= 0.8 for r in rounds)
    assert rounds[0].apart > 0  # plain training had left the feasible set
    assert rounds[-1].test_error < 0.4
    assert rounds[-1].program_seconds > 0


def test_lipnn_goes_on_after_an_interruption(tmp_path: Path) -> None:
    def trained(rounds: int, folder: Path) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        net = FeedForward(196, 8, 10)
        train_lipnn(net, pool(few_images(300)), 2.0, rounds=rounds, epochs=1, folder=folder, resume=True)
        return net.state_dict()

    for folder in ("whole", "part"):
        (tmp_path / folder).mkdir()
    whole = trained(3, tmp_path / "whole")
    trained(1, tmp_path / "part")
    part = trained(3, tmp_path / "part")
    assert all(torch.equal(whole[name], part[name]) for name in whole)
    with pytest.raises(lben.InvalidFile, match=r"bound is 2\.0 there and 3\.0 here"):
        train_lipnn(FeedForward(196, 8, 10), pool(few_images(300)), 3.0, folder=tmp_path / "part", resume=True)


def test_halving_finds_a_step_no_worse_than_one() -> None:
    net = mnist_network(0.2)
    x = pixels(few_images().test_images)
    found = halving_search(net, x, tolerance=1e-4)
    assert found.solves >= 2
    before = net.solver
    for alpha in (1.0, found.alpha):
        net.solver = lben.PeacemanRachford(alpha=alpha, tolerance=1e-4)
        iterations = net.solve(x, keep_history=True).iterations
        assert found.iterations <= iterations
    assert iterations == found.iterations
    net.solver = lben.PeacemanRachford(tolerance=1e-4)
    assert net.solve(x, keep_history=True).iterations <= 1.3 * found.iterations + 2
    net.solver = before
