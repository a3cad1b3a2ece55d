"""How far a computed hidden layer is from the equilibrium: proved in double precision, with every rounding bounded.

For any v, the real vector sigma(v) is the exact equilibrium of the bias v - W sigma(v), and the map from bias to
equilibrium is 1/m-Lipschitz in the Lambda norm. So for a z within s of sigma(v), entry by entry,

    |z - z*|_Lam <= |s|_Lam + (|v - W z - U x - bz| + |W| s)_Lam / m,

whoever found z and v, and however.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lben.activations import Activation
from lben.certify.enclosed import EPS
from lben.certify.numerics import norm_bound
from lben.convweights import ConvWeights
from lben.normalize import Normalize
from lben.weights import Weights

_TINY = torch.finfo(torch.float64).tiny
_LARGEST_IMAGE = 2**20  # hidden units that are convolved directly at once


@dataclass(frozen=True, eq=False)
class Hidden:
    """The hidden layer of weights in double precision on the CPU, with its proved m."""

    weights: Weights | ConvWeights
    activation: Activation
    monotonicity: float

    def error(
        self, z: Tensor, v: Tensor, x: Tensor, *, normalize: Normalize | None, bias: Tensor | None = None
    ) -> Tensor:
        """A proved bound on |z - z*|_Lam for rows z and v, and inputs x with a bias from outside; shape (batch,)."""
        if not self.monotonicity > 0:
            return torch.full((len(z),), math.inf, dtype=z.dtype)
        w = self.weights
        root = (w.metric_diagonal() if isinstance(w, ConvWeights) else w.metric()).sqrt()
        off = self._off(z, v)
        moved = self._residual(z, v, x, normalize, bias) + self._product(off, absolute=True)
        error = norm_bound(off * root) + norm_bound(moved * root) / self.monotonicity
        return torch.nan_to_num(error * (1 + 8 * EPS), nan=math.inf, posinf=math.inf)

    def _off(self, z: Tensor, v: Tensor) -> Tensor:
        """A bound on |z - sigma(v)|: torch's functions are not correctly rounded, and `rounding` says what to allow.

        Where units act in blocks, each may have lost what the largest entry of its row has.
        """
        again = self.activation(v)
        sizes = z.abs() + again.abs() + v.abs() + self.activation.inner_terms
        if self.activation.block_size > 1 or self.activation.groups(z.shape[-1]) is not None:
            sizes = sizes.amax(dim=-1, keepdim=True).expand_as(sizes)
        return (z - again).abs() + self.activation.rounding * EPS * sizes + _TINY

    def _residual(self, z: Tensor, v: Tensor, x: Tensor, normalize: Normalize | None, bias: Tensor | None) -> Tensor:
        """A bound on |v - W z - U x - bz|: what is computed, and what rounding may have changed in sums so long."""
        w, scaled, sizes = self.weights, x, x.abs()
        if normalize is not None:
            scaled, sizes = normalize(x), (x.abs() + normalize.mean.abs()) / normalize.std + _TINY / EPS  # underflow
        rest = v - self._product(z, absolute=False) - _inject(w, scaled, absolute=False)
        terms = v.abs() + self._product(z.abs(), absolute=True) + _inject(w, sizes, absolute=True)
        if bias is not None:
            rest, terms = rest - bias, terms + bias.abs()
        length = _longest(w)
        return rest.abs() + length * EPS * terms + length * _TINY

    def _product(self, z: Tensor, *, absolute: bool) -> Tensor:
        """W z, or a bound on |W| z."""
        w = self.weights
        if isinstance(w, Weights):
            return F.linear(z, w.W.abs() if absolute else w.W)
        size = max(1, _LARGEST_IMAGE // w.hidden_features)
        return torch.cat([_convolve(w, rows, absolute=absolute) for rows in z.split(size)])


def _inject(w: Weights | ConvWeights, x: Tensor, *, absolute: bool) -> Tensor:
    """U x + bz, or |U| x + |bz|."""
    change = _kept(absolute)
    if isinstance(w, Weights):
        return F.linear(x, change(w.U), change(w.bz))
    return w.geometry.inject(x, change(w.U), change(w.bz))


def _convolve(w: ConvWeights, z: Tensor, *, absolute: bool) -> Tensor:
    """W z = z - Psi (T + rho Wo'Wo) z - rho U U' Lam z by its definition, without transforms; or with plus signs."""
    change, sign, lam = _kept(absolute), (1.0 if absolute else -1.0), w.metric_diagonal()
    shape = (len(z), *w.geometry.shape, w.channels)

    def images(rows: Tensor) -> Tensor:
        return rows.reshape(shape).permute(0, 3, 1, 2)

    def rows(images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1).reshape(len(images), w.hidden_features)

    total = rows(_circular(images(z), change(w.T)))
    if w.gamma is None:
        return z + sign * total / lam
    out, U = change(w.output), change(w.U)
    total = (total + w.rho * F.linear(F.linear(z, out), out.T)) / lam
    back = _circular(images(lam * z), U.transpose(0, 1).flip(2, 3))
    return z + sign * (total + w.rho * rows(_circular(back, U)))


def _circular(images: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(F.pad(images, (kernel.shape[-1] // 2,) * 4, mode="circular"), kernel)


def _longest(w: Weights | ConvWeights) -> int:
    """How many roundings any term of W z + U x + bz goes through, at most."""
    if isinstance(w, Weights):
        return w.hidden_features + w.in_features + 16
    return w.T[0].numel() + 2 * w.U[0].numel() + len(w.U) * w.U[0, 0].numel() + w.hidden_features + w.out_features + 64


def _kept(absolute: bool) -> Callable[[Tensor], Tensor]:
    return torch.abs if absolute else lambda tensor: tensor
