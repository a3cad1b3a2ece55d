"""Losses against direct computations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.train import CrossEntropy, Emma, TrainConfig, fit
from tests.problems import few_images
from tests.train.runs import plain

EPSILON = 0.4


def slopes(net: nn.Module) -> Tensor:
    """How steep the difference of two outputs of a last linear layer is: the norms of the differences of its rows."""
    rows = next(net.parameters())
    return (rows[:, None] - rows[None]).square().sum(dim=-1).clamp(min=1e-30).sqrt()


def directly(logits: Tensor, labels: Tensor, bounds: Tensor) -> float:
    """The formula, sample by sample and class by class."""
    total = 0.0
    for y, t in zip(logits.tolist(), labels.tolist(), strict=True):
        others = 0.0
        for j, value in enumerate(y):
            if j != t:
                slope = float(bounds[t, j])
                share = min(max((y[t] - value) / slope, EPSILON / 100), EPSILON)
                others += math.exp(value + share * slope - y[t])
        total += math.log1p(others)
    return total / len(labels)


@pytest.fixture
def batch() -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Linear(6, 4, dtype=torch.float64)
    x, labels = torch.randn(30, 6, dtype=torch.float64), torch.randint(4, (30,))
    x[:10] += 3 * net.weight.detach()[labels[:10]]  # some are far on the right side
    return net, x, labels


def test_emma_is_its_formula(batch: tuple[nn.Linear, Tensor, Tensor]) -> None:
    net, x, labels = batch
    logits = net(x).detach()
    assert Emma(EPSILON, slopes)(net, logits, labels).item() == pytest.approx(
        directly(logits, labels, slopes(net).detach())
    )
    bounds = torch.full((4, 4), 1.7)
    assert float(Emma(EPSILON, 1.7)(net, logits, labels)) == pytest.approx(directly(logits, labels, bounds))


def test_all_three_cases_of_the_radius_occur_and_are_what_is_said(batch: tuple[nn.Linear, Tensor, Tensor]) -> None:
    net, x, labels = batch
    logits, loss = net(x).detach(), Emma(EPSILON, 1.0)
    behind = logits - logits.gather(1, labels[:, None])
    raised = loss.raised(net, logits, labels)
    wrong = nn.functional.one_hot(labels, 4) == 0
    safe, level = wrong & (behind < -EPSILON), wrong & (behind < -EPSILON / 100) & (behind > -EPSILON)
    wins = wrong & (behind > 0)
    assert min(int(case.sum()) for case in (safe, level, wins)) > 3
    assert torch.allclose(raised[safe], behind[safe] + EPSILON)
    assert torch.allclose(raised[level], torch.zeros(1, dtype=torch.float64))
    assert torch.allclose(raised[wins], behind[wins] + EPSILON / 100)
    assert bool((raised[~wrong] == 0).all())


def test_the_radius_is_a_constant_for_the_gradient(batch: tuple[nn.Linear, Tensor, Tensor]) -> None:
    """Against differences of the loss with the radii held at the point."""
    net, x, labels = batch
    logits, bounds = net(x).detach(), slopes(net).detach()
    wrong = nn.functional.one_hot(labels, 4) == 0
    behind = logits - logits.gather(1, labels[:, None])
    taken = bounds[labels].masked_fill(~wrong, 1.0)
    held = (-behind / taken).clamp(EPSILON / 100, EPSILON) * wrong

    def frozen(weight: Tensor) -> Tensor:
        outputs = x @ weight.T + net.bias.detach()
        steep = (weight[:, None] - weight[None]).square().sum(dim=-1).clamp(min=1e-30).sqrt()
        return nn.functional.cross_entropy(outputs + held * steep[labels], labels)

    weight = net.weight.detach().requires_grad_()
    assert torch.autograd.gradcheck(frozen, weight)
    (wanted,) = torch.autograd.grad(frozen(weight), weight)
    (found,) = torch.autograd.grad(Emma(EPSILON, slopes)(net, net(x), labels), net.weight)
    assert torch.allclose(found, wanted, rtol=1e-10)


def test_large_and_small_radii_are_margins_and_cross_entropy() -> None:
    net, labels = plain(), torch.arange(3)
    sure = 20 * torch.eye(3)[labels]
    assert Emma(1.0, 2.0)(net, sure, labels) == pytest.approx(float(CrossEntropy(2.0)(net, sure, labels)))
    assert Emma(1e-9, 2.0)(net, sure, labels) == pytest.approx(float(CrossEntropy()(net, sure, labels)))


def test_a_network_learns_with_it() -> None:
    history = fit(plain(), few_images(512, 100), TrainConfig(epochs=4, learning_rate=0.01, loss=Emma(0.1, 5.0)))
    assert history[-1].loss < 0.8 * history[0].loss


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Emma(0.0, 1.0), "epsilon .* not 0.0"),
        (lambda: Emma(1.0, -2.0), "bound .* not -2.0"),
        (lambda: Emma(1.0, 1.0)(plain(), torch.zeros(2, 3), torch.tensor([0, 3])), "label 3, but .* 3 outputs"),
    ],
)
def test_bad_input(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(lben.InvalidInput, match=words):
        make()
