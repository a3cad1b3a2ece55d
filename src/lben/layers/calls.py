"""What traced code calls, as stages: modules, functions and methods that are known, and why others are not."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from lben.errors import InvalidInput
from lben.layers.stack import Sequential
from lben.networks.foreign import DROPOUTS
from lben.weights.stages import Shape


@dataclass(frozen=True)
class Call:
    """The nodes whose tensors a call takes, of which there are several for a sum, and else the stage that it is.

    `stage` makes it for samples of a shape; None where it passes its input on.
    """

    inputs: tuple[fx.Node, ...]
    stage: Callable[[Shape], nn.Module | None]


_FLATTEN = {"start_dim": 0, "end_dim": -1}
_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_KNOWN: dict[Any, tuple[type[nn.Module], Sequence[str]]] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, "relu", "relu_"), (nn.ReLU, ())),
    **dict.fromkeys((torch.tanh, torch.tanh_, F.tanh, "tanh", "tanh_"), (nn.Tanh, ())),
    **dict.fromkeys((torch.sigmoid, torch.sigmoid_, F.sigmoid, "sigmoid", "sigmoid_"), (nn.Sigmoid, ())),
    F.relu6: (nn.ReLU6, ()),
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)),
    F.elu: (nn.ELU, ("alpha",)),
    F.hardtanh: (nn.Hardtanh, ("min_val", "max_val")),
    F.softplus: (nn.Softplus, ("beta", "threshold")),
    F.max_pool2d: (nn.MaxPool2d, _MAX_POOL),
    torch.max_pool2d: (nn.MaxPool2d, _MAX_POOL[:-1]),
    F.avg_pool2d: (
        nn.AvgPool2d,
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    **dict.fromkeys((torch.flatten, "flatten"), (nn.Flatten, tuple(_FLATTEN))),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
}
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_DROPS = (F.dropout, F.dropout1d, F.dropout2d)
_SAME = ("contiguous", "clone")
_VIEWS = ("view", "reshape", torch.reshape)
_MEANS = ("mean", torch.mean)
_IN_PLACE = (operator.iadd, torch.relu_, torch.tanh_, torch.sigmoid_, "relu_", "tanh_", "sigmoid_", "add_")
_ADVICE: dict[str, str] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), "joins tensors: use layers of all channels, and sums"),
    **dict.fromkeys(
        ("mul", "imul", "matmul", "bmm", "einsum", "truediv", "div", "pow"),
        "multiplies or divides tensors, and of a product of two no bound is known: put factors into the weights of a "
        "layer, and a mean and a std into lben.Normalize",
    ),
    **dict.fromkeys(
        ("sub", "isub", "neg"), "subtracts: use a sum, with the sign in the weights of the last layer of a branch"
    ),
    **dict.fromkeys(
        ("linear", "conv2d", "batch_norm"), "has weights of its own: use the module, nn.Linear and its like"
    ),
    **dict.fromkeys(
        ("gelu", "silu", "mish", "hardswish", "selu", "celu", "hardsigmoid", "softsign", "logsigmoid", "prelu"),
        "is none of the functions that are known: use one with slopes in [0, 1], such as torch.relu or F.elu",
    ),
    **dict.fromkeys(
        ("layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize"),
        "divides by what it finds in a sample: use nn.BatchNorm1d or nn.BatchNorm2d, which are linear in evaluation",
    ),
    **dict.fromkeys(
        ("softmax", "log_softmax"), "is not needed for classes: let forward return the logits in front of it"
    ),
    "pixel_unshuffle": "is no function that is known: use the module lben.SpaceToDepth, which is the same",
}


def call_of(node: fx.Node, module: nn.Module) -> Call:
    """The call that a node is; refused by its name if it is none that is known."""
    if node.op == "call_module":
        return _submodule(node, _part(node, module))
    if node.op not in ("call_function", "call_method"):
        raise InvalidInput(f"{place_of(node)}, a tensor that is no input, is used in forward: make it part of a layer.")
    if node.target in _SUMS:
        return _sum(node)
    if node.target in _VIEWS:
        return _view(node)
    if node.target in _SAME and not node.kwargs:
        return Call((_first(node),), lambda _: None)
    if node.target in _DROPS:
        _, training = _options(node, ("p", "training"), {"p": 0.5, "training": False}).values()
        if training:
            raise InvalidInput(f"{place_of(node)} drops at random in evaluation, too: write training=self.training.")
        return Call((_first(node),), lambda _: None)
    if node.target in _MEANS:
        return _mean(node)
    if node.target in _KNOWN:
        kind, names = _KNOWN[node.target]
        options = _options(node, names, _FLATTEN if kind is nn.Flatten else {})
        return Call((_first(node),), lambda _: _made(node, kind, options))
    listed = f"is none of the functions that are known; known are sums, {', '.join(_titles())}"
    raise InvalidInput(f"{place_of(node)} {_ADVICE.get(_name(node).strip('_'), listed)}.")


def place_of(node: fx.Node) -> str:
    """What people call a node: where its module is, or which function it is and in which module."""
    stack = list(node.meta.get("nn_module_stack") or {})
    if node.op == "call_module":
        return _inner(str(node.target)) or "itself"
    inside = _inner(stack[-1]) if stack else ""
    return f"{_name(node)} (node {node.name}{f' in {inside}' if inside else ''})"


def passes_input(node: fx.Node, module: nn.Module) -> bool:
    """Whether the output may be the input itself, or a view of it."""
    if node.op == "call_module":
        return isinstance(_part(node, module), (nn.Identity, nn.Flatten, nn.Unflatten, Sequential, *DROPOUTS))
    return node.target in (*_VIEWS, *_DROPS, *_SAME, torch.flatten, "flatten")


def works_in_place(node: fx.Node, module: nn.Module) -> bool:
    """Whether its input is changed."""
    if node.op == "call_module":
        return bool(getattr(_part(node, module), "inplace", False))
    return node.target in _IN_PLACE or bool(node.kwargs.get("inplace", False))


def reads_size(node: fx.Node) -> bool:
    """Whether it asks a tensor for its sizes."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    return node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")


def _part(node: fx.Node, module: nn.Module) -> nn.Module:
    return module.get_submodule(_inner(str(node.target)))


def _inner(path: str) -> str:
    """A path without that of the module itself, which the tracer calls by one more name."""
    return path.partition(".")[2]


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _titles() -> list[str]:
    return sorted({kind.__name__ for kind, _ in _KNOWN.values()})


def _first(node: fx.Node) -> fx.Node:
    """The one tensor that it takes."""
    given = [*node.args, *node.kwargs.values()]
    value = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(value, fx.Node) or (node.target not in _VIEWS and _nodes(given) != 1):
        raise InvalidInput(f"{place_of(node)} must take one tensor, and numbers that are known beforehand.")
    return value


def _nodes(values: Sequence[Any]) -> int:
    return sum(_nodes(value) if isinstance(value, list | tuple) else isinstance(value, fx.Node) for value in values)


def _submodule(node: fx.Node, part: nn.Module) -> Call:
    if len(node.args) + len(node.kwargs) != 1:
        raise InvalidInput(f"{place_of(node)}, {type(part).__name__}, must be called with one tensor alone.")
    if getattr(part, "inplace", False):
        part = copy.copy(part)  # which has no weights, and may not change what a sum adds
        part.inplace = False  # type: ignore[assignment] # of which torch says that it is a tensor or a module
    return Call((_first(node),), lambda _: part)


def _options(node: fx.Node, names: Sequence[str], default: dict[str, Any]) -> dict[str, Any]:
    """What is given beside the tensor, by name; what is not given as it is by itself."""
    options = {**default, **dict(zip(names, node.args[1:], strict=False))}
    for name, value in node.kwargs.items():
        if name not in ("input", "inplace"):
            options[name] = value
    if len(node.args) - 1 > len(names) or not set(options) <= set(names):
        raise InvalidInput(f"{place_of(node)} takes {', '.join(names) or 'a tensor alone'}, and was given more.")
    if _nodes(list(options.values())):
        raise InvalidInput(f"{place_of(node)} must take one tensor, and numbers that are known beforehand.")
    return options


def _made(node: fx.Node, kind: type[nn.Module], options: dict[str, Any]) -> nn.Module:
    try:
        return kind(**options)
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidInput(f"{place_of(node)} cannot be called with {options}.") from error


def _sum(node: fx.Node) -> Call:
    """x + y of two tensors; scaled or shifted by numbers, it is no sum of branches."""
    values = [*node.args, *(value for name, value in node.kwargs.items() if name in ("input", "other"))]
    if node.kwargs.get("alpha", 1) != 1:
        raise InvalidInput(
            f"{place_of(node)} scales what it adds: put alpha into the weights of the last layer before."
        )
    nodes = tuple(value for value in values if isinstance(value, fx.Node))
    if node.target is operator.add and len(nodes) == 1 and 0 in (value for value in values if isinstance(value, int)):
        return Call(nodes, lambda _: None)  # as sum([..]) begins
    if len(nodes) != len(values) or len(nodes) != 2:
        raise InvalidInput(f"{place_of(node)} must add two tensors; a constant belongs into the bias of a layer.")
    return Call(nodes, lambda _: None)


def _view(node: fx.Node) -> Call:
    """x.view(len(x), -1) and its like, which flatten every sample."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    batch = len(sizes) == 2 and (sizes[0] == -1 or _is_batch(sizes[0]))

    def stage(shape: Shape) -> nn.Module:
        features = math.prod(shape)
        if not batch or sizes[1] not in (-1, features) or (sizes[0] == -1 and sizes[1] == -1):
            raise InvalidInput(
                f"{place_of(node)} must leave samples of shape {shape} as rows of {features}: write x.flatten(1)."
            )
        return nn.Flatten()

    return Call((_first(node),), stage)


def _mean(node: fx.Node) -> Call:
    """x.mean((2, 3)), of the pixels of every channel."""
    options = _options(node, ("dim", "keepdim"), {"dim": None, "keepdim": False})
    dims = options["dim"] if isinstance(options["dim"], tuple | list) else ()
    pool = [nn.AdaptiveAvgPool2d(1)] if options["keepdim"] else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]

    def stage(shape: Shape) -> nn.Module:
        places = sorted(dim % 4 if isinstance(dim, int) and -4 <= dim < 4 else -1 for dim in dims)
        if len(shape) != 3 or places != [2, 3]:
            raise InvalidInput(f"{place_of(node)} must take the mean of all pixels of images: write x.mean((2, 3)).")
        return nn.Sequential(*pool)

    return Call((_first(node),), stage)


def _is_batch(size: Any) -> bool:
    """Whether a traced number is x.size(0), x.shape[0] or x.size()[0]."""
    if not isinstance(size, fx.Node):
        return False
    if size.op == "call_method" and size.target == "size":
        return tuple(size.args[1:]) == (0,) and not size.kwargs
    if size.target is not operator.getitem or size.args[1] != 0 or not isinstance(size.args[0], fx.Node):
        return False
    whole = size.args[0]
    plain = whole.op == "call_method" and whole.target == "size" and len(whole.args) == 1
    return plain or (whole.target is getattr and whole.args[1] == "shape")
