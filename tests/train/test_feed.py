"""What people have at hand: arrays, data sets and loaders of torch's, and numbers as targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import lben
from lben.data import ClassificationData, ImageData, RegressionData
from lben.train import CrossEntropy, MeanSquare, TrainConfig, fit
from lben.train.loop import _Loop
from tests.train.runs import same

GENERATOR = torch.Generator().manual_seed(5)
X = 4 * torch.rand(90, 3, generator=GENERATOR) - 2
CLASSES = (X.sum(dim=-1) > 0).long()
NUMBERS = torch.stack([X[:, 0] * X[:, 1], X[:, 2].sin()], dim=1)
RECIPE = TrainConfig(epochs=2, batch_size=16, learning_rate=1e-2)


class Pairs(Dataset[Any]):
    """Pairs as many people write them: numpy rows, and targets that are numbers of Python's."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs.numpy(), targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.inputs[i], self.targets[i].item()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, CLASSES, strict=True))


class Sized(Stream):
    def __len__(self) -> int:
        return len(X)


def network(outputs: int = 2, seed: int = 0) -> lben.LBEN:
    torch.manual_seed(seed)
    return lben.LBEN(3, 8, outputs, gamma=2.0)


def trained(data: Any, config: TrainConfig = RECIPE, outputs: int = 2, **options: Any) -> tuple[Any, Any]:
    net = network(outputs)
    history = fit(net, data, config, **options)
    return net.state_dict(), [(row.loss, row.train_error, row.test_error) for row in history]


def agree(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    assert same(one[0], other[0])
    assert one[1] == other[1]


@pytest.mark.parametrize(
    "form",
    [
        (X, CLASSES),
        (X.numpy(), CLASSES.numpy().astype(np.int32)),
        [X.double(), CLASSES.to(torch.uint8)],
        TensorDataset(X, CLASSES),
        Pairs(X, CLASSES),
    ],
    ids=["tensors", "arrays", "another precision", "TensorDataset", "Dataset"],
)
def test_every_form_of_the_same_samples_trains_the_same_network(form: Any) -> None:
    """To the bit: the order is that of `Data`, which the seed decides; without `test` these samples are judged."""
    agree(trained(form), trained(ClassificationData(X, CLASSES, X, CLASSES)))


@pytest.mark.parametrize("test", [(X[:30], CLASSES[:30]), TensorDataset(X[:30], CLASSES[:30])])
def test_samples_to_test_on_may_be_given(test: Any) -> None:
    expected = trained(ClassificationData(X[30:], CLASSES[30:], X[:30], CLASSES[:30]))
    agree(trained((X[30:], CLASSES[30:]), test=test), expected)
    agree(trained(Pairs(X[30:], CLASSES[30:]), test=test), expected)
    loader = DataLoader(TensorDataset(X[:30], CLASSES[:30]), batch_size=7)
    agree(trained((X[30:], CLASSES[30:]), test=loader), expected)


def test_a_share_may_be_kept_aside() -> None:
    """The same one for arrays and for a data set; by the seed; and nothing of it is trained on."""
    found = trained((X, CLASSES), test=0.2)
    agree(trained(TensorDataset(X, CLASSES), test=0.2), found)
    seen: list[Tensor] = []

    def spy(net: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets.detach())
        return MeanSquare()(net, outputs, targets)

    numbers = torch.arange(90.0)
    one = TrainConfig(epochs=1, batch_size=16, loss=spy)
    trained((X, numbers), one, outputs=1, test=0.2)
    assert len(torch.cat(seen).unique()) == 72
    first = set(torch.cat(seen).flatten().tolist())
    seen.clear()
    trained((X, numbers), TrainConfig(epochs=1, batch_size=16, loss=spy, seed=1), outputs=1, test=0.2)
    assert set(torch.cat(seen).flatten().tolist()) != first


@pytest.mark.parametrize("form", [tuple, lambda parts: TensorDataset(*parts), lambda parts: Pairs(*parts)])
def test_one_number_a_sample_is_a_column(form: Any) -> None:
    y = NUMBERS[:, 0]
    expected = trained(RegressionData(X, y[:, None], X, y[:, None]), outputs=1)
    agree(trained(form([X, y]), outputs=1), expected)
    agree(trained(form([X, y.double()]), TrainConfig(**{**vars(RECIPE), "loss": MeanSquare()}), outputs=1), expected)


def test_several_targets_are_several_columns() -> None:
    expected = trained(RegressionData(X, NUMBERS, X, NUMBERS))
    agree(trained((X.numpy(), NUMBERS.numpy())), expected)
    agree(trained(TensorDataset(X, NUMBERS)), expected)
    history = fit(network(), (X, NUMBERS), TrainConfig(epochs=25, batch_size=15, learning_rate=3e-2))
    assert history[-1].test_error < 0.5 * history[0].test_error


def test_the_loss_follows_from_the_targets() -> None:
    for y, loss in ((CLASSES, CrossEntropy()), (NUMBERS, MeanSquare())):
        agree(trained((X, y)), trained((X, y), TrainConfig(**{**vars(RECIPE), "loss": loss})))
    with pytest.raises(lben.InvalidInput, match="Cross-entropy is for classes"):
        trained((X, NUMBERS), TrainConfig(loss=CrossEntropy()))


def test_bytes_are_pixels() -> None:
    images = (X.abs() * 100).byte()
    expected = trained(ImageData(images, CLASSES, images, CLASSES))
    for form in ((images, CLASSES), TensorDataset(images, CLASSES)):
        agree(trained(form), expected)
    agree(trained((images, NUMBERS)), trained((images.float() / 255, NUMBERS)))


def test_a_loader_has_its_own_batches_and_order() -> None:
    """Without shuffling, what is seen is what it gives; its last batch is its own affair."""
    seen: list[Tensor] = []

    def spy(net: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets.detach().flatten())
        return MeanSquare()(net, outputs, targets)

    loader = DataLoader(TensorDataset(X, torch.arange(90.0)), batch_size=20, drop_last=True)
    net = network(1)
    fit(net, loader, TrainConfig(epochs=2, batch_size=3, loss=spy))
    assert torch.equal(torch.cat(seen), torch.arange(80.0).repeat(2))
    by_hand = network(1)
    optimizer = torch.optim.Adam(by_hand.parameters())
    config, step = TrainConfig(epochs=2), 0
    for _ in range(2):
        for x, y in loader:
            optimizer.param_groups[0]["lr"] = config.rate(step, 4)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(by_hand(x), y[:, None]).backward()
            optimizer.step()
            step += 1
    assert same(net.state_dict(), by_hand.state_dict())


@pytest.mark.parametrize("data", [Pairs(X, CLASSES), "shuffled", "in order"])
def test_a_run_goes_on_to_the_same_bits(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def form() -> Any:
        shuffle = data == "shuffled"
        return data if isinstance(data, Dataset) else DataLoader(Pairs(X, CLASSES), batch_size=16, shuffle=shuffle)

    whole, epoch = trained(form()), _Loop.epoch

    def interrupted(loop: Any, number: int, history: Any) -> Any:
        if number == 1:
            raise KeyboardInterrupt
        return epoch(loop, number, history)

    monkeypatch.setattr(_Loop, "epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(form(), folder=tmp_path)
    monkeypatch.undo()
    agree(trained(form(), folder=tmp_path, resume=True), whole)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "generator": torch.Generator()},
        {"sampler": WeightedRandomSampler([1.0] * 90, 90)},
        {"batch_sampler": [[0, 1], [2, 3]]},
    ],
)
def test_an_order_that_no_checkpoint_knows_is_not_resumed(options: dict[str, Any], tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(X, CLASSES), **options)
    fit(network(), loader, TrainConfig(epochs=1), folder=tmp_path)
    with pytest.raises(lben.InvalidInput, match="generator or a sampler of its own cannot be resumed"):
        fit(network(), loader, TrainConfig(epochs=1), folder=tmp_path, resume=True)


def test_a_loader_is_not_shared_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(lben.InvalidInput, match="cannot be shared between processes: give them its Dataset"):
        fit(network(), DataLoader(TensorDataset(X, CLASSES)))


def test_a_checkpoint_knows_its_data_set(tmp_path: Path) -> None:
    fit(network(), TensorDataset(X, CLASSES), RECIPE, folder=tmp_path)
    with pytest.raises(lben.InvalidFile, match=r"data\.train_dataset"):
        fit(network(), TensorDataset(X, 1 - CLASSES), RECIPE, folder=tmp_path, resume=True)


def test_a_stream_comes_through_a_loader() -> None:
    loader: DataLoader[Any] = DataLoader(Sized(), batch_size=16)
    agree(trained(loader), trained(DataLoader(TensorDataset(X, CLASSES), batch_size=16)))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a stream": (Stream(), {}, "data is an IterableDataset, whose samples have no numbers: give a DataLoader"),
    "no length": (DataLoader(Stream()), {}, "does not know how many batches it has"),
    "one array": (X, {}, r"data must be \(X, y\) as tensors or numpy arrays, a torch Dataset .* not Tensor"),
    "three arrays": ((X, CLASSES, X), {}, r"data must be \(X, y\).* not \(Tensor, Tensor, Tensor\)\."),
    "lists": (([[1.0]], [0]), {}, r"data must be \(X, y\) as tensors or numpy arrays.* not \(list, list\)\."),
    "targets in a list": ((X, [0] * 90), {}, r"data must be .* not \(Tensor, list\)\."),
    "one list": ([[1.0]] * 90, {}, r"data must be .* not list\."),
    "lists to test on": ((X, CLASSES), {"test": ([[1.0]], [0])}, r"test must be .* not \(list, list\)\."),
    "too few targets": ((X, CLASSES[:-1]), {}, "X are 90, but y are 89"),
    "true or false": ((X, CLASSES > 0), {}, "y must be integers, one class a sample, but is bool"),
    "classes in a column": ((X, CLASSES[:, None]), {}, r"y must have shape \(count,\), not \(90, 1\)"),
    "a negative class": (TensorDataset(X, CLASSES - 1), {}, "y must be classes from 0 on, but holds -1"),
    "no features": ((X[:, 0], CLASSES), {}, r"train_inputs must have shape \(count, .., features\)"),
    "not finite": ((X / 0, CLASSES), {}, "train_inputs holds"),
    "nothing": ((X[:0], CLASSES[:0]), {}, "is empty"),
    "no sample": (TensorDataset(X[:0], CLASSES[:0]), {}, "no sample to train on"),
    "other targets": ((X, CLASSES), {"test": (X, NUMBERS)}, "both be integers, for classes, or both floats"),
    "other pairs": (TensorDataset(X, CLASSES), {"test": (X, NUMBERS)}, "both be integers, for classes, or both floats"),
    "three parts": (TensorDataset(X, CLASSES, X), {}, "A batch must be a pair, inputs and targets, .* not 3 parts"),
    "too large a share": ((X, CLASSES), {"test": 1.0}, "must lie between 0 and 1, not 1.0"),
    "nothing left": ((X[:2], CLASSES[:2]), {"test": 0.9}, "Of 2 samples none would be left"),
    "share of a loader": (DataLoader(TensorDataset(X, CLASSES)), {"test": 0.1}, "No share can be kept of a DataLoader"),
    "two tests": (ClassificationData(X, CLASSES, X, CLASSES), {"test": 0.1}, "has samples to test on already"),
    "no test": ((X, CLASSES), {"test": "a tenth"}, "test must be .* not str"),
    "flips of a loader": (
        DataLoader(TensorDataset(X, CLASSES)),
        {"config": TrainConfig(augment="flip")},
        "augment is for numbered samples",
    ),
    "outputs": ((X, torch.arange(90)), {}, "There is a label 89, but the network has 2 outputs"),
    "columns": ((X, X), {}, r"outputs have shape \(\d+, 2\), but the targets \(\d+, 3\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_data_get_one_sentence(case: str) -> None:
    data, options, words = REFUSED[case]
    with pytest.raises(lben.InvalidInput, match=words):
        fit(network(), data, **options)
