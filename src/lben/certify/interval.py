"""How far outputs may be when inputs are known within a distance alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain, NoVerdict
from lben.certify.evaluator import PRECISE, Evaluator
from lben.certify.subject import Examined, part_of
from lben.errors import InvalidInput
from lben.numerics.rounding import at_least, at_most, undisturbed
from lben.solvers.base import Solver, check_solver

_SLACK = 1 + 1e-12  # for the roundings of a sum and a product


@dataclass(frozen=True, eq=False)
class CertifiedInterval(NoVerdict):
    """Outputs, and how far each may be from that of any input within the radius: `certified_interval` returns it.

    Attributes:
        y: the outputs in double precision, of shape (..., p).
        width: every such output lies within it of y, solver and rounding included, of shape (..., p).
        radius: how far inputs may be from those given, in the l2 norm, in `domain`.
        domain: where the radius is measured: "input" or "pixels".
        bounds: Lipschitz bounds of the outputs, each alone, in `domain`, of shape (p,).
        low: the lower ends, rounded outwards.
        high: the upper ends, rounded outwards.

    Examples:
        >>> found = lben.certified_interval(lben.LBEN(2, 4, 1, gamma=1.0), torch.zeros(3, 2), 0.1)
        >>> bool((found.low < found.y).all()), bool((found.high - found.low <= 0.2001).all())
        (True, True)
    """

    y: Tensor
    width: Tensor
    radius: float
    domain: Domain
    bounds: Tensor

    @property
    def low(self) -> Tensor:
        """The lower ends, rounded outwards."""
        return torch.nextafter(self.y - self.width, torch.full_like(self.y, -math.inf))

    @property
    def high(self) -> Tensor:
        """The upper ends, rounded outwards."""
        return torch.nextafter(self.y + self.width, torch.full_like(self.y, math.inf))

    def __str__(self) -> str:
        count = self.y.numel()
        if count == 0:
            return "No intervals: there was no input."
        half = [at_most(float(end)) for end in (self.width.min(), self.width.max())]
        ends = at_least(float(self.low.min())), at_most(float(self.high.max()))
        return (
            f"Within {at_least(self.radius)} in the l2 norm ({self.domain}), {count} certified intervals around "
            f"outputs, +-{' to +-'.join(dict.fromkeys(half))}, all between {ends[0]} and {ends[1]}."
        )


@undisturbed
def certified_interval(
    net: Examined,
    x: Tensor,
    radius: float,
    *,
    features: Sequence[int] | None = None,
    domain: Domain = "input",
    solver: Solver | None = None,
    activation: Activation | None = None,
) -> CertifiedInterval:
    """For each x, an interval that holds the outputs of every input within a radius: y_i +- (error_i + gamma_i radius).

    gamma_i is the tightest bound of y_i alone where weights are dense, or stages that are joined as one, and else that
    of the whole network.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: as the network takes it, of shape (..., d), on any device, where the result lies, too; all is computed in
            double precision on the CPU.
        radius: how far an input may be from x, in the l2 norm and in `domain`; finite and not negative.
        features: the numbers of those that move, all if not given: fewer give shorter intervals.
        domain: where the radius is measured: "input", or "pixels", before the network's `Normalize`.
        solver: how equilibria are found; None: to a tolerance of 1e-12. What it leaves open is bounded and counted: a
            loose one costs precision, never truth.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `CertifiedInterval`.

    Raises:
        NotWellPosed: where no metric proves an equilibrium.
        InvalidInput: if x or an argument does not fit.

    Examples:
        A sensor that is off by up to 0.1 moves this prediction by no more.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0).eval()
        >>> x = torch.tensor([[1.0, -1.0]])
        >>> found = lben.certified_interval(net, x, 0.1)
        >>> moved = net(x + torch.tensor([0.06, 0.08]))
        >>> bool((found.low <= moved) & (moved <= found.high))
        True
    """
    size = checks.number("radius", radius)
    if not 0 <= size < math.inf:
        raise InvalidInput(f"radius must be a finite number of at least 0, not {radius}.")
    evaluator = Evaluator.of(net, activation)
    evaluator.require_proof()
    subject = evaluator.subject
    method = PRECISE if solver is None else check_solver(solver)
    rows = evaluator.inputs(x)
    batch, outputs = evaluator.flat(x).shape[:-1], subject.weights.out_features
    parts = [part_of(subject, [i], features) for i in range(outputs)]
    scale = parts[0].scale_of(domain)
    if all(part is subject for part in parts):
        bounds = torch.full((outputs,), subject.bound().gamma, dtype=torch.float64)
    else:
        bounds = torch.tensor([part.bound().gamma for part in parts], dtype=torch.float64)
    bounds = bounds / scale * _SLACK
    found = evaluator.evaluate(rows, method)
    width = torch.nan_to_num(found.entry_error(), nan=math.inf, posinf=math.inf) + bounds * size
    y, width = (part.reshape(*batch, outputs).to(x.device) for part in (found.y, width * _SLACK))
    return CertifiedInterval(y, width, size, domain, bounds.to(x.device))
