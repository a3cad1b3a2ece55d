"""An imported network beside the module that it was read from, on inputs of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben.activations.base import Activation
from lben.errors import InvalidInput
from lben.normalize import Normalize
from lben.operators.dense import DenseOperator
from lben.weights.dense import Weights

_SCALES = (0.01, 1.0, 100.0)
_INPUTS = 24  # of each scale
_SHARE, _RELATIVE = 1e-2, 1e-8  # of the rounding of single precision, and of the outputs: both far above that of double
_LOST, _LOST_RELATIVE = 100.0, 1e-5  # the same, for what is returned in single precision


def check_same(
    module: nn.Module,
    weights: Weights,
    activation: Activation,
    normalize: Normalize | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    """Refuse weights, in double precision, that do not compute what copies of the module in evaluation compute."""

    def swept(x: Tensor, precision: torch.dtype) -> Tensor:
        return _swept(weights, activation, normalize, x.flatten(1), precision)

    compare(module, swept, shape, dtype)


def compare(
    module: nn.Module, computed: Callable[[Tensor, torch.dtype], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Refuse what is `computed` for inputs in a precision, if it is not what the module computes.

    They may differ by rounding alone. How much that is, the module shows itself, in single and in double precision.
    The same holds for what is computed in `dtype`.
    """
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(_INPUTS, *shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for scale in _SCALES:
            x = scale * draws
            expected, rough = (called(module, x, precision) for precision in (torch.float64, torch.float32))
            found = computed(x, torch.float64)
            if expected.shape != found.shape:
                raise InvalidInput(f"The module's output has shape {tuple(expected.shape)}, not {tuple(found.shape)}.")
            rounding = float((rough - expected).abs().max())
            allowed = _SHARE * rounding if math.isfinite(rounding) else 0.0
            difference = float((found - expected).abs().max())
            if not difference <= allowed + _RELATIVE * float(expected.abs().max()):
                raise InvalidInput(
                    f"The module does not compute what its layers say: for inputs of size {scale:g} its outputs are "
                    f"{difference:.3g} off. Something in it works in place on what is used again, or a hook or a "
                    "forward was put in from outside."
                )
            lost = float((computed(x, dtype) - expected).abs().max())
            if not lost <= _LOST * rounding + _LOST_RELATIVE * float(expected.abs().max()):
                raise InvalidInput(
                    f"In {str(dtype)[6:]} the outputs would be {lost:.3g} off those of the module, for inputs of size "
                    f"{scale:g}: its limits or weights differ too much in size. Read module.double() instead."
                )


def called(module: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The outputs of a copy, so that nothing that a call may do is done to the module or to x."""
    try:
        output = copy.deepcopy(module).to("cpu", dtype).eval()(x.to(dtype, copy=True))
    except Exception as error:  # whatever a module may raise
        raise InvalidInput(f"A copy of the module cannot be called: {type(error).__name__}: {error}") from error
    if not isinstance(output, Tensor) or len(output) != len(x):
        raise InvalidInput("The module does not return one output for every input.")
    return output.double().flatten(1)


def _swept(
    weights: Weights, activation: Activation, normalize: Normalize | None, x: Tensor, dtype: torch.dtype
) -> Tensor:
    """y, after as many rounds as W has layers: what a layer reads is then what the layers before it have come to."""
    w, x = weights.to(dtype), x.to(dtype)
    x = x if normalize is None else copy.deepcopy(normalize).to("cpu", dtype)(x)
    b = F.linear(x, w.U, w.bz)
    z = torch.zeros_like(b)
    for _ in DenseOperator(w.W).layers or ():
        z = activation(b + F.linear(z, w.W))
    return F.linear(z, w.Wo, w.by).double()
