"""Certified accuracy by local bounds beside what attacks leave: how much of the gap between the two they close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lben.attacks import attack
from lben.certify.radius import certified_accuracy, certified_radius
from lben.certify.subject import Examined
from lben.errors import InvalidInput
from lben.progress import Show

CORNERS = (0.01, 0.02, 0.03, 0.05, 0.1)
"""Sizes in the l-infinity norm, in pixels."""
STEPS = 20
"""Of the attack."""


@dataclass(frozen=True)
class Around:
    """Shares of the first `images` that keep their class, at each of `radii` and, in the l-infinity norm, of `corners`.

    everywhere: proved by global bounds. around: by local ones. attacked: left by an attack within the pixel range,
    which no certificate exceeds.
    """

    images: int
    radii: list[float]
    everywhere: list[float]
    around: list[float]
    attacked: list[float]
    corners: list[float]
    corners_everywhere: list[float]
    corners_around: list[float]

    def __post_init__(self) -> None:
        for names in (
            ("radii", "everywhere", "around", "attacked"),
            ("corners", "corners_everywhere", "corners_around"),
        ):
            if len({len(getattr(self, name)) for name in names}) != 1:
                raise InvalidInput(f"{', '.join(names)} differ in length")

    @property
    def closed(self) -> float:
        """By which share the gap between proved and attacked shrinks where it is widest; 0 where there is none."""
        gaps = [ceiling - proved for ceiling, proved in zip(self.attacked, self.everywhere, strict=True)]
        widest = max(range(len(gaps)), key=gaps.__getitem__)
        return (self.around[widest] - self.everywhere[widest]) / gaps[widest] if gaps[widest] > 0 else 0.0


def measure_around(
    net: Examined,
    x: Tensor,
    y: Tensor,
    radii: Sequence[float],
    *,
    corners: Sequence[float] = CORNERS,
    seed: int = 0,
    progress: Show = None,
) -> Around:
    """Prove everywhere, prove around each of x, and attack; x are pixels, y their labels, radii in pixels."""
    show = progress is True
    everywhere = certified_accuracy(net, x, y, radii, domain="pixels", progress=show)
    around = certified_radius(net, x, y, local=True, domain="pixels", progress=show).radius
    found = attack(net, x, y, radii, steps=STEPS, restarts=1, domain="pixels", seed=seed, progress=progress)
    plain = certified_accuracy(net, x, y, corners, norm="inf", domain="pixels", progress=show)
    cubes = certified_accuracy(net, x, y, corners, norm="inf", local=True, domain="pixels", progress=show)
    return Around(
        images=len(x),
        radii=list(radii),
        everywhere=everywhere.accuracy.tolist(),
        around=(around[:, None] > torch.as_tensor(radii, dtype=around.dtype)).double().mean(dim=0).tolist(),
        attacked=(1 - found.error).tolist(),
        corners=list(corners),
        corners_everywhere=plain.accuracy.tolist(),
        corners_around=cubes.accuracy.tolist(),
    )
