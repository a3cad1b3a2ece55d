"""Stacks from their descriptions, stage by stage: nothing but what can stand in a stack is made.

A stage is described by the name of its class and its options, by the names of its constructor's arguments; torch's own
classes are called nn.Linear and so on. Blocks hold further stages. Tensors are named by the places of their stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.description import build_activation
from lben.described import Described, agree, arguments, made, named, plain, stored_tensors, take
from lben.errors import InvalidFile, InvalidInput
from lben.layers.base import Layer
from lben.layers.equilibrium import ImageLBEN
from lben.layers.names import describe_names, take_names, under_names
from lben.layers.parallel import Parallel
from lben.layers.reading import read
from lben.layers.sandwich import ConvSandwich, Sandwich
from lben.layers.shapes import MaxMin, PadChannels, SpaceToDepth
from lben.layers.sll import SLL, ConvSLL
from lben.layers.stack import Sequential
from lben.networks.description import MOST_UNITS, Kinds, build_network, build_normalize, check_own
from lben.networks.foreign import is_sequence
from lben.networks.imported import Residual
from lben.normalize import Normalize
from lben.solvers.description import build_solver
from lben.weights.stages import Shape, Stage, Sum

Checks = dict[str, Callable[[str, Any], Any]]
"""The options of a class, each with what makes of a plain value the one that the constructor takes."""

_MOST_FEATURES = 2**24  # of one sample, before or behind any stage
_LEAST = {"running_var": 0.0, "num_batches_tracked": 0.0, "epsilon": 1e-37}
LAYERS: dict[str, type[Layer]] = {
    kind.__name__: kind for kind in (SLL, ConvSLL, Sandwich, ConvSandwich, ImageLBEN, SpaceToDepth, PadChannels, MaxMin)
}
"""Layers of lben's, which are made by `kind(*sizes, **options)`: all that a new one needs is to stand here."""


def _number(name: str, value: Any) -> float:
    if not isfinite(checks.number(name, value)):
        raise InvalidFile(f"{name} must be finite, not {value!r}.")
    return float(value)


def _momentum(name: str, value: Any) -> float | None:
    return None if value is None else _number(name, value)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidFile(f"{name} must be an integer, not {value!r}.")
    return value


def _whole(name: str, value: Any) -> int:
    if _integer(name, value) < 0:
        raise InvalidFile(f"{name} must be at least 0, not {value!r}.")
    return int(value)


def _sides(name: str, value: Any) -> Any:
    """One size, or two of them."""
    return _two(name, value, checks.count) if isinstance(value, list) else checks.count(name, value)


def _padding(name: str, value: Any) -> Any:
    """What is put around an image: a number, two of them, or a word."""
    if isinstance(value, str):
        return checks.choice(name, value, ("valid", "same"))
    return _two(name, value, _whole) if isinstance(value, list) else _whole(name, value)


def _pool_sizes(name: str, value: Any) -> Any:
    """The size that an adaptive pool leaves, or two of them; None: the one that there is."""
    return _two(name, value, _pool_side) if isinstance(value, list) else checks.count(name, value)


def _pool_side(name: str, value: Any) -> int | None:
    return None if value is None else checks.count(name, value)


def _unflattened(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidFile(f"{name} must be a list of sizes, not {value!r}.")
    return tuple(_integer(name, size) for size in value)


def _mode(name: str, value: Any) -> str:
    return checks.choice(name, value, ("zeros", "circular"))


def _two(name: str, value: list[Any], check: Callable[[str, Any], Any]) -> tuple[Any, ...]:
    if len(value) != 2:
        raise InvalidFile(f"{name} must be two numbers, not {value!r}.")
    return tuple(check(name, entry) for entry in value)


_NORM: Checks = {"num_features": checks.count, "eps": checks.positive, "momentum": _momentum, "affine": checks.flag}
_DROPOUT: Checks = {"p": _number, "inplace": checks.flag}
_CONVOLUTION: Checks = {
    **{"in_channels": checks.count, "out_channels": checks.count, "kernel_size": _sides, "stride": _sides},
    **{"padding": _padding, "dilation": _sides, "groups": checks.count, "bias": checks.flag, "padding_mode": _mode},
}
_TORCH: dict[type[nn.Module], Checks] = {
    nn.Linear: {"in_features": checks.count, "out_features": checks.count, "bias": checks.flag},
    nn.Conv2d: _CONVOLUTION,
    nn.BatchNorm1d: _NORM,
    nn.BatchNorm2d: _NORM,
    nn.AvgPool2d: {"kernel_size": _sides, "stride": _sides, "padding": _padding},
    nn.AdaptiveAvgPool2d: {"output_size": _pool_sizes},
    nn.MaxPool2d: {"kernel_size": _sides},
    nn.Flatten: {"start_dim": _integer, "end_dim": _integer},
    nn.Unflatten: {"dim": _integer, "unflattened_size": _unflattened},
    nn.Dropout: _DROPOUT,
    nn.Dropout1d: _DROPOUT,
    nn.Dropout2d: _DROPOUT,
    nn.Identity: {},
    nn.ReLU: {"inplace": checks.flag},
    nn.ReLU6: {"inplace": checks.flag},
    nn.LeakyReLU: {"negative_slope": _number, "inplace": checks.flag},
    nn.ELU: {"alpha": _number, "inplace": checks.flag},
    nn.Hardtanh: {"min_val": checks.number, "max_val": checks.number, "inplace": checks.flag},
    nn.Softplus: {"beta": _number, "threshold": _number},
    nn.Tanh: {},
    nn.Sigmoid: {},
}
_TORCH_NAMES = {f"nn.{kind.__name__}": kind for kind in _TORCH}


# --- what a stack is


def describe_stack(net: Sequential, kinds: Kinds) -> dict[str, Any]:
    """All that decides a stack beside its tensors, in plain values; `kinds` are the networks that may be stages."""
    return {"in_shape": list(net.in_shape), **_describe_stages(net, kinds)}


def _describe_stages(net: nn.Sequential, kinds: Kinds) -> dict[str, Any]:
    return {"stages": [_describe(stage, kinds) for stage in net], **describe_names(net)}


def stack_tensors(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a stack, named by the places of their stages, whatever the names of those are."""
    inside = dict(_inside(net))
    if not inside and not isinstance(net, nn.Sequential):
        return stored_tensors(net)
    return {f"{path}.{name}": tensor for path, part in inside.items() for name, tensor in stack_tensors(part).items()}


def _inside(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The stages that a block holds, and where."""
    if isinstance(module, nn.Sequential):
        yield from ((str(place), stage) for place, stage in enumerate(module))
    elif type(module) is Residual:
        yield "body", module.body
    elif type(module) is Parallel:
        yield from ((f"branches.{place}", branch) for place, branch in enumerate(module.branches))


def _describe(module: nn.Module, kinds: Kinds) -> dict[str, Any]:
    kind = type(module)
    if kind is Sequential and isinstance(module, Sequential):
        return {"name": "Sequential", **describe_stack(module, kinds)}
    if is_sequence(module):
        return {"name": "nn.Sequential", **_describe_stages(module, kinds)}
    if isinstance(module, Residual):
        return {"name": "Residual", "body": _describe(module.body, kinds)["stages"]}
    if isinstance(module, Parallel):
        return {"name": "Parallel", "branches": [_describe(branch, kinds)["stages"] for branch in module.branches]}
    if kind is Normalize and isinstance(module, Normalize):
        return {"name": "Normalize", "sizes": module.describe()}
    if kind in _TORCH:
        return {"name": f"nn.{kind.__name__}", **_torch_options(module)}
    if isinstance(module, Described) and kind in (*LAYERS.values(), *kinds.values()):
        check_own(getattr(module, "activation", None), getattr(module, "solver", None))
        return {"name": kind.__name__, **module.describe()}
    raise InvalidInput(f"lben.save writes stages of lben's and of torch's that it knows, not {kind.__name__}.")


def _torch_options(module: nn.Module) -> dict[str, Any]:
    options = {name: getattr(module, name) for name in _TORCH[type(module)]}
    if "bias" in options:
        options["bias"] = options["bias"] is not None
    return {name: plain(value) for name, value in options.items()}


# --- and back


def build_stack(described: object, tensors: dict[str, Tensor], dtype: torch.dtype, kinds: Kinds) -> Sequential:
    """The stack, every stage of which is made only once what is said of it agrees with its tensors."""
    for path, tensor in tensors.items():
        wanted = torch.int64 if path.endswith(".num_batches_tracked") else dtype
        if tensor.dtype != wanted:
            raise InvalidFile(f"{path} is {str(tensor.dtype)[6:]}, but must be {str(wanted)[6:]}.")
    return _Builder(dtype, kinds).stack(described, tensors, 0)


@dataclass(frozen=True)
class _Builder:
    """Makes stages of one precision; `kinds` are the networks among them."""

    dtype: torch.dtype
    kinds: Kinds

    def stack(self, described: object, tensors: dict[str, Tensor], depth: int) -> Sequential:
        names, rest = take_names(described)
        in_shape, stages = take("Sequential", rest, "in_shape", "stages")
        if not isinstance(in_shape, list):
            raise InvalidFile(f"in_shape must be a list of sizes, not {in_shape!r}.")
        _check_small(tuple(checks.count("in_shape", size) for size in in_shape))
        net = Sequential(*under_names(names, self.chain(stages, tensors, depth), Sequential), in_shape=in_shape)
        _check_stages(read(net, net.in_shape))
        return net

    def chain(self, described: object, tensors: dict[str, Tensor], depth: int) -> list[nn.Module]:
        """Stages one after another; what is wrong with one is said with its place."""
        if not isinstance(described, list):
            raise InvalidFile(f"stages must be a list, not {described!r}.")
        stages = []
        for place, (stage, own) in enumerate(zip(described, _split(tensors, len(described)), strict=True)):
            try:
                stages.append(self.stage(stage, own, depth + 1))
            except (InvalidFile, InvalidInput) as error:
                raise InvalidFile(f"stage {place}: {error}") from error
        return stages

    def stage(self, described: object, tensors: dict[str, Tensor], depth: int) -> nn.Module:
        name, options = named("stage", described, depth)
        if name == "Sequential":
            return self.stack(options, tensors, depth)
        if name == "nn.Sequential":
            names, rest = take_names(options)
            stages = self.chain(take(name, rest, "stages")[0], tensors, depth)
            return nn.Sequential(*under_names(names, stages, nn.Sequential))
        if name == "Residual":
            return Residual(*self.chain(take(name, options, "body")[0], _under("body.", tensors), depth))
        if name == "Parallel":
            (branches,) = take(name, options, "branches")
            if not isinstance(branches, list):
                raise InvalidFile(f"branches must be a list, not {branches!r}.")
            parts = zip(branches, _split(_under("branches.", tensors), len(branches)), strict=True)
            return Parallel(*(nn.Sequential(*self.chain(branch, own, depth)) for branch, own in parts))
        if name in self.kinds:
            return build_network(self.kinds[name], options, tensors, self.dtype)
        return self._filled(self._leaf(name, options, tensors), tensors)

    def _leaf(self, name: str, options: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        """A stage of any numbers, which says of itself what the file says."""
        if name == "Normalize":
            return build_normalize(take(name, options, "sizes")[0], tensors)
        if name in _TORCH_NAMES:
            kind = _TORCH_NAMES[name]
            values = take(name, options, *_TORCH[kind])
            checked = {key: check(key, value) for (key, check), value in zip(_TORCH[kind].items(), values, strict=True)}
            module = made(lambda: kind(**checked), tensors)
            agree(name, options, _torch_options(module))
            return module
        if name not in LAYERS:
            raise InvalidFile(f"there is no stage {name!r}.")
        layer = _layer(LAYERS[name], options, tensors)
        agree(name, options, layer.describe())
        return layer

    def _filled(self, module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
        """The stage with its numbers, if they are all of its own and have a meaning."""
        module.to(self.dtype)
        for name in tensors.keys() - stored_tensors(module).keys():
            raise InvalidFile(f"it has no tensor {name!r}.")
        with torch.no_grad():
            for name, own in stored_tensors(module).items():
                given = tensors[name]
                if (own.dtype, own.shape) != (given.dtype, given.shape):
                    found, wanted = (f"{str(t.dtype)[6:]} of shape {tuple(t.shape)}" for t in (given, own))
                    raise InvalidFile(f"{name} is {found}, but must be {wanted}.")
                own.copy_(checks.finite(name, given))
                least = _LEAST.get(name.rpartition(".")[2])
                if least is not None and not bool((own >= least).all()):
                    raise InvalidFile(f"{name} must be at least {least:g}, but has {float(own.min()):.6g}.")
        if isinstance(module, Normalize):
            module.validate()
        return module


def _layer(kind: type[Layer], described: dict[str, Any], tensors: dict[str, Tensor]) -> Layer:
    options = dict(described)
    sizes = options.pop("sizes", None)
    if not isinstance(sizes, list):
        raise InvalidFile(f"sizes must be a list, not {sizes!r}.")
    if "activation" in options:
        options["activation"] = build_activation(options["activation"])
        if options["activation"].block_size > 1 and any(isinstance(size, int) and size > MOST_UNITS for size in sizes):
            raise InvalidFile(f"sizes of {sizes} are more than an activation of blocks can number.")
    if "solver" in options:
        options["solver"] = build_solver(options["solver"])
    wanted = arguments(kind, options)
    return made(lambda: kind(*(tuple(size) if isinstance(size, list) else size for size in sizes), **wanted), tensors)


def _split(tensors: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """The tensors of each of so many parts, which begin with its number."""
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for path, tensor in tensors.items():
        place, _, rest = path.partition(".")
        if not place.isdecimal() or place != str(int(place)) or int(place) >= count:
            raise InvalidFile(f"none of its stages has a tensor {path}.")
        parts[int(place)][rest] = tensor
    return parts


def _under(start: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for path in tensors:
        if not path.startswith(start):
            raise InvalidFile(f"none of its stages has a tensor {path}.")
    return {path[len(start) :]: tensor for path, tensor in tensors.items()}


def _check_stages(stages: Sequence[Stage]) -> None:
    for stage in stages:
        _check_small(stage.out_shape)
        for branch in stage.branches if isinstance(stage, Sum) else ():
            _check_stages(branch)


def _check_small(shape: Shape) -> None:
    if prod(shape) > _MOST_FEATURES:
        raise InvalidFile(f"a sample of shape {shape} has more than the {_MOST_FEATURES} features that are read.")
