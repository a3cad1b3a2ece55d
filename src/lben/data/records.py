"""What a network learns from, held in memory: images or other inputs with classes, and inputs with targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lben.data import samples
from lben.errors import InvalidInput


class _Classes:
    """An error is a wrong class, and a sample without an answer has one."""

    train_labels: Tensor
    unanswered_error: ClassVar[float] = 1.0

    def _read(self, name: str, read: Callable[[str, Any], Tensor]) -> None:
        """Check what is to be learned from, by the name of its inputs and how these are read."""
        inputs = []
        for part in ("train", "test"):
            inputs.append(read(f"{part}_{name}", getattr(self, f"{part}_{name}")))
            labels = samples.labels(f"{part}_labels", getattr(self, f"{part}_labels"))
            samples.check_count(f"{part}_{name}", inputs[-1], f"{part}_labels", labels)
            object.__setattr__(self, f"{part}_{name}", inputs[-1])
            object.__setattr__(self, f"{part}_labels", labels)
        samples.check_alike(*inputs)

    def __len__(self) -> int:
        return len(self.train_labels)

    @staticmethod
    def errors(outputs: Tensor, targets: Tensor) -> Tensor:
        samples.check_classes(outputs, targets)
        return (outputs.argmax(dim=-1) != targets).double()

    @staticmethod
    def words(error: float) -> str:
        return f"{100 * error:.2f} %"


@dataclass(frozen=True, eq=False)
class ImageData(_Classes):
    """Images as rows of bytes, or of floats in [0, 1], and labels as integers: (count, features) and (count,).

    Tensors or numpy arrays. An error is a wrong class, and an image without an answer has one. There may be none to
    train on, where one only tests.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        self._read("images", samples.images)

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _pixels(self.train_images[index], dtype), self.train_labels[index]

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in zip(self.test_images.split(size), self.test_labels.split(size), strict=True):
            yield _pixels(images, dtype), labels


@dataclass(frozen=True, eq=False)
class ClassificationData(_Classes):
    """Inputs of any finite numbers, samples first and features last, and labels as integers: (count,).

    Tensors or numpy arrays. An error is a wrong class, and a sample without an answer has one. There may be none to
    train on, where one only tests.
    """

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        self._read("inputs", samples.numbers)

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.train_inputs[index].to(dtype), self.train_labels[index]

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in zip(self.test_inputs.split(size), self.test_labels.split(size), strict=True):
            yield inputs.to(dtype), labels


@dataclass(frozen=True, eq=False)
class RegressionData:
    """Inputs and targets, samples first and features last; an error is the mean square of a sample's differences.

    Tensors or numpy arrays of finite numbers; targets have the shape of the outputs. Signals to test on may be
    longer than those to train on.
    """

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    unanswered_error: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            names = f"{part}_inputs", f"{part}_targets"
            found = [samples.numbers(name, getattr(self, name)) for name in names]
            samples.check_count(names[0], found[0], names[1], found[1])
            for name, tensor in zip(names, found, strict=True):
                object.__setattr__(self, name, tensor)

    def __len__(self) -> int:
        return len(self.train_targets)

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.train_inputs[index].to(dtype), self.train_targets[index].to(dtype)

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, targets in zip(self.test_inputs.split(size), self.test_targets.split(size), strict=True):
            yield inputs.to(dtype), targets.to(dtype)

    @staticmethod
    def errors(outputs: Tensor, targets: Tensor) -> Tensor:
        samples.check_targets(outputs, targets)
        return (outputs - targets).square().flatten(1).mean(dim=1).double()

    @staticmethod
    def words(error: float) -> str:
        return f"{error:.3g}"


def pixels(images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Bytes as numbers in [0, 1]; floats are such numbers already, or refused."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidInput(f"dtype must be a floating-point torch.dtype, not {dtype!r}.")
    return _pixels(samples.in_range("images", samples.tensor("images", images)), dtype)


def _pixels(images: Tensor, dtype: torch.dtype) -> Tensor:
    return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
