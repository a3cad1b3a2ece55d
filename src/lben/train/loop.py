"""One training loop for every network: seeded, resumable to the bit, and the same in several processes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from lben import checks
from lben.disk import make_folder
from lben.errors import Diverged, InvalidInput, NotConverged, NotFinite
from lben.progress import Bar, Show, bar
from lben.train.augment import Augmented
from lben.train.checkpoint import CHECKPOINT, identity, restore_checkpoint, write_checkpoint, write_history
from lben.train.feed import Fed, Loaded, Samples, as_data
from lben.train.judge import Data, Epoch, check, check_network, device_of, dtype_of, judge, moved
from lben.train.losses import CrossEntropy, Loss, MeanSquare
from lben.train.recipe import TrainConfig


def fit(
    net: nn.Module,
    data: Data | Samples,
    config: TrainConfig | None = None,
    *,
    test: Samples | float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Show = None,
    name: str = "training",
) -> list[Epoch]:
    """Train a network on arrays, a data set of torch's, or anything that is `Data`.

    Every batch goes to the device of the network, wherever the data are; random numbers are drawn on the CPU. In
    several processes (`torchrun`, after `torch.distributed.init_process_group`) every batch is shared between them and
    gradients are summed: all begin with the network of the first process, and the weights are those of one process,
    within rounding.

    Args:
        net: any module of samples, of lben's or not; a `REN`, which takes signals, is trained in a loop of your own.
        data: inputs and targets (X, y), tensors or numpy arrays, samples first; a torch `Dataset` of such pairs,
            fetched when they are needed; a `DataLoader`, with batches and an order of its own; or `Data`, such as
            `lben.data.ImageData`, with samples to test on in it. Integers as targets are classes, floats are
            regression, of one number or of several, one a column. Inputs that are bytes are pixels, and become numbers
            in [0, 1].
        config: the recipe; ``TrainConfig()`` if not given.
        test: what the error after each epoch is of: the same forms as data; or the share of its samples that is kept
            aside for that, by the seed of the recipe. If not given, it is the error on the very samples of the
            training.
        folder: where `history.jsonl` and `checkpoint.safetensors` are written after every epoch, each in one piece. One
            that holds a run already is refused, unless it is resumed.
        resume: go on from the checkpoint there, if there is one, to the very weights that a run in one go ends with. It
            is refused if its network, bound, activation, solver, normalisation, data or recipe are others, and for a
            `DataLoader` with a generator or a sampler of its own, whose order a checkpoint does not know.
        progress: True for a bar and a line an epoch, "lines" for those alone, False for nothing; None: a bar on a
            terminal when it takes longer than some seconds.
        name: what the bar calls it.

    Returns:
        The history, one `Epoch` an epoch. The network is trained in place.

    Raises:
        Diverged: if the loss or a parameter is no finite number; the last checkpoint is left as it was.
        InvalidInput: if an argument does not fit.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 2)
        >>> y = (x[:, 0] > 0).long()
        >>> net = lben.LBEN(2, 8, 2, gamma=5.0)
        >>> recipe = lben.train.TrainConfig(epochs=20, batch_size=16, learning_rate=0.05)
        >>> history = lben.train.fit(net, (x, y), recipe, test=0.25, progress=False)
        >>> history[-1].test_error < 0.2
        True
    """
    config = TrainConfig() if config is None else config
    if not isinstance(config, TrainConfig):
        raise InvalidInput(f"config must be an lben.train.TrainConfig, not {type(config).__name__}.")
    if checks.flag("resume", resume) and folder is None:
        raise InvalidInput("resume=True needs the folder with the checkpoint.")
    check_network(net)
    data, workers = as_data(data, test, config.seed), _Workers(device_of(net))
    _check_loader(data, config, workers, resume)
    loss = _loss(config, check(net, data))
    path = None if folder is None else make_folder(folder)
    if path is not None and not resume and (path / CHECKPOINT).exists():
        raise InvalidInput(f"{path} holds a run already: resume=True goes on with it, or give another folder.")
    known = {} if path is None else identity(net, data, replace(config, loss=loss).description())
    optimizer, history = _optimizer(net, config), []
    if resume and path is not None:
        history = [Epoch(**row) for row in restore_checkpoint(path, net, optimizer, known)]
        if history and workers.rank == 0:
            write_history(path, [asdict(row) for row in history])  # again, should it be damaged
    workers.agree(net)
    steps = _steps(data, config)
    with bar(name, config.epochs * steps, show=progress if workers.rank == 0 else False) as shown:
        shown.advance(len(history) * steps)
        loop = _Loop(net, data, config, loss, optimizer, workers, shown)
        for epoch in range(len(history), config.epochs):
            history.append(loop.epoch(epoch, history))
            shown.line(history[-1].words(data.words(history[-1].test_error), config.epochs))
            if path is not None and workers.rank == 0:
                write_checkpoint(path, net, optimizer, known, [asdict(row) for row in history])
    return history


def _loss(config: TrainConfig, targets: Tensor) -> Loss:
    """What the recipe says, or else what such targets are for."""
    usual: Loss = MeanSquare() if targets.is_floating_point() else CrossEntropy()
    return usual if config.loss is None else config.loss


def _check_loader(data: Data, config: TrainConfig, workers: _Workers, resume: bool) -> None:
    """Refuse what cannot be asked of a `DataLoader`."""
    if not (isinstance(data, Fed) and isinstance(data.train, Loaded)):
        return
    if resume:
        data.train.check_resumable()
    if config.augment is not None:
        raise InvalidInput("augment is for numbered samples: let the data set behind the DataLoader change its own.")
    if workers.count > 1:
        raise InvalidInput("A DataLoader cannot be shared between processes: give them its Dataset.")


def _steps(data: Data, config: TrainConfig) -> int:
    """How many batches an epoch has."""
    if isinstance(data, Fed) and isinstance(data.train, Loaded):
        return len(data)
    return math.ceil(len(data) / config.batch_size)


class _Workers:
    """This process among those that train together; one of one where torch.distributed is not in use."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        used = distributed.is_available() and distributed.is_initialized()
        self.rank, self.count = (distributed.get_rank(), distributed.get_world_size()) if used else (0, 1)

    def share(self, index: Tensor) -> Tensor:
        return index[self.rank :: self.count]

    def sum(self, tensor: Tensor) -> Tensor:
        if self.count == 1:
            return tensor
        summed = tensor.to(self.device)  # where the processes of a GPU can meet
        distributed.all_reduce(summed)
        return summed

    @torch.no_grad()
    def agree(self, net: nn.Module) -> None:
        """Give every process the network of the first: each made its own, perhaps from another seed."""
        if self.count > 1:
            for tensor in (*net.parameters(), *net.buffers()):
                tensor.copy_(self.sum(tensor.detach().clone() if self.rank == 0 else torch.zeros_like(tensor)))

    def sum_gradients(self, net: nn.Module) -> None:
        if self.count == 1:
            return
        free = [p for p in net.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in free]  # none where a share is empty
        flat = self.sum(torch.cat([g.reshape(-1) for g in gradients]))
        for parameter, summed in zip(free, flat.split([p.numel() for p in free]), strict=True):
            parameter.grad = summed.view_as(parameter).clone()


class _Loop:
    """What every step needs."""

    def __init__(
        self,
        net: nn.Module,
        data: Data,
        config: TrainConfig,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        workers: _Workers,
        shown: Bar,
    ) -> None:
        self.net, self.data, self.config, self.optimizer = net, data, config, optimizer
        self.loss, self.workers, self.shown = loss, workers, shown
        self.steps = _steps(data, config)

    def epoch(self, number: int, history: list[Epoch]) -> Epoch:
        """One pass over the data in an order that seed and epoch decide, and a look at the test samples."""
        config, started = self.config, time.perf_counter()
        last = f", error {self.data.words(history[-1].test_error)}" if history else ""
        self.net.train()
        totals, lost = torch.zeros(3, dtype=torch.float64), 0  # loss, errors and samples
        for step, (x, targets, size) in enumerate(self._batches(number), number * self.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = config.rate(step, self.steps)
            seen = self._step(step, x, targets, size)
            lost += seen is None
            totals += 0 if seen is None else seen
            loss = "" if seen is None else f", loss {float(seen[0] / seen[2].clamp(min=1)):.3f}"
            self.shown.advance(1, f"epoch {number + 1}{loss}{last}")
        loss_sum, errors, samples = self.workers.sum(totals).tolist()
        end = (number + 1) * self.steps - 1
        if samples == 0:
            raise self._diverged(end, "no batch of the epoch had an equilibrium")
        if not _finite(self.net.parameters()):
            raise self._diverged(end, "a parameter is not finite")
        seconds = time.perf_counter() - started
        try:
            after = judge(self.net, self.data)
        except NotFinite as error:
            tests = self.data.test_batches(config.batch_size, dtype_of(self.net))
            if not _finite(x for x, _ in tests):
                raise
            raise self._diverged(end, str(error)) from error
        if after.answered == 0:
            raise self._diverged(end, "no test sample has an equilibrium")
        return Epoch(
            epoch=number + 1,
            loss=loss_sum / samples,
            train_error=errors / samples,
            test_error=after.error,
            rate=config.rate(end, self.steps),
            seconds=seconds,
            lost=lost,
            unanswered=after.unanswered,
            iterations=after.iterations,
            residual=after.residual,
        )

    def _batches(self, number: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Inputs and targets of this process, where the network is, and how many all processes have together."""
        config, data, dtype = self.config, self.data, dtype_of(self.net)
        generator = _generator(config.seed, number)
        seed = _mix(config.seed, number)  # of loaders and networks that draw random numbers of their own
        if isinstance(data, Fed) and isinstance(data.train, Loaded):
            torch.manual_seed(seed)
            for x, targets in data.train.batches(config.batch_size, dtype):
                yield *moved(self.net, x, targets), len(x)
            return
        order = torch.randperm(len(data), generator=generator)
        augmented = Augmented(config.augment, len(data), generator)
        torch.manual_seed(seed)
        for index in order.split(config.batch_size):
            mine = self.workers.share(index)
            x, targets = data.batch(mine, dtype)
            yield *moved(self.net, augmented(x, mine), targets), len(index)

    def _step(self, step: int, x: Tensor, targets: Tensor, size: int) -> Tensor | None:
        """One step of the optimizer: loss, errors and samples of this process, summed; None if the batch is lost."""
        self.optimizer.zero_grad()
        seen, lost, reason, cause = torch.zeros(3, dtype=torch.float64), False, "", None
        try:
            if len(x) > 0:
                outputs = self.net(x)
                wrong = self.data.errors(outputs.detach(), targets).sum().item()  # first: it knows labels out of range
                loss = self.loss(self.net, outputs, targets)
                value = loss.item()
                if not math.isfinite(value):
                    reason = f"the loss is {value}"
                else:
                    (loss * (len(x) / size)).backward()
                seen = torch.tensor([value * len(x), wrong, len(x)], dtype=torch.float64)
        except NotConverged:
            if self.config.on_lost == "stop":
                raise
            lost = True
        except NotFinite as error:
            if step == 0 or not _finite([x]):
                raise
            reason, cause = str(error), error
        lost_shares, ruined_shares = self.workers.sum(torch.tensor([float(lost), float(reason != "")])).tolist()
        if ruined_shares > 0:
            raise self._diverged(step, reason or "another process says more") from cause
        if lost_shares > 0:
            return None
        self.workers.sum_gradients(self.net)
        self.optimizer.step()
        return seen

    def _diverged(self, step: int, reason: str) -> InvalidInput | Diverged:
        """The error for a step that led nowhere; the first one had nothing to diverge from."""
        if step == 0:
            return InvalidInput(f"Training cannot begin: {reason} in the first batch. Look at the data and the loss.")
        epoch, number = divmod(step, self.steps)
        return Diverged(
            f"Training diverged in epoch {epoch + 1} of {self.config.epochs}, at step {number + 1} of {self.steps} "
            f"({reason.rstrip('.')}): lower the learning rate, which is {self.config.learning_rate:g}."
        )


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


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
