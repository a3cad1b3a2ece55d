"""Equilibria as parts of an exported network: how many iterations they need, and what error is then proved.

In the norm of Lambda, with |C| <= rho (`contraction.py`), u* the fixed point at x and u0 the start, which is the fixed
point at the centre of the region:

    |u0 - u*| <= (|u0 - F(u0)| + 2 alpha |Lam^(1/2) U| radius)/(1 - rho) =: E0,

for F moves by 2 alpha R U (x - centre), |R| <= 1, when x leaves the centre. What is computed is F(u) + e, |e| <= eta,
the rounding of one iteration, for u no further than 2 E0 from u0, of sums in any order, and of the constants. So

    |u_k - u*| <= rho^k E0 + eta/(1 - rho),   |y - y*| <= |Wo Lam^(-1/2)| |u_k - u*| + rounding of the output,

since prox is non-expansive and z* = prox(u*). The smallest k for which this is at most what is asked for is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.activations.scalar import PerUnit
from lben.errors import InvalidInput
from lben.export.contraction import Step
from lben.export.domains import UP, Region, finite
from lben.export.forms import Form
from lben.export.parts import Iterated, Part, Swept, survives
from lben.export.prox import Prox, prox_of
from lben.numerics.rounding import norm_bound

MOST_ITERATIONS = 2000
_SLACK = 8  # roundings besides those of a sum: constants in the dtype, a product, a bias


@dataclass(frozen=True)
class Facts:
    """What is proved of one equilibrium of an exported network."""

    name: str
    iterations: int
    contraction: float
    alpha: float


@dataclass(frozen=True, eq=False)
class Found:
    """A part, a bound on the error that it adds, and what is to be said of it."""

    part: Part
    error: float
    facts: Facts | None = None


class Sizes:
    """How large x, b and z can be over a region, and what rounding takes from the sums at both ends.

    Lengths of b, `b`, and of what its computed value is off by, `b_error`, are in the norm of Lambda; that of x is not.
    spread: how far b moves when x leaves the centre, where it is `center`.
    """

    def __init__(self, form: Form, region: Region, dtype: torch.dtype) -> None:
        limits = torch.finfo(dtype)
        self.form, self.eps, self.tiny = form, limits.eps, limits.tiny
        self.most, self.least = limits.max / 1e6, min(float(form.root.min()), 1.0)
        self.x = (float(norm_bound(region.center)) + region.radius) * UP
        self.ones = float(norm_bound(form.root))
        self.center = form.subject.injection(region.center[None], absolute=False)
        bias = self.length(form.subject.injection(torch.zeros_like(region.center)[None], absolute=True))
        terms, count = form.into_terms
        self.spread = form.into_norm * region.radius * UP
        self.b_error = self.rounding(count, terms * self.x + bias, self.ones * (1 + self.x))
        self.b = (self.length(self.center) + self.spread + self.b_error) * UP

    def length(self, rows: Tensor) -> float:
        """A bound on the Lambda norm of the longest of some rows."""
        return float(norm_bound(rows * self.form.root).max()) * UP

    def rounding(self, count: int, terms: float, ones: float) -> float:
        """Of sums of so many terms, whose sizes have such a length; infinite where they may overflow.

        ones: the length of a vector of ones, times the largest factor of a term: what may underflow.
        """
        if not terms / self.least < self.most:
            return math.inf
        return (count + _SLACK) * (self.eps * terms + self.tiny * ones) * UP

    def overflows(self, length: float) -> bool:
        """Whether a vector of at most this length, in the norm of Lambda, may have entries too large for the dtype."""
        return not length / self.least < self.most

    def output_error(self, z: float) -> float:
        """Of Wo z + D x + by, in the plain norm, for z of at most this length."""
        out, past, count = self.form.out_terms
        by = self.form.subject.weights.by
        outputs = math.sqrt(self.form.subject.weights.out_features)
        most = float(by.abs().max()) * outputs if by.numel() else 0.0
        return self.rounding(count, out * z + past * self.x + most, outputs * (1 + self.x + z / self.least))

    def prox_error(self, prox: Prox, u: float, z: float) -> float:
        """Of prox(u), for u and z of at most these lengths."""
        if prox.rounding == 0:
            return 0.0
        entries = u + z
        if prox.together:  # an entry may have lost what the largest of its row has
            entries = entries / self.least * self.ones
            if not entries < math.sqrt(self.most):  # whose square is a number, too
                return math.inf
        return prox.rounding * (self.eps * (entries + prox.inner * self.ones) + self.tiny * self.ones) * UP


def equilibrium_part(form: Form, region: Region, dtype: torch.dtype, target: float, name: str) -> Found:
    """An equilibrium for inputs of a region, with an error of at most `target`, or about the least that can be had."""
    if not form.subject.proved:
        raise form.subject.refusal()
    layers = form.layers()
    sizes = Sizes(form, region, dtype)
    found = _swept(form, sizes, layers) if layers is not None else _iterated(form, sizes, dtype, target, name)
    return found if survives(found.part, dtype) else replace(found, error=math.inf)


def _swept(form: Form, sizes: Sizes, layers: tuple[tuple[int, int], ...]) -> Found:
    """One sweep. With z = sigma(v) + s and v = W z + b + e, |z - z*| <= |s| + (|e| + |W| |s|)/m; e and s are rounding.

    Both grow with |z - z*| =: E, which therefore is at most a + c E, and so at most a/(1 - c). How large z* is follows
    from the same: at sigma(0) it solves the equation for the bias -W sigma(0).
    """
    subject, prox = form.subject, prox_of(form.subject.activation, form.units, 1.0)
    moved, m = (0.0, 1.0) if len(layers) == 1 else (form.W_terms, subject.monotonicity)
    rest = sizes.length(prox(torch.zeros_like(sizes.center))) + sizes.prox_error(prox, 0.0, 0.0)
    size = (rest + (sizes.b + moved * rest) / m) * UP

    def lost(z: float, b: float, b_error: float) -> float:
        s = sizes.prox_error(prox, moved * z + b, z)
        e = sizes.rounding(form.units, moved * z, sizes.ones * (1 + z / sizes.least)) if moved else 0.0
        return (s + (e + b_error + moved * s) / m) * UP

    a, c = lost(size, sizes.b, sizes.b_error), lost(1.0, 0.0, 0.0)
    error = finite(a / (1 - c) * UP) if c < 1 else math.inf
    own = form.out_norm * error + sizes.output_error(size + error)
    blocks = [form.W.mid[first:end, :first].contiguous() for first, end in layers[1:]]
    part = Swept(form.into(), blocks, [end - first for first, end in layers], _split(form, layers), form.out())
    return Found(part, finite(own * UP))


def _split(form: Form, layers: tuple[tuple[int, int], ...]) -> list[Prox]:
    """sigma of each layer by itself."""
    sigma = form.subject.activation
    own = [PerUnit(sigma.activations[a:b]) if isinstance(sigma, PerUnit) else sigma for a, b in layers]
    return [prox_of(one, b - a, 1.0) for one, (a, b) in zip(own, layers, strict=True)]


def _iterated(form: Form, sizes: Sizes, dtype: torch.dtype, target: float, name: str) -> Found:
    activation, alpha = form.subject.activation, form.alpha
    prox, sigma = (prox_of(activation, form.units, step) for step in (alpha, 1.0))
    step = form.step(dtype)
    if not step.rho < 1:
        raise InvalidInput(
            f"{name} cannot be exported: no contraction of Peaceman-Rachford is proved for it at the step {alpha:.3g}."
        )
    precise = step.to(torch.float64)
    offset = alpha * precise(sizes.center, sizes.center)
    start = _settled(precise, prox, offset)
    mirrored = prox.mirror(start)
    first = precise(torch.zeros_like(mirrored), mirrored)
    gap = sizes.length(start - first - offset)
    lengths = [sizes.length(part) for part in (start, mirrored, prox(start))]
    far, noise, end = _bounds(sizes, step, prox, alpha, gap, lengths)
    fixed = form.out_norm * (noise + end) + sizes.output_error(lengths[2] + 2 * far + end)
    count, error = _count(step.rho, far, form.out_norm, fixed, target, name)
    part = Iterated(form.into(), step, form.product(), form.out(), prox, sigma, alpha, first[0], count)
    return Found(part, error, Facts(name, count, step.rho, alpha))


def _settled(step: Step, prox: Prox, offset: Tensor) -> Tensor:
    """The fixed point for one offset, to rounding, or as near as so many iterations come."""
    u = offset
    for _ in range(MOST_ITERATIONS):
        before, u = u, step(offset, prox.mirror(u))
        if bool(torch.linalg.vector_norm(u - before) <= 1e-15 * torch.linalg.vector_norm(u)):
            break
    return u


def _bounds(
    sizes: Sizes, step: Step, prox: Prox, alpha: float, gap: float, lengths: list[float]
) -> tuple[float, float, float]:
    """E0, eta/(1 - rho) and the rounding of the last prox, all in the norm of Lambda.

    gap: |u0 - F(u0)| at the centre, as computed. lengths: of u0, of its reflection, and of its prox.
    """
    start, mirrored, z = lengths
    b, eps = (sizes.b + sizes.b_error) * UP, sizes.eps
    under = sizes.tiny * sizes.ones
    offset_error = alpha * (2 * sizes.b_error + (step.lost + step.spare + 8 * eps) * b + step.faint) + under
    offset = 2 * alpha * b + offset_error
    constant = step.spare * offset + step.faint + offset_error
    rest = 1 / (1 - step.rho) * UP
    far = (gap + step.lost * mirrored + constant + 2 * alpha * sizes.spread) * rest * UP
    for _ in range(4):
        end = sizes.prox_error(prox, start + 2 * far, z + 2 * far)
        turned = 0.0 if prox.rounding == 0 else 2 * end + 4 * eps * (start + 2 * z + 6 * far)
        if sizes.overflows(8 * (start + z + far + offset + b)):
            break
        noise = (step.lost * (mirrored + 2 * far + turned) + constant + turned) * rest * UP
        if noise <= far:
            return far, noise, end
        far = 2 * noise
    return math.inf, math.inf, math.inf


def _count(rho: float, far: float, out: float, fixed: float, target: float, name: str) -> tuple[int, float]:
    """The iterations after which out rho^k far + fixed is at most the target, or at most twice `fixed`; and that."""
    if not math.isfinite(far + out + fixed):
        return 1, math.inf
    room = target - fixed if target > fixed else fixed
    reach = out * far * UP
    count = 1
    if room < reach:
        count = max(1, math.ceil(math.log(room / reach) / math.log(rho))) if rho > 0 else 1
    if count > MOST_ITERATIONS:
        raise InvalidInput(
            f"{name} cannot be exported: it would take {count:,} iterations, more than the {MOST_ITERATIONS:,} that "
            f"are written out at most, since each is proved to shrink errors by {rho:.6g} alone. Ask for less accuracy "
            "or for fewer inputs, or train with a larger epsilon."
        )
    while out * far * rho**count * UP > room and count < MOST_ITERATIONS:
        count += 1
    return count, (out * far * rho**count * UP + fixed) * UP
