"""Activations of single units: sigma, its derivative, its proximal operator for every alpha, and the convex f.

An activation that is monotone with slopes in [0, 1] is the proximal operator prox^1_f of a convex f
(Proposition `sigma`, Table `sigma-f`). Splitting methods need prox^alpha_f, which is sigma itself only
at alpha = 1, or where f is zero on its domain (ReLU, HardTanh, Identity).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lben import checks
from lben.activations.base import Activation, Scalar
from lben.activations.proximal import dilogarithm, integrate_potential
from lben.activations.slopes import Domain, check_slopes, refuse_slope, sampled_domain
from lben.described import plain
from lben.errors import InvalidInput


class _OwnProx(Scalar):
    """f is zero on its domain, so that prox^alpha_f = sigma for every alpha."""

    own_prox = True

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        checks.positive("alpha", alpha)
        return self(u)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        return lambda u: torch.lerp(u, self(u), 2.0)

    def potential(self, z: Tensor) -> Tensor:
        return self._restrict(z, torch.zeros_like(z))


@dataclass(frozen=True)
class ReLU(_OwnProx):
    """sigma(v) = max(v, 0), with f = 0 on [0, inf); the default activation.

    Its prox is sigma for every alpha, which makes solvers fastest.

    Examples:
        >>> sigma = lben.ReLU()
        >>> sigma(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
        >>> sigma.potential(torch.tensor([-1.0, 2.0]))
        tensor([inf, 0.])
    """

    domain = (0.0, math.inf)
    homogeneous = True
    steepest = math.inf

    def __call__(self, v: Tensor) -> Tensor:
        return torch.relu(v)

    def derivative(self, v: Tensor) -> Tensor:
        return torch.relu(v).sign() if torch.is_grad_enabled() else torch.relu(v).sign_()

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        return torch.abs

    def mirror(self) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda u, out: torch.abs(u, out=out)


@dataclass(frozen=True)
class HardTanh(_OwnProx):
    """sigma(v) = v clipped to [-1, 1], with f = 0 there: hidden units that saturate.

    Examples:
        >>> lben.HardTanh()(torch.tensor([-3.0, 0.5, 3.0]))
        tensor([-1.0000,  0.5000,  1.0000])
    """

    domain = (-1.0, 1.0)
    steepest = 0.0

    def __call__(self, v: Tensor) -> Tensor:
        return v.clamp(-1, 1)

    def derivative(self, v: Tensor) -> Tensor:
        return (v.abs() < 1).to(v.dtype)


@dataclass(frozen=True)
class Identity(_OwnProx):
    """sigma(v) = v, a linear unit, with f = 0; certificates eliminate it, so that it costs nothing in a bound.

    Examples:
        A linear network, whose bound is then the norm of its matrix.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, activation=lben.Identity())
        >>> slope = torch.autograd.functional.jacobian(net, torch.zeros(2))
        >>> float(slope.norm()) <= 1.0
        True
    """

    linear = True
    homogeneous = True
    domain = (-math.inf, math.inf)
    steepest = math.inf

    def __call__(self, v: Tensor) -> Tensor:
        return v

    def derivative(self, v: Tensor) -> Tensor:
        return torch.ones_like(v)


@dataclass(frozen=True)
class LeakyReLU(Scalar):
    """sigma(v) = max(v, slope v), with f(z) = (1/slope - 1)/2 min(z, 0)^2.

    Args:
        slope: that of negative v, in [0, 1].

    Raises:
        InvalidActivation: for a slope outside [0, 1].

    Examples:
        >>> lben.LeakyReLU(0.1)(torch.tensor([-1.0, 2.0]))
        tensor([-0.1000,  2.0000])
    """

    steepest = math.inf

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
        return F.leaky_relu(v, self.slope)

    def derivative(self, v: Tensor) -> Tensor:
        return torch.relu(v).sign().clamp(min=self.slope)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        checks.positive("alpha", alpha)
        return F.leaky_relu(u, self.slope / (alpha + (1 - alpha) * self.slope))

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        return lambda u: torch.lerp(u, self.prox(u, alpha), 2.0)

    def potential(self, z: Tensor) -> Tensor:
        root = z.clamp(max=0) / math.sqrt(self.slope) if self.slope else torch.zeros_like(z)
        return self._restrict(z, (1 - self.slope) / 2 * root**2)


@dataclass(frozen=True)
class Tanh(Scalar):
    """sigma = tanh, with f(z) = ((1 + z)ln(1 + z) + (1 - z)ln(1 - z) - z^2)/2 on [-1, 1].

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, activation=lben.Tanh())
        >>> z = net.solve(torch.tensor([[50.0, -50.0]])).z
        >>> bool((z.abs() <= 1).all())
        True
    """

    domain = (-1.0, 1.0)
    steepest = 0.0

    def __call__(self, v: Tensor) -> Tensor:
        return torch.tanh(v)

    def derivative(self, v: Tensor) -> Tensor:
        return 1 - torch.tanh(v) ** 2

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(-1, 1)
        return self._restrict(z, (torch.xlogy(1 + s, 1 + s) + torch.xlogy(1 - s, 1 - s) - s**2) / 2)


@dataclass(frozen=True)
class Sigmoid(Scalar):
    """sigma(v) = 1/(1 + e^-v), with f(z) = z ln z + (1 - z)ln(1 - z) - z^2/2 on [0, 1].

    Examples:
        >>> lben.Sigmoid()(torch.tensor([0.0, 2.0]))
        tensor([0.5000, 0.8808])
    """

    domain = (0.0, 1.0)
    steepest = 0.0

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
    """sigma = arctan, with f(z) = -ln cos z - z^2/2 on [-pi/2, pi/2] (the paper's table prints another domain).

    Examples:
        >>> lben.Arctan()(torch.tensor([1.0]))
        tensor([0.7854])
    """

    domain = (-math.pi / 2, math.pi / 2)
    steepest = 0.0

    def __call__(self, v: Tensor) -> Tensor:
        return torch.atan(v)

    def derivative(self, v: Tensor) -> Tensor:
        return 1 / (1 + v**2)

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(*self.domain)
        return self._restrict(z, -torch.log(torch.cos(s)) - s**2 / 2)


@dataclass(frozen=True)
class Softplus(Scalar):
    """sigma(v) = ln(1 + e^v), with f(z) = Li2(e^-z) on [0, inf), the real form of the table's expression.

    Examples:
        >>> lben.Softplus()(torch.tensor([0.0, 20.0]))
        tensor([ 0.6931, 20.0000])
    """

    domain = (0.0, math.inf)
    steepest = math.inf

    def __call__(self, v: Tensor) -> Tensor:
        return torch.logaddexp(v, torch.zeros_like(v))

    def derivative(self, v: Tensor) -> Tensor:
        return torch.sigmoid(v)

    def potential(self, z: Tensor) -> Tensor:
        return self._restrict(z, dilogarithm(torch.exp(-z.clamp(min=0))))


@dataclass(frozen=True)
class ELU(Scalar):
    """sigma(v) = v for v > 0, else a(e^v - 1); f(z) = (a + z)ln(1 + z/a) - z - z^2/2 for z < 0, else 0.

    Args:
        a: how far below zero it saturates, in (0, 1]; more would make its slope exceed 1.

    Raises:
        InvalidActivation: for another a.

    Examples:
        >>> lben.ELU(0.5)(torch.tensor([-100.0, 2.0]))
        tensor([-0.5000,  2.0000])
    """

    steepest = math.inf

    a: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < checks.number("a", self.a) <= 1:
            refuse_slope(f"ELU(a={self.a})", 0.0, self.a)

    @property
    def domain(self) -> Domain:
        return -self.a, math.inf

    def __call__(self, v: Tensor) -> Tensor:
        return F.elu(v, self.a)

    def derivative(self, v: Tensor) -> Tensor:
        return torch.maximum(torch.relu(v).sign(), self.a * torch.exp(v.clamp(max=0)))

    def potential(self, z: Tensor) -> Tensor:
        s = z.clamp(-self.a, 0)
        return self._restrict(z, torch.xlogy(self.a + s, 1 + s / self.a) - s - s**2 / 2)


TABLE: tuple[type[Scalar], ...] = (ReLU, LeakyReLU, Tanh, Sigmoid, Arctan, Softplus, ELU, HardTanh, Identity)
"""Those of Table `sigma-f`, and the identity."""


@dataclass(frozen=True)
class Elementwise(Scalar):
    """A scalar function of your own; its derivative by autograd, its prox and f numerically.

    The slope is checked on a dense sample of [-1e4, 1e4] when the activation is made, between neighbours and across all
    of it, and may leave [0, 1] by no more than rounding explains. A sample is no proof: a function whose slope leaves
    [0, 1] between or beyond the samples voids every bound. Files do not keep it: `save` refuses a network that has one.

    Args:
        fn: a function from a tensor to a tensor of the same shape, entry by entry, that autograd can differentiate.

    Attributes:
        domain: the interval on which f is finite, as the sample shows it.

    Raises:
        InvalidActivation: if a slope leaves [0, 1].
        InvalidInput: if it is no function, or a module with parameters, which training could change.

    Examples:
        >>> sigma = lben.Elementwise(lambda v: v / (1 + v.abs()))
        >>> sigma(torch.tensor([1.0, -3.0]))
        tensor([ 0.5000, -0.7500])
    """

    inner_terms = 1.0  # as `check_slopes` allows it: exp(v) - 1 loses a unit of rounding of 1

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
        if checks.transformed():
            pull = torch.func.vjp(lambda point: self.fn(point.clone()), v)[1]
            own: Tensor = pull(torch.ones_like(v))[0]
            return own
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

    def describe(self) -> dict[str, Any]:
        """The name alone: functions of Python are not compared.

        Returns:
            Plain values.
        """
        return {"name": type(self).__name__}


class PerUnit(Activation):
    """A list of scalar activations, one for each unit: sigma_i is applied to the i-th entry.

    Args:
        activations: as many as the network has hidden units, each of single units.

    Raises:
        InvalidInput: if the list is empty, or holds anything else.

    Examples:
        >>> sigma = lben.PerUnit([lben.ReLU(), lben.ReLU(), lben.Identity()])
        >>> sigma(torch.tensor([-1.0, 1.0, -1.0]))
        tensor([ 0.,  1., -1.])
        >>> net = lben.LBEN(2, 3, 1, gamma=1.0, activation=sigma)
    """

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
        self.inner_terms = max(activation.inner_terms for activation in self.activations)
        groups: dict[Scalar, list[int]] = {}
        for i, activation in enumerate(self.activations):
            groups.setdefault(activation, []).append(i)
        self._groups = tuple((a, torch.tensor(index)) for a, index in groups.items())
        self._order = torch.argsort(torch.cat([index for _, index in self._groups]))

    @property
    def linear(self) -> tuple[bool, ...]:  # type: ignore[override]
        return tuple(bool(a.linear) for a in self.activations)

    @property
    def parts(self) -> tuple[tuple[Scalar, Tensor], ...]:
        """Every activation there is, and the numbers of its units."""
        return self._groups

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domain of f for each unit."""
        return tuple(a.domain for a in self.activations)

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "activations": plain(self.activations)}

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

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        own = {a: a.reflection(alpha) for a, _ in self._groups}
        return lambda u: self._gather(lambda a, piece: own[a](piece), u)

    def potential(self, z: Tensor) -> Tensor:
        return self._gather(lambda a, piece: a.potential(piece), z)
