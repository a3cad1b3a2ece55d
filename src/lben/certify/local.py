"""Bounds that hold around given inputs: how far each unit can move decides how steep it can be, and so on in turn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain, NoVerdict
from lben.certify.evaluator import PRECISE, Evaluator, placed
from lben.certify.locality import Locality, Nearby, Norm, named
from lben.certify.subject import Examined
from lben.certify.surroundings import best_norm
from lben.errors import InvalidInput
from lben.numerics.rounding import at_least, at_most, undisturbed
from lben.solvers.base import Solver, check_solver

_FIXED = 1e-12  # the width of a sector below which a unit is linear, but for rounding


@dataclass(frozen=True, eq=False)
class LocalBound(NoVerdict):
    """Around each input, a bound on ``|y(x') - y(x)|/|x' - x|`` for all x' within a radius: `local_bound` returns it.

    Attributes:
        gamma: of the shape of the batch, in `domain`.
        radius: as it was given, in `domain`.
        lower: for each unit the least slope it has there, relative to its value at x, of shape (..., n).
        upper: the same for the greatest slope.
        domain: where distances are measured: "input" or "pixels".
        norm: in which inputs are measured: "2" or "inf".
        fixed: how many units are linear there, but for rounding, of the shape of the batch.
        width: the mean width of the others' slopes, of the shape of the batch.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> found = lben.local_bound(net, torch.randn(3, 2), 1e-6)
        >>> found.gamma.shape, found.fixed
        (torch.Size([3]), tensor([4, 4, 4]))
    """

    gamma: Tensor
    radius: float
    lower: Tensor
    upper: Tensor
    domain: Domain
    norm: Norm = "2"

    @property
    def fixed(self) -> Tensor:
        """How many units are linear within the radius, but for rounding; shape of the batch."""
        return (self.upper - self.lower < _FIXED).sum(dim=-1)

    @property
    def width(self) -> Tensor:
        """The mean width of the others' sectors; 0 where there are none."""
        wide = self.upper - self.lower
        others = wide >= _FIXED
        return (wide * others).sum(dim=-1) / others.sum(dim=-1).clamp(min=1)

    def __str__(self) -> str:
        units = self.lower.shape[-1]
        return (
            f"Within {at_least(self.radius)} in the {named(self.norm)} norm ({self.domain}), {self.gamma.numel()} "
            f"local bounds from {at_most(float(self.gamma.min()))} to {at_most(float(self.gamma.max()))}; of "
            f"{units} units {float(self.fixed.double().mean()):.1f} are fixed on average."
        )


@undisturbed
def local_bound(
    net: Examined,
    x: Tensor,
    radius: float,
    *,
    norm: Norm | float = "2",
    domain: Domain = "input",
    solver: Solver | None = None,
    progress: bool | None = None,
    activation: Activation | None = None,
) -> LocalBound:
    """For each x a bound on ``|y(x') - y(x)|/|x' - x|`` for all x' within a radius, never above the global one.

    For dense networks, networks read by `from_sequential` and dense stacks, with activations of the paper's table.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: as the network takes it, of shape (..., d), with at least one row.
        radius: how far x' may be from x, above 0, in `domain` and `norm`.
        norm: of x' - x: "2", the Euclidean one, or "inf", the largest change of a feature; 2 and `math.inf` mean the
            same. y is measured in the Euclidean one. What "inf" gives is never above sqrt(d) times the
            bound of "2" within sqrt(d) radius.
        domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
            before it. They are the same without one.
        solver: how equilibria are found; None: to a tolerance of 1e-12. What it leaves open is bounded and counted: a
            loose one costs precision, never truth.
        progress: whether to show a bar; None: on a terminal, when it takes longer than some seconds.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `LocalBound`.

    Raises:
        InvalidInput: for a network with convolutions, or an argument that does not fit.
        NotWellPosed: where no metric proves an equilibrium.

    Examples:
        Close to one input, less is possible than everywhere.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> near = lben.local_bound(net, torch.tensor([[1.0, -1.0]]), 0.01)
        >>> bool(near.gamma <= lben.tightest_bound(net).gamma)
        True
    """
    norm = checks.norm(norm)
    evaluator = Evaluator.of(net, activation)
    evaluator.require_proof()
    subject = evaluator.subject
    scale = subject.scale_of(domain)
    reach = checks.positive("radius", radius) / scale * (1 + 1e-15)
    rows, batch = evaluator.inputs(x), evaluator.flat(x).shape[:-1]
    if len(rows) == 0:
        raise InvalidInput("A local bound needs at least one input, but x is empty.")
    locality = Locality.of(subject)
    method = PRECISE if solver is None else check_solver(solver)
    found = []
    for part in locality.parts(len(rows), progress):
        near = locality.near(rows[part], method)
        found.append(_bounds(locality, near, reach) if norm == "2" else _cornered(locality, near, reach))
    gamma, lower, upper = (torch.cat(parts) for parts in zip(*found, strict=True))
    gamma = gamma / scale if scale == 1 else gamma / scale * (1 + 1e-15)
    n = lower.shape[1]
    bound = LocalBound(gamma.reshape(batch), radius, lower.reshape(*batch, n), upper.reshape(*batch, n), domain, norm)
    return placed(bound, x.device)


def _bounds(locality: Locality, near: Nearby, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """The bounds within a radius, and the slopes that they rest on."""
    count = len(near.v)
    around, lower, upper = locality.narrowed(near, torch.full((count,), reach, dtype=torch.float64))
    gamma = best_norm(around, around.rows(locality.outputs.expand(count, -1, -1)))
    return gamma.clamp(max=locality.most), lower, upper


def _cornered(locality: Locality, near: Nearby, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same where features are bounded one by one; both ways are true, and so are the narrower of their slopes."""
    root = math.sqrt(locality.frame.inputs.shape[1]) * (1 + 1e-15)
    plain, lower, upper = _bounds(locality, near, reach * root)
    rows = locality.outputs.expand(len(near.v), -1, -1)
    around, least, most = locality.narrowed(locality.cornered(near, rows), torch.full_like(plain, reach))
    gamma = torch.minimum(best_norm(around, around.rows(rows)), plain * root)
    return gamma, torch.maximum(lower, least), torch.minimum(upper, most)
