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
    """What `halving_search` found.

    Attributes:
        alpha: the step.
        iterations: how many it takes on the batch.
        solves: how many times the batch was solved to find it.

    Examples:
        >>> found = lben.baselines.halving_search(lben.MON(2, 4, 1).eval(), torch.randn(4, 2))
        >>> 0 < found.alpha <= 1, found.solves >= 2
        (True, True)
    """

    alpha: float
    iterations: int
    solves: int


def halving_search(net: BaseNetwork, x: Tensor, *, tolerance: float = 1e-4) -> Halving:
    """Halve Peaceman-Rachford's step, from 1, for as long as a batch then takes fewer iterations.

    So monotone operator networks choose it (Winston & Kolter 2020). The automatic step asks the weights instead, and
    solves nothing to do so.

    Args:
        net: an equilibrium network, whose solver is as before afterwards.
        x: a batch as the network takes it, of shape (samples, ...).
        tolerance: of the equilibria.

    Returns:
        A `Halving`.

    Raises:
        NotConverged: if the batch could be solved with none of the steps.
        InvalidInput: for another network.

    Examples:
        >>> net = lben.MON(2, 4, 1).eval()
        >>> x = torch.randn(4, 2)
        >>> found = lben.baselines.halving_search(net, x)
        >>> net.solver = lben.PeacemanRachford(alpha=found.alpha)
        >>> bool(net.solve(x))
        True
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
