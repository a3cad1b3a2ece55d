"""One training loop for every network: seeded, resumable to the bit, and the same in several processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from lben import checks
from lben.checkpoint import restore_checkpoint, write_checkpoint
from lben.data import ImageData
from lben.errors import InvalidInput, NotConverged
from lben.progress import TrainingBar, training_bar
from lben.writing import make_folder

Schedule = Literal["constant", "step", "one-cycle", "cosine"]
Optimizer = Literal["adam", "adamw", "sgd"]
OnLost = Literal["skip", "stop"]
_EVALUATION_BATCH = 2000
_EVALUATION_UNITS = 2**22  # hidden units of a whole batch: more of them leave the processor's caches


class Data(Protocol):
    """What a network learns from: numbered samples to train on, others to test on, and what counts as an error.

    unanswered_error is the error of a test sample for which the network has no answer.
    """

    @property
    def unanswered_error(self) -> float: ...

    def __len__(self) -> int:
        """How many samples there are to train on."""

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some of them."""

    def test_batches(self, size: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of all test samples, so many at a time."""

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The error of each sample, shape (batch,), in double precision."""

    def words(self, error: float) -> str:
        """A mean error as people read it."""


class Loss(Protocol):
    """What is minimised: a number from the network, its outputs and the targets, averaged over the batch."""

    def __call__(self, net: nn.Module, outputs: Tensor, targets: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy; `margin` is subtracted from the logit of the true class, which asks for that much distance."""

    margin: float = 0.0

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        if self.margin:
            logits = logits - self.margin * F.one_hot(labels, logits.shape[-1])
        return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class MeanSquare:
    """The mean square of the differences between outputs and targets."""

    def __call__(self, net: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train.

    schedule: "constant"; "step", by `step_factor` every `step_epochs`; "one-cycle", up for 30 % of the steps and down
        for the rest, `learning_rate` at its peak; "cosine", down from the first step.
    on_lost: what to do with a batch in which the network has no answer (an unconstrained network may lose its
        equilibrium): "skip" it and count it, or "stop".
    """

    epochs: int = 10
    batch_size: int = 128
    optimizer: Optimizer = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Schedule = "one-cycle"
    step_epochs: int = 10
    step_factor: float = 0.1
    loss: Loss = field(default_factory=CrossEntropy)
    seed: int = 0
    on_lost: OnLost = "skip"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "step_epochs"):
            checks.count(name, getattr(self, name))
        for name in ("learning_rate", "step_factor"):
            checks.positive(name, getattr(self, name))
        if not checks.number("weight_decay", self.weight_decay) >= 0:
            raise InvalidInput(f"weight_decay must not be negative, but is {self.weight_decay}.")
        checks.seed(self.seed)
        for name, kinds in (
            ("schedule", ("constant", "step", "one-cycle", "cosine")),
            ("optimizer", ("adam", "adamw", "sgd")),
            ("on_lost", ("skip", "stop")),
        ):
            if getattr(self, name) not in kinds:
                raise InvalidInput(f"{name} must be one of {', '.join(kinds)}, not {getattr(self, name)!r}.")

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step: a function of its number alone, so that resuming needs no state."""
        total = self.epochs * steps_per_epoch
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "step":
            factor: float = self.step_factor ** (step // steps_per_epoch // self.step_epochs)
            return self.learning_rate * factor
        if self.schedule == "cosine":
            return self.learning_rate * _swing(step / total)
        rise = 0.3 * total
        if step < rise:
            return self.learning_rate * (0.04 + 0.96 * (1 - _swing(step / rise)))
        return self.learning_rate * (4e-6 + (1 - 4e-6) * _swing((step - rise) / (total - rise)))

    def description(self) -> dict[str, Any]:
        """The options as plain values, by which a checkpoint recognises its run."""
        return {**asdict(self), "loss": repr(self.loss)}


@dataclass(frozen=True)
class Epoch:
    """One row of the history: means over the training epoch, then the state after it, on the test samples.

    lost: batches without an answer in training; unanswered: test samples without one, which count as wrong.
    iterations, residual: of the equilibria of some test samples; None for a network that has none.
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

    def words(self, test_error: str) -> str:
        """The row as a bar shows it."""
        state = f"epoch {self.epoch}: test error {test_error}"
        if self.iterations is not None and self.residual is not None:
            state += f", {self.iterations} iterations to {self.residual:.0e}"
        if self.lost or self.unanswered:
            state += f", {self.lost} batches lost, {self.unanswered} unanswered"
        return state


def fit(
    net: nn.Module,
    data: Data,
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    name: str = "training",
) -> list[Epoch]:
    """Train a network on images, signals or anything that is `Data`; returns the history, one row an epoch.

    folder: where `history.jsonl` and `checkpoint.safetensors` are written after every epoch, each in one piece.
    resume: go on from the checkpoint there, if there is one, to the very weights that a run in one go ends with.
    In several processes (`torchrun`, after `torch.distributed.init_process_group`) every batch is shared between them
    and gradients are summed: the weights are those of one process, within rounding.
    """
    workers = _Workers()
    optimizer = _optimizer(net, config)
    path = None if folder is None else make_folder(folder)
    history: list[Epoch] = []
    if resume and path is not None:
        history = [Epoch(**row) for row in restore_checkpoint(path, net, optimizer, config.description())]
    steps = math.ceil(len(data) / config.batch_size)
    with training_bar(name, config.epochs * steps, show=progress and workers.rank == 0) as bar:
        bar.advance(len(history) * steps)
        for epoch in range(len(history), config.epochs):
            started = time.perf_counter()
            totals = _train_epoch(net, data, config, optimizer, epoch, steps, workers, bar)
            seconds = time.perf_counter() - started
            row = _evaluate(net, data, epoch, totals, seconds, config.rate((epoch + 1) * steps - 1, steps))
            history.append(row)
            bar.say(row.words(data.words(row.test_error)))
            if path is not None and workers.rank == 0:
                rows = [asdict(row) for row in history]
                write_checkpoint(path, net, optimizer, config.description(), rows)
    return history


def error_rate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, int]:
    """The share of images with a wrong class, and how many have no answer at all, which are among the wrong."""
    return _test(net, ImageData(images[:0], labels[:0], images, labels))


def _test(net: nn.Module, data: Data) -> tuple[float, int]:
    """The mean error of all test samples, and how many have no answer."""
    was_training = net.training
    net.eval()
    with torch.no_grad():
        batches = data.test_batches(_evaluation_batch(net), _dtype(net))
        errors = torch.cat([_errors(net, data, x, targets) for x, targets in batches])
    net.train(was_training)
    unanswered = torch.isnan(errors)
    return float(errors.masked_fill(unanswered, data.unanswered_error).mean()), int(unanswered.sum())


def _evaluation_batch(net: nn.Module) -> int:
    units: int = getattr(net, "hidden_features", 1)
    return min(_EVALUATION_BATCH, max(1, _EVALUATION_UNITS // units))


def _errors(net: nn.Module, data: Data, x: Tensor, targets: Tensor) -> Tensor:
    """The error of each row, NaN where there is no answer: a batch that fails is halved until single rows are left."""
    try:
        return data.errors(net(x), targets)
    except NotConverged:
        if len(x) == 1:
            return torch.tensor([torch.nan], dtype=torch.float64)
        halves = zip(x.tensor_split(2), targets.tensor_split(2), strict=True)
        return torch.cat([_errors(net, data, some, theirs) for some, theirs in halves])


class _Workers:
    """This process among those that train together; one of one where torch.distributed is not in use."""

    def __init__(self) -> None:
        used = distributed.is_available() and distributed.is_initialized()
        self.rank, self.count = (distributed.get_rank(), distributed.get_world_size()) if used else (0, 1)

    def share(self, index: Tensor) -> Tensor:
        return index[self.rank :: self.count]

    def sum(self, tensor: Tensor) -> Tensor:
        if self.count > 1:
            distributed.all_reduce(tensor)
        return tensor

    def sum_gradients(self, net: nn.Module) -> None:
        if self.count == 1:
            return
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        flat = self.sum(torch.cat([g.reshape(-1) for g in gradients]))
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def _train_epoch(
    net: nn.Module,
    data: Data,
    config: TrainConfig,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    steps: int,
    workers: _Workers,
    bar: TrainingBar,
) -> tuple[float, float, int]:
    """One pass over the data in an order that seed and epoch decide; mean loss, mean error, and lost batches."""
    order = torch.randperm(len(data), generator=_generator(config.seed, epoch))
    torch.manual_seed(_mix(config.seed, epoch))  # for networks that draw random numbers of their own
    net.train()
    totals = torch.zeros(4, dtype=torch.float64)  # loss, errors, samples, lost batches
    for step, index in enumerate(order.split(config.batch_size)):
        for group in optimizer.param_groups:
            group["lr"] = config.rate(epoch * steps + step, steps)
        mine = workers.share(index)
        x, targets = data.batch(mine, _dtype(net))
        optimizer.zero_grad()
        try:
            outputs = net(x)
            loss = config.loss(net, outputs, targets)
            (loss * (len(mine) / len(index))).backward()
            failed = torch.zeros(1)
        except NotConverged:
            if config.on_lost == "stop":
                raise
            failed = torch.ones(1)
        if float(workers.sum(failed)) > 0:
            totals[3] += 1
            continue
        workers.sum_gradients(net)
        optimizer.step()
        wrong = data.errors(outputs.detach(), targets).sum().item()
        totals[:3] += torch.tensor([loss.item() * len(mine), wrong, len(mine)], dtype=torch.float64)
        bar.step(loss.item())
    loss_sum, errors, samples = workers.sum(totals[:3].clone()).tolist()
    return loss_sum / max(samples, 1), errors / max(samples, 1), int(totals[3])


def _evaluate(
    net: nn.Module, data: Data, epoch: int, totals: tuple[float, float, int], seconds: float, rate: float
) -> Epoch:
    test_error, unanswered = _test(net, data)
    some, _ = next(data.test_batches(_evaluation_batch(net), _dtype(net)))
    iterations, residual = _equilibria(net, some)
    loss, train_error, lost = totals
    return Epoch(epoch + 1, loss, train_error, test_error, rate, seconds, lost, unanswered, iterations, residual)


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


def _optimizer(net: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            net.parameters(), lr=config.learning_rate, momentum=0.9, weight_decay=config.weight_decay
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(_mix(seed, epoch))


def _mix(seed: int, epoch: int) -> int:
    return (seed * 1_000_003 + epoch) % 2**63


def _swing(share: float) -> float:
    """From one to zero along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * share))


def _dtype(net: nn.Module) -> torch.dtype:
    return next(net.parameters()).dtype
