"""What a network learns from, and how good it is after an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lben.data import ImageData, samples
from lben.errors import InvalidInput, NotConverged

_EVALUATION_BATCH = 2000
_EVALUATION_UNITS = 2**22  # hidden units of a whole batch: more of them leave the processor's caches


class Data(Protocol):
    """What a network learns from: numbered samples to train on, others to test on, and what counts as an error.

    `lben.data.ImageData`, `ClassificationData` and `RegressionData` are such data; a class of your own with these
    methods is, too.

    Attributes:
        unanswered_error: the error of a test sample for which the network has no answer.

    Examples:
        >>> x, y = torch.rand(8, 2), torch.zeros(8, dtype=torch.int64)
        >>> data = lben.data.ClassificationData(x, y, x, y)
        >>> len(data), data.words(0.25)
        (8, '25.00 %')
    """

    @property
    def unanswered_error(self) -> float: ...

    def __len__(self) -> int:
        """How many samples there are to train on."""

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some of the samples to train on.

        Args:
            index: their numbers.
            dtype: of the inputs.

        Returns:
            Inputs and targets, samples first.
        """

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of all test samples, so many at a time.

        Args:
            size: how many.
            dtype: of the inputs.

        Returns:
            An iterator of inputs and targets.
        """

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The error of each sample.

        Args:
            outputs: those of the network.
            targets: of as many samples.

        Returns:
            A tensor of shape (batch,), in double precision.
        """

    def words(self, error: float) -> str:
        """A mean error as people read it.

        Args:
            error: the mean of what `errors` gives.

        Returns:
            A short text.
        """


@dataclass(frozen=True)
class Epoch:
    """One row of the history that `fit` returns: means over the epoch, then the state after it, on the test samples.

    Attributes:
        epoch: its number, from 1.
        loss: the mean over the epoch.
        train_error: the mean error over the epoch, while it was trained.
        test_error: the mean error of the test samples after it.
        rate: the learning rate of its last step.
        seconds: how long it took.
        lost: batches without an answer in training.
        unanswered: test samples without one, which count as wrong.
        iterations: of the equilibria of some test samples; None for a network that has none.
        residual: the worst of those; None for a network that has none.

    Examples:
        >>> net, x = lben.LBEN(2, 4, 1, gamma=1.0), torch.randn(16, 2)
        >>> history = lben.train.fit(net, (x, x[:, :1]), lben.train.TrainConfig(epochs=2), progress=False)
        >>> [row.epoch for row in history], history[-1].lost
        ([1, 2], 0)
    """

    epoch: int
    loss: float
    train_error: float
    test_error: float
    rate: float
    seconds: float
    lost: int
    unanswered: int
    iterations: int | None
    residual: float | None

    def words(self, test_error: str, epochs: int) -> str:
        """The row as a line of progress.

        Args:
            test_error: in words.
            epochs: how many there are.

        Returns:
            A short text.
        """
        state = f"epoch {self.epoch} of {epochs}: test error {test_error}"
        if self.iterations is not None and self.residual is not None:
            state += f", {self.iterations} iterations to {self.residual:.0e}"
        if self.lost or self.unanswered:
            state += f", {self.lost} batches lost, {self.unanswered} unanswered"
        return state


def error_rate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, int]:
    """The share of images with a wrong class.

    Args:
        net: a classifier, in any mode, which it keeps.
        images: bytes, or floats in [0, 1], of shape (samples, ...).
        labels: integers, one an image, of shape (samples,).

    Returns:
        The share, and how many images have no answer at all, which are among the wrong.

    Raises:
        InvalidInput: if an argument does not fit.

    Examples:
        >>> net, digits = lben.pretrained("mnist-gamma-1"), lben.data.embedded_mnist()
        >>> error, unanswered = lben.train.error_rate(net, digits.test_images[:100], digits.test_labels[:100])
        >>> error <= 0.1, unanswered
        (True, 0)
    """
    check_network(net)
    x, y = samples.images("images", images), samples.labels("labels", labels)
    return _test(net, ImageData(x[:0], y[:0], x, y))[:2]


def _test(net: nn.Module, data: Data) -> tuple[float, int, int]:
    """The mean error of all test samples, how many have no answer, and how many have one."""
    was_training = net.training
    net.eval()
    try:
        with torch.no_grad():
            batches = data.test_batches(_evaluation_batch(net), dtype_of(net))
            errors = torch.cat([_errors(net, data, *moved(net, *batch)) for batch in batches])
    finally:
        net.train(was_training)
    unanswered = torch.isnan(errors)
    count = int(unanswered.sum())
    return float(errors.masked_fill(unanswered, data.unanswered_error).mean()), count, len(errors) - count


def _evaluation_batch(net: nn.Module) -> int:
    units: int = getattr(net, "hidden_features", 1)
    return min(_EVALUATION_BATCH, max(1, _EVALUATION_UNITS // units))


def _errors(net: nn.Module, data: Data, x: Tensor, targets: Tensor) -> Tensor:
    """The error of each row, NaN where there is no answer: a batch that fails is halved until single rows are left."""
    try:
        return data.errors(net(x), targets)
    except NotConverged:
        if len(x) == 1:
            return torch.tensor([torch.nan], dtype=torch.float64, device=x.device)
        halves = zip(x.tensor_split(2), targets.tensor_split(2), strict=True)
        return torch.cat([_errors(net, data, some, theirs) for some, theirs in halves])


class Judgement(NamedTuple):
    """The part of an `Epoch` that the test samples decide, and how many of them have an answer."""

    error: float
    unanswered: int
    answered: int
    iterations: int | None
    residual: float | None


def judge(net: nn.Module, data: Data) -> Judgement:
    """A look at the test samples."""
    some, _ = moved(net, *next(data.test_batches(_evaluation_batch(net), dtype_of(net))))
    return Judgement(*_test(net, data), *_equilibria(net, some))


def check(net: nn.Module, data: Data) -> Tensor:
    """Pass a network that can be trained, and data with samples to train and to test on; the first targets of these."""
    if next(check_network(net).parameters(), None) is None:
        raise InvalidInput(f"There is nothing to train: {type(net).__name__} has no parameters.")
    if len(data) == 0:
        raise InvalidInput("There is no sample to train on.")
    first = next(iter(data.test_batches(1, dtype_of(net))), None)
    if first is None or len(first[0]) == 0:
        raise InvalidInput("There is no sample to test on.")
    return first[1]


def _equilibria(net: nn.Module, x: Tensor) -> tuple[int | None, float | None]:
    """Iterations and worst residual, from any network that can tell."""
    solve: Callable[[Tensor], Any] | None = getattr(net, "solve", None)
    if solve is None:
        return None, None
    net.eval()
    try:
        with torch.no_grad():
            solution = solve(x)
    except NotConverged as error:
        return None, error.residual
    return solution.iterations, float(solution.residual.max())


def check_network(net: nn.Module) -> nn.Module:
    """`net` if it is a network of samples; one of signals has its times where others have samples."""
    if not isinstance(net, nn.Module):
        raise InvalidInput(f"A network is needed, a torch.nn.Module, not {type(net).__name__}.")
    if hasattr(net, "state_features"):
        raise InvalidInput(
            f"Samples would be taken for times: a {type(net).__name__} takes signals, (times, batch, features), and is "
            "trained in a loop of your own, which the README shows."
        )
    return net


def dtype_of(net: nn.Module) -> torch.dtype:
    """That of its parameters, or of its buffers where it has none."""
    first = _first(net)
    return torch.get_default_dtype() if first is None else first.dtype


def device_of(net: nn.Module) -> torch.device:
    """Where its parameters are, or its buffers where it has none."""
    first = _first(net)
    return torch.get_default_device() if first is None else first.device


def moved(net: nn.Module, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets where the network is."""
    device = device_of(net)
    ahead = device.type != "cpu"  # what comes to the CPU must be there before it is read
    return x.to(device, non_blocking=ahead), targets.to(device, non_blocking=ahead)


def _first(net: nn.Module) -> Tensor | None:
    return next(chain(net.parameters(), net.buffers()), None)
