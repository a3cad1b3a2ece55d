"""What is measured of a trained network: errors, attacks, bounds from both sides, certified accuracy, and its cost."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from lben.attacks import attack
from lben.baselines import FeedForward, halving_search
from lben.certify.lmi import certify
from lben.certify.lower import lipschitz_lower_bound
from lben.certify.radius import certified_accuracy
from lben.certify.sdp import tightest_bound
from lben.data import ImageData, pixels
from lben.errors import NotConverged, NotWellPosed
from lben.networks import EquilibriumNetwork
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
_WIDE = 200  # wider networks are searched and attacked less, and so are those without a proof: it would take hours
_STEPS_TIMED, _REPEATS = 40, 9


@dataclass(frozen=True)
class Measured:
    """Of one network; shares between 0 and 1, bounds at the network's input, radii in pixels.

    unanswered: test images without an equilibrium, which count as wrong.
    single_step, multi_step: errors under attacks of each of `sizes`, on the first `attacked_images`; certified_error:
    the proved upper bound of both, on the same ones. certified: the accuracy proved at each of `radii`, on all.
    paper_attacked: errors by the paper's protocol at its two sizes.
    upper: gamma, where the network is meant to have one and it is proved. tight: the tightest bound, None where no
    metric proves any.
    lower: from two inputs; lower_proved: whether its last digit is.
    steps: Peaceman-Rachford's step and its iterations to the evaluation's tolerance, automatic and by halving.
    """

    error: float
    unanswered: int
    attacked_images: int
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


def measure(
    net: EquilibriumNetwork | FeedForward, data: ImageData, *, gamma: float | None = None, seed: int = 0
) -> Measured:
    """Everything that the report says of a trained network; `gamma` is the bound that it is meant to have."""
    x, y = pixels(data.test_images), data.test_labels
    error, unanswered = error_rate(net, data.test_images, y)
    wide = len(net.weights().bz) > _WIDE
    few, restarts = (100, 8) if wide else (len(y), 32)
    lower = lipschitz_lower_bound(net, x[:few], restarts=restarts, seed=seed)
    try:
        tight = tightest_bound(net).gamma
    except NotWellPosed:
        tight = None
    proved = gamma is not None and (certify(net, gamma).holds or (tight is not None and tight <= gamma))
    attacked = min(len(y), 500 if wide else 2000 if tight is None else len(y))
    certified = certified_error = None
    if tight is not None:
        certified = certified_accuracy(net, x, y, RADII, domain="pixels").accuracy.tolist()
        certified_error = (1 - certified_accuracy(net, x[:attacked], y[:attacked], SIZES).accuracy).tolist()
    return Measured(
        error=error,
        unanswered=unanswered,
        attacked_images=attacked,
        sizes=list(SIZES),
        single_step=attack(net, x[:attacked], y[:attacked], SIZES, method="fgm", seed=seed).error.tolist(),
        multi_step=attack(
            net, x[:attacked], y[:attacked], SIZES, method="pgd", steps=20, restarts=1, seed=seed
        ).error.tolist(),
        certified_error=certified_error,
        paper_attacked=attack(net, x, y, PAPER_SIZES, paper_protocol=True, seed=seed).error.tolist(),
        radii=list(RADII),
        certified=certified,
        upper=gamma if proved else None,
        tight=tight,
        lower=lower.value,
        lower_proved=lower.proved,
        steps=_steps(net, data) if isinstance(net, EquilibriumNetwork) else None,
    )


def _steps(net: EquilibriumNetwork, data: ImageData) -> dict[str, Any] | None:
    """The automatic step beside the one that halving finds, on a batch of test images."""
    x = pixels(data.test_images[:128])
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


def relative_seconds(net: EquilibriumNetwork | FeedForward, data: ImageData, config: TrainConfig) -> float:
    """The time of a training step, as a multiple of that of a plain network with as many hidden units.

    The two take turns, on copies, so that what else the machine does falls on both; the median of the ratios.
    """
    steps = _STEPS_TIMED // (8 if len(net.weights().bz) > _WIDE else 1)
    images = data.train_images[: steps * config.batch_size]
    few = ImageData(images, data.train_labels[: len(images)], data.test_images[:100], data.test_labels[:100])
    brief = replace(config, epochs=1)
    sizes = (images.shape[1], len(net.weights().bz), len(net.weights().by))
    plain = FeedForward(*sizes, normalize=net.normalize)
    usual = replace(brief, loss=TrainConfig().loss)
    ratios = []
    for _ in range(_REPEATS):
        base = fit(copy.deepcopy(plain), few, usual)[0].seconds
        ratios.append(fit(copy.deepcopy(net), few, brief)[0].seconds / max(base, math.ulp(1.0)))
    return statistics.median(ratios)
