"""How far a computed hidden layer is from the equilibrium: proved in double precision, with every rounding bounded.

For any v, the real vector sigma(v) is the exact equilibrium of the bias v - W sigma(v), and the map from bias to
equilibrium is 1/m-Lipschitz in the Lambda norm. So for a z within s of sigma(v), entry by entry,

    |z - z*|_Lam <= |s|_Lam + (|v - W z - U x - bz| + |W| s)_Lam / m,

whoever found z and v, and however.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lben.activations.base import Activation
from lben.certify.subject import Subject
from lben.numerics.enclosed import EPS
from lben.numerics.rounding import norm_bound

_TINY = torch.finfo(torch.float64).tiny


def distance(subject: Subject, z: Tensor, v: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """A proved bound on |z - z*|_Lam for rows z and v, and inputs x with a bias from outside; shape (batch,)."""
    if not subject.proved:
        return torch.full((len(z),), math.inf, dtype=z.dtype)
    root, off = subject.diagonal.sqrt(), _off(subject.activation, z, v)
    moved = _residual(subject, z, v, x, bias) + subject.product(off, absolute=True)
    error = norm_bound(off * root) + norm_bound(moved * root) / subject.monotonicity
    return torch.nan_to_num(error * (1 + 8 * EPS), nan=math.inf, posinf=math.inf)


def _off(activation: Activation, z: Tensor, v: Tensor) -> Tensor:
    """A bound on |z - sigma(v)|: torch's functions are not correctly rounded, and `rounding` says what to allow.

    Where units act in blocks, each may have lost what the largest entry of its row has.
    """
    again = activation(v)
    sizes = z.abs() + again.abs() + v.abs() + activation.inner_terms
    if activation.block_size > 1 or activation.groups(z.shape[-1]) is not None:
        sizes = sizes.amax(dim=-1, keepdim=True).expand_as(sizes)
    return (z - again).abs() + activation.rounding * EPS * sizes + _TINY


def _residual(subject: Subject, z: Tensor, v: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """A bound on |v - W z - U x - bz|: what is computed, and what rounding may have changed in sums so long."""
    scaled, sizes = x if subject.normalize is None else subject.normalize(x), sizes_of(subject, x)
    rest = v - subject.product(z, absolute=False) - subject.injection(scaled, absolute=False)
    terms = v.abs() + subject.product(z.abs(), absolute=True) + subject.injection(sizes, absolute=True)
    if bias is not None:
        rest, terms = rest - bias, terms + bias.abs()
    return rest.abs() + subject.longest * EPS * terms + subject.longest * _TINY


def sizes_of(subject: Subject, x: Tensor) -> Tensor:
    """A bound on the terms that x at the network's input is the sum of: what rounding is relative to."""
    normalize = subject.normalize
    if normalize is None:
        return x.abs()
    return (x.abs() + normalize.mean.abs()) / normalize.std + _TINY / EPS  # underflow
