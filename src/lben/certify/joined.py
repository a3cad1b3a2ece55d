"""Stages as one equilibrium network with a block lower triangular W, so that one metric is searched for all of them.

What passes between stages becomes linear units, and so every entry of W, U and Wo is one of a stage's own: nothing is
multiplied, and nothing rounded, until the linear units are eliminated, which is done with proved errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lben.activations.base import Activation, Scalar
from lben.activations.scalar import Identity, PerUnit
from lben.certify.certificate import known
from lben.certify.dense import DenseSubject
from lben.certify.links import Added, Link, Scaled, Solved
from lben.errors import LbenError
from lben.weights.dense import Weights
from lben.weights.linear import Linear, Scaling, Standardize
from lben.weights.stages import Flatten, Pointwise

_SLACK = 1 + 1e-6  # by which a stage's bound is exceeded in the metric to start from: its own may be on the boundary
_LEAST_STD = 2.0**-500  # beyond it, powers of two that stand for it would overflow
Source = slice | None
"""Where the input of a stage comes from: these units, or, for None, the input of the whole."""


def units_of(link: Link) -> int | None:
    """How many units a link adds to a joined network; None if it cannot be joined."""
    stage = link.stage
    if isinstance(link, Solved):
        single = isinstance(link.stage.activation, Scalar | PerUnit)
        weights = link.stage.weights
        return weights.hidden_features + weights.out_features if isinstance(weights, Weights) and single else None
    if isinstance(link, Added):
        total = 0 if isinstance(link, Scaled) else stage.out_features
        for inner in (inner for branch in link.branches for inner in branch):
            added = units_of(inner)
            if added is None:
                return None
            total += added
        return total
    if isinstance(stage, Flatten):
        return 0
    if isinstance(stage, Pointwise):
        return stage.in_features * (1 if stage.plain else 2) if isinstance(stage.sigma, Scalar) else None
    if isinstance(stage, Standardize) and not bool(((stage.std > _LEAST_STD) & (stage.std < 1 / _LEAST_STD)).all()):
        return None
    return (
        stage.out_features if isinstance(stage, Linear | Scaling | Standardize) and len(stage.in_shape) == 1 else None
    )


def joined(links: Sequence[Link]) -> DenseSubject:
    """One subject of links that can all be joined."""
    walk = _Walk(links[0].stage.in_features, sum(units_of(link) or 0 for link in links))
    source: Source = None
    for link in links:
        source = walk.add(link, source)
    assert source is not None
    p = source.stop - source.start
    Wo = torch.zeros(p, len(walk.W), dtype=torch.float64)
    Wo[:, source] = torch.eye(p, dtype=torch.float64)
    by = torch.zeros(p, dtype=torch.float64)
    weights = Weights(walk.W, walk.U, walk.bz, Wo, by, walk.lam)
    return DenseSubject.of(weights, PerUnit(walk.sigmas), None)


@dataclass(eq=False)
class _Walk:
    """The units so far, of `units` in all; `weight` and `last` are of the metric to start from, None if none is known.

    If Lam_k proves the bound g_k of stage k, then a_1 Lam_1, a_2 Lam_2, .. with a_k+1 = a_k/(g_k g_k+1) prove the
    product for all of them together: what one stage's inequality leaves, the next one's takes.
    """

    inputs: int
    units: int
    sigmas: list[Scalar] = field(default_factory=list)
    weight: float | None = 1.0
    last: float | None = None

    def __post_init__(self) -> None:
        self.W = torch.zeros(self.units, self.units, dtype=torch.float64)
        self.U = torch.zeros(self.units, self.inputs, dtype=torch.float64)
        self.bz = torch.zeros(self.units, dtype=torch.float64)
        self._lam = torch.ones(self.units, dtype=torch.float64)

    @property
    def lam(self) -> Tensor | None:
        sound = bool(self._lam.isfinite().all() and (self._lam > 0).all())
        return self._lam if sound and self.weight is not None else None

    def add(self, link: Link, source: Source) -> Source:
        """The units that are the output of a link whose input comes from `source`."""
        stage = link.stage
        if isinstance(link, Solved):
            return self._solved(link, source)
        if isinstance(link, Scaled):
            for part in link.branches[0]:
                source = self.add(part, source)
            return source
        if isinstance(link, Added):
            return self._added(link, source)
        if isinstance(stage, Pointwise):
            return self._pointwise(stage, source)
        if isinstance(stage, Linear):
            self._step(link.factor.bound, None, None)
            return self._linear([(source, stage.weight)], stage.out_features, stage.bias)
        if isinstance(stage, Scaling):
            self._step(link.factor.bound, None, None)
            size = stage.in_features
            return self._linear([(source, torch.diag(stage.scale.expand(size)))], size, stage.shift.expand(size))
        if isinstance(stage, Standardize):
            self._step(link.factor.bound, None, None)
            return self._standardize(stage, source)
        return source

    def _solved(self, link: Solved, source: Source) -> slice:
        weights, sigma = link.stage.weights, link.stage.activation
        assert isinstance(weights, Weights)
        z = self._units(_scalars(sigma, weights.hidden_features))
        self.W[z, z] = weights.W
        self._place(z, source, weights.U)
        self.bz[z] = weights.bz
        self._step(*_own_metric(link), z)
        terms = [(z, weights.Wo)] if weights.D is None else [(z, weights.Wo), (source, weights.D)]
        return self._linear(terms, weights.out_features, weights.by)

    def _pointwise(self, stage: Pointwise, source: Source) -> slice:
        size = stage.in_features
        assert isinstance(stage.sigma, Scalar)
        eye = torch.eye(size, dtype=torch.float64)
        z = self._units([stage.sigma] * size)
        self._place(z, source, stage.inner * eye)
        self.bz[z] = stage.shift
        if stage.plain:
            self._step(1.0, eye.diagonal(), z)
            return z
        self.weight = None
        terms = [(z, stage.outer * eye), (source, stage.through * eye)]
        return self._linear(terms, size, torch.full((size,), stage.offset, dtype=torch.float64))

    def _standardize(self, stage: Standardize, source: Source) -> slice:
        """(x - mean)/std as the u for which u = (1 - s) u + t (x - mean) with s = t std.

        1/std would be rounded; with t a power of two and s in [1/2, 1) nothing is.
        """
        size = stage.in_features
        s, exponent = torch.frexp(stage.std.expand(size))
        t = torch.ldexp(torch.ones_like(s), -exponent)
        rows = self._linear([(source, torch.diag(t))], size, -t * stage.mean.expand(size))
        self._place(rows, rows, torch.diag(1 - s))
        return rows

    def _added(self, link: Added, source: Source) -> slice:
        self.weight = None
        size = link.stage.out_features
        terms: list[tuple[Source, Tensor]] = []
        for branch in link.branches:
            end = source
            for inner in branch:
                end = self.add(inner, end)
            terms.append((end, torch.eye(size, dtype=torch.float64)))
        return self._linear(terms, size, None)

    def _linear(self, terms: Sequence[tuple[Source, Tensor]], size: int, bias: Tensor | None) -> slice:
        rows = self._units([Identity()] * size)
        for source, matrix in terms:
            self._place(rows, source, matrix)
        if bias is not None:
            self.bz[rows] = bias
        return rows

    def _units(self, sigmas: Sequence[Scalar]) -> slice:
        first = len(self.sigmas)
        self.sigmas += sigmas
        return slice(first, len(self.sigmas))

    def _place(self, rows: slice, source: Source, matrix: Tensor) -> None:
        """Entries are added, since branches may have one source: of two ones, which is exact."""
        if source is None:
            self.U[rows] += matrix
        else:
            self.W[rows, source] += matrix

    def _step(self, gamma: float | None, lam: Tensor | None, units: slice | None) -> None:
        """The metric of a stage with the bound gamma joins that of the stages before it."""
        if gamma is None or not 0 < gamma < float("inf") or self.weight is None:
            self.weight = None
            return
        gamma *= _SLACK
        between = 1.0 if self.last is None else self.last * gamma
        if not 0 < between < float("inf"):
            self.weight = None
            return
        self.weight, self.last = self.weight / between, gamma
        if units is not None and lam is not None:
            self._lam[units] = self.weight * torch.where(lam.isnan(), 1.0, lam)


def _own_metric(link: Solved) -> tuple[float | None, Tensor | None]:
    """A bound of an equilibrium and the metric that proves it."""
    weights = link.stage.weights
    if weights.gamma is not None and link.factor.bound == weights.gamma:
        return weights.gamma, link.metric()
    try:
        found = link.subject.tightest(solver="barrier", rigorous=False, domain="input")
    except LbenError:
        return None, None
    return known(found), found.lam


def _scalars(sigma: Activation, units: int) -> list[Scalar]:
    if isinstance(sigma, PerUnit):
        return list(sigma.activations)
    assert isinstance(sigma, Scalar)
    return [sigma] * units
