"""What is measured of a trained network: errors, attacks, bounds from both sides, certified accuracy, and its cost."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from lben.attacks import PAPER_IMAGES, attack
from lben.certify.lipschitz import certify, tightest_bound
from lben.certify.lower import lipschitz_lower_bound
from lben.certify.radius import certified_accuracy
from lben.data import ImageData, pixels
from lben.errors import InvalidInput, NotConverged, NotWellPosed
from lben.experiments.baselines import FeedForward, halving_search
from lben.experiments.nearby import Around, measure_around
from lben.networks.base import BaseNetwork
from lben.progress import Show
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train import TrainConfig, error_rate, fit

RADII = (0.3, 0.5, 1.0, 1.58)
"""In pixels, at which certified accuracy is reported."""
SIZES = (0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0)
"""Of attacks, at the network's input, as in the paper."""
PAPER_SIZES = (5.0, 10.0)
TRAINING_TOLERANCE = 1e-2
"""The paper's 1e-2 bounds the relative change of an iterate; ours bounds the residual: stricter."""
EVALUATION_TOLERANCE = 1e-4
WIDE, WIDEST = 200, 2000
"""Networks with more units than these are searched and attacked less, and so are those without a proof: hours else."""
_CERTIFICATION = PeacemanRachford(tolerance=1e-5)  # of the widest; what it leaves open is subtracted
_STEP = ("alpha", "iterations")
_STEPS_TIMED, _REPEATS = 40, 9


@dataclass(frozen=True)
class Effort:
    """How many images are attacked and certified, and how long a steep pair is searched for, from how many points.

    around: how many images get bounds of their own, which takes about 0.15 s an image at 80 units.
    """

    attacked: int
    certified: int
    points: int
    restarts: int
    climb: int
    timed_steps: int
    around: int = 0

    @staticmethod
    def of(units: int, images: int, *, proved: bool) -> Effort:
        if units > WIDEST:
            return Effort(min(images, 50), min(images, 1000), 16, 4, 60, 4)
        if units > WIDE:
            return Effort(min(images, 500), images, 100, 8, 200, 5)
        around = (images if images > PAPER_IMAGES else images // 10) if proved else 0  # few in a quick look
        return Effort(images if proved else min(images, 2000), images, images, 32, 200, _STEPS_TIMED, around)


@dataclass(frozen=True)
class Measured:
    """Of one network; shares between 0 and 1, bounds at the network's input, radii in pixels.

    unanswered: test images without an equilibrium, which count as wrong.
    std: of the normalisation; what one unit at the network's input is in pixels.
    single_step, multi_step: errors under attacks of each of `sizes`, on the first `attacked_images`; certified_error:
    the proved upper bound of both, on the same ones. certified: the accuracy proved at each of `radii`, on the first
    `certified_images`.
    paper_attacked: errors by the paper's protocol at its two sizes, on the last `paper_images`.
    upper: gamma, where the network is meant to have one and it is proved. tight: the tightest bound, None where no
    metric proves any.
    lower: from two inputs; lower_proved: whether its last digit is.
    around: what local bounds prove, None where they were not asked for.
    steps: Peaceman-Rachford's step and its iterations to the evaluation's tolerance, automatic and by halving.
    """

    error: float
    unanswered: int
    std: float
    attacked_images: int
    certified_images: int
    sizes: list[float]
    single_step: list[float]
    multi_step: list[float]
    certified_error: list[float] | None
    paper_attacked: list[float]
    radii: list[float]
    certified: list[float] | None
    upper: float | None
    tight: float | None
    lower: float
    lower_proved: bool
    steps: dict[str, Any] | None
    paper_images: int = PAPER_IMAGES
    around: Around | None = None

    def __post_init__(self) -> None:
        """Refuse what no measurement gives: a report divides by some of these and looks others up."""
        lengths = {
            "single_step": len(self.sizes),
            "multi_step": len(self.sizes),
            "certified_error": len(self.sizes),
            "certified": len(self.radii),
            "paper_attacked": len(PAPER_SIZES),
        }
        for name, length in lengths.items():
            values = getattr(self, name)
            if values is not None and len(values) != length:
                raise InvalidInput(f"{name} has {len(values)} values instead of {length}")
        if not self.std > 0:
            raise InvalidInput(f"std is {self.std}")
        if not set(PAPER_SIZES) <= set(self.sizes):
            raise InvalidInput(f"sizes are {self.sizes} and miss some of {PAPER_SIZES}")
        for kind, names in (("automatic", _STEP), ("halving", (*_STEP, "solves"))):
            found = {} if self.steps is None else self.steps.get(kind)
            if self.steps and not (
                isinstance(found, dict) and all(isinstance(found.get(name), int | float) for name in names)
            ):
                raise InvalidInput(f"steps.{kind} is {found}")


def measure(
    net: BaseNetwork | FeedForward,
    data: ImageData,
    *,
    gamma: float | None = None,
    radii: Sequence[float] = RADII,
    seed: int = 0,
    progress: Show = None,
) -> Measured:
    """Everything that the report says of a trained network; `gamma` is the bound that it is meant to have."""
    show = False if progress == "lines" else progress
    x, y = pixels(data.test_images), data.test_labels
    error, unanswered = error_rate(net, data.test_images, y)
    try:
        tight = tightest_bound(net).gamma
    except NotWellPosed:
        tight = None
    proved = gamma is not None and (certify(net, gamma).holds or (tight is not None and tight <= gamma))
    units = net.weights().hidden_features
    effort = Effort.of(units, len(y), proved=tight is not None)
    lower = lipschitz_lower_bound(
        net, x[: effort.points], restarts=effort.restarts, steps=effort.climb, seed=seed, progress=show is True
    )
    some, few = slice(effort.certified), slice(effort.attacked)
    certified = certified_error = None
    if tight is not None:
        solver = _CERTIFICATION if units > WIDEST else None
        certified = certified_accuracy(
            net, x[some], y[some], radii, domain="pixels", solver=solver, progress=show is True
        ).accuracy.tolist()
        proved_there = certified_accuracy(net, x[few], y[few], SIZES, solver=solver, progress=show is True)
        certified_error = (1 - proved_there.accuracy).tolist()
    own = slice(effort.around)
    around = measure_around(net, x[own], y[own], radii, seed=seed, progress=show) if effort.around else None
    if units > WIDEST and isinstance(net, BaseNetwork):
        net.solver = PeacemanRachford(tolerance=TRAINING_TOLERANCE)  # gradients show the way; what they find is checked
    fast = attack(net, x[few], y[few], SIZES, method="fgm", seed=seed, progress=show)
    slow = attack(net, x[few], y[few], SIZES, method="pgd", steps=20, restarts=1, seed=seed, progress=show)
    paper = attack(net, x, y, PAPER_SIZES, paper_protocol=True, seed=seed, progress=show)
    return Measured(
        error=error,
        unanswered=unanswered,
        std=1.0 if net.normalize is None else float(net.normalize.std.min()),
        attacked_images=effort.attacked,
        certified_images=effort.certified,
        sizes=list(SIZES),
        single_step=fast.error.tolist(),
        multi_step=slow.error.tolist(),
        certified_error=certified_error,
        paper_attacked=paper.error.tolist(),
        radii=list(radii),
        certified=certified,
        upper=gamma if proved else None,
        tight=tight,
        lower=lower.value,
        lower_proved=lower.proved,
        steps=_steps(net, x[: min(effort.points, 128)]) if isinstance(net, BaseNetwork) else None,
        paper_images=paper.success.shape[1],
        around=around,
    )


def _steps(net: BaseNetwork, x: Tensor) -> dict[str, Any] | None:
    """The automatic step beside the one that halving finds, on a batch of images."""
    net.solver = PeacemanRachford(tolerance=EVALUATION_TOLERANCE)
    try:
        automatic = net.solve(x, keep_history=True)
        halved = halving_search(net, x, tolerance=EVALUATION_TOLERANCE)
    except NotConverged:
        return None
    return {
        "automatic": {"alpha": automatic.alpha, "iterations": automatic.iterations},
        "halving": {"alpha": halved.alpha, "iterations": halved.iterations, "solves": halved.solves},
    }


def relative_seconds(net: nn.Module, plain: nn.Module, data: ImageData, config: TrainConfig, units: int) -> float:
    """The time of a training step of a network with so many hidden units, as a multiple of a plain network's.

    The two take turns, on copies, so that what else the machine does falls on both; the median of the ratios.
    """
    images = data.train_images[: Effort.of(units, 1, proved=True).timed_steps * config.batch_size]
    few = ImageData(images, data.train_labels[: len(images)], data.test_images[:100], data.test_labels[:100])
    brief = replace(config, epochs=1)
    usual = replace(brief, loss=TrainConfig().loss)
    ratios = []
    for _ in range(_REPEATS):
        base = fit(copy.deepcopy(plain), few, usual, progress=False)[0].seconds
        ratios.append(fit(copy.deepcopy(net), few, brief, progress=False)[0].seconds / max(base, math.ulp(1.0)))
    return statistics.median(ratios)
