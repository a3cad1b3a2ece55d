"""From the stages of a network to the parts of an exported one, with the errors of all of them added up.

What leaves stage i is off by e_i <= factor_i e_(i-1) + own_i, factor_i a proved bound of the stage and own_i its own
error over all inputs that may reach it, those that are already off included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lben.certify.links import Added as AddedLink
from lben.certify.links import Link, Solved, product
from lben.export.domains import UP, Region, finite
from lben.export.equilibria import Facts, equilibrium_part
from lben.export.forms import Form, form_of
from lben.export.parts import Added, Chain, Mapped, Part, survives
from lben.export.stages import function_of
from lben.numerics.enclosed import EPS
from lben.numerics.rounding import norm_bound
from lben.weights.linear import Scaling, Standardize
from lben.weights.stages import Pointwise, Stage

_SLACK = 64  # roundings that a function of torch's is allowed besides those of its sums


@dataclass(frozen=True, eq=False)
class Built:
    """Parts, the region of their outputs without any error, the error, and what is proved of the equilibria."""

    part: Chain
    region: Region
    error: float
    facts: tuple[Facts, ...]


@dataclass(frozen=True)
class Plan:
    """dtype: what parts compute in. share: the error of outputs that each equilibrium may cause. forms: those known."""

    dtype: torch.dtype
    share: float
    forms: dict[Link, Form]

    def chain(self, links: Sequence[Link], region: Region, error: float, behind: float = 1.0) -> Built:
        """The parts of links; `behind` bounds by what errors are multiplied after them."""
        parts: list[Part] = []
        facts: list[Facts] = []
        for place, link in enumerate(links):
            after = product([*(other.factor for other in links[place + 1 :])]) * behind * UP
            wide = region.wider(error)
            if isinstance(link, AddedLink):
                part, own, inner = self._added(link, region, error, after)
                facts += inner
                total = own  # what comes in is in it already
            elif isinstance(link, Solved):
                form = self.forms.setdefault(link, form_of(link.subject, link.name))
                target = self.share / after if after > 0 else math.inf
                found = equilibrium_part(form, wide, self.dtype, target, link.name)
                facts += [] if found.facts is None else [found.facts]
                part, total = found.part, link.factor.bound * error * UP + found.error
            else:
                part = Mapped(function_of(link.stage))
                lost = self._rounding(link.stage, wide) if survives(part, self.dtype) else math.inf
                total = link.factor.bound * error * UP + lost
            parts.append(part)
            error = finite(total * UP)
            region = _image(link, region, part, error)
        return Built(Chain(parts), region, error, tuple(facts))

    def _added(self, link: AddedLink, region: Region, error: float, after: float) -> tuple[Part, float, list[Facts]]:
        built = [self.chain(branch, region, error, after) for branch in link.branches]
        limits = torch.finfo(self.dtype)
        total = sum(one.error for one in built)
        sizes = sum(float(norm_bound(one.region.center)) + one.region.radius + one.error for one in built)
        total += len(built) * (limits.eps * sizes + limits.tiny * math.sqrt(link.stage.out_features))
        return Added([one.part for one in built]), total * UP, [fact for one in built for fact in one.facts]

    def _rounding(self, stage: Stage, region: Region) -> float:
        """What a stage loses to rounding, over a region."""
        if stage.longest == 0:
            return 0.0
        limits = torch.finfo(self.dtype)
        sizes = region.sizes[None]
        terms = stage.apply(sizes, absolute=True) + (1.0 if isinstance(stage, Pointwise) else 0.0)
        if not float(terms.max()) < limits.max / 1e6:
            return math.inf
        lost = (stage.longest + _SLACK) * (limits.eps * terms + limits.tiny * (1 + float(sizes.max())))
        return float(norm_bound(lost)) * UP


def _image(link: Link, region: Region, part: Part, off: float) -> Region:
    """A region that holds all outputs of a stage for inputs of a region: around what its part, `off` by so much at
    most, makes of the centre.
    """
    dtype = next((buffer.dtype for buffer in part.buffers() if buffer.is_floating_point()), torch.float64)
    center = part.to(torch.float64)(region.center[None], torch.zeros(1, dtype=torch.float64))[0][0]
    part.to(dtype)
    radius = (link.factor.bound * region.radius + off) * UP
    stage, half = link.stage, region.half
    if half is None or not isinstance(stage, Scaling | Standardize):
        return Region(center, radius)
    scale = 1 / stage.std if isinstance(stage, Standardize) else stage.scale.abs()
    if isinstance(stage, Scaling):
        scale = scale.expand(stage.in_shape[0]).repeat_interleave(stage.in_features // stage.in_shape[0])
    half = (half * scale * (1 + 8 * EPS) + off) * UP
    return Region(center, min(radius, float(norm_bound(half))), half)


def start_error(region: Region, given: torch.dtype, inner: torch.dtype) -> float:
    """What inputs lose where parts compute in less precision than they come in."""
    if torch.finfo(inner).eps <= torch.finfo(given).eps:
        return 0.0
    most = float(norm_bound(region.center)) + region.radius
    return (torch.finfo(inner).eps * most + torch.finfo(inner).tiny * math.sqrt(len(region.center))) * UP


def end_error(built: Built, given: torch.dtype) -> float:
    """The whole error, with what outputs lose when they are given back in the dtype of the inputs."""
    limits, region = torch.finfo(given), built.region
    most = float(norm_bound(region.center)) + region.radius + built.error
    return finite((built.error + limits.eps / 2 * most + limits.tiny * math.sqrt(len(region.center))) * UP)


def share_of(links: Sequence[Link], error: float) -> float:
    """What each equilibrium may add to the error of outputs, so that all together add this much."""
    return error / max(1, _equilibria(links))


def _equilibria(links: Sequence[Link]) -> int:
    total = 0
    for link in links:
        if isinstance(link, AddedLink):
            total += sum(_equilibria(branch) for branch in link.branches)
        elif isinstance(link, Solved):
            total += 1
    return total
