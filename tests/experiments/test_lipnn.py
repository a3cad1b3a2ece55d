"""Lip-NN: its bound is kept, and a run goes on after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lben
from lben.data import MNIST_MEAN, MNIST_STD
from lben.experiments.baselines import FeedForward, pool, train_lipnn
from lben.train import TrainConfig
from tests.problems import few_images


def test_pooling_halves_the_images() -> None:
    pooled = pool(few_images(20, 1000))
    assert pooled.train_images.shape == (20, 196)
    assert pooled.train_images.dtype == torch.uint8
    first = few_images(20, 1000).train_images[3].reshape(28, 28)[10:12, 12:14].double().mean()
    assert abs(float(pooled.train_images[3].reshape(14, 14)[5, 6]) - float(first)) <= 0.5


@pytest.mark.slow
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


@pytest.mark.slow
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
