"""The modules of torch that can be read as parts of an equilibrium network, and why others cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations import scalar as units
from lben.activations.base import Scalar
from lben.errors import InvalidInput
from lben.normalize import Normalize

POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
SHAPES = (nn.Flatten, nn.Unflatten)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
SMOOTH = 37
"""The least threshold of a softplus at which what it jumps by, log1p(e^-t), is lost in double precision."""
_NARROW = 1e-300  # whose inverse is a double, too
LINEAR = (nn.Linear, nn.Conv2d, nn.Identity, *POOLS, *SHAPES, *DROPOUTS, *NORMS)


@dataclass(frozen=True)
class Known:
    """An activation of torch in terms of one of ours: v -> outer sigma(inner v + shift) + through v + offset."""

    sigma: Scalar
    inner: float = 1.0
    shift: float = 0.0
    outer: float = 1.0
    through: float = 0.0
    offset: float = 0.0


def check_there(module: nn.Module) -> Tensor:
    """Pass a module whose parameters have values, of one kind that is known; the first of them, or a zero."""
    if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
        raise InvalidInput("The module has lazy layers whose sizes are not known yet: call it once on an input first.")
    like = next((p for p in module.parameters()), torch.zeros(()))
    for tensor in (like, *module.parameters()):
        checks.floating("The module's parameters", tensor)
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        raise InvalidInput("The module is on the meta device, where it has no weights: load them first.")
    return like


def convolution_like(conv: nn.Conv2d, *, bias: bool, dtype: torch.dtype | None = None) -> nn.Conv2d:
    """A plain nn.Conv2d with the sizes, stride and padding of one whose kernel may be computed; its weights are new."""
    return nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.groups,
        bias,
        conv.padding_mode,
        dtype=dtype,
    )


def known_activation(stage: nn.Module, where: str) -> Known:
    """ReLU, ReLU6, LeakyReLU, Tanh, Sigmoid, Softplus, ELU and Hardtanh; anything else is refused by its name.

    LeakyReLU is s v + (1 - s) relu(v), whatever s is: its linear part passes by, as in a residual block.
    """
    kind = type(stage)
    if kind in (nn.ReLU, nn.Tanh, nn.Sigmoid):
        return Known({nn.ReLU: units.ReLU(), nn.Tanh: units.Tanh(), nn.Sigmoid: units.Sigmoid()}[kind])
    if kind is nn.LeakyReLU and isinstance(stage, nn.LeakyReLU):
        return Known(units.ReLU(), outer=1 - stage.negative_slope, through=stage.negative_slope)
    if kind is nn.Hardtanh and isinstance(stage, nn.Hardtanh) and stage.max_val == math.inf > abs(stage.min_val):
        return Known(units.ReLU(), shift=-stage.min_val, offset=stage.min_val)
    if kind in (nn.Hardtanh, nn.ReLU6) and isinstance(stage, nn.Hardtanh) and _NARROW < _width(stage) < math.inf:
        half, middle = (stage.max_val - stage.min_val) / 2, (stage.max_val + stage.min_val) / 2
        return Known(units.HardTanh(), inner=1 / half, shift=-middle / half, outer=half, offset=middle)
    if kind is nn.ELU and isinstance(stage, nn.ELU):
        return Known(units.ELU(float(stage.alpha)))
    if kind is nn.Softplus and isinstance(stage, nn.Softplus) and stage.beta > 0 and stage.threshold >= 20:
        return Known(units.Softplus(), inner=float(stage.beta), outer=1 / float(stage.beta))
    raise InvalidInput(f"Layer {where}, {name_of(stage)}, {_unknown(stage)}.")


def _width(stage: nn.Hardtanh) -> float:
    return stage.max_val - stage.min_val


def _unknown(stage: nn.Module) -> str:
    """Why a module cannot be read, and what to do."""
    if nn.utils.parametrize.is_parametrized(stage):
        return "is parametrized: make its weights plain first, by nn.utils.parametrize.remove_parametrizations"
    if type(stage) is nn.Hardtanh:
        return f"must have a finite min_val, and a max_val that is more than {_NARROW:g} above it"
    if type(stage) is nn.Softplus:
        return f"must have beta > 0 and threshold >= 20, not {stage.beta} and {stage.threshold}"
    home = type(stage).__module__
    if type(stage) is Normalize:
        return "stands where it cannot be read: a Normalize is read at the head alone, before all other layers"
    if home.startswith("lben."):
        return "is no layer of torch: an equilibrium network is certified as it is, by lben.certify(net)"
    if home == "torch.nn.modules.activation":
        return (
            "is none of the activations with slopes in [0, 1] that are known here, which are ReLU, ReLU6, LeakyReLU, "
            "Tanh, Sigmoid, Softplus, ELU and Hardtanh"
        )
    if home.startswith("torch."):
        return f"is none of the layers that can be folded into weights, which are {', '.join(map(_title, LINEAR))}"
    return (
        "is a module of its own kind, whose code is not read: write it with nn.Sequential and the layers of torch, and "
        "x + f(x) as lben.Residual(f)"
    )


def is_sequence(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether it does what an `nn.Sequential` does, and not something of its own with what it holds."""
    own = (getattr(type(module), name, None) is getattr(nn.Sequential, name) for name in ("forward", "__iter__"))
    return isinstance(module, nn.Sequential) and all(own)


def name_of(stage: object) -> str:
    return _title(type(stage))


def _title(kind: type) -> str:
    return kind.__name__
