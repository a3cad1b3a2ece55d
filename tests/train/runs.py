"""Networks to train, and how to train them in a process of their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lben
from lben.train import TrainConfig


def small_lben(hidden: int = 6, **options: object) -> lben.LBEN:
    chosen: dict[str, object] = {"gamma": 1.0, "solver": lben.PeacemanRachford(tolerance=1e-3)}
    chosen["normalize"] = lben.Normalize(0.1307, 0.3081)
    return lben.LBEN(784, hidden, 10, **{**chosen, **options})  # type: ignore[arg-type]


def network(gamma: float | None = 1.0) -> lben.LBEN:
    torch.manual_seed(0)
    return small_lben(20, gamma=gamma)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


ONCE = TrainConfig(epochs=1)

APART = """
import sys
sys.path.insert(0, {root!r})
import torch, lben
from lben.train import TrainConfig, fit
from tests.problems import few_images
from tests.train.runs import network
torch.set_num_threads(1)
"""
