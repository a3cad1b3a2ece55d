"""Whether each input keeps its class within a radius: proved, contradicted by an input, or neither, for time is up."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.sectors import slopes_below
from lben.certify.ascent import Ascent, Ball
from lben.certify.certificate import Domain, NoVerdict
from lben.certify.evaluator import PRECISE, Evaluator, placed
from lben.certify.locality import Locality, Norm, named
from lben.certify.phases import Divided, Parts
from lben.certify.radius import certified_radius, check_classes, check_labels, kept_bounds
from lben.certify.subject import Examined
from lben.errors import ConvergenceWarning, InvalidInput
from lben.numerics.rounding import at_least, undisturbed
from lben.progress import track
from lben.solvers.base import Solver, check_solver

Status = Literal["proved", "attacked", "undecided"]
_AT_ONCE = 32  # parts of a ball
_ENTRIES = 2**21  # of their matrices


@dataclass(frozen=True, eq=False)
class Verification(NoVerdict):
    """For each input, whether its class is the label, and stays so within `radius`, in `domain` and `norm`.

    Args:
        status: one word for each input, in the order of the flattened batch: "proved"; "attacked", where there is a
            counterexample; "undecided", where time was up, or the radius is too near the edge of the truth.
        counterexample: inputs within the radius that are proved to have another class, of the shape of x, NaN where
            there is none.
        branches: parts of balls that were bounded, of the shape of the batch; 0 where the certificate or the attack
            sufficed.
        seconds: after the certificate, which is found for all inputs at once, of the shape of the batch.
        radius: how far inputs may move.
        domain: what `radius` measures: distances at the network's input, or in pixels.
        norm: "2", or "inf", where each feature may move by the radius.
        bounds: what features are known to stay between, which "proved" rests on; infinite where nothing is.

    Examples:
        >>> net = lben.LBEN(2, 4, 2, gamma=1.0)
        >>> x = torch.randn(3, 2)
        >>> found = lben.verify(net, x, net(x).argmax(dim=1), 1e-3)
        >>> found.status, found.share("proved")
        (('proved', 'proved', 'proved'), 1.0)
    """

    status: tuple[Status, ...]
    counterexample: Tensor
    branches: Tensor
    seconds: Tensor
    radius: float
    domain: Domain
    norm: Norm
    bounds: tuple[float, float]

    def share(self, status: Status) -> float:
        """The share of inputs of this status.

        Args:
            status: "proved", "attacked" or "undecided".

        Returns:
            A number between 0 and 1.
        """
        return self.status.count(status) / max(len(self.status), 1)

    def __str__(self) -> str:
        words = ", ".join(f"{self.status.count(word)} {word}" for word in ("proved", "attacked", "undecided"))
        low, high = self.bounds
        known = "" if math.isinf(low) and math.isinf(high) else f", of inputs between {low:g} and {high:g}"
        return (
            f"Within {at_least(self.radius)} in the {named(self.norm)} norm ({self.domain}){known}: of "
            f"{len(self.status)} inputs {words}; after the certificate {int(self.branches.sum())} branches, "
            f"{float(self.seconds.sum()):.3g} s."
        )


@undisturbed
def verify(
    net: Examined,
    x: Tensor,
    y: Tensor,
    radius: float,
    *,
    seconds: float = 10.0,
    domain: Domain = "input",
    norm: Norm | float = "2",
    bounds: tuple[float, float] | None = None,
    solver: Solver | None = None,
    seed: int = 0,
    progress: bool | None = None,
    activation: Activation | None = None,
) -> Verification:
    """Decide for each x whether its class is y and stays so within `radius`: by local bounds, attacks and branching.

    What the local bound leaves open is bounded by multipliers of all that is true of rectifiers in the ball, and the
    ball is divided by the sides of units' kinks until all parts are proved, or a counterexample is found. With enough
    time, inputs end "proved" or "attacked", unless the radius is very near the largest for which the class stays: with
    few units, that is, for each may double the number of parts. "proved" accounts for rounding.

    Args:
        net: a dense network, one read by `from_sequential`, a dense stack, or bare weights.
        x: inputs as the network takes them, of shape (..., d).
        y: labels, integers of the shape of the batch.
        radius: how far inputs may move, above 0, in `domain`.
        seconds: at most so long for each input after the certificate, but for the step at hand.
        domain: what `radius` measures: distances at the network's input, or in pixels, where features with different
            stds are measured each as they are.
        norm: "2", or "inf", where each feature may move by the radius; 2 and `math.inf` mean the same.
        bounds: what features of x are known to stay between, before `normalize`: (0.0, 1.0) for images. Only inputs
            within them are looked at, as attacks do, which proves more. None: any input.
        solver: how equilibria are found; None: to a tolerance of 1e-12.
        seed: of the starts of the attack.
        progress: whether to show a bar; None: on a terminal, where it takes longer than some seconds.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `Verification`: a status for each input, counterexamples, and what it took.

    Raises:
        InvalidInput: for activations other than ReLU, LeakyReLU and Identity, for convolutions, for a network with one
            output, and for x outside `bounds`.
        NotWellPosed: where no metric proves the network well-posed.

    Examples:
        Far enough out there is another class, and a counterexample shows it.

        >>> _ = torch.manual_seed(5)
        >>> net = lben.LBEN(2, 4, 2, gamma=1.0).eval()
        >>> x = torch.randn(1, 2)
        >>> label = net(x).argmax(dim=1)
        >>> found = lben.verify(net, x, label, 100.0)
        >>> found.status, bool(net(found.counterexample.float()).argmax(dim=1) == label)
        (('attacked',), False)
    """
    evaluator = Evaluator.of(net, activation)
    check_classes(evaluator.weights.out_features)
    labels = check_labels(y, tuple(evaluator.flat(x).shape[:-1]), evaluator.weights.out_features)
    search = _Search.of(net, evaluator, radius, seconds, domain, norm, _range(bounds, evaluator.inputs(x)), solver)
    options = {"norm": norm, "domain": domain, "solver": solver, "progress": progress, "activation": activation}
    proved = certified_radius(net, x, local=True, **options)  # type: ignore[arg-type] # each has its own
    sure = (proved.radius.reshape(-1).cpu() >= radius) & (proved.predicted.reshape(-1).cpu() == labels)
    return placed(search.all(x, labels, sure, checks.seed(seed), progress), x.device)


def _range(bounds: tuple[float, float] | None, rows: Tensor) -> tuple[float, float]:
    """What features stay between, if that is a range in which all inputs are."""
    if bounds is None:
        return -math.inf, math.inf
    low, high = checks.interval("bounds", bounds)
    if bool(((rows < low) | (rows > high)).any()):
        raise InvalidInput(f"x has entries outside bounds=({low:g}, {high:g}), of which nothing would be asked.")
    return low, high


def _unit(evaluator: Evaluator, domain: Domain) -> Tensor:
    """What the change of each feature is multiplied by to be a length in `domain`, shape (d,)."""
    normalize, ones = evaluator.subject.normalize, torch.ones(evaluator.weights.in_features, dtype=torch.float64)
    return ones if normalize is None or domain == "pixels" else ones / normalize.std


@dataclass(frozen=True, eq=False)
class _Result:
    status: Status
    point: Tensor | None
    branches: int
    seconds: float


@dataclass(frozen=True, eq=False)
class _Search:
    """What all inputs share."""

    locality: Locality
    ascent: Ascent
    solver: Solver
    unit: Tensor
    radius: float
    norm: Norm
    domain: Domain
    seconds: float
    range: tuple[float, float]
    metrics: Tensor

    @staticmethod
    def of(
        net: Examined,
        evaluator: Evaluator,
        radius: float,
        seconds: float,
        domain: Domain,
        norm: Norm | float,
        range_: tuple[float, float],
        solver: Solver | None,
    ) -> _Search:
        """Refuses what has no answer."""
        norm = checks.norm(norm)
        checks.positive("radius", radius)
        checks.positive("seconds", seconds)
        evaluator.require_proof()
        evaluator.subject.scale_of(domain)
        locality = Locality.of(evaluator.subject)
        slopes_below(locality.subject.activation, len(locality.frame.W), "verify")
        method = PRECISE if solver is None else check_solver(solver)
        metrics = kept_bounds(net, evaluator.subject, progress=False).lam
        return _Search(
            locality,
            Ascent(evaluator),
            method,
            _unit(evaluator, domain),
            float(radius),
            norm,
            domain,
            seconds,
            range_,
            locality.of_pairs(metrics),
        )

    def all(self, x: Tensor, labels: Tensor, sure: Tensor, seed: int, progress: bool | None) -> Verification:
        """All inputs, one by one; of some it is known that they are `sure`."""
        evaluator = self.ascent.evaluator
        rows, batch = evaluator.inputs(x), evaluator.flat(x).shape[:-1]
        if len(rows) == 0:
            raise InvalidInput("There is nothing to verify: x is empty.")
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what the attack finds is solved again, and proved
            for k in track(range(len(rows)), "Verifying", len(rows), show=progress):
                generator, known = torch.Generator().manual_seed(seed + k), _Result("proved", None, 0, 0.0)
                results.append(known if bool(sure[k]) else self.run(rows[k : k + 1], int(labels[k]), generator))
        nothing = torch.full((rows.shape[1],), torch.nan, dtype=torch.float64)
        points = torch.stack([nothing if one.point is None else one.point for one in results])
        return Verification(
            tuple(one.status for one in results),
            points.reshape(x.shape),
            torch.tensor([one.branches for one in results]).reshape(batch),
            torch.tensor([one.seconds for one in results], dtype=torch.float64).reshape(batch),
            self.radius,
            self.domain,
            self.norm,
            self.range,
        )

    def run(self, x: Tensor, label: int, generator: torch.Generator) -> _Result:
        """One input, shape (1, d), that the certificate does not prove."""
        started = time.monotonic()
        ball = Ball(x, self.unit, self.radius, self.norm, label, self.range)
        point = self.ascent.found(ball, x)
        if point is None:
            point = self.ascent.search(ball, len(self.locality.outputs), generator)
        status: Status = "attacked" if point is not None else "undecided"
        branches = 0
        if point is None:
            status, point, branches = self._divide(ball, started + self.seconds)
        return _Result(status, point, branches, time.monotonic() - started)

    def _divide(self, ball: Ball, until: float) -> tuple[Status, Tensor | None, int]:
        """Parts of the ball, the last first, until all are proved, one shows a counterexample, or time is up."""
        ways = self._ways(ball)
        classes, n = len(self.locality.outputs), self.locality.frame.W.shape[0]
        others = torch.tensor([j for j in range(classes) if j != ball.chosen])
        left, stuck, count = Parts(torch.zeros(len(others), n, dtype=torch.int64), others), False, 0
        size = max(1, min(_AT_ONCE, _ENTRIES // (n * max(n, self.unit.shape[0]))))
        while len(left.other):
            if count and time.monotonic() > until:
                return "undecided", None, count
            last = torch.arange(max(len(left.other) - size, 0), len(left.other))
            some, left = left.some(last), left.some(torch.arange(int(last[0])))
            judged = ways.judged(some)
            count += len(some.other)
            open_ = (~judged.proved).nonzero()[:, 0]
            if len(open_) == 0:
                continue
            points = ball.within(judged.steps[open_])
            point, whole = self.ascent.found(ball, points), judged.unit[open_] >= 0
            if point is None and not bool(whole.all()):
                point = self.ascent.found(ball, self.ascent.climbed(ball, points[~whole], some.other[open_][~whole]))
                stuck = True
            if point is not None:
                return "attacked", point, count
            more = some.some(open_[whole]).divided(judged.unit[open_][whole])
            left = Parts(torch.cat([left.signs, more.signs]), torch.cat([left.other, more.other]))
        return "undecided" if stuck else "proved", None, count

    def _ways(self, ball: Ball) -> Divided:
        near = self.locality.near(ball.x, self.solver)
        if self.norm == "inf":
            near = self.locality.cornered(near, (self.locality.outputs[ball.chosen] - self.locality.outputs)[None])
        length, entry = ball.reach()
        scale = self.ascent.evaluator.subject.scale_of(self.domain)
        r = (length if self.norm == "2" else entry) / scale * (1 + 1e-15)
        return Divided.of(self.locality, ball, near, r, self.metrics)
