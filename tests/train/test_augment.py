"""Flips and shifts: others each epoch, the same for the same seed, and resumed to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.data import ImageData
from lben.train import TrainConfig, fit
from lben.train.augment import SHIFT, Augmentation, Augmented
from tests.problems import few_images
from tests.train.runs import plain, same

FLIPS = TrainConfig(epochs=3, augment="flip", learning_rate=5e-3)


def images(train: int = 300, test: int = 50) -> ImageData:
    few = few_images(train, test)
    return replace(
        few,
        train_images=few.train_images.reshape(-1, 1, 28, 28),
        test_images=few.test_images.reshape(-1, 1, 28, 28),
    )


class Deep(nn.Sequential):
    """A stack of layers with nothing that a network of ours has: no gamma, no weights, no solver of its own."""

    def __init__(self, solver: lben.Solver | None = None) -> None:
        torch.manual_seed(1)
        last = lben.LBEN(36, 8, 10, gamma=2.0, solver=solver or lben.PeacemanRachford(tolerance=1e-3))
        super().__init__(
            nn.Conv2d(1, 4, 3, stride=3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=3), nn.ReLU(), nn.Flatten(), last
        )


class Seen(nn.Module):
    """Remembers what it is shown in training."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.shown = nn.Sequential(nn.Flatten(), plain()), []  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.shown.append(x.clone())
        y: Tensor = self.net(x)
        return y


def test_half_of_the_images_are_mirrored_each_epoch_anew() -> None:
    data, net = images(), Seen()
    fit(net, data, replace(FLIPS, epochs=2, batch_size=300))
    originals, _ = data.batch(torch.arange(300), torch.float32)
    asymmetric = [k for k in range(300) if not torch.equal(originals[k], originals[k].flip(-1))]
    mirrored = []
    for shown in net.shown:
        as_they_are = {tuple(image.flatten().tolist()) for image in shown}
        mirrored.append({k for k in asymmetric if tuple(originals[k].flip(-1).flatten().tolist()) in as_they_are})
    assert all(0.4 < len(some) / len(asymmetric) < 0.6 for some in mirrored)
    assert mirrored[0] != mirrored[1]


def test_shifted_images_are_parts_of_larger_ones_with_repeated_edges() -> None:
    x = torch.rand(200, 3, 6, 7)
    shift = Augmented("shift", 200, torch.Generator().manual_seed(0))
    moved = shift(x, torch.arange(200))
    assert shift.moves is not None
    larger = nn.functional.pad(x, (SHIFT,) * 4, mode="replicate")
    for image, around, (down, right) in zip(moved, larger, shift.moves.tolist(), strict=True):
        h, w = SHIFT - down, SHIFT - right
        assert torch.equal(image, around[:, h : h + 6, w : w + 7])
    ways = range(-SHIFT, SHIFT + 1)
    assert {tuple(move) for move in shift.moves.tolist()} == {(down, right) for down in ways for right in ways}


def test_images_are_mirrored_first_and_then_moved() -> None:
    x = torch.rand(50, 1, 6, 6)
    both = Augmented("flip and shift", 50, torch.Generator().manual_seed(0))
    assert both.mirrored is not None
    assert both.moves is not None
    expected = torch.where(both.mirrored[:, None, None, None], x.flip(-1), x)
    only = Augmented("shift", 50, torch.Generator())
    only.moves = both.moves
    assert torch.equal(both(x, torch.arange(50)), only(expected, torch.arange(50)))


@pytest.mark.parametrize("kind", get_args(Augmentation))
def test_what_is_done_to_an_image_does_not_depend_on_the_batch(kind: Augmentation) -> None:
    x = torch.rand(20, 3, 4, 5)
    whole = Augmented(kind, 20, torch.Generator().manual_seed(0))
    index = torch.randperm(20)
    assert torch.equal(whole(x, torch.arange(20))[index[::2]], whole(x[index[::2]], index[::2]))
    assert torch.equal(Augmented(None, 20, torch.Generator())(x, index), x)


def test_an_augmented_run_of_a_deep_stack_resumes_to_the_same_bits(tmp_path: Path) -> None:
    both = replace(FLIPS, augment="flip and shift")
    whole, again = Deep(), Deep()
    first = fit(whole, images(), both)
    stopped, steps = Deep(), iter(range(5))  # of nine: in the second epoch

    def count(net: nn.Module, _: object) -> None:
        if net.training:
            next(steps)

    stopped.register_forward_pre_hook(count)
    with pytest.raises(StopIteration):
        fit(stopped, images(), both, folder=tmp_path)
    second = fit(again, images(), both, folder=tmp_path, resume=True)
    assert [row.loss for row in first] == [row.loss for row in second]
    assert same(tensors(whole), tensors(again))
    assert not same(tensors(whole), tensors(stopped))


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in net.state_dict().items() if isinstance(value, Tensor)}


def test_augmentation_is_part_of_a_run_and_its_absence_is_not(tmp_path: Path) -> None:
    assert "augment" not in TrainConfig().description()
    assert FLIPS.description()["augment"] == "flip"
    fit(Deep(), images(), replace(FLIPS, epochs=1), folder=tmp_path)
    with pytest.raises(lben.InvalidFile, match="augment is flip there and absent here"):
        fit(Deep(), images(), replace(FLIPS, epochs=1, augment=None), folder=tmp_path, resume=True)


def test_rows_have_no_left_and_right() -> None:
    with pytest.raises(lben.InvalidInput, match=r"can be flipped or shifted, not samples of shape \(784,\)"):
        fit(plain(), few_images(64, 50), FLIPS)
    with pytest.raises(lben.InvalidInput, match="augment"):
        TrainConfig(augment="turn")  # type: ignore[arg-type]
