"""Condition `lipschitz` of a convolution: a block a frequency, and a matrix of low rank; nothing dense.

For one entry of the metric a channel the matrix is D + F M F', D a convolution and F M F' of rank at most 2p. For one
entry a pixel it is so at the network's own metric and gamma alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lben.numerics.spectrum import lowest_eigenvalue, quadratic_factors
from lben.operators.grid import Grid, complex_form
from lben.weights.convolutional import ConvWeights

UNIT = torch.finfo(torch.float64).eps
TINY = torch.finfo(torch.float64).tiny  # what an underflow may take, at most
FAINT = 1e-140  # far above all that underflow can take from numbers near one


@dataclass(frozen=True, eq=False)
class Condition:
    """The matrix that must be positive definite: D + F M F'.

    Shapes: D (frequencies, C, C), F (frequencies, C, r) complex, M (r, r). `terms` has D's entries with every term of
    every sum in absolute value, shape (C, C), and `middle` bounds the norm of M with its terms so. `lost` bounds what
    rounding, underflow included, has changed in D's entries.
    """

    D: Tensor
    F: Tensor
    M: Tensor
    terms: Tensor
    middle: float
    lost: Tensor
    grid: Grid

    @staticmethod
    def of(w: ConvWeights, mix: Tensor, entries: Tensor, gamma: float | None) -> Condition:
        """For the metric `entries`, one a channel, and a gamma at the network's input; None for Condition `W`.

        mix: which outputs are meant, as combinations of the network's own, shape (p', p).
        """
        mine = entries
        own = w.metric_entries()
        T, U, grid = w.symbols()
        G = U @ U.mH
        share = 0.0 if gamma is None else 1 / gamma
        ratio = mine / own
        both = torch.outer(mine, own)
        D = ratio[:, None] * T
        weight, square = w.rho * (both + both.T), share * torch.outer(mine, mine)
        D = D + D.mH + (weight - square) * G
        sums, into = w.T.abs().sum(dim=(2, 3)), w.U.abs().sum(dim=(2, 3))
        half, reach = ratio[:, None] * sums, into @ into.T
        terms = half + half.T + (weight + square) * reach
        longest = 2 * (w.T[0, 0].numel() + 2 * w.U[0, 0].numel() + w.U.shape[1]) + 128
        # a factor that underflows is off by TINY, and what multiplies it is among these
        under = 1 + ratio.max() + sums + sums.T + weight + square + (1 + w.rho + share) * reach
        lost = longest * (UNIT * terms + TINY * under)
        same = gamma == w.gamma and torch.equal(mine, own) and torch.equal(mix, torch.eye(w.out_features).double())
        F, M, middle = Condition._low_rank(w, mix, grid, ratio, share)
        if same:  # both terms are one: what cancels in M does so without rounding, and elsewhere its error counts
            F, M = F[:, :, :0], M[:0, :0]
        return Condition(D, F, M, terms, middle, lost, grid)

    @staticmethod
    def _low_rank(w: ConvWeights, mix: Tensor, grid: Grid, ratio: Tensor, share: float) -> tuple[Tensor, Tensor, float]:
        """rho (E Wo'Wo + Wo'Wo E) - share O'O, with E = `ratio` the metric relative to that in W, and O = mix Wo.

        E is divided by its largest entry, by which M is multiplied, so that neither factor is larger than it must be.
        """
        p = w.out_features
        out = complex_form(grid.forward(w.output.T.contiguous()))
        N, eye = mix.T @ mix, torch.eye(p, dtype=torch.float64)
        most = float(ratio.max())
        middle = math.sqrt(p) * (2 * w.rho * most + share * float(torch.linalg.matrix_norm(mix)) ** 2)
        if bool((ratio == ratio[0]).all()) or w.rho == 0:
            return out, 2 * w.rho * most * eye - share * N, middle
        side = w.rho * most * eye
        M = torch.cat([torch.cat([0 * eye, side], 1), torch.cat([side, -share * N], 1)])
        return torch.cat([(ratio / most)[:, None] * out, out], dim=-1), M, middle

    def factors(self) -> tuple[Tensor, Tensor]:
        """F J F' with J = diag(+-1) in place of F M F'."""
        return (self.F, self.M.new_zeros(0)) if self.M.numel() == 0 else quadratic_factors(self.F, self.M)

    def margin(self) -> float:
        """The smallest eigenvalue."""
        return lowest_eigenvalue(self.D, *self.factors(), self.grid.multiplicity)

    def scaled(self) -> tuple[Condition, Tensor]:
        """S (D + F M F') S, and the diagonal S of powers of two, one a channel, that gives D a diagonal near one.

        It changes no verdict and, being exact, loses nothing: a metric may spread over many decades.
        """
        halves = [-round(math.log2(term) / 2) if term > 0 else 0 for term in self.terms.diagonal().tolist()]
        S = torch.tensor([math.ldexp(1.0, half) for half in halves], dtype=torch.float64)
        grown = [S[:, None] * part * S for part in (self.D, self.terms, self.lost)]
        return replace(self, D=grown[0], F=S[:, None] * self.F, terms=grown[1], lost=grown[2]), S

    def error(self) -> float:
        """A bound on the norm of all that rounding has changed in D + F M F', where D is near one (see `scaled`).

        F comes of two products with the matrices of the transform, and its factors with J in place of M of a few more;
        what underflow takes from F and M is far below the last term.
        """
        h, w = self.grid.height, self.grid.width
        transform = 2 * (h + 8) * math.sqrt(h) + 2 * (2 * w + 8) * math.sqrt(2 * w)
        columns = float(torch.linalg.vector_norm(self.F)) ** 2 * self.middle
        low_rank = UNIT * 4 * (transform + 64 * len(self.M) + 8) * columns
        return float(torch.linalg.matrix_norm(self.lost)) + low_rank + FAINT
