"""Feed-forward and residual networks, trained elsewhere, as equilibrium networks.

Whatever is linear is carried along exactly: the input of every layer is an affine function of x and of the hidden units
so far. So only nonlinear units become units, and W is strictly block lower triangular.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.activations import scalar as units
from lben.activations.base import Activation, Scalar
from lben.activations.scalar import PerUnit
from lben.certify.wellposed import check_size
from lben.errors import InvalidInput
from lben.networks.comparison import check_same
from lben.networks.foreign import (
    DROPOUTS,
    LINEAR,
    NORMS,
    POOLS,
    SHAPES,
    Known,
    check_there,
    convolution_like,
    is_sequence,
    known_activation,
    name_of,
)
from lben.networks.layered import LayeredNetwork
from lben.normalize import Normalize
from lben.weights.dense import Weights

_MOST_ENTRIES = 2**29  # of a matrix in double precision


class Residual(nn.Module):
    """x + f(x), as `from_sequential` and `Sequential` read it.

    Args:
        *body: the modules of f, one after another, which keep the shape of x.

    Raises:
        InvalidInput: if there is none, or one is no module.

    Examples:
        >>> block = lben.Residual(torch.nn.Linear(4, 4), torch.nn.ReLU())
        >>> net = lben.from_sequential(torch.nn.Sequential(torch.nn.Linear(2, 4), block, torch.nn.Linear(4, 1)))
        >>> bool(lben.well_posed(net))
        True
    """

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        for part in body:
            if not isinstance(part, nn.Module):
                raise InvalidInput(
                    f"Residual takes modules, such as Residual(nn.Linear(4, 4), nn.ReLU()), not {part!r}."
                )
        if not body:
            raise InvalidInput("Residual takes at least one module, and got none.")
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """x + f(x).

        Args:
            x: what the body takes.

        Returns:
            A tensor of the shape of x.
        """
        y: Tensor = x + self.body(x)
        return y


def from_sequential(module: nn.Module, *, input_shape: int | Sequence[int] | None = None) -> LayeredNetwork:
    """The network that an `nn.Sequential` is in evaluation, as ``z = sigma(W z + U x + bz)``, ``y = Wo z + by``.

    All that is linear is folded into the weights in double precision and rounded once; where a linear path leads from x
    to y, it becomes linear units, which certificates eliminate. What comes out is compared with the module on inputs of
    its own, and refused if it differs by more than rounding. Its weights are copies: train the module, not the result.

    Args:
        module: of linear layers, convolutions, average pooling, `Flatten`, batch norms in eval mode, dropout,
            `Residual` blocks, further `nn.Sequential`, a `Normalize` at its head, and the activations ReLU, ReLU6,
            LeakyReLU, Tanh, Sigmoid, Softplus, ELU and Hardtanh.
        input_shape: the shape of one input, such as (1, 28, 28); not needed where the first layer is an `nn.Linear`.

    Returns:
        A `LayeredNetwork`; its x and y are flat, of shape (..., d) and (..., p).

    Raises:
        InvalidInput: naming the layer that cannot be read.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> net = lben.from_sequential(module)
        >>> x = torch.randn(5, 2)
        >>> torch.allclose(net(x), module(x), atol=1e-6)
        True
        >>> layers = module[0].weight.detach(), module[2].weight.detach()
        >>> product = float(torch.linalg.matrix_norm(layers[0], 2) * torch.linalg.matrix_norm(layers[1], 2))
        >>> lben.tightest_bound(net).gamma < product
        True
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"from_sequential takes an nn.Sequential, not {type(module).__name__}.")
    like = check_there(module)
    _refuse_hooks(module, "0")
    stages = _parts(module) if is_sequence(module) else [module]
    normalize = None
    if stages and type(stages[0]) is Normalize:
        _refuse_hooks(stages[0], "0")
        normalize, stages = copy.deepcopy(stages[0]), stages[1:]
    shape = _input_shape(stages, input_shape)
    with torch.no_grad():
        walk = _Walk(math.prod(shape))
        end = walk.sequence(stages, walk.input(shape), "")
        weights, activation = walk.finish(end)
    check_same(module, weights.validate(), activation, normalize, shape, like.dtype)
    return LayeredNetwork(weights.to(like.dtype).to(like.device), activation, normalize)


def _input_shape(stages: list[nn.Module], given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is not None:
        if not isinstance(given, int | Sequence):
            raise InvalidInput(f"input_shape must be a number or several, such as (1, 28, 28), not {given!r}.")
        sizes = [given] if isinstance(given, int) else list(given)
        if not sizes:
            raise InvalidInput("input_shape must hold at least one size, and is empty.")
        return tuple(checks.count("input_shape", size) for size in sizes)
    if not stages:
        raise InvalidInput("The module holds no layers.")
    first = stages[0]
    while isinstance(first, nn.Sequential | Residual) and len(list(first.children())):
        first = next(first.children())
    if not isinstance(first, nn.Linear):
        if type(first) not in LINEAR:
            known_activation(first, "0")  # refuses what is no activation either
        raise InvalidInput(f"The first layer is {name_of(first)}, which fits many inputs: say input_shape=(..).")
    return (first.in_features,)


@dataclass(frozen=True, eq=False)
class _Affine:
    """What flows between layers: the rows of (1, x, z so far), of shape (1 + d + n, *shape) in double precision."""

    columns: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.columns.shape[1:])

    def grown(self, size: int) -> Tensor:
        """The columns with zeros for units that came since."""
        missing = size - len(self.columns)
        return torch.cat([self.columns, self.columns.new_zeros(missing, *self.shape)])

    def plus(self, bias: Tensor | float) -> _Affine:
        columns = self.columns.clone()
        columns[0] += bias
        return _Affine(columns)


@dataclass(eq=False)
class _Walk:
    """The hidden units found so far: their pre-activations as columns, and their activations."""

    inputs: int
    rows: list[Tensor] = field(default_factory=list)
    sigmas: list[Scalar] = field(default_factory=list)

    @property
    def size(self) -> int:
        return 1 + self.inputs + len(self.sigmas)

    def input(self, shape: tuple[int, ...]) -> _Affine:
        self.make_room(self.inputs)
        columns = torch.zeros(1 + self.inputs, self.inputs, dtype=torch.float64)
        columns[1:] = torch.eye(self.inputs, dtype=torch.float64)
        return _Affine(columns.reshape(-1, *shape))

    def make_room(self, features: int) -> None:
        """Refuse what would not fit into memory."""
        if self.size * features > _MOST_ENTRIES:
            raise InvalidInput(
                f"The network has {self.size - 1} inputs and units at a layer of {features}: as a matrix that takes "
                f"{8e-9 * self.size * features:.3g} GB, and {8e-9 * _MOST_ENTRIES:.2g} GB is the most."
            )

    def sequence(self, stages: Sequence[nn.Module], state: _Affine, path: str) -> _Affine:
        for place, stage in enumerate(stages):
            where = f"{path}{place}"
            try:
                state = self.stage(stage, state, where)
            except (RuntimeError, IndexError, ValueError) as error:
                if isinstance(error, InvalidInput):
                    raise
                raise InvalidInput(
                    f"Layer {where}, {name_of(stage)}, does not fit an input of shape {state.shape}."
                ) from error
            if 0 in state.shape:
                raise InvalidInput(f"Layer {where}, {name_of(stage)}, has no outputs.")
        return state

    def stage(self, stage: nn.Module, state: _Affine, where: str) -> _Affine:
        """The output of one module as an affine function, by which units may be added."""
        _refuse_hooks(stage, where)
        if is_sequence(stage):
            return self.sequence(_parts(stage), state, f"{where}.")
        if type(stage) is Residual:
            _refuse_hooks(stage.body, where)
            refuse_in_place(list(stage.body), f"{where}.")
            end = self.sequence(list(stage.body), state, f"{where}.")
            if end.shape != state.shape:
                raise InvalidInput(
                    f"Layer {where}, a Residual, adds an output of shape {end.shape} to its input of {state.shape}."
                )
            return _Affine(end.grown(self.size) + state.grown(self.size))
        if type(stage) in DROPOUTS or type(stage) is nn.Identity:
            return state
        folded = _fold(stage, state, where)
        return self.activate(known_activation(stage, where), state) if folded is None else folded

    def activate(self, known: Known, state: _Affine) -> _Affine:
        flat = state.columns.reshape(len(state.columns), -1)
        before = _Affine(known.inner * flat).plus(known.shift)
        first, count = self.size, flat.shape[1]
        check_size(len(self.sigmas) + count)
        self.make_room(count)
        self.rows.append(before.columns)
        self.sigmas += [known.sigma] * count
        columns = torch.zeros(self.size, count, dtype=torch.float64)
        columns[:first] = known.through * _Affine(flat).grown(first)
        columns[first:] += known.outer * torch.eye(count, dtype=torch.float64)
        return _Affine(columns.reshape(-1, *state.shape)).plus(known.offset)

    def finish(self, end: _Affine) -> tuple[Weights, Activation]:
        """The weights, with as few linear units as carry what leads from x to y."""
        out = end.grown(self.size).reshape(self.size, -1)
        by, through, Wo = out[0], out[1 : 1 + self.inputs].T, out[1 + self.inputs :].T
        sigmas = list(self.sigmas)
        rows = torch.cat([F.pad(row, (0, 0, 0, self.size - len(row))) for row in self.rows], 1).T if sigmas else None
        rows = torch.zeros(0, self.size, dtype=torch.float64) if rows is None else rows
        if not sigmas or bool((through != 0).any()):
            direct = len(by) <= self.inputs
            eye = torch.eye(min(len(by), self.inputs), dtype=torch.float64)
            linear = torch.zeros(len(eye), self.size, dtype=torch.float64)
            linear[:, 1 : 1 + self.inputs] = through if direct else eye
            rows, Wo = torch.cat([rows, linear]), torch.cat([Wo, eye if direct else through], dim=1)
            rows = F.pad(rows, (0, len(eye)))
            sigmas += [units.Identity()] * len(eye)
        bz, U, W = rows[:, 0], rows[:, 1 : 1 + self.inputs], rows[:, 1 + self.inputs :]
        activation = sigmas[0] if len(set(sigmas)) == 1 else PerUnit(sigmas)
        W, U, bz, Wo, by = (part.contiguous() for part in (W, U, bz, Wo, by))
        return Weights(W, U, bz, Wo, by), activation


def _fold(stage: nn.Module, state: _Affine, where: str) -> _Affine | None:
    """The output of a linear module; None if it is none of those."""
    columns, kind = state.columns, type(stage)
    if kind in POOLS or kind in SHAPES:
        first = getattr(stage, "start_dim", getattr(stage, "dim", 1))
        if first == 0 or first == -columns.dim():
            raise InvalidInput(
                f"Layer {where}, {name_of(stage)}, mixes the samples of a batch: leave dimension 0 alone."
            )
        return _Affine(stage(columns))
    if kind is nn.Linear and isinstance(stage, nn.Linear):
        moved = _Affine(F.linear(columns, _double(stage.weight)))
        return moved if stage.bias is None else moved.plus(_double(stage.bias))
    if kind is nn.Conv2d and isinstance(stage, nn.Conv2d):
        moved = _Affine(_convolve(stage, columns))
        return moved if stage.bias is None else moved.plus(_double(stage.bias)[:, None, None])
    if kind in NORMS:
        return _normalise(stage, state, where)
    return None


def _convolve(conv: nn.Conv2d, columns: Tensor) -> Tensor:
    """The convolution without its bias, padded as the module pads; every column is an image of its own."""
    linear = convolution_like(conv, bias=False, dtype=torch.float64)
    linear.weight.copy_(conv.weight)
    result: Tensor = linear(columns)
    return result


def _normalise(norm: nn.Module, state: _Affine, where: str) -> _Affine:
    """(v - mean)/sqrt(var + eps) times weight plus bias, channel by channel."""
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    if norm.training or norm.running_mean is None or norm.running_var is None:
        why = "is in training mode: call .eval() first" if norm.training else "keeps no running statistics"
        raise InvalidInput(f"Layer {where}, {name_of(norm)}, {why}; only fixed statistics make it linear.")
    dims = len(state.shape)
    if dims not in ((3,) if isinstance(norm, nn.BatchNorm2d) else (1, 2)) or state.shape[0] != norm.num_features:
        raise ValueError
    scale = (_double(norm.running_var) + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * _double(norm.weight)
    shift = -_double(norm.running_mean) * scale
    shift = shift if norm.bias is None else shift + _double(norm.bias)
    channels = (-1,) + (1,) * (dims - 1)
    return _Affine(state.columns * scale.reshape(channels)).plus(shift.reshape(channels))


def refuse_in_place(body: Sequence[nn.Module], path: str) -> bool:
    """Refuse a body that changes its own input, which the block then adds; whether all of it passes its input on."""
    for place, stage in enumerate(body):
        if isinstance(stage, nn.Sequential):
            passes = refuse_in_place(_parts(stage), f"{path}{place}.")
        else:
            passes = type(stage) in (nn.Identity, *DROPOUTS, *SHAPES)
            if not passes and getattr(stage, "inplace", False):
                raise InvalidInput(
                    f"Layer {path}{place}, {name_of(stage)}, works in place on the input of its Residual, which adds "
                    "what became of it: make it with inplace=False."
                )
        if not passes:
            return False
    return True


def _parts(sequence: nn.Module) -> list[nn.Module]:
    """What it holds, in turn; `children()` would leave out a module that stands there again, such as a shared ReLU."""
    return [part for part in sequence._modules.values() if part is not None]


def _refuse_hooks(stage: nn.Module, where: str) -> None:
    checks.untouched(f"Layer {where}, {name_of(stage)},", stage)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)
