"""The search for a step by halving."""

from __future__ import annotations

import lben
from lben.data import pixels
from lben.experiments.baselines import halving_search
from tests.problems import few_images, mnist_network


def test_halving_finds_a_step_no_worse_than_one() -> None:
    net = mnist_network(1.0)
    x = pixels(few_images().test_images)
    found = halving_search(net, x, tolerance=1e-4)
    assert found.solves >= 2
    before = net.solver
    for alpha in (1.0, found.alpha):
        net.solver = lben.PeacemanRachford(alpha=alpha, tolerance=1e-4)
        iterations = net.solve(x, keep_history=True).iterations
        assert found.iterations <= iterations
    assert iterations == found.iterations
    net.solver = lben.PeacemanRachford(tolerance=1e-4)
    assert net.solve(x, keep_history=True).iterations <= 1.3 * found.iterations + 2
    net.solver = before
