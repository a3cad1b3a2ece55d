"""Recipes: rates, losses, and options that are refused."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.train import CrossEntropy, TrainConfig
from tests.train.runs import plain


def squared(net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - nn.functional.one_hot(labels, 10)).square().mean()


def test_a_loss_is_known_by_its_name_and_not_by_its_place_in_memory() -> None:
    other = FunctionType(squared.__code__, squared.__globals__, "squared")
    assert repr(other) != repr(squared)
    assert TrainConfig(loss=other).description() == TrainConfig(loss=squared).description()


def test_one_cycle_is_the_one_of_torch() -> None:
    config, steps = TrainConfig(epochs=5, learning_rate=0.01), 20
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, 100)
    ours, theirs = [], []
    for step in range(100):
        ours.append(config.rate(step, steps))
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 0.05 * 0.01
    assert max(ours) == pytest.approx(0.01)


def test_schedules() -> None:
    step = TrainConfig(epochs=40, schedule="step", step_epochs=10)
    assert [step.rate(100 * epoch, 100) for epoch in (0, 9, 10, 39)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-6])
    cosine = TrainConfig(epochs=10, schedule="cosine")
    assert [cosine.rate(s, 10) for s in (0, 50, 100)] == pytest.approx([1e-3, 5e-4, 0])
    assert TrainConfig(schedule="constant").rate(5, 10) == 1e-3


def test_margin() -> None:
    logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    net = plain()
    assert CrossEntropy(2.0)(net, logits, labels) == pytest.approx(float(torch.tensor(2.0).log()))
    assert CrossEntropy()(net, logits, labels) < CrossEntropy(1.0)(net, logits, labels)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs .* not 0"),
        ({"learning_rate": -1.0}, "learning_rate .* not -1.0"),
        ({"schedule": "wild"}, "'wild'"),
        ({"optimizer": "magic"}, "'magic'"),
        ({"on_lost": "cry"}, "'cry'"),
        ({"seed": -1}, "seed .* not -1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"loss": "soft"}, "loss .* 'soft'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        TrainConfig(**options)  # type: ignore[arg-type]
