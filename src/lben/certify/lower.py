"""Lower bounds on a Lipschitz constant: two inputs whose outputs differ by as much as can be found."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain, LowerBound
from lben.certify.evaluator import Evaluator, placed
from lben.certify.recurrent import recurrent_of
from lben.certify.signals import climb_signals
from lben.certify.subject import Examined
from lben.errors import ConvergenceWarning
from lben.numerics.norms import row_norm
from lben.numerics.rounding import norm_bound, undisturbed
from lben.progress import track
from lben.solvers.peaceman_rachford import PeacemanRachford

_MOST_POINTS = 1000  # of the data, at which the Jacobian is looked at
_MOST_UNITS = 4_000_000  # in all of those points together
_POWER_STEPS = 20
_ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)  # where on the segment between two inputs the Jacobian is looked at
_HALF_WIDTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # of a pair around a point, in units of the spread of the inputs
_NEAREST = 1e-290  # distances below this lose digits to underflow
_RATE = 0.1  # of Adam, in the same units


@undisturbed
def lipschitz_lower_bound(
    net: Examined,
    x: Tensor | None = None,
    *,
    restarts: int = 32,
    steps: int = 200,
    seed: int = 0,
    domain: Domain = "input",
    progress: bool | None = None,
    activation: Activation | None = None,
) -> LowerBound:
    """Search for two inputs whose outputs differ as much as possible, relative to their distance.

    First the largest singular value of the Jacobian, by power iteration, at x, at random points and at those to which a
    search over the slopes of all units leads; then `restarts` pairs, half of them along the best singular vectors,
    climb for `steps` steps of Adam; then the Jacobian again along the segments between them. The inputs may lie far
    from x: the Lipschitz constant is that of all inputs.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: inputs as the network takes them, of shape (..., d), on any device, where the result lies, too; without them
            the search starts from random ones, and the result lies on the CPU, where all is computed. Of a recurrent
            network, signals of shape (times, batch, d): two of them are looked for, from equal states of zero, by
            ascent through time, whose output signals show its incremental gain.
        restarts: how many pairs climb.
        steps: how many steps each makes.
        seed: of the random numbers; the same seed gives the same result.
        domain: where distances are measured, and what coordinates the found inputs have: "input", after `Normalize`, or
            "pixels", before it.
        progress: whether to show a bar; None: on a terminal, when it takes longer than some seconds.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `LowerBound`.

    Raises:
        InvalidInput: if an argument does not fit.

    Examples:
        Between what two inputs show and what is proved lies the Lipschitz constant.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> below = lben.lipschitz_lower_bound(net, torch.randn(8, 2), restarts=4, steps=10)
        >>> 0 < below.value <= lben.tightest_bound(net).gamma
        True
    """
    checks.count("restarts", restarts)
    checks.count("steps", steps)
    seed = checks.seed(seed)
    recurrent = recurrent_of(net, activation)
    if recurrent is not None:
        checks.choice("domain", domain, ("input", "input"))
        return climb_signals(recurrent, x, restarts, steps, torch.Generator().manual_seed(seed), progress)
    evaluator = Evaluator.of(net, activation)
    evaluator.subject.scale_of(domain)
    points = None if x is None else evaluator.inputs(x)
    normalize = evaluator.subject.normalize
    if normalize is not None and domain == "input":
        points = None if points is None else normalize(points)
        evaluator = Evaluator(replace(evaluator.subject, normalize=None))
    search = _Search(evaluator, points, torch.Generator().manual_seed(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what the search finds is solved again before it counts
        found = search.run(restarts, steps, progress, domain)
    return found if x is None else placed(found, x.device)


class _Search:
    """One search: the network, points to start from, and the spread of their coordinates as the unit of length."""

    def __init__(self, evaluator: Evaluator, points: Tensor | None, generator: torch.Generator) -> None:
        self.evaluator, self.generator = evaluator, generator
        self.spread = 1.0
        if points is not None and len(points) > 1:
            spread = float(points.std(dim=0).square().mean().sqrt())
            self.spread = spread if spread > 0 else 1.0
        most = max(32, min(_MOST_POINTS, _MOST_UNITS // evaluator.subject.labour))
        self.points = self._random(min(64, most)) if points is None or len(points) == 0 else self._sample(points, most)
        self.network = self._quick()

    def _quick(self) -> Evaluator:
        """The network to search on, roughly."""
        quick = Evaluator(self.evaluator.subject.searched())
        quick.solver = quick.subject.suitable(PeacemanRachford(tolerance=1e-6, on_failure="warn"))
        return quick

    def run(self, restarts: int, steps: int, progress: bool | None, domain: Domain) -> LowerBound:
        steep = self.evaluator.subject.steep_inputs(restarts, self.generator)
        starts = torch.cat([steep, self.points, self._random(restarts)])
        slopes, directions = self._slopes(starts)
        steepest = slopes.topk(min(restarts, len(slopes))).indices
        width = 0.5 * self.spread * directions[steepest]
        along = torch.stack([starts[steepest] + width, starts[steepest] - width])
        apart = torch.stack([self._sample(starts, restarts), self._random(restarts)])
        half = (restarts + 1) // 2
        pairs, trace = self._climb(torch.cat([along[:, :half], apart[:, : restarts - half]], dim=1), steps, progress)
        trace = torch.cat([slopes.max()[None], trace]).cummax(dim=0).values

        middle = torch.cat([torch.lerp(pairs[0], pairs[1], t) for t in _ALONG])
        middle_slopes, middle_directions = self._slopes(middle)
        centres = torch.cat([starts[steepest], middle])
        vectors = torch.cat([directions[steepest], middle_directions])
        best = torch.cat([slopes[steepest], middle_slopes]).topk(min(restarts, len(centres))).indices
        widths = [0.5 * self.spread * w * vectors[best] for w in _HALF_WIDTHS]
        around = [torch.stack([centres[best] + w, centres[best] - w]) for w in widths]
        value, inputs = self._judge(torch.cat([pairs, *around], dim=1))
        trace = torch.cat([trace, torch.maximum(trace[-1:], middle_slopes.max()[None])])
        return LowerBound(value, inputs, trace, domain, self.evaluator.proved)

    def _random(self, count: int) -> Tensor:
        shape = (count, self.evaluator.weights.in_features)
        return self.spread * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def _sample(self, points: Tensor, count: int) -> Tensor:
        order = torch.randperm(len(points), generator=self.generator)
        return points[order.repeat(-(-count // len(points)))[:count]] if len(points) < count else points[order[:count]]

    def _slopes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The largest singular value of the Jacobian at each point and its right singular vector.

        Power iteration on J'J: J'u is a gradient through the implicit layer, and J v the derivative of that in u.
        """
        v = torch.randn(points.shape, generator=self.generator, dtype=points.dtype)
        v = v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        at = points.clone().requires_grad_()
        y = self.network(at)
        u = torch.zeros_like(y).requires_grad_()
        (pulled,) = torch.autograd.grad(y, at, u, create_graph=True)
        size = v.new_zeros(len(v))
        for _ in range(_POWER_STEPS):
            (pushed,) = torch.autograd.grad(pulled, u, v, retain_graph=True)
            (v,) = torch.autograd.grad(y, at, pushed, retain_graph=True)
            size = torch.linalg.vector_norm(v, dim=-1)
            v = torch.where(size[:, None] > 0, v / size[:, None], torch.zeros_like(v))
        return size.sqrt(), v

    def _climb(self, pairs: Tensor, steps: int, progress: bool | None) -> tuple[Tensor, Tensor]:
        """Adam on the logarithm of |y1 - y2| / |x1 - x2|; the best pair of each start, and the best value over time."""
        moving = pairs.clone().requires_grad_()
        optimizer = torch.optim.Adam([moving], lr=_RATE * self.spread)
        best, record, trace = pairs.clone(), pairs.new_zeros(pairs.shape[1]), []
        for _ in track(range(steps), "Climbing", steps, show=progress):
            y1, y2 = self.network(moving)
            moved = torch.linalg.vector_norm(y1 - y2, dim=-1)
            distance = torch.linalg.vector_norm(moving[0] - moving[1], dim=-1)
            sound = (moved > 0) & torch.isfinite(moved) & (distance > 1e-4 * self.spread)
            slope = torch.where(sound, moved / distance, 0.0).detach()
            better = slope > record
            record = torch.where(better, slope, record)
            best = torch.where(better[:, None], moving.detach(), best)
            trace.append(record.max())
            height = torch.log(moved[sound]).sum() - torch.log(distance[sound]).sum()
            moving.grad = torch.nan_to_num(torch.autograd.grad(-height, moving)[0])
            optimizer.step()
        return best, torch.stack(trace)

    def _judge(self, pairs: Tensor) -> tuple[float, Tensor]:
        """The pair whose slope is the largest after both outputs are solved again and their errors subtracted."""
        count = pairs.shape[1]
        result = self.evaluator.evaluate(pairs.reshape(2 * count, -1))
        y1, y2 = result.y.reshape(2, count, -1)
        error = result.norm_error(proved=self.evaluator.proved)
        between = row_norm(y1 - y2) * (1 - 4 * (y1.shape[-1] + 8) * torch.finfo(y1.dtype).eps)
        moved = (between - error.reshape(2, count).sum(dim=0) * (1 + 1e-12)).clamp(min=0)
        distance = norm_bound(pairs[0] - pairs[1])
        both = result.converged.reshape(2, count).all(dim=0)
        slope = torch.nan_to_num(torch.where(both & (distance > _NEAREST), moved / distance, 0.0), nan=0.0, posinf=0.0)
        winner = int(slope.argmax())
        return float(slope[winner]) * (1 - 1e-12), pairs[:, winner]
