"""What people have at hand as `Data`: arrays, a `Dataset` or a `DataLoader` of torch's.

Targets that are integers are classes, and floats are numbers to come close to, one a column. Inputs that are bytes are
pixels, and become numbers in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from lben import checks
from lben.data import ClassificationData, ImageData, RegressionData, pixels, samples
from lben.errors import InvalidInput
from lben.train.judge import Data

Pair: TypeAlias = "tuple[Tensor | np.ndarray, Tensor | np.ndarray]"
Samples: TypeAlias = "Pair | Dataset[Any] | DataLoader[Any]"
"""Inputs and targets: arrays, or what gives them pair by pair, or batch by batch."""
Kind: TypeAlias = "type[ClassificationData] | type[RegressionData]"
_EXPECTED = "(X, y) as tensors or numpy arrays, a torch Dataset or DataLoader, or lben.data.ImageData and its like"


@dataclass(frozen=True, eq=False)
class Numbered:
    """A `Dataset` of pairs, which are fetched when they are needed, in an order that `fit` draws."""

    dataset: Dataset[Any]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type] # checked where it was made

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        chosen = index.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        found = many(chosen) if callable(many) else [self.dataset[i] for i in chosen]
        return _converted(default_collate(found), dtype)

    def batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.arange(len(self)).split(size):
            yield self.batch(index, dtype)

    def facts(self) -> dict[str, Any]:
        return {"dataset": self.dataset}


@dataclass(frozen=True, eq=False)
class Loaded:
    """A `DataLoader`: batches, their order and what is in them are its own."""

    loader: DataLoader[Any]

    def __len__(self) -> int:
        """How many batches it has: how many samples, it need not know."""
        return len(self.loader)

    def batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.loader:
            yield _converted(batch, dtype)

    def facts(self) -> dict[str, Any]:
        own = self.loader
        named = {"dataset": own.dataset, "sampler": type(own.sampler).__name__, "collate": own.collate_fn}
        return {**named, "batch_size": own.batch_size, "drop_last": own.drop_last}

    def check_resumable(self) -> None:
        """Refuse an order that the seed of an epoch does not decide."""
        own = self.loader
        usual = type(own.sampler) in (RandomSampler, SequentialSampler) and own.batch_size is not None
        if not usual or own.generator is not None or getattr(own.sampler, "generator", None) is not None:
            raise InvalidInput(
                "A run whose DataLoader has a generator or a sampler of its own cannot be resumed: a checkpoint does "
                "not know its order. Leave that to torch, or give the Dataset itself."
            )


@dataclass(frozen=True, eq=False)
class Fed:
    """Samples to train and to test on, and what an error is."""

    train: Numbered | Loaded
    test: Numbered | Loaded
    kind: Kind

    @property
    def unanswered_error(self) -> float:
        return self.kind.unanswered_error

    def __len__(self) -> int:
        return len(self.train)

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if isinstance(self.train, Loaded):
            raise InvalidInput("A DataLoader gives its batches in an order of its own, not by their numbers.")
        return self.train.batch(index, dtype)

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        return self.test.batches(size, dtype)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.kind.errors(outputs, targets)

    def words(self, error: float) -> str:
        return self.kind.words(error)

    def facts(self) -> dict[str, Any]:
        """What decides a run, by name."""
        parts = {"train": self.train, "test": self.test}
        return {f"{part}_{name}": fact for part, source in parts.items() for name, fact in source.facts().items()}


def as_data(data: Data | Samples, test: Samples | float | None, seed: int) -> Data:
    """Anything that `fit` takes as `Data`; of `Data`, that itself."""
    if _is_data(data):
        if test is not None:
            raise InvalidInput(f"{type(data).__name__} has samples to test on already: give no test.")
        return data  # type: ignore[return-value]
    share = None
    if isinstance(test, int | float):
        share, test = _share(test), None
        if isinstance(data, DataLoader):
            raise InvalidInput("No share can be kept of a DataLoader: give test=, a loader of other samples.")
    if _is_pair(data) and (test is None or _is_pair(test)):
        return _of_arrays(data, test, share, seed)
    train = _source("data", data)
    judged = train if test is None else _source("test", test)
    if share is not None and isinstance(train, Numbered):
        kept, aside = _split(len(train), share, seed)
        train, judged = (Numbered(Subset(train.dataset, index.tolist())) for index in (kept, aside))
    return Fed(train, judged, _kind(train, judged))


def _is_data(data: object) -> bool:
    return all(callable(getattr(data, name, None)) for name in ("__len__", "batch", "test_batches", "errors", "words"))


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(a, Tensor | np.ndarray) for a in data)


def _share(test: float) -> float:
    if not 0 < checks.number("test", test) < 1:
        raise InvalidInput(f"test, a share of the samples, must lie between 0 and 1, not {test}.")
    return float(test)


def _split(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Which samples to train on, and which are kept aside: at least one each."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    aside = max(1, round(share * count))
    if aside >= count:
        raise InvalidInput(f"Of {count} samples none would be left to train on after a share of {share:g}.")
    return order[aside:].sort().values, order[:aside].sort().values


def _of_arrays(data: Any, test: Any, share: float | None, seed: int) -> Data:
    X, y = _arrays(*data)
    if share is not None:
        kept, aside = (index.to(X.device) for index in _split(len(X), share, seed))
        (X, y), (X2, y2) = (X[kept], y[kept.to(y.device)]), (X[aside], y[aside.to(y.device)])
    else:
        X2, y2 = (X, y) if test is None else _arrays(*test)
    if y.is_floating_point() != y2.is_floating_point():
        raise InvalidInput("The targets to train on and to test on must both be integers, for classes, or both floats.")
    if y.is_floating_point():
        return RegressionData(*(pixels(part) if part.dtype == torch.uint8 else part for part in (X, y, X2, y2)))
    kind = ImageData if X.dtype == torch.uint8 else ClassificationData
    return kind(X, y, X2, y2)


def _arrays(X: Tensor | np.ndarray, y: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
    """Inputs and targets as tensors, as many of each; single numbers as a column."""
    inputs, targets = samples.tensor("X", X), _column(samples.tensor("y", y))
    samples.check_count("X", inputs, "y", targets)
    return inputs, targets


def _source(name: str, data: Any) -> Numbered | Loaded:
    if _is_pair(data):
        return Numbered(TensorDataset(*_arrays(*data)))
    if isinstance(data, DataLoader):
        try:
            len(data)
        except TypeError as error:
            raise InvalidInput(
                f"{name} is a DataLoader that does not know how many batches it has, on which the learning rate "
                "depends: give its IterableDataset a __len__."
            ) from error
        return Loaded(data)
    if isinstance(data, IterableDataset):
        raise InvalidInput(f"{name} is an IterableDataset, whose samples have no numbers: give a DataLoader of it.")
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return Numbered(data)
    raise InvalidInput(f"{name} must be {_EXPECTED}, not {_told(data)}.")


def _kind(train: Numbered | Loaded, test: Numbered | Loaded) -> Kind:
    """What the targets are, by the first of each."""
    found = []
    with torch.random.fork_rng(devices=[]):
        for source in (train, test):
            first = next(source.batches(1, torch.float64), None) if len(source) else None
            if first is None:
                raise InvalidInput(f"There is no sample to {'train' if source is train else 'test'} on.")
            found.append(RegressionData if first[1].is_floating_point() else ClassificationData)
    if found[0] is not found[1]:
        raise InvalidInput("The targets to train on and to test on must both be integers, for classes, or both floats.")
    return found[0]


def _converted(batch: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and targets as a network and a loss take them."""
    if not _is_pair(batch):
        raise InvalidInput(f"A batch must be a pair, inputs and targets, as tensors, not {_said(batch)}.")
    x, targets = _arrays(*batch)
    x = pixels(x, dtype) if x.dtype == torch.uint8 else x.to(dtype)
    return x, targets.to(dtype) if targets.is_floating_point() else targets


def _column(targets: Tensor) -> Tensor:
    """Classes as they are, and numbers with a dimension for the outputs."""
    if targets.is_floating_point():
        return targets[:, None] if targets.dim() == 1 else targets
    return samples.labels("y", targets)


def _told(data: object) -> str:
    """A type in words; of few parts together, that of each, for it is one of them that does not fit."""
    if isinstance(data, tuple | list) and 0 < len(data) <= 3:
        return f"({', '.join(type(part).__name__ for part in data)})"
    return type(data).__name__


def _said(batch: object) -> str:
    return f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
