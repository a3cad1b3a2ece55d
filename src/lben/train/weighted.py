"""Rows that count with weights, merged where they are equal, and a loop over them that can go on at any time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import Diverged, InvalidInput, NotFinite
from lben.normalize import Normalize
from lben.progress import Show, bar
from lben.train.recipe import TrainConfig

Losses = Callable[[Tensor, Tensor], Tensor]
"""The loss of each row, shape (count,), from outputs and targets."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs, shape (count, d), targets, (count,) for classes or (count, p), and weights above 0, (count,)."""

    x: Tensor
    targets: Tensor
    weights: Tensor

    @staticmethod
    def distinct(x: Any, targets: Any, weights: Any) -> Rows:
        """Arrays as rows of which no two are equal, in an order that depends on them alone, with weights summed.

        So a weight of 2 is the same as a row twice, to the last bit.
        """
        x, targets = x + 0.0, targets + 0  # which makes a zero of every -0.0
        whole = np.ascontiguousarray(np.column_stack([x, targets]), dtype=np.float64)
        keys = whole.view(f"V{whole.shape[1] * whole.itemsize}").reshape(-1)
        _, first, where = np.unique(keys, return_index=True, return_inverse=True)
        summed = np.bincount(where.reshape(-1), weights=weights)
        return Rows(*(torch.tensor(part) for part in (x[first], targets[first], summed)))

    def __len__(self) -> int:
        return len(self.x)

    def some(self, index: Tensor) -> Rows:
        return Rows(self.x[index], self.targets[index], self.weights[index])

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and standard deviation of each column, and whether it is constant, when the mean is its very value."""
        share = (self.weights / self.weights.sum())[:, None]
        mean = (share * values).sum(dim=0)
        std = (share * (values - mean).square()).sum(dim=0).sqrt()
        constant = std <= 10 * torch.finfo(values.dtype).eps * values.abs().amax(dim=0)
        return torch.where(constant, values[0], mean), std, constant

    def standardised(self) -> tuple[Normalize, Tensor]:
        """The stage that standardises these inputs, and which columns are constant, shape (d,).

        Those are divided by the largest standard deviation of the others, so that no bound suffers from them.
        """
        mean, std, constant = self.moments(self.x)
        largest = 1.0 if bool(constant.all()) else float(std.max())
        normalize = Normalize(torch.zeros_like(mean), torch.ones_like(std)).double()
        normalize.mean.copy_(mean)
        normalize.std.copy_(torch.where(constant, largest, std))
        return normalize.validate(), constant

    def split(self, share: float, generator: torch.Generator) -> tuple[Rows, Rows]:
        """Rows to train on, and this share of them set aside, spread evenly over classes, or over the first target."""
        if not 0 < checks.number("validation_fraction", share) < 1:
            raise InvalidInput(f"validation_fraction must lie between 0 and 1, not {share}.")
        if len(self) < 2:
            raise InvalidInput("To set some aside, 2 distinct samples or more are needed, but there is 1 sample.")
        order = torch.randperm(len(self), generator=generator)
        first = self.targets.reshape(len(self), -1)[order, 0]
        order = order[torch.argsort(first, stable=True)]
        count = min(max(1, round(share * len(self))), len(self) - 1)
        aside = ((torch.arange(count) + 0.5) * (len(self) / count)).long()
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[aside] = False
        return self.some(order[kept].sort().values), self.some(order[~kept].sort().values)


@dataclass(frozen=True)
class Pass:
    """One row of a history: an epoch, its mean loss, and that of the rows set aside after it, if there are any."""

    epoch: int
    loss: float
    validation_loss: float | None


class Learner:
    """A network in training, with the memory of its optimizer, so that it can go on with other rows.

    losses: what is minimised, row by row; a batch counts with the mean of weight times loss.
    seed: decides in which order rows are seen.
    """

    def __init__(self, net: nn.Module, losses: Losses, learning_rate: float, seed: int) -> None:
        self.net, self.losses, self.seed = net, losses, seed
        self.optimizer = torch.optim.Adam(net.parameters(), lr=learning_rate)
        self.epochs = 0

    def generator(self) -> torch.Generator:
        """The random numbers of the epoch to come."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epochs) % 2**63)

    def learn(
        self,
        rows: Rows,
        config: TrainConfig,
        *,
        aside: Rows | None = None,
        patience: int = 1,
        name: str = "training",
        show: Show = False,
    ) -> list[Pass]:
        """Train for some epochs, at the rates of the recipe, and leave the network ready for use: the history.

        aside: rows to judge by after each epoch: when so many (`patience`) have not bettered their loss, training
            ends, and the network is given back as it was at its best.
        Raises Diverged if the loss or a parameter is no finite number.
        """
        history: list[Pass] = []
        best, since, kept = math.inf, 0, None
        with bar(name, config.epochs, show=show) as shown:
            for number in range(config.epochs):
                loss = self._epoch(rows, config, number)
                judged = None if aside is None else self.loss(aside)
                history.append(Pass(self.epochs, loss, judged))
                shown.advance(1, f"loss {loss:.3g}" + ("" if judged is None else f", set aside {judged:.3g}"))
                if judged is None:
                    continue
                since += 1
                if judged < best:
                    best, since, kept = judged, 0, _copied(self.net)
                if since >= patience:
                    break
            shown.line(
                f"{len(history)} epochs, loss {history[-1].loss:.3g}" + ("" if kept is None else f", {best:.3g}")
            )
        if kept is not None:
            with torch.no_grad():
                for parameter, value in zip(self.net.parameters(), kept, strict=True):
                    parameter.copy_(value)
        self.net.eval()
        return history

    def loss(self, rows: Rows) -> float:
        """The weighted mean of what is minimised, at the state that the network has."""
        with torch.no_grad():
            losses = self.losses(self.net.eval()(rows.x), rows.targets)
        return float((losses * rows.weights).sum() / rows.weights.sum())

    def _epoch(self, rows: Rows, config: TrainConfig, number: int) -> float:
        """One pass over the rows; the mean loss on the way."""
        order = torch.randperm(len(rows), generator=self.generator())
        batches = order.split(config.batch_size)
        weights = rows.weights / rows.weights.mean()
        total = 0.0
        self.net.train()
        for step, index in enumerate(batches, number * len(batches)):
            for group in self.optimizer.param_groups:
                group["lr"] = config.rate(step, len(batches))
            self.optimizer.zero_grad()
            try:
                losses = self.losses(self.net(rows.x[index]), rows.targets[index]) * weights[index]
            except NotFinite as error:
                if step == 0:  # there was nothing to diverge from
                    raise
                raise _diverged(number, config) from error
            losses.mean().backward()
            self.optimizer.step()
            total += losses.sum().item()
        self.epochs += 1
        if not (math.isfinite(total) and all(bool(torch.isfinite(p).all()) for p in self.net.parameters())):
            raise _diverged(number, config)
        return total / len(rows)


def _diverged(number: int, config: TrainConfig) -> Diverged:
    return Diverged(
        f"Training diverged in epoch {number + 1} of {config.epochs}: lower the learning rate, which is "
        f"{config.learning_rate:g}."
    )


def _copied(net: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]
