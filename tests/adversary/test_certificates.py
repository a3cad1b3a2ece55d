"""Every kind of certificate against rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.adversary.claims import convolutional, dense, eliminated, extreme, grouped, images, imported, passing
from tests.adversary.nearby import around_inputs
from tests.adversary.promises import promised
from tests.adversary.recurrent import recurrent
from tests.adversary.stacks import linear_stack
from tests.adversary.tally import Tally, single_thread
from tests.adversary.truths import linear, posed, searched, signals, steep

Kind = Callable[[Random, Tally, str], None]
KINDS: dict[Kind, int] = {  # and how many of each kind make one round of the long run
    dense: 30,
    extreme: 30,
    passing: 20,
    eliminated: 15,
    grouped: 12,
    imported: 10,
    convolutional: 16,
    images: 16,
    searched: 12,
    posed: 20,
    signals: 6,
    recurrent: 20,
    linear: 15,
    steep: 6,
    linear_stack: 16,
    promised: 40,
    around_inputs: 10,
}


def run(kind: Kind, first: int, count: int, record_property: Callable[[str, object], None]) -> None:
    single_thread()
    tally = Tally("certificates")
    for seed in range(first, first + count):
        kind(Random(f"{kind.__name__} {seed}"), tally, f"{kind.__name__}, seed {seed}")
    tally.finish(record_property)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_certificates_are_exactly_true(kind: Kind, record_property: Callable[[str, object], None]) -> None:
    run(kind, 0, KINDS[kind] // 5, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(18))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_many_certificates_are_exactly_true(
    kind: Kind, part: int, record_property: Callable[[str, object], None]
) -> None:
    count = 2 * KINDS[kind]
    run(kind, 1000 + part * count, count, record_property)
