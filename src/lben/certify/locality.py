"""How far units move around given inputs, which decides how steep they can be, which decides how far they move.

Let d be such that units, each as steep as moves up to d_i make it, move by at most L_i |dx| with L_i r <= d_i. Then no
input within r moves any unit by more than d_i: on the straight way to it the moves are continuous, and as long as all
are within d, they are within d times the share of the way that is gone. So any guess of d is proved by one inequality,
however it was found; what is searched for is the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lben.activations.sectors import sectors
from lben.certify.certificate import known
from lben.certify.dense import DenseSubject
from lben.certify.subject import Subject
from lben.certify.surroundings import FEW, Frame, Surroundings, best_bounds
from lben.progress import track
from lben.solvers.base import Solver

Norm = Literal["2", "inf"]


def named(norm: Norm) -> str:
    """A norm in words."""
    return "l2" if norm == "2" else "l-infinity"


ROOM = 1.03  # what a guess of moves is raised by, so that they stay within it
_ROUNDS = 8
_SETTLED = 0.005  # of a move, below which another round is not worth its time
_MIXED = (0.7, 0.2)  # of the shares of features: how much the rows decide, and how much the units
_ENTRIES = 2**19  # of the matrices of a batch


@dataclass(frozen=True, eq=False)
class Nearby:
    """Inputs to look around: their pre-activations v, what those may be off by, shapes (batch, n), and their frame."""

    v: Tensor
    off: Tensor
    frame: Frame
    most: Tensor

    def some(self, index: Tensor) -> Nearby:
        """Those of some inputs."""
        return Nearby(self.v[index], self.off[index], self.frame.some(index), self.most)


@dataclass(frozen=True, eq=False)
class Locality:
    """A network as local bounds see it: its frame in the best global metric, and how far units move per length of dx.

    most: the tightest global bound. moves: |dv_i| <= moves_i |dx| everywhere, shape (1, n).
    outputs: the rows of y, shape (p, n + p).
    """

    subject: DenseSubject
    most: float
    frame: Frame
    moves: Tensor
    outputs: Tensor

    @staticmethod
    def of(subject: Subject) -> Locality:
        """Raises InvalidInput for what has no dense weights, or activations of which no slopes are known."""
        own = subject.dense().settled()
        assert isinstance(own, DenseSubject)
        nothing = torch.zeros(1, own.weights.hidden_features, dtype=torch.float64)
        sectors(own.activation, nothing, nothing, nothing + 1)
        tightest = own.tightest()
        frame = Frame.of(own.weights, tightest.lam)
        lower = own.linear.to(torch.float64)[None]
        around = Surroundings.of(frame, lower, torch.ones_like(lower))
        moves = torch.ldexp(best_bounds(around, around.rows(None)), frame.exponents)
        outputs = torch.cat([frame.Wo, torch.eye(len(frame.Wo), dtype=torch.float64)], dim=1)
        return Locality(own, known(tightest), frame, moves, outputs)

    def parts(self, count: int, progress: bool | None) -> Iterator[slice]:
        """So many inputs, a few at a time."""
        size = max(1, _ENTRIES // (self.frame.R.shape[1] * len(self.frame.W)))
        starts = range(0, count, size)
        for start in track(list(starts), "Local bounds", len(starts), show=progress):
            yield slice(start, start + size)

    def near(self, rows: Tensor, solver: Solver) -> Nearby:
        """What is known of the equilibria of some inputs."""
        v, off = self.subject.located(rows, solver)
        return Nearby(v, off, self.frame, self.moves)

    def cornered(self, near: Nearby, c: Tensor) -> Nearby:
        """The same inputs, where each feature of dx is bounded, |dx_i| <= eps, and moves are meant per eps.

        A linear function h'dx is bounded best by shares that grow with |h_i|: those of what the rows c of y do at the
        inputs, shape (batch, q, n + p), mixed with those of all units, and some for each feature. Any would be sound.
        """
        slope = self.subject.activation.derivative(near.v)
        n, (U, past) = near.v.shape[1], self.frame.inputs.split([near.v.shape[1], c.shape[2] - near.v.shape[1]])
        A = torch.eye(n, dtype=U.dtype) - self.frame.W * slope[:, None, :]
        moves = torch.linalg.solve(A, U.expand(len(A), -1, -1))  # a matrix each, though shapes may look like vectors
        out = (c[..., :n] * slope[:, None, :]) @ moves + c[..., n:] @ past
        parts = [(part.abs() + 1e-290).mean(dim=1) for part in (out, moves)]
        shares = sum(w * part / part.sum(dim=1, keepdim=True) for w, part in zip(_MIXED, parts, strict=True))
        shares = shares + (1 - sum(_MIXED)) / U.shape[1]
        most = near.most * (math.sqrt(U.shape[1]) * (1 + 1e-12))
        return replace(near, frame=self.frame.within(shares), most=most)

    def metric(self, lam: Tensor) -> Tensor:
        """A metric in units of the frame."""
        return torch.ldexp(torch.where(lam.isnan(), 1.0, lam), 2 * self.frame.exponents)

    def of_pairs(self, metrics: Tensor | None) -> Tensor:
        """Metrics of pairs of classes as they are, (p, p, n): where some units have none, that of the weights."""
        n, classes = len(self.frame.lam), len(self.outputs)
        own = self.subject.weights.metric().expand(classes, classes, n)
        if metrics is None or metrics.shape[-1] != n:
            return own
        return torch.where(metrics.isnan().any(dim=-1, keepdim=True), own, metrics)

    def around(self, near: Nearby, d: Tensor) -> tuple[Surroundings, Tensor, Tensor]:
        """What is true while units move by at most d, and the slopes between which they stay."""
        lower, upper = sectors(self.subject.activation, near.v, near.off, d)
        return Surroundings.of(near.frame, lower, upper), lower, upper

    def slopes(self, near: Nearby) -> Surroundings:
        """What is true at the inputs themselves, but for rounding."""
        slope = self.subject.activation.derivative(near.v)
        return Surroundings.of(near.frame, slope, slope)

    def real(self, moves: Tensor) -> Tensor:
        """Moves in units of the frame, as they are."""
        return torch.ldexp(moves, self.frame.exponents)

    def guess(self, at_inputs: Surroundings, near: Nearby) -> Tensor:
        """Moves per length of dx to begin with: between those of the inputs themselves and those everywhere."""
        least = self.real(torch.linalg.vector_norm(at_inputs.N, dim=2))
        return (least * near.most).sqrt().clamp(min=1e-280)

    def narrowed(self, near: Nearby, r: Tensor) -> tuple[Surroundings, Tensor, Tensor]:
        """The surroundings within r of each input, and the slopes between which units stay, as narrow as is found."""
        return self.around(near, self.within(near, r))

    def within(self, near: Nearby, r: Tensor) -> Tensor:
        """By how much units move within r of each input, at most, shape (batch, n), as little as is found."""
        guess = self.guess(self.slopes(near), near)
        proved = near.most.expand_as(guess).clone()
        open_ = torch.arange(len(guess))
        for k in range(_ROUNDS):
            last = k >= _ROUNDS // 2  # from here on from what is proved, which stays so
            some, reach = near.some(open_), r[open_][:, None]
            tried = proved[open_] if last else torch.minimum(guess[open_] * ROOM, some.most)
            around, _, _ = self.around(some, tried * reach)
            moves = self.real(best_bounds(around, around.rows(None), FEW)) * (1 + 1e-12)
            holds = (moves <= tried).all(dim=1, keepdim=True) | last
            changed = (moves / guess[open_] - 1).abs().amax(dim=1)
            proved[open_], guess[open_] = torch.minimum(proved[open_], moves).where(holds, proved[open_]), moves
            open_ = open_[~(holds[:, 0] & (changed < _SETTLED))]
            if len(open_) == 0:
                break
        return proved * r[:, None]
