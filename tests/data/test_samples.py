"""Data to learn from: checked when it is made, and refused with what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lben
from lben.data import ClassificationData, ImageData, RegressionData, pixels
from lben.train import TrainConfig, error_rate, fit

IMAGES: Any = torch.randint(0, 256, (12, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS: Any = torch.arange(12) % 3
NUMBERS: Any = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))


def batches(data: Any) -> list[Tensor]:
    found = [*data.batch(torch.arange(3), torch.float64)]
    return found + [tensor for batch in data.test_batches(5, torch.float64) for tensor in batch]


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images.double() / 255,
        lambda images: images.numpy(),
        lambda images: images.numpy() / 255,
        lambda images: np.asfortranarray(images.numpy())[::-1][::-1],
        lambda images: np.frombuffer(images.numpy().tobytes(), np.uint8).reshape(images.shape),  # read-only
        lambda images: images.double().div(255).requires_grad_(),
    ],
)
def test_the_same_images_in_another_form(change: Any) -> None:
    """Bytes, floats in [0, 1] and numpy arrays of either give the same numbers, to the bit."""
    images = change(IMAGES)
    found, expected = ImageData(images, LABELS.numpy(), images, LABELS), ImageData(IMAGES, LABELS, IMAGES, LABELS)
    for first, second in zip(batches(found), batches(expected), strict=True):
        assert torch.equal(first, second)
        assert first.dtype == second.dtype
        assert not first.requires_grad
    assert torch.equal(pixels(images, torch.float64), pixels(IMAGES, torch.float64))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (IMAGES.float(), r"images must be bytes.* in \[0, 1\], but is float32 from 9 to 254"),
        (IMAGES.float() / 255 - 0.5, r"but is float32 from -0\.\d+ to 0\.\d+"),
        (IMAGES.long(), "but is int64"),
        (IMAGES > 3, "but is bool"),
        (torch.full((12, 5), torch.nan), "images holds nan"),
        (IMAGES.tolist(), "a torch.Tensor or a numpy array, not list"),
        (IMAGES.numpy().astype(object), "numpy array of object"),
        (np.ma.masked_array(IMAGES.numpy(), mask=True), "not MaskedArray"),
        (IMAGES.float().to_sparse(), "sparse"),
        (torch.zeros(12, 5, device="meta"), "meta device"),
        (None, "not NoneType"),
    ],
)
def test_images_of_no_known_scale_are_refused(images: Any, words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        ImageData(images, LABELS, IMAGES, LABELS)
    with pytest.raises(lben.InvalidInput, match=words):
        pixels(images)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels": LABELS[:-1]}, "train_images are 12, but train_labels are 11"),
        ({"test_labels": LABELS[:-1]}, "test_images are 12, but test_labels are 11"),
        ({"train_labels": LABELS.float()}, "train_labels must be integers.* float32"),
        ({"train_labels": LABELS > 0}, "train_labels must be integers.* bool"),
        ({"train_labels": LABELS - 1}, "train_labels .* holds -1"),
        ({"test_labels": LABELS[:, None]}, r"test_labels must have shape \(count,\), not \(12, 1\)"),
        ({"test_images": IMAGES[:, :4]}, r"train on has shape \(5,\), but to test on \(4,\)"),
        ({"test_images": IMAGES[:, 0]}, r"test_images must have shape \(count, .., features\), not \(12,\)"),
        ({"test_images": IMAGES[:0], "test_labels": LABELS[:0]}, "test_images is empty"),
    ],
)
def test_images_and_labels_fit_each_other(changed: dict[str, Tensor], words: str) -> None:
    whole = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES, "test_labels": LABELS}
    with pytest.raises(lben.InvalidInput, match=words):
        ImageData(**{**whole, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_targets": NUMBERS[:-1]}, "train_inputs are 12, but train_targets are 11"),
        ({"train_targets": NUMBERS[:, 0]}, r"train_targets must have shape \(count, .., features\), not \(12,\)"),
        ({"test_targets": NUMBERS / 0}, "test_targets holds"),
        ({"train_inputs": NUMBERS.to(torch.complex64)}, "train_inputs must be real numbers, but is complex64"),
        ({"train_inputs": "x"}, "not str"),
    ],
)
def test_inputs_and_targets_fit_each_other(changed: dict[str, Any], words: str) -> None:
    names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    whole = dict.fromkeys(names, NUMBERS)
    with pytest.raises(lben.InvalidInput, match=words):
        RegressionData(**{**whole, **changed})
    assert torch.equal(RegressionData(**dict.fromkeys(names, NUMBERS.numpy())).train_inputs, NUMBERS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels": LABELS[:-1]}, "train_inputs are 12, but train_labels are 11"),
        ({"train_labels": LABELS.float()}, "train_labels must be integers.* float32"),
        ({"test_inputs": NUMBERS[:, :4]}, r"train on has shape \(5,\), but to test on \(4,\)"),
        ({"test_inputs": NUMBERS / 0}, "test_inputs holds"),
        ({"test_inputs": NUMBERS[:0], "test_labels": LABELS[:0]}, "test_inputs is empty"),
    ],
)
def test_inputs_and_labels_fit_each_other(changed: dict[str, Any], words: str) -> None:
    whole = {"train_inputs": NUMBERS, "train_labels": LABELS, "test_inputs": NUMBERS, "test_labels": LABELS}
    with pytest.raises(lben.InvalidInput, match=words):
        ClassificationData(**{**whole, **changed})


def test_rows_of_any_numbers_are_classified_as_images_are() -> None:
    """Of numbers in [0, 1], which both take, they give the same batches, errors and words."""
    x: Any = torch.rand(12, 5)
    rows, images = ClassificationData(x.numpy(), LABELS, x, LABELS.numpy()), ImageData(x, LABELS, x, LABELS)
    for first, second in zip(batches(rows), batches(images), strict=True):
        assert torch.equal(first, second)
    outputs = torch.randn(12, 3)
    assert torch.equal(rows.errors(outputs, LABELS), images.errors(outputs, LABELS))
    assert (rows.words(0.125), rows.unanswered_error) == (images.words(0.125), images.unanswered_error)
    assert torch.equal(ClassificationData(NUMBERS, LABELS, NUMBERS, LABELS).train_inputs, NUMBERS)


def test_targets_are_never_spread_over_outputs() -> None:
    """Outputs of shape (12, 1) and targets of shape (12, 5) have no differences."""
    with pytest.raises(lben.InvalidInput, match=r"outputs have shape \(12, 1\), but the targets \(12, 5\)"):
        RegressionData.errors(NUMBERS[:, :1], NUMBERS)


def test_training_on_floats_is_training_on_bytes() -> None:
    images: Any = torch.cat([IMAGES, 255 - IMAGES])
    labels = torch.cat([LABELS, LABELS])
    errors: list[Any] = []
    forms: list[Any] = [images, images.double() / 255, images.numpy()]
    for form in forms:
        torch.manual_seed(0)
        net = lben.LBEN(5, 4, 3).double()
        data = ImageData(form, labels, form, labels)
        history = fit(net, data, TrainConfig(epochs=2, batch_size=8))
        errors.append((history[-1].loss, error_rate(net, form, labels)))
    assert errors[0] == errors[1] == errors[2]


def test_signals_to_test_on_may_be_longer() -> None:
    data = RegressionData(torch.rand(4, 19), torch.rand(4, 17), torch.rand(2, 43), torch.rand(2, 41))
    inputs, targets = next(data.test_batches(2, torch.float32))
    assert (inputs.shape, targets.shape) == ((2, 43), (2, 41))
