"""How to train: what is minimised, by which optimizer, and at which rate."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from torch import nn

from lben import checks
from lben.errors import InvalidInput
from lben.train.augment import Augmentation
from lben.train.fingerprint import fingerprint
from lben.train.losses import CrossEntropy, Loss

Schedule = Literal["constant", "step", "one-cycle", "cosine"]
"""How the learning rate goes: "constant", "step", "one-cycle" or "cosine"; see `TrainConfig`."""
Optimizer = Literal["adam", "adamw", "sgd"]
"""Optimizers of torch by name: "adam", "adamw" or "sgd", with a momentum of 0.9."""
OnLost = Literal["skip", "stop"]
"""What becomes of a batch in which the network has no answer: "skip" it and count it, or "stop"."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train: a recipe for `fit`, which a checkpoint keeps.

    Args:
        epochs: how often all samples are seen.
        batch_size: samples a step.
        optimizer: "adam", "adamw" or "sgd", with a momentum of 0.9.
        learning_rate: above 0.
        weight_decay: not negative.
        schedule: "constant"; "step", by `step_factor` every `step_epochs`; "one-cycle", up for 30 % of the steps and
            down for the rest, `learning_rate` at its peak; "cosine", down from the first step.
        step_epochs: of schedule="step".
        step_factor: of schedule="step", above 0.
        loss: ``CrossEntropy(margin)`` or ``Emma(epsilon, bound)`` for classes, ``MeanSquare()`` for regression, or a
            function of network, outputs and targets. None: cross-entropy where targets are integers, else the mean
            square.
        seed: of the order of samples, of augmentation, and of what `fit` keeps aside.
        on_lost: what to do with a batch in which the network has no answer (an unconstrained network may lose its
            equilibrium): "skip" it and count it, or "stop".
        augment: what is done to training images, each epoch anew: None; "flip", half of them mirrored, left to right;
            "shift", each moved by up to two pixels up or down and left or right; or "flip and shift".

    Raises:
        InvalidInput: for a value outside these ranges.

    Examples:
        >>> recipe = lben.train.TrainConfig(epochs=10, learning_rate=0.1, schedule="step", step_epochs=5)
        >>> recipe.rate(step=0, steps_per_epoch=100), round(recipe.rate(step=500, steps_per_epoch=100), 6)
        (0.1, 0.01)
    """

    epochs: int = 10
    batch_size: int = 128
    optimizer: Optimizer = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Schedule = "one-cycle"
    step_epochs: int = 10
    step_factor: float = 0.1
    loss: Loss | None = None
    seed: int = 0
    on_lost: OnLost = "skip"
    augment: Augmentation | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "step_epochs"):
            checks.count(name, getattr(self, name))
        for name in ("learning_rate", "step_factor"):
            checks.positive(name, getattr(self, name))
        if not checks.number("weight_decay", self.weight_decay) >= 0:
            raise InvalidInput(f"weight_decay must not be negative, but is {self.weight_decay}.")
        checks.seed(self.seed)
        if self.loss is not None and (isinstance(self.loss, nn.Module) or not callable(self.loss)):
            raise InvalidInput(
                "loss must be a function of network, outputs and targets, such as lben.train.MeanSquare() or "
                f"lambda net, y, targets: nn.functional.mse_loss(y, targets), not {self.loss!r}."
            )
        for name, kinds in (
            ("schedule", ("constant", "step", "one-cycle", "cosine")),
            ("optimizer", ("adam", "adamw", "sgd")),
            ("on_lost", ("skip", "stop")),
        ):
            checks.choice(name, getattr(self, name), kinds)
        if self.augment is not None:
            checks.choice("augment", self.augment, get_args(Augmentation))

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step: a function of its number alone, so that resuming needs no state.

        Args:
            step: its number, from 0.
            steps_per_epoch: how many steps an epoch has.

        Returns:
            A number above 0.

        Raises:
            InvalidInput: for numbers that are none of these.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise InvalidInput(f"step must be an integer of at least 0, not {step!r}.")
        total = self.epochs * checks.count("steps_per_epoch", steps_per_epoch)
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
        """The options as plain values, by which a checkpoint recognises its run.

        Returns:
            A dictionary that JSON can hold.
        """
        loss = CrossEntropy() if self.loss is None else self.loss  # what is not said is that of classes
        known = {**asdict(self), "loss": fingerprint(loss)}
        if self.augment is None:
            del known["augment"]  # runs from before there was any are the same runs
        return known


def _swing(share: float) -> float:
    """From one to zero along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * share))
