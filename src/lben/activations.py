"""Activations: sigma, its derivative, its proximal operator for every alpha, and the convex f behind it.

An activation that is monotone with slopes in [0, 1] is the proximal operator prox^1_f of a convex f
(Proposition `sigma`, Table `sigma-f`). Splitting methods need prox^alpha_f, which is sigma itself only
at alpha = 1, or where f is zero on its domain (ReLU, HardTanh, Identity).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput
from lben.proximal import (
    Domain,
    Preimage,
    check_slopes,
    dilogarithm,
    integrate_potential,
    refuse_slope,
    sampled_domain,
)

if TYPE_CHECKING:
    from lben.jacobians import Jacobian

__all__ = [
    "ELU",
    "Activation",
    "Arctan",
    "Elementwise",
    "HardTanh",
    "Identity",
    "LeakyReLU",
    "PerUnit",
    "ReLU",
    "Scalar",
    "Sigmoid",
    "Softplus",
    "Tanh",
]


class Activation(ABC):
    """A monotone function with slopes in [0, 1], applied unit by unit to the last dimension."""

    units: int | None = None
    """How many units it is made for; None if it fits any number."""

    own_prox: bool = False
    """Whether prox^alpha is sigma for every alpha; its slopes are then 0 and 1 alone."""

    rounding: float = 16
    """How many units of rounding of the largest of its terms may be lost in sigma(v); a generous allowance."""

    block_size: int = 1
    """How many units act together; their number must be a multiple of it."""

    linear: bool | tuple[bool, ...] = False
    """Whether sigma(v) = v, for all units or unit by unit: certificates then need no bound on its slope."""

    @abstractmethod
    def __call__(self, v: Tensor) -> Tensor:
        """sigma(v)."""

    @abstractmethod
    def derivative(self, v: Tensor) -> Tensor:
        """sigma'(v) at the pre-activation v; zero from the left at a kink. Where units act together, see `gain`."""

    @abstractmethod
    def potential(self, z: Tensor) -> Tensor:
        """The convex f(z), up to a constant, with prox^1_f = sigma; infinite outside its closed domain."""

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        """argmin over z of (z - u)^2/2 + alpha*f(z), for any alpha > 0; differentiable in u."""
        checks.positive("alpha", alpha)
        if alpha == 1:
            return self(u)
        v: Tensor = Preimage.apply(u, alpha, self)  # type: ignore[no-untyped-call]
        return self(v)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        """u -> 2*prox^alpha_f(u) - u, the Cayley operator of the subdifferential of f."""
        return lambda u: 2 * self.prox(u, alpha) - u

    def total_potential(self, z: Tensor, lam: Tensor) -> Tensor:
        """The sum of lam_i f(z_i) over all units, or blocks, of z."""
        return (lam * self.potential(z)).sum(dim=-1)

    def gain(self, v: Tensor) -> Jacobian:
        """The Jacobian of sigma at v, as a linear activation, for v of shape (batch, n)."""
        from lben.jacobians import Gain

        return Gain(self.derivative(v), self.own_prox)

    def groups(self, units: int) -> Tensor | None:
        """The number of the block that each unit belongs to, where units act together; None where each acts alone.

        Lambda must be constant on every block, or Conditions `W` and `lipschitz` prove nothing.
        """
        return None

    def rows(self, index: Tensor) -> Activation:
        """The activation of some samples of a batch: itself, unless it differs between samples."""
        return self


def check_activation(activation: Activation, units: int) -> Activation:
    """`activation` if it is one, and made for so many units."""
    if not isinstance(activation, Activation):
        kind = activation if isinstance(activation, type) else type(activation)
        given = f"{kind.__module__}.{kind.__name__}" if issubclass(kind, torch.nn.Module) else repr(activation)
        known = kind.__name__ if kind.__name__ in __all__ and issubclass(kind, torch.nn.Module) else "ReLU"
        raise InvalidInput(f"activation must be one of lben's, not {given}: use lben.{known}().")
    if activation.units not in (None, units):
        raise InvalidInput(f"{activation.units} activations were given for {units} units.")
    if units % activation.block_size:
        raise InvalidInput(f"{units} units cannot be divided into the blocks of {activation!r}.")
    return activation


def refuse_blocks(groups: Tensor | None) -> None:
    """Refuse the blocks of an activation where the metric differs within them."""
    if groups is not None:
        raise InvalidInput(
            "This network takes activations of single units, such as lben.ReLU(); units that act in blocks need an "
            "LBEN, a MON or an UnconstrainedEN."
        )


class Scalar(Activation):
    """One scalar function for all units."""

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """The closed interval on which f is finite (f may be infinite at its ends)."""

    def _restrict(self, z: Tensor, value: Tensor) -> Tensor:
        low, high = self.domain
        return torch.where((z >= low) & (z <= high), value, torch.full_like(z, math.inf))


class _OwnProx(Scalar):
    """f is zero on its domain, so that prox^alpha_f = sigma for every alpha."""

    own_prox = True

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        checks.positive("alpha", alpha)
        return self(u)

    def potential(self, z: Tensor) -> Tensor:
        return self._restrict(z, torch.zeros_like(z))


@dataclass(frozen=True)
class ReLU(_OwnProx):
    """sigma(v) = max(v, 0); f = 0 on [0, inf)."""

    domain = (0.0, math.inf)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.relu(v)

    def derivative(self, v: Tensor) -> Tensor:
        return torch.relu(v).sign()

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        return torch.abs


@dataclass(frozen=True)
class HardTanh(_OwnProx):
    """sigma(v) = v clipped to [-1, 1]; f = 0 there."""

    domain = (-1.0, 1.0)

    def __call__(self, v: Tensor) -> Tensor:
        return v.clamp(-1, 1)

    def derivative(self, v: Tensor) -> Tensor:
        return (v.abs() < 1).to(v.dtype)


@dataclass(frozen=True)
class Identity(_OwnProx):
    """sigma(v) = v, a linear unit; f = 0."""

    linear = True
    domain = (-math.inf, math.inf)

    def __call__(self, v: Tensor) -> Tensor:
        return v

    def derivative(self, v: Tensor) -> Tensor:
        return torch.ones_like(v)


@dataclass(frozen=True)
class LeakyReLU(Scalar):
    """sigma(v) = max(v, slope*v) with 0 <= slope <= 1; f(z) = (1/slope - 1)/2 * min(z, 0)^2."""

    slope: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= checks.number("slope", self.slope) <= 1:
            refuse_slope(f"LeakyReLU(slope={self.slope})", -1.0, self.slope)

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return self.slope == 1

    @property
    def domain(self) -> Domain:
        return (-math.inf if self.slope else 0.0), math.inf

    def __call__(self, v: Tensor) -> Tensor:
        return torch.maximum(v, self.slope * v)

    def derivative(self, v: Tensor) -> Tensor:
        return torch.where(v > 0, 1.0, self.slope).to(v.dtype)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        checks.positive("alpha", alpha)
        return torch.where(u > 0, u, u * (self.slope / (alpha + (1 - alpha) * self.slope)))

    def potential(self, z: Tensor) -> Tensor:
        stiffness = 1 / self.slope - 1 if self.slope else 0.0
        return self._restrict(z, stiffness / 2 * z.clamp(max=0) ** 2)


@dataclass(frozen=True)
class Tanh(Scalar):
    """sigma = tanh; f(z) = ((1 + z)ln(1 + z) + (1 - z)ln(1 - z) - z^2)/2 on [-1, 1]."""

    domain = (-1.0, 1.0)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.tanh(v)

    def derivative(self, v: Tensor) -> Tensor:
        return 1 - torch.tanh(v) ** 2

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(-1, 1)
        return self._restrict(z, (torch.xlogy(1 + s, 1 + s) + torch.xlogy(1 - s, 1 - s) - s**2) / 2)


@dataclass(frozen=True)
class Sigmoid(Scalar):
    """sigma(v) = 1/(1 + e^-v); f(z) = z*ln z + (1 - z)ln(1 - z) - z^2/2 on [0, 1]."""

    domain = (0.0, 1.0)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.sigmoid(v)

    def derivative(self, v: Tensor) -> Tensor:
        s = torch.sigmoid(v)
        return s * (1 - s)

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(0, 1)
        return self._restrict(z, torch.xlogy(s, s) + torch.xlogy(1 - s, 1 - s) - s**2 / 2)


@dataclass(frozen=True)
class Arctan(Scalar):
    """sigma = arctan; f(z) = -ln cos z - z^2/2 on [-pi/2, pi/2] (the table prints another domain)."""

    domain = (-math.pi / 2, math.pi / 2)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.atan(v)

    def derivative(self, v: Tensor) -> Tensor:
        return 1 / (1 + v**2)

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(*self.domain)
        return self._restrict(z, -torch.log(torch.cos(s)) - s**2 / 2)


@dataclass(frozen=True)
class Softplus(Scalar):
    """sigma(v) = ln(1 + e^v); f(z) = Li2(e^-z) on [0, inf), the real form of the table's expression."""

    domain = (0.0, math.inf)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.logaddexp(v, torch.zeros_like(v))

    def derivative(self, v: Tensor) -> Tensor:
        return torch.sigmoid(v)

    def potential(self, z: Tensor) -> Tensor:
        return self._restrict(z, dilogarithm(torch.exp(-z.clamp(min=0))))


@dataclass(frozen=True)
class ELU(Scalar):
    """sigma(v) = v for v > 0, else a(e^v - 1), 0 < a <= 1; f(z) = (a + z)ln(1 + z/a) - z - z^2/2 for z < 0, else 0."""

    a: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < checks.number("a", self.a) <= 1:
            refuse_slope(f"ELU(a={self.a})", 0.0, self.a)

    @property
    def domain(self) -> Domain:
        return -self.a, math.inf

    def __call__(self, v: Tensor) -> Tensor:
        return torch.where(v > 0, v, self.a * torch.expm1(v.clamp(max=0)))

    def derivative(self, v: Tensor) -> Tensor:
        return torch.where(v > 0, torch.ones_like(v), self.a * torch.exp(v.clamp(max=0)))

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(-self.a, 0)
        return self._restrict(z, torch.xlogy(self.a + s, 1 + s / self.a) - s - s**2 / 2)


@dataclass(frozen=True)
class Elementwise(Scalar):
    """A user's own scalar function; its derivative by autograd, its prox and f numerically.

    The slope is checked on a dense sample of [-1e4, 1e4] when the activation is made. A sample is no proof:
    a function whose slope leaves [0, 1] between or beyond the samples voids every bound.
    """

    fn: Callable[[Tensor], Tensor]
    domain: Domain = field(init=False, default=(-math.inf, math.inf))

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InvalidInput(f"Elementwise needs a function from tensor to tensor, not {self.fn!r}.")
        name = f"Elementwise({getattr(self.fn, '__name__', None) or repr(self.fn)})"
        if isinstance(self.fn, torch.nn.Module) and any(p.requires_grad for p in self.fn.parameters()):
            raise InvalidInput(f"{name} has parameters, and training them could take its slope out of [0, 1].")
        check_slopes(name, self, self.derivative)
        object.__setattr__(self, "domain", sampled_domain(self))

    def __call__(self, v: Tensor) -> Tensor:
        return self.fn(v.clone())

    def derivative(self, v: Tensor) -> Tensor:
        differentiable = torch.is_grad_enabled() and v.requires_grad
        with torch.enable_grad():
            point = v if differentiable else v.detach().requires_grad_()
            value = self.fn(point.clone())  # a clone, for a function that works in place
            if not value.requires_grad:
                return torch.zeros_like(v)
            (slope,) = torch.autograd.grad(value.sum(), point, create_graph=differentiable)
        return slope

    def potential(self, z: Tensor) -> Tensor:
        return integrate_potential(z, self, self.domain)


class PerUnit(Activation):
    """A list of scalar activations, one for each unit: sigma_i is applied to the i-th entry."""

    def __init__(self, activations: Sequence[Scalar]) -> None:
        if not isinstance(activations, Sequence):
            raise InvalidInput(f"PerUnit takes a list of activations, not {activations!r}.")
        self.activations = tuple(activations)
        for activation in self.activations:
            if not isinstance(activation, Scalar):
                raise InvalidInput(f"PerUnit takes activations of single units, not {activation!r}.")
        if not self.activations:
            raise InvalidInput("PerUnit needs at least one activation, but the list is empty.")
        self.units = len(self.activations)
        groups: dict[Scalar, list[int]] = {}
        for i, activation in enumerate(self.activations):
            groups.setdefault(activation, []).append(i)
        self._groups = tuple((a, torch.tensor(index)) for a, index in groups.items())
        self._order = torch.argsort(torch.cat([index for _, index in self._groups]))

    @property
    def linear(self) -> tuple[bool, ...]:  # type: ignore[override]
        return tuple(bool(a.linear) for a in self.activations)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domain of f for each unit."""
        return tuple(a.domain for a in self.activations)

    def __repr__(self) -> str:
        return f"PerUnit({', '.join(f'{len(index)} x {a!r}' for a, index in self._groups)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerUnit) and self.activations == other.activations

    def __hash__(self) -> int:
        return hash(self.activations)

    def _gather(self, part: Callable[[Scalar, Tensor], Tensor], v: Tensor) -> Tensor:
        if v.dim() == 0 or v.shape[-1] != self.units:
            raise InvalidInput(f"PerUnit has {self.units} activations, but the tensor's shape is {tuple(v.shape)}.")
        pieces = [part(a, v.index_select(-1, index.to(v.device))) for a, index in self._groups]
        return torch.cat(pieces, dim=-1).index_select(-1, self._order.to(v.device))

    def __call__(self, v: Tensor) -> Tensor:
        return self._gather(lambda a, piece: a(piece), v)

    def derivative(self, v: Tensor) -> Tensor:
        return self._gather(lambda a, piece: a.derivative(piece), v)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return self._gather(lambda a, piece: a.prox(piece, alpha), u)

    def potential(self, z: Tensor) -> Tensor:
        return self._gather(lambda a, piece: a.potential(piece), z)
