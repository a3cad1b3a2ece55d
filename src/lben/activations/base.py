"""What every activation offers: sigma, its derivative, its proximal operators, its convex f, and what it acts on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lben import checks
from lben.activations.proximal import Preimage, Reflection
from lben.activations.slopes import Domain
from lben.described import describe_record
from lben.errors import InvalidInput, LbenError

Function = TypeVar("Function", bound=Callable[..., Any])
_NAMESAKES = {
    name.lower(): name for name in ("ReLU", "LeakyReLU", "Tanh", "Sigmoid", "Softplus", "ELU", "HardTanh", "Identity")
}  # by what torch calls them


def plain_spoken(method: Function) -> Function:
    """A method of an activation that names what is wrong with its tensor where torch fails on it.

    It looks only after the failure, since solvers call activations in their inner loops.
    """

    @wraps(method)
    def run(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except (AttributeError, IndexError, TypeError, RuntimeError) as error:
            if not isinstance(error, LbenError):
                given = [*args[1:2], *(value for name, value in named.items() if name != "alpha")]
                for tensor in given[:1]:
                    checks.there("The tensor", checks.floating("The tensor", tensor))
            raise

    return cast(Function, run)


class Activation(ABC):
    """What every activation is: a monotone function with slopes in [0, 1], applied to the last dimension.

    Such a sigma is the proximal operator of a convex f (Proposition `sigma`), which is what solvers and proofs need.
    Subclasses give ``sigma(v)``, its `derivative` and its `potential` f; for single units the rest follows from these.

    Examples:
        Every activation has its f, its slopes and its proximal operators.

        >>> sigma = lben.Tanh()
        >>> v = torch.tensor([0.0, 1.0])
        >>> sigma(v)
        tensor([0.0000, 0.7616])
        >>> bool(((sigma.derivative(v) >= 0) & (sigma.derivative(v) <= 1)).all())
        True
        >>> torch.allclose(sigma.prox(v, 1.0), sigma(v))
        True
    """

    units: int | None = None
    """How many units it is made for; None if it fits any number."""

    own_prox: bool = False
    """Whether prox^alpha is sigma for every alpha; its slopes are then 0 and 1 alone."""

    homogeneous: bool = False
    """Whether sigma(c v) = c sigma(v) for every c > 0, unit by unit."""

    rounding: float = 16
    """How many units of rounding of the largest of its terms may be lost in sigma(v); a generous allowance."""

    inner_terms: float = 0.0
    """The size of terms that may cancel within sigma, besides v and sigma(v)."""

    block_size: int = 1
    """How many units act together; their number must be a multiple of it."""

    linear: bool | tuple[bool, ...] = False
    """Whether sigma(v) = v, for all units or unit by unit: certificates then need no bound on its slope."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checks.unchanged(cls, "lben.Elementwise(function)")
        for name in ("__call__", "derivative", "potential", "prox"):
            if name in vars(cls):
                setattr(cls, name, plain_spoken(vars(cls)[name]))

    @abstractmethod
    def __call__(self, v: Tensor) -> Tensor:
        """sigma(v).

        Args:
            v: pre-activations, of shape (..., n).

        Returns:
            A tensor of the same shape.
        """

    @abstractmethod
    def derivative(self, v: Tensor) -> Tensor:
        """sigma'(v); zero from the left at a kink. Where units act together, see `gain`.

        Args:
            v: pre-activations, of shape (..., n).

        Returns:
            Slopes in [0, 1], of the same shape; of activations of blocks, Jacobians.
        """

    @abstractmethod
    def potential(self, z: Tensor) -> Tensor:
        """The convex f(z), up to a constant, with prox^1_f = sigma.

        Args:
            z: values of hidden units, of shape (..., n).

        Returns:
            f, infinite outside its closed domain: of every unit, or of every block where units act together.
        """

    @plain_spoken
    def prox(self, u: Tensor, alpha: float) -> Tensor:
        """argmin over z of ``(z - u)^2/2 + alpha*f(z)``.

        Args:
            u: of shape (..., n).
            alpha: a number above 0.

        Returns:
            A tensor of the shape of u, differentiable in u.

        Raises:
            InvalidInput: if alpha is not above 0.
        """
        checks.positive("alpha", alpha)
        if alpha == 1:
            return self(u)
        v: Tensor = Preimage.apply(u, alpha, self)  # type: ignore[no-untyped-call]
        return self(v)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        """``u -> 2*prox^alpha_f(u) - u``, the Cayley operator of f's subdifferential, for the iterates of a solver.

        Args:
            alpha: a number above 0.

        Returns:
            A function of tensors.
        """
        return lambda u: 2 * self.prox(u, alpha) - u

    def mirror(self) -> Callable[[Tensor, Tensor], Tensor]:
        """``(u, out) -> 2*sigma(u) - u``, written to `out`, which may be u: the reflection if `own_prox`.

        Returns:
            A function of two tensors.
        """
        return lambda u, out: torch.lerp(u, self(u), 2.0, out=out)

    def total_potential(self, z: Tensor, lam: Tensor) -> Tensor:
        """The sum of lam_i f(z_i) over all units, or blocks, of z.

        Args:
            z: values of hidden units, of shape (..., n).
            lam: the diagonal of a metric, of shape (n,).

        Returns:
            A tensor of shape (...).
        """
        return (lam * self.potential(z)).sum(dim=-1)

    def gain(self, v: Tensor) -> Jacobian:
        """The Jacobian of sigma at v, as a linear activation.

        Args:
            v: pre-activations, of shape (batch, n).

        Returns:
            A linear activation, v -> J v.
        """
        return Gain(self.derivative(v), self.own_prox)

    def describe(self) -> dict[str, Any]:
        """Its name and its options.

        Returns:
            Plain values, as a file keeps them.
        """
        return describe_record(self) if is_dataclass(self) else {"name": type(self).__name__}

    def groups(self, units: int) -> Tensor | None:
        """The number of the block that each unit belongs to, where units act together.

        Lambda must be constant on every block, or Conditions `W` and `lipschitz` prove nothing.

        Args:
            units: how many units there are.

        Returns:
            Integers of shape (units,); None where each unit acts alone.
        """
        return None

    def rows(self, index: Tensor) -> Activation:
        """The activation of some samples of a batch: itself, unless it differs between samples.

        Args:
            index: the numbers of the samples.

        Returns:
            An activation.
        """
        return self


class Jacobian(Activation):
    """The Jacobian of an activation, at work as a linear one: v -> J v, sample by sample.

    That of a proximal operator is symmetric with 0 <= J <= I: diagonal where units act alone, block diagonal where they
    act in blocks. The adjoint of an equilibrium is an equilibrium with such an activation (`implicit.py`).
    `tensors` are what it is made of, and gradients flow to them.
    """

    tensors: tuple[Tensor, ...]

    @abstractmethod
    def rebind(self, *tensors: Tensor) -> Jacobian:
        """The same kind of Jacobian, made of other tensors."""

    @abstractmethod
    def pullback(self, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """The gradient of <w, J v>, summed over the batch, with respect to `tensors`."""

    @abstractmethod
    def times(self, W: Tensor) -> Tensor:
        """J W for every sample, shape (batch, n, columns of W)."""

    @abstractmethod
    def rows(self, index: Tensor) -> Jacobian:
        """That of some samples."""

    def gain(self, v: Tensor) -> Jacobian:
        return self


class Gain(Jacobian):
    """v -> j*v with 0 <= j <= 1, entry by entry of a batch.

    `binary` says that every j is 0 or 1, which makes its prox the same for every alpha.
    """

    homogeneous = True

    def __init__(self, j: Tensor, binary: bool = False) -> None:
        self.j = j
        self.tensors = (j,)
        self.binary = self.own_prox = binary

    def __call__(self, v: Tensor) -> Tensor:
        return self.j * v

    def derivative(self, v: Tensor) -> Tensor:
        return self.j

    def potential(self, z: Tensor) -> Tensor:
        return torch.where(z == 0, 0.0, (1 / self.j - 1) / 2 * z**2)

    def prox(self, u: Tensor, alpha: float) -> Tensor:
        return u * self._prox_gain(alpha)

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        gain = self._prox_gain(alpha)
        return partial(torch.mul, gain + (gain - 1))

    def mirror(self) -> Callable[[Tensor, Tensor], Tensor]:
        sign = (2 * self.j).sub_(1)
        return lambda u, out: torch.mul(u, sign, out=out)

    def _prox_gain(self, alpha: float) -> Tensor:
        return self.j if self.binary else self.j / torch.lerp(self.j, torch.ones_like(self.j), alpha)

    def rows(self, index: Tensor) -> Jacobian:
        return Gain(self.j[index], self.binary)

    def rebind(self, *tensors: Tensor) -> Jacobian:
        (j,) = tensors
        return Gain(j, self.binary)

    def pullback(self, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return (w * v,)

    def times(self, W: Tensor) -> Tensor:
        return self.j[:, :, None] * W


def check_activation(activation: Activation, units: int) -> Activation:
    """`activation` if it is one, and made for so many units."""
    if not isinstance(activation, Activation):
        given = (
            activation if isinstance(activation, str) else getattr(activation, "__name__", type(activation).__name__)
        )
        own = _NAMESAKES.get(given.lower())
        advice = ", such as lben.ReLU()" if own is None else f": use lben.{own}()"
        of_torch = " of torch.nn" if isinstance(activation, torch.nn.Module) else ""
        raise InvalidInput(f"activation must be one of lben's{advice}, not {activation!r}{of_torch}.")
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

    steepest: float | None = None
    """Where its slope is greatest: it never falls before and never rises after. Infinite where it never falls; None
    where that is not known."""

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """The closed interval on which f is finite (f may be infinite at its ends)."""

    def reflection(self, alpha: float) -> Callable[[Tensor], Tensor]:
        return Reflection(self, checks.positive("alpha", alpha))

    def _restrict(self, z: Tensor, value: Tensor) -> Tensor:
        low, high = self.domain
        return torch.where((z >= low) & (z <= high), value, torch.full_like(z, math.inf))
