"""What every equilibrium network is made of: z = sigma(W z + U x + bz), y = Wo z + by (Equation `implicit`)."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation, check_activation
from lben.certify.certificate import Domain
from lben.certify.lipschitz import certify, product_bound
from lben.described import Described, arguments, made
from lben.errors import BoundNotMet, InvalidInput
from lben.implicit import Known, equilibrium
from lben.networks.solution import Solution
from lben.normalize import Normalize
from lben.numerics.transforms import as_it_is
from lben.operators.base import Operator
from lben.parameterize.base import Form
from lben.parameterize.starts import trainable
from lben.solvers.base import OnFailure, Problem, Solver, check_solver
from lben.solvers.loop import solve
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights.record import Record, same

N = TypeVar("N", bound="BaseNetwork")


class BaseNetwork(Described, ABC):
    """A parameterization, an activation and a solver, with an optional `Normalize` in front.

    x has shape (..., in_features); extra leading dimensions are all batch. A bias given with x, of shape
    (..., hidden_features), is added to U x + bz.
    """

    def __init__(
        self,
        parameterization: Form,
        activation: Activation,
        solver: Solver | None,
        normalize: Normalize | None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.placement(device, dtype)
        self.parameterization = parameterization
        self.normalize = normalize
        self.activation = activation
        self.solver = PeacemanRachford() if solver is None else solver
        self._kept: tuple[Record, bool, Operator] | None = None
        if normalize is not None and not isinstance(normalize, Normalize):
            raise InvalidInput(f"normalize must be an lben.Normalize(mean, std), not {normalize!r}.")
        if normalize is not None and normalize.features not in (1, self.in_features):
            raise InvalidInput(
                f"normalize has {normalize.features} values, but must have one, or one for each of {self.in_features} "
                "features; a convolutional network also takes one a channel."
            )
        if normalize is not None and (device is not None or dtype is not None):
            self.normalize = copy.deepcopy(normalize)  # the caller's stays where it is
        self.to(device=device, dtype=dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        """Past `nn.Module`, which would take an nn.ReLU for a part of the network before its property can refuse it."""
        if name in ("activation", "solver"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def in_features(self) -> int:
        return self.parameterization.in_features

    @property
    def hidden_features(self) -> int:
        return self.parameterization.hidden_features

    @property
    def out_features(self) -> int:
        return self.parameterization.out_features

    @property
    def gamma(self) -> float | None:
        """The prescribed Lipschitz bound from network input to output; None if none was prescribed."""
        return self.parameterization.gamma

    def options(self) -> dict[str, Any]:
        own = {"activation": self.activation, "solver": self.solver, "normalize": self.normalize}
        return {**self.parameterization.options(), **own}

    def constants(self) -> dict[str, float]:
        return self.parameterization.constants()

    def extra_repr(self) -> str:
        options = self.options()
        sizes = [str(size) for size in options.pop("sizes")]
        del options["normalize"]  # which is shown as a part
        given = {name: value for name, value in options.items() if value is not None}
        return ", ".join([*sizes, *(f"{name}={_brief(value)}" for name, value in given.items())])

    @classmethod
    def _restore(cls: type[N], options: dict[str, Any], tensors: dict[str, Tensor]) -> N:
        """A network of these options, as `options` has them, with any weights of the shapes of these tensors."""
        return made(lambda: cls(*options["sizes"], **arguments(cls, options)), tensors)

    def validate(self) -> None:
        """Pass a network whose tensors are finite and within their ranges.

        Raises:
            InvalidInput: naming the first tensor that is not.
        """
        self.parameterization.validate()
        if self.normalize is not None:
            self.normalize.validate()

    @property
    def activation(self) -> Activation:
        """sigma; assign another at any time."""
        return self._activation

    @activation.setter
    def activation(self, activation: Activation) -> None:
        check_activation(activation, self.hidden_features)
        self.parameterization.check_groups(activation.groups(self.hidden_features))
        self._activation = activation

    @property
    def solver(self) -> Solver:
        """The method that finds equilibria, forward and backward; assign another at any time."""
        return self._solver

    @solver.setter
    def solver(self, solver: Solver) -> None:
        self._solver = check_solver(solver)

    @abstractmethod
    def weights(self) -> Record:
        """The explicit weights, as differentiable functions of the free variables.

        Returns:
            A record of tensors, which certificates take in place of the network.
        """

    def forward(self, x: Tensor, *, bias: Tensor | None = None) -> Tensor:
        """y for x; mixed precision is turned off inside.

        Args:
            x: of shape (..., in_features), in the network's dtype; leading dimensions are all batch.
            bias: is added to U x + bz: of shape (..., hidden_features), or one that expands to it.

        Returns:
            A tensor of shape (..., out_features), differentiable.

        Raises:
            InvalidInput: if x does not fit, or is not finite.
            NotConverged: if an equilibrium was not found; see `Solver`.
        """
        if torch.is_autocast_enabled(x.device.type if isinstance(x, Tensor) and not x.is_meta else "cpu"):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.to(self.parameterization.U.dtype), bias=bias)
        if self.training and self.gamma is not None and torch.is_grad_enabled():
            trainable(self.gamma, self.parameterization.U.dtype, self.parameterization.smallest_gamma)
        self.parameterization.refresh()
        x = self._flat(x)
        scaled = rows(self._scaled(x))
        z = self._equilibrium(scaled, self._outside(x, bias))
        return self.parameterization.readout(z, scaled).reshape(*x.shape[:-1], self.out_features)

    @as_it_is
    def _equilibrium(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """z for rows x at the network's input and rows of a bias from outside, differentiable."""
        b = self._bias(x, bias)
        return equilibrium(self._operator(), self.activation, b, self.solver, on_failure=self._on_failure())

    def solve(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        start: Tensor | Solution | None = None,
        keep_history: bool = False,
    ) -> Solution:
        """The equilibrium at x with its residuals; its z is differentiable as the network's is.

        Args:
            x: as the network takes it.
            bias: is added to U x + bz, as in a call.
            start: a z, or an earlier solution, to start from.
            keep_history: whether to keep the residuals of every iteration.

        Returns:
            A `Solution`, true if all samples have converged.

        Raises:
            InvalidInput: if x does not fit, and within transforms of torch.func: what it reports are plain numbers.
            NotConverged: if an equilibrium was not found; see `Solver`.
        """
        if torch._C._are_functorch_transforms_active():
            raise InvalidInput("solve reports plain numbers, which transforms of torch.func hide: call the network.")
        self.parameterization.refresh()
        x = self._flat(x)
        b = self._bias(rows(self._scaled(x)), self._outside(x, bias))
        operator, on_failure = self._operator(), self._on_failure()
        problem = Problem(operator, self.activation, b.detach())
        flat = solve(self.solver, problem, start=start, keep_history=keep_history, on_failure=on_failure)
        known = Known(flat.z, flat.v, flat.iterations)
        z = equilibrium(operator, self.activation, b, self.solver, on_failure=on_failure, known=known)
        return Solution.of(flat, z, x.shape[:-1])

    def bound(self, domain: Domain = "input") -> float:
        """A Lipschitz bound, checked now from the weights in double precision.

        It is gamma where one was prescribed, else ``|Wo Lam^(-1/2)| |Lam^(1/2) U| / m``. `tightest_bound` finds a
        smaller one.

        Args:
            domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
                before it. They are the same without one.

        Returns:
            The bound.

        Raises:
            BoundNotMet: if rounding has broken the prescribed bound.
            NotWellPosed: if no metric proves an equilibrium.
        """
        if self.gamma is None:
            return product_bound(self, domain=domain)
        certificate = certify(self, domain=domain)
        if not certificate.holds or certificate.gamma is None:
            raise BoundNotMet(
                f"Rounding has broken the bound gamma = {self.gamma}: the smallest eigenvalue of Condition lipschitz "
                f"is {certificate.margin:.6g}. Use float64, or smaller free variables.",
                certificate.margin,
            )
        return certificate.gamma

    def _flat(self, x: Tensor) -> Tensor:
        """x with its features in one dimension, the last."""
        return x

    def _scaled(self, x: Tensor) -> Tensor:
        """x at the network's input: checked, and normalised if there is a `Normalize`."""
        checks.features("x", x, self.in_features, self.parameterization.U)
        return _kept_by_autograd(x) if self.normalize is None else self.normalize(_kept_by_autograd(x))

    def _outside(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """The bias from outside, one row for each of x."""
        if bias is None:
            return None
        checks.features("bias", bias, self.hidden_features, self.parameterization.U)
        shape = (*x.shape[:-1], self.hidden_features)
        if not _fits(bias.shape, shape):
            raise InvalidInput(f"bias of shape {tuple(bias.shape)} does not fit a hidden layer of shape {shape}.")
        return rows(_kept_by_autograd(bias).expand(shape))

    def _bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """U x + bz for rows x at the network's input, and the bias from outside if there is one."""
        p = self.parameterization
        b = p.inject(x)
        b = b if bias is None else b + bias
        checks.finite_sum(b, x=x, bias=bias, **dict(p.named_parameters()))
        return b

    def _operator(self) -> Operator:
        """The operator of W; in evaluation it is kept, with its factors, until what decides W changes.

        Values are compared, not version counters, since those miss changes through `.data`. What was made in inference
        mode serves there alone: gradients cannot pass through it. Within transforms nothing is kept.
        """
        if self.training or checks.transformed():
            return self.parameterization.operator()
        now, inference = self.weights(), torch.is_inference_mode_enabled()
        if self._kept is None or self._kept[1] != inference or not same(self._kept[0], now):
            with torch.no_grad():
                own = now.detach().clone()
                self._kept = own, inference, own.operator()
        kept = self._kept[2]
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in now.tensors().values()):
            return kept
        return kept.rebind(*now.operator().tensors)

    def _on_failure(self) -> OnFailure:
        return self.solver.on_failure or ("fallback" if self.training else "raise")


def check_form(form: Form, kind: type[Any]) -> None:
    """Pass the free variables of a network, if they are of its kind."""
    if not isinstance(form, kind):
        raise InvalidInput(f"parameterization must be one of lben's {kind.__name__}s, not {form!r}.")


def _brief(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _kept_by_autograd(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy of one that was made in inference mode, which autograd refuses to keep."""
    if torch.compiler.is_dynamo_compiling():  # which has no such tensors, and would break its graph at the question
        return tensor
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def _fits(shape: torch.Size, target: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape expands to the target."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def rows(b: Tensor) -> Tensor:
    return b.reshape(-1, b.shape[-1])
