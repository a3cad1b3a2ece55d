"""The search for Peaceman-Rachford's step that monotone operator networks use (Winston and Kolter 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from lben.errors import InvalidInput, NotConverged
from lben.networks.base import BaseNetwork
from lben.solvers.peaceman_rachford import PeacemanRachford

_MOST = 500  # iterations after which a step is far too long; on wide networks they take minutes


@dataclass(frozen=True)
class Halving:
    """The step found, the iterations it takes on the batch, and how many times the batch was solved to find it."""

    alpha: float
    iterations: int
    solves: int


def halving_search(net: BaseNetwork, x: Tensor, *, tolerance: float = 1e-4) -> Halving:
    """Halve alpha, from 1, for as long as a batch then takes fewer iterations.

    The automatic step asks the weights instead, and solves nothing to do so.
    """
    if not isinstance(net, BaseNetwork):
        raise InvalidInput(f"An equilibrium network is needed, not {type(net).__name__}.")
    kept = net.solver
    best, solves = None, 0
    try:
        for k in range(20):
            net.solver = PeacemanRachford(alpha=0.5**k, tolerance=tolerance, max_iterations=_MOST)
            solves += 1
            try:
                iterations = net.solve(x, keep_history=True).iterations
            except NotConverged:
                continue
            if best is not None and iterations >= best.iterations:
                break
            best = Halving(0.5**k, iterations, solves)
    finally:
        net.solver = kept
    if best is None:
        raise NotConverged(f"Peaceman-Rachford converged for none of the {solves} steps tried.", math.inf)
    return Halving(best.alpha, best.iterations, solves)
