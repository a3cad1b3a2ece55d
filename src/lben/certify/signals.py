"""Lower bounds on the gain of a recurrent network: two input signals whose outputs differ by as much as is found.

What is computed of a trajectory is off by solver and rounding. With a proved contraction that can be bounded: one step
is `rate`-Lipschitz in the norm of P, so that an error e of the state becomes at most rate e plus what the step itself
adds, and that is |P^(1/2) B1 Lam^(-1/2)| |D11 r + rounding|_Lam/m plus rounding, r the residual of the hidden units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lben import checks
from lben.certify.certificate import LowerBound
from lben.certify.recurrent import RecurrentSubject
from lben.certify.trajectories import Method, run
from lben.errors import InvalidInput
from lben.operators.dense import DenseOperator
from lben.progress import track
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Solver
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights.recurrent import RENWeights

_TIMES = 40  # steps of signals that are made
_RATE = 0.1  # of Adam, in units of the spread of the inputs
_UP = 1 + 1e-9  # for norms, which are computed to far more digits


def climb_signals(
    subject: RecurrentSubject,
    u: Tensor | None,
    restarts: int,
    steps: int,
    generator: torch.Generator,
    progress: bool | None,
) -> LowerBound:
    """The pair of signals that a search found, with the gain that it shows."""
    search = _Search(subject, _signals(subject.weights, u), generator)
    pair, trace = search.climb(restarts, steps, progress)
    value, proved = search.judge(pair)
    return LowerBound(value, pair if u is None else pair.to(u.device), trace, "input", proved)


def _signals(weights: RENWeights, u: Tensor | None) -> Tensor | None:
    if u is None:
        return None
    checks.width("u", checks.floating("u", u), weights.in_features)
    if u.dim() != 3 or 0 in u.shape:
        raise InvalidInput(f"u must have shape (times, batch, {weights.in_features}), not {tuple(u.shape)}.")
    checks.finite_in_time(u)
    return u.detach().to("cpu", torch.float64)


class _Search:
    def __init__(self, subject: RecurrentSubject, u: Tensor | None, generator: torch.Generator) -> None:
        self.subject, self.weights, self.u, self.generator = subject, subject.weights, u, generator
        self.times = _TIMES if u is None else len(u)
        self.spread = 1.0 if u is None else float(u.std()) or 1.0

    def climb(self, restarts: int, steps: int, progress: bool | None) -> tuple[Tensor, Tensor]:
        """Adam on the logarithm of the ratio; the best pair, shape (2, times, d), and the best ratio over time."""
        d = self.weights.in_features
        first = self._random(restarts, d)
        if self.u is not None:
            picked = torch.randint(self.u.shape[1], (restarts,), generator=self.generator)
            first = self.u[:, picked]
        moving = torch.stack([first, first + self._random(restarts, d)]).requires_grad_()
        optimizer = torch.optim.Adam([moving], lr=_RATE * self.spread)
        best, record, trace = moving[:, :, 0].detach().clone(), 0.0, []
        for _ in track(range(steps), "Climbing", steps, show=progress):
            y = self._outputs(moving.transpose(0, 1).flatten(1, 2), 1e-6)[0]
            y1, y2 = y.unflatten(1, (2, restarts)).unbind(1)
            moved, distance = _length(y1 - y2), _length(moving[0] - moving[1])
            ratio = torch.nan_to_num(moved / distance).detach()
            if float(ratio.max()) > record:
                record, best = float(ratio.max()), moving[:, :, int(ratio.argmax())].detach().clone()
            trace.append(record)
            sound = (moved > 0) & (distance > 1e-6 * self.spread)
            height = moved[sound].log().sum() - distance[sound].log().sum()
            moving.grad = torch.nan_to_num(torch.autograd.grad(-height, moving)[0])
            optimizer.step()
        return best, torch.tensor(trace, dtype=torch.float64)

    def judge(self, pair: Tensor) -> tuple[float, bool]:
        """The ratio of a pair, less the errors of both outputs where a contraction proves a bound on them."""
        u = pair.transpose(0, 1).contiguous()
        with torch.no_grad():
            y, states, hidden = self._outputs(u, 1e-12)
            error = self._error(u, y, states, hidden)
        distance = float(_length(pair[0] - pair[1])) * _UP
        moved = float(_length(y[:, :1] - y[:, 1:])[0]) / _UP
        if not distance > 0:
            return 0.0, error is not None
        lost = 0.0 if error is None else float(torch.linalg.vector_norm(error)) * _UP
        return max(moved - 2 * lost, 0.0) / distance, error is not None

    def _outputs(self, u: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
        w, sigma = self.weights, self.subject.activation
        operator = DenseOperator(w.D11, w.lam)
        solver: Solver = PeacemanRachford(tolerance=tolerance, alpha="auto" if sigma.own_prox else 1.0)
        if operator.layers is not None:
            solver = BackSubstitution(tolerance=tolerance)
        method = Method(operator, sigma, solver, "fallback")
        return run(w, method, u, u.new_zeros(u.shape[1], w.state_features))

    def _error(self, u: Tensor, y: Tensor, states: Tensor, hidden: Tensor) -> Tensor | None:
        """A bound on |y - y*| at every time, for both signals; None without a proved contraction."""
        found = self.subject.contraction(False)
        if not found.holds or found.P is None or found.lam is None or found.rate is None:
            return None
        w, root = self.weights, found.lam.sqrt()
        L = torch.linalg.cholesky(found.P)
        A = root[:, None] * (torch.eye(len(root), dtype=root.dtype) - w.D11) / root
        m = float(torch.linalg.eigvalsh(A + A.T)[0]) / 2 - 1e-12 * float(torch.linalg.matrix_norm(A))
        if not m > 0:
            return None
        rows = torch.cat([states[:-1], u], dim=-1)
        step = w.step()
        assert step.D is not None
        count = (step.W.shape[0] + step.U.shape[1] + 16) * torch.finfo(y.dtype).eps
        v = torch.nn.functional.linear(rows, step.U, step.bz) + hidden @ step.W.T
        sizes = rows.abs() @ step.U.abs().T + hidden.abs() @ step.W.abs().T + step.bz.abs()
        sigma = self.subject.activation
        settled = sigma(v)
        off = (hidden - settled).abs() + count * (settled.abs() + sizes + sigma.inner_terms)
        beside = root * ((off @ step.W.abs().T) + count * sizes)  # what would make the hidden units exact, as a bias
        inner = _length_of(beside) / m + _length_of(root * off)
        ends = count * (rows.abs() @ step.D.abs().T + hidden.abs() @ step.Wo.abs().T + step.by.abs())
        n = w.state_features
        reach = [_norm(part / root) for part in (L.T @ w.B1, w.D21)]
        added = reach[0] * inner + _norm(L) * _length_of(ends[..., :n])
        inverse = torch.linalg.inv(L.T) if n else L
        seen = _norm(w.C2 @ inverse) + reach[1] * _norm(root[:, None] * w.C1 @ inverse) / m
        e, errors = torch.zeros(u.shape[1], dtype=y.dtype), []
        for now in added:
            errors.append(e)
            e = (found.rate * e + now) * _UP
        return (torch.stack(errors) * seen + reach[1] * inner + _length_of(ends[..., n:])).amax(dim=1) * _UP

    def _random(self, count: int, d: int) -> Tensor:
        """White signals for a half, and slow ones, sums of what white ones were, for the other."""
        white = torch.randn(self.times, count, d, generator=self.generator, dtype=torch.float64)
        slow = white.cumsum(dim=0) / math.sqrt(self.times)
        return self.spread * torch.where((torch.arange(count) % 2 == 0)[None, :, None], white, slow)


def _length(signals: Tensor) -> Tensor:
    """The l2 norms of signals of shape (times, batch, features); of (times, features), of one."""
    signals = signals[:, None] if signals.dim() == 2 else signals
    return _length_of(signals.transpose(0, 1).flatten(1))


def _length_of(rows: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return found


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2)) * _UP if matrix.numel() else 0.0
