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
        """1 where the class is wrong, 0 where it is right.

        Args:
            outputs: scores, of shape (batch, p).
            targets: classes, of shape (batch,).

        Returns:
            A tensor of shape (batch,), in double precision.
        """
        samples.check_classes(outputs, targets)
        return (outputs.argmax(dim=-1) != targets).double()

    @staticmethod
    def words(error: float) -> str:
        """A share of errors, in per cent.

        Args:
            error: the share.

        Returns:
            A short text.
        """
        return f"{100 * error:.2f} %"


@dataclass(frozen=True, eq=False)
class ImageData(_Classes):
    """Images and their classes, to train on and to test on: `Data` for `lben.train.fit`.

    Tensors or numpy arrays. An error is a wrong class, and an image without an answer has one. There may be none to
    train on, where one only tests.

    Args:
        train_images: bytes, or floats in [0, 1], of shape (count, features) or (count, channels, height, width).
        train_labels: integers from 0, of shape (count,).
        test_images: the same as those to train on.
        test_labels: the same as those to train on.

    Raises:
        InvalidInput: for other numbers, shapes or counts.

    Examples:
        >>> digits = lben.data.embedded_mnist()
        >>> few = lben.data.ImageData(digits.train_images[:100], digits.train_labels[:100],
        ...                           digits.test_images[:50], digits.test_labels[:50])
        >>> len(few), few.test_images.shape
        (100, torch.Size([50, 784]))
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        self._read("images", samples.images)

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Images, as numbers in [0, 1], and labels of some of those to train on.

        Args:
            index: their numbers.
            dtype: of the images.

        Returns:
            Images and labels.
        """
        return _pixels(self.train_images[index], dtype), self.train_labels[index]

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Images, as numbers in [0, 1], and labels of all those to test on.

        Args:
            size: how many at a time.
            dtype: of the images.

        Returns:
            An iterator of images and labels.
        """
        for images, labels in zip(self.test_images.split(size), self.test_labels.split(size), strict=True):
            yield _pixels(images, dtype), labels


@dataclass(frozen=True, eq=False)
class ClassificationData(_Classes):
    """Inputs of any finite numbers and their classes, to train on and to test on: `Data` for `lben.train.fit`.

    Tensors or numpy arrays. An error is a wrong class, and a sample without an answer has one. There may be none to
    train on, where one only tests.

    Args:
        train_inputs: of shape (count, .., features).
        train_labels: integers from 0, of shape (count,).
        test_inputs: the same as those to train on.
        test_labels: the same as those to train on.

    Raises:
        InvalidInput: for other numbers, shapes or counts.

    Examples:
        >>> x, y = torch.randn(8, 2), torch.zeros(8, dtype=torch.int64)
        >>> len(lben.data.ClassificationData(x, y, x, y))
        8
    """

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        self._read("inputs", samples.numbers)

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some of those to train on.

        Args:
            index: their numbers.
            dtype: of the inputs.

        Returns:
            Inputs and labels.
        """
        return self.train_inputs[index].to(dtype), self.train_labels[index]

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of all those to test on.

        Args:
            size: how many at a time.
            dtype: of the inputs.

        Returns:
            An iterator of inputs and labels.
        """
        for inputs, labels in zip(self.test_inputs.split(size), self.test_labels.split(size), strict=True):
            yield inputs.to(dtype), labels


@dataclass(frozen=True, eq=False)
class RegressionData:
    """Inputs and targets, to train on and to test on: `Data` for `lben.train.fit`.

    Tensors or numpy arrays of finite numbers. An error is the mean square of a sample's differences. Samples to test on
    may have another shape than those to train on, such as longer signals.

    Args:
        train_inputs: of shape (count, .., features).
        train_targets: of the shape of the outputs.
        test_inputs: samples first and features last.
        test_targets: of the shape of the outputs.

    Raises:
        InvalidInput: for other numbers, shapes or counts.

    Examples:
        >>> x = torch.randn(8, 2)
        >>> data = lben.data.RegressionData(x, x[:, :1], x, x[:, :1])
        >>> data.errors(torch.tensor([[2.0]]), torch.tensor([[0.0]]))
        tensor([4.], dtype=torch.float64)
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
        """Inputs and targets of some of those to train on.

        Args:
            index: their numbers.
            dtype: of both.

        Returns:
            Inputs and targets.
        """
        return self.train_inputs[index].to(dtype), self.train_targets[index].to(dtype)

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of all those to test on.

        Args:
            size: how many at a time.
            dtype: of both.

        Returns:
            An iterator of inputs and targets.
        """
        for inputs, targets in zip(self.test_inputs.split(size), self.test_targets.split(size), strict=True):
            yield inputs.to(dtype), targets.to(dtype)

    @staticmethod
    def errors(outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean square of each sample's differences.

        Args:
            outputs: samples first.
            targets: of the same shape.

        Returns:
            A tensor of shape (batch,), in double precision.
        """
        samples.check_targets(outputs, targets)
        return (outputs - targets).square().flatten(1).mean(dim=1).double()

    @staticmethod
    def words(error: float) -> str:
        """A mean square, to three digits.

        Args:
            error: the mean square.

        Returns:
            A short text.
        """
        return f"{error:.3g}"


def pixels(images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Bytes as numbers in [0, 1]; floats are such numbers already, or refused.

    Args:
        images: bytes, or floats in [0, 1], of any shape.
        dtype: of the numbers; None: torch's default.

    Returns:
        A tensor of the same shape.

    Raises:
        InvalidInput: for other numbers, whose scale is not known, or a dtype that is no floating-point one.

    Examples:
        >>> lben.data.pixels(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidInput(f"dtype must be a floating-point torch.dtype, not {dtype!r}.")
    return _pixels(samples.in_range("images", samples.tensor("images", images)), dtype)


def _pixels(images: Tensor, dtype: torch.dtype) -> Tensor:
    return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
