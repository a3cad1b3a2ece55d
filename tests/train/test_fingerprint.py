"""Fingerprints: what decides a run is known by what it holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch

import lben
from lben.train.fingerprint import fingerprint


class Opaque:
    """A loss, or data, that Python shows by its place in memory."""

    def __init__(self, *held: object) -> None:
        self.held = held


def test_things_are_known_by_what_they_hold() -> None:
    """Not by how they print: lists, objects, functions and their closures that differ anywhere have other prints."""
    rows = list(torch.zeros(1000, 5))
    other = [*rows[:500], torch.ones(5), *rows[501:]]
    scaled = [lambda y, k=k: k * y for k in (1, 2)]

    def times(factor: float) -> Callable[[float], float]:
        return lambda y: factor * y

    dataset = torch.utils.data.TensorDataset
    pairs: list[tuple[object, object]] = [
        (Opaque(1), Opaque(100)),
        (rows, other),
        (dataset(torch.zeros(50, 3)), dataset(torch.ones(50, 3))),
        (lben.Elementwise(lambda v: torch.tanh(v)), lben.Elementwise(lambda v: v.clamp(-1, 1))),
        (scaled[0], scaled[1]),
        (times(1), times(2)),
        (partial(pow, 1), partial(pow, 2)),
        ({"a": rows}, {"a": other}),
    ]
    for one, two in pairs:
        assert fingerprint(one) == fingerprint(copy.deepcopy(one))
        assert fingerprint(one) != fingerprint(two)
