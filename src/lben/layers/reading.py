"""The modules that can stand in a stack, each as the record of what it does in evaluation, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol, runtime_checkable

from torch import nn

from lben import checks
from lben.errors import InvalidInput
from lben.layers.advice import advice
from lben.layers.parallel import Parallel
from lben.networks.base import BaseNetwork
from lben.networks.convolutional import ConvNetwork
from lben.networks.foreign import DROPOUTS, is_sequence, known_activation, name_of
from lben.networks.imported import Residual, refuse_in_place
from lben.normalize import Normalize
from lben.numerics.rounding import full_precision
from lben.weights.linear import AveragePool, Convolution, Linear, Scaling, Standardize
from lben.weights.stages import Equilibrium, Flatten, MaxPool, Pointwise, Shape, Stage, Sum


@runtime_checkable
class Layer(Protocol):
    """A layer of lben's, which knows its own record."""

    def stage(self, in_shape: Shape) -> Stage: ...


@full_precision()
def read(modules: Sequence[nn.Module] | nn.Sequential, shape: Shape, path: str = "") -> tuple[Stage, ...]:
    """The stages of modules, one after another, if each fits what the one before it gives.

    Those of an `nn.Sequential` are called as they are there, and others by their places.
    """
    stages: list[Stage] = []
    names = modules._modules if isinstance(modules, nn.Sequential) else range(len(modules))
    for name, module in zip(names, modules, strict=True):
        for stage in stages_of(module, shape, f"{path}{name}"):
            stages.append(stage)
            shape = stage.out_shape
    return tuple(stages)


class _Unknown(InvalidInput):
    """No bound is known of a module, whatever its input."""


def refuse_unknown(module: nn.Module) -> None:
    """Refuse a first stage that could stand in no stack, before its input is asked for."""
    try:
        stages_of(module, (1,), "0")
    except _Unknown:
        raise
    except InvalidInput:
        pass


def stages_of(module: nn.Module, shape: Shape, where: str) -> tuple[Stage, ...]:
    """The stages of the module that stands at `where`, if samples of this shape fit it."""
    stages = _stages(module, shape, where)
    for stage in stages:
        if min(stage.out_shape, default=1) < 1:
            raise InvalidInput(f"Stage {where}, {name_of(module)}, has no outputs for an input of {stage.in_shape}.")
    return stages


def _stages(module: nn.Module, shape: Shape, where: str) -> tuple[Stage, ...]:
    name = f"{where} {name_of(module)}"
    check = checks.untouched_within if isinstance(module, BaseNetwork | Layer) else checks.untouched
    check(f"Stage {name}", module)
    if isinstance(module, BaseNetwork):
        return _network(module, shape, name)
    if isinstance(module, Layer) and any(kind.__module__.startswith("lben.") for kind in type(module).__mro__):
        try:
            return (replace(module.stage(shape), name=name),)
        except InvalidInput as error:
            raise InvalidInput(f"Stage {name}: {error}") from error
    if is_sequence(module):
        return read(module, shape, f"{where}.")
    if type(module) is Residual:
        return (_sum({"": nn.Sequential(), where: module.body}, shape, name),)
    if type(module) is Parallel:
        branches = {f"{where}.{place}": branch for place, branch in enumerate(module.branches)}
        return (_sum(branches, shape, name),)
    if type(module) in (*DROPOUTS, nn.Identity):
        return ()
    if type(module) is Normalize:
        return (_standardize(module, shape, name),)
    if type(module) is nn.Flatten:
        return (_flatten(module, shape, name),)
    if type(module) is nn.Unflatten:
        return (_unflatten(module, shape, name),)
    linear = _linear(module, shape, name)
    if linear is not None:
        return (linear,)
    try:
        known = known_activation(module, where)
    except InvalidInput as error:
        raise _Unknown(f"Stage {name} has no known bound: {advice(module)}.") from error
    return (Pointwise(name, shape, known.sigma, known.inner, known.shift, known.outer, known.through, known.offset),)


def _network(net: BaseNetwork, shape: Shape, name: str) -> tuple[Stage, ...]:
    fits = (net.in_features,) if not isinstance(net, ConvNetwork) else net.in_shape
    if shape not in (fits, (net.in_features,)):
        raise InvalidInput(f"Stage {name} takes inputs of shape {fits}, but gets {shape}.")
    stages: list[Stage] = []
    if net.normalize is not None:
        stages.append(Standardize(f"{name}, its Normalize", shape, net.normalize.mean, net.normalize.std))
    return (*stages, Equilibrium(name, shape, net.weights(), net.activation))


def _sum(branches: dict[str, nn.Module], shape: Shape, name: str) -> Stage:
    """The sum of branches, by where each stands."""
    found = []
    for where, branch in branches.items():
        refuse_in_place(list(branch) if isinstance(branch, nn.Sequential) else [branch], f"{where}.")
        found.append(stages_of(branch, shape, where))
    ends = [stages[-1].out_shape if stages else shape for stages in found]
    for end in ends:
        if end != ends[0]:
            what = "an output" if found[0] else "its input"
            raise InvalidInput(f"Stage {name} adds an output of shape {end} to {what} of {ends[0]}.")
    return Sum(name, shape, tuple(found))


def _standardize(module: Normalize, shape: Shape, name: str) -> Stage:
    module.validate()
    features = prod(shape)
    mean, std = (part.expand(module.features) for part in (module.mean, module.std))
    if module.features > 1 and shape != (module.features,):
        if len(shape) != 3 or module.features != shape[0]:
            raise InvalidInput(f"Stage {name} has {module.features} values, but its input has shape {shape}.")
        if shape[-1] == shape[0]:
            raise InvalidInput(f"Stage {name} could mean the channels or the columns of {shape}: give it one value.")
        mean, std = (part.repeat_interleave(features // shape[0]) for part in (mean, std))
    return Standardize(name, shape, mean, std)


def _flatten(module: nn.Flatten, shape: Shape, name: str) -> Stage:
    if (module.start_dim, module.end_dim) not in ((1, -1), (1, len(shape)), (-len(shape), -1)):
        raise InvalidInput(f"Stage {name} must flatten all of a sample: leave start_dim and end_dim as they are.")
    return Flatten(name, shape)


def _unflatten(module: nn.Unflatten, shape: Shape, name: str) -> Stage:
    """One dimension of a sample becomes several, of which one may be left to be found."""
    dim, sizes = module.dim, tuple(module.unflattened_size)
    place = dim - 1 if isinstance(dim, int) and dim > 0 else dim
    if not isinstance(place, int) or not all(isinstance(size, int) for size in sizes):
        raise InvalidInput(f"Stage {name} must name its dimension and sizes by numbers, not {dim!r} and {sizes}.")
    if dim == 0 or not -len(shape) <= place < len(shape):
        raise InvalidInput(f"Stage {name} must divide a dimension of a sample of shape {shape}, not dimension {dim}.")
    size, known = shape[place], prod(part for part in sizes if part != -1)
    sizes = tuple(size // max(known, 1) if part == -1 else part for part in sizes)
    if prod(sizes) != size or min(sizes, default=0) < 1:
        raise InvalidInput(f"Stage {name} cannot divide {size} into {tuple(module.unflattened_size)}.")
    place %= len(shape)
    return Flatten(name, shape, (*shape[:place], *sizes, *shape[place + 1 :]))


def _adaptive(module: nn.AdaptiveAvgPool2d, shape: Shape, name: str) -> Stage:
    """The plain pool that it is for images of this size."""
    _image(shape, name)
    wanted: Any = module.output_size
    wanted = (wanted, wanted) if wanted is None or isinstance(wanted, int) else wanted
    out = tuple(size if side is None else int(side) for size, side in zip(shape[1:], wanted, strict=True))
    if any(side < 1 or size % side for size, side in zip(shape[1:], out, strict=True)):
        raise InvalidInput(f"Stage {name} pools squares of several sizes: {out} does not divide images of {shape[1:]}.")
    size = (shape[1] // out[0], shape[2] // out[1])
    return AveragePool(name, shape, size, size, (0, 0))


def _linear(module: nn.Module, shape: Shape, name: str) -> Stage | None:
    """A linear module, or one of pools, if its class is torch's own."""
    kind = type(module)
    if kind is nn.Linear and isinstance(module, nn.Linear):
        if shape[-1] != module.in_features:
            raise InvalidInput(f"Stage {name} takes {module.in_features} features, but gets inputs of shape {shape}.")
        return Linear(name, shape, module.weight, module.bias)
    if kind is nn.Conv2d and isinstance(module, nn.Conv2d):
        return _convolution(module, shape, name)
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        return _batch_norm(module, shape, name)
    if kind is nn.AvgPool2d and isinstance(module, nn.AvgPool2d):
        if module.ceil_mode or not module.count_include_pad or module.divisor_override is not None:
            raise InvalidInput(f"Stage {name} must be made without ceil_mode, with count_include_pad, and no divisor.")
        _image(shape, name)
        size, padding = _pair(module.kernel_size), _pair(module.padding)
        if 2 * padding[0] > size[0] or 2 * padding[1] > size[1]:
            raise InvalidInput(f"Stage {name} must pad by half of its kernel at most, not by {module.padding}.")
        return AveragePool(name, shape, size, _pair(module.stride), padding)
    if kind is nn.AdaptiveAvgPool2d and isinstance(module, nn.AdaptiveAvgPool2d):
        return _adaptive(module, shape, name)
    if kind is nn.MaxPool2d and isinstance(module, nn.MaxPool2d):
        _image(shape, name)
        size = _pair(module.kernel_size)
        if (size, (0, 0), (1, 1)) != (_pair(module.stride), _pair(module.padding), _pair(module.dilation)):
            return None
        if module.ceil_mode or module.return_indices:
            return None
        return MaxPool(name, shape, size)
    return None


def _convolution(module: nn.Conv2d, shape: Shape, name: str) -> Stage:
    _image(shape, name, module.in_channels)
    if module.padding_mode not in ("zeros", "circular"):
        raise InvalidInput(f'Stage {name} pads by "{module.padding_mode}", which lengthens distances: use "zeros".')
    (top, bottom), (left, right) = _around(module)
    if module.weight.dim() != 4 or module.weight.shape[1] * module.groups != shape[0]:
        raise InvalidInput(f"Stage {name} has a weight of shape {tuple(module.weight.shape)} that does not fit it.")
    stage = Convolution(
        name,
        shape,
        module.weight,
        module.bias,
        _pair(module.stride),
        (top, bottom, left, right),
        _pair(module.dilation),
        module.groups,
        "zeros" if module.padding_mode == "zeros" else "circular",
    )
    padded = (shape[1] + top + bottom, shape[2] + left + right)
    for size, kernel, spread in zip(padded, module.weight.shape[2:], _pair(module.dilation), strict=True):
        if size < spread * (kernel - 1) + 1:
            raise InvalidInput(
                f"Stage {name}: its kernel is larger than the image, {padded[0]} x {padded[1]} with padding."
            )
    if stage.mode == "circular":
        if max(top, bottom) > shape[1] or max(left, right) > shape[2]:
            raise InvalidInput(f"Stage {name} is circular, and pads by more than an image of {shape[1:]} has.")
        for size, step, out in zip(shape[1:], stage.stride, stage.out_shape[1:], strict=True):
            if size % step or out * step != size:
                raise InvalidInput(f"Stage {name} is circular, and must give as many pixels as its stride leaves.")
    return stage


def _around(module: nn.Conv2d) -> list[tuple[int, int]]:
    """What forward puts on both sides along each dimension: `padding` may have been set since the module was made."""
    if module.padding_mode == "circular":
        left, right, top, bottom = module._reversed_padding_repeated_twice
        return [(top, bottom), (left, right)]
    if module.padding == "same":
        taps = zip(module.weight.shape[2:], _pair(module.dilation), strict=True)
        return [(total // 2, total - total // 2) for total in (spread * (kernel - 1) for kernel, spread in taps)]
    return [(side, side) for side in ((0, 0) if isinstance(module.padding, str) else _pair(module.padding))]


def _batch_norm(module: Any, shape: Shape, name: str) -> Stage | None:
    if module.running_mean is None or module.running_var is None:
        return None
    if module.num_features != shape[0] or len(shape) != (3 if type(module) is nn.BatchNorm2d else 1):
        raise InvalidInput(
            f"Stage {name} is made for {module.num_features} channels, but gets inputs of shape {shape}."
        )
    scale = (module.running_var.double() + module.eps).rsqrt()
    scale = scale if module.weight is None else scale * module.weight.double()
    shift = -module.running_mean.double() * scale
    shift = shift if module.bias is None else shift + module.bias.double()
    return Scaling(name, shape, scale, shift)


def _image(shape: Shape, name: str, channels: int | None = None) -> None:
    if len(shape) != 3 or channels not in (None, shape[0]):
        wanted = "(channels, height, width)" if channels is None else f"({channels}, height, width)"
        raise InvalidInput(f"Stage {name} takes images of shape {wanted}, but gets inputs of shape {shape}.")


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
