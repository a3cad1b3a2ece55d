"""What every set of free variables offers."""

from __future__ import annotations

from abc import abstractmethod
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import refuse_blocks
from lben.errors import InvalidInput
from lben.operators.base import Operator
from lben.parameterize.starts import SMALLEST_GAMMA
from lben.weights.record import Sized

_POSITIVE = ("epsilon", "kappa", "lam")


class Form(Sized, nn.Module):
    """Free variables that any optimizer may move, and what a network needs of the weights they stand for."""

    U: Tensor
    Wo: Tensor
    smallest_gamma: ClassVar[dict[torch.dtype, float]] = SMALLEST_GAMMA
    """With which it can be trained, in each precision."""
    _gamma: float | None = None

    @property
    def gamma(self) -> float | None:
        """The prescribed bound; assign another at any time."""
        return self._gamma

    @gamma.setter
    def gamma(self, gamma: float | None) -> None:
        bound = None if gamma is None else checks.positive("gamma", gamma)
        self._check_gamma(bound)
        self._gamma = bound

    def _check_gamma(self, gamma: float | None) -> None:
        """Refuse a bound that these free variables cannot have."""

    @abstractmethod
    def inject(self, x: Tensor) -> Tensor:
        """U x + bz for rows x."""

    @abstractmethod
    def readout(self, z: Tensor, x: Tensor) -> Tensor:
        """Wo z + D x + by for rows z and x."""

    @abstractmethod
    def operator(self) -> Operator:
        """The operator of W for one training step, with its history, spared the exact m and c."""

    def refresh(self) -> None:
        """Let hooks compute what they put in place of a parameter (`torch.nn.utils.prune`, the old `weight_norm`).

        They wait for a call of this module, and a network reads the parts of W without one.
        """
        if self._forward_pre_hooks:
            self()

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What decides the weights beside its tensors, by the name of the option that sets it."""

    def constants(self) -> dict[str, float]:
        """Numbers that are tensors and no free variables, as single precision has them; none on the meta device."""
        epsilon = getattr(self, "epsilon", None)
        return {} if epsilon is None or epsilon.is_meta else {"epsilon": epsilon.float().item()}

    def extra_repr(self) -> str:
        """The constants: the options are shown by the network."""
        return ", ".join(f"{name}={value:.4g}" for name, value in self.constants().items())

    def validate(self) -> None:
        """Pass free variables that are finite, and constants within their range: they may have come from anywhere."""
        for name, tensor in chain(self.named_parameters(), self.named_buffers()):
            if tensor.is_floating_point():
                checks.finite(name, tensor)
            if name in _POSITIVE and not bool((tensor > 0).all()):
                least = float(tensor.min())
                raise InvalidInput(f"{name} must be above 0 in every entry, but its smallest is {least:.6g}.")

    def check_groups(self, groups: Tensor | None) -> None:
        """Refuse an activation in whose blocks the metric cannot be relied on to be constant."""
        refuse_blocks(groups)
