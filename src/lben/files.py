"""Networks on disk: one safetensors file whose header holds their description. No pickle, so no code can run.

What a file says is checked field by field, and the sizes it claims against the tensors that it holds, before anything
is made of it. What comes out says of itself what the file says.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.description import build_activation, is_own_activation
from lben.activations.scalar import Elementwise
from lben.described import take
from lben.disk import WRONG, read_tensors, write_tensors
from lben.dynamics.contracting import ContractingODE
from lben.errors import InvalidFile, InvalidInput, LbenError, MissingExtra
from lben.networks.base import BaseNetwork, stored_tensors
from lben.networks.convolutional import ConvLBEN, ConvMON, ConvUnconstrainedEN
from lben.networks.dense import LBEN, MON, UnconstrainedEN
from lben.networks.layered import LayeredNetwork
from lben.normalize import Normalize
from lben.solvers.description import build_solver, is_own_solver

KINDS: dict[str, type[BaseNetwork]] = {
    kind.__name__: kind
    for kind in (
        *(LBEN, MON, UnconstrainedEN, LayeredNetwork, ContractingODE),
        *(ConvLBEN, ConvMON, ConvUnconstrainedEN),
    )
}
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_MOST_UNITS = 2**20  # of an activation that numbers them all


def save(net: BaseNetwork, path: str | os.PathLike[str]) -> None:
    """Write a network to a file: to a temporary one first, so that no half of it is ever left.

    Nothing is written that `load` would not read.
    """
    if type(net) not in KINDS.values():
        raise InvalidInput(f"lben.save writes {', '.join(KINDS)}, not {type(net).__name__}.")
    _check_own(net)
    tensors = {name: checks.there(name, tensor) for name, tensor in stored_tensors(net).items()}
    description = _describe(net)
    try:
        _build(description, tensors)
    except WRONG as error:
        raise InvalidInput(f"This network cannot be saved as it is: {_reason(error)}") from error
    write_tensors(path, "lben", description, tensors)


def load(path: str | os.PathLike[str]) -> BaseNetwork:
    """Read a network that `save` wrote, on the CPU and in training mode; raises InvalidFile for anything else."""
    description, tensors = read_tensors(path, "lben", "a network")
    try:
        return _build(description, tensors)
    except MissingExtra:
        raise
    except WRONG as error:
        raise InvalidFile(f"{path} does not describe a network: {_reason(error)}") from error


def _describe(net: BaseNetwork) -> dict[str, Any]:
    return {"network": type(net).__name__, "dtype": str(net.parameterization.U.dtype)[6:], **net.describe()}


def _check_own(net: BaseNetwork) -> None:
    """Refuse what a description does not say all of."""
    if isinstance(net.activation, Elementwise):
        raise InvalidInput(
            "A network with an Elementwise activation holds Python code, which lben.save never writes: "
            "keep its state_dict, and make the network again with the same activation."
        )
    if not is_own_activation(net.activation):
        raise InvalidInput(f"lben.save writes the activations of lben, and sets of lben, not {net.activation!r}.")
    if not is_own_solver(net.solver):
        raise InvalidInput(f"lben.save writes the solvers of lben, not {net.solver!r}.")


def _build(description: dict[str, Any], tensors: dict[str, Tensor]) -> BaseNetwork:
    """The network, made only once all that is said of it agrees with its tensors; no random stream is moved."""
    described = dict(description)
    name, dtype = described.pop("network", None), described.pop("dtype", None)
    cls = KINDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise InvalidFile(f"there is no network {name!r}.")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidFile(f"dtype must be float32 or float64, not {dtype!r}.")
    for path, tensor in tensors.items():
        if tensor.dtype not in _DTYPES.values() or tensor.dtype.itemsize > _DTYPES[dtype].itemsize:
            raise InvalidFile(f"{path} is {str(tensor.dtype)[6:]}, but the network is {dtype}.")
    net = cls._restore(_options(described, tensors), tensors)
    net.to(_DTYPES[dtype])
    own = net.describe()
    take(cls.__name__, described, *own)
    for option, value in own.items():
        if described[option] != value:
            raise InvalidFile(f"the {option} of this {cls.__name__} is {value!r}, not {described[option]!r}.")
    with torch.no_grad():
        for path, tensor in stored_tensors(net).items():
            tensor.copy_(tensors[path])
    net.validate()
    return net


def _options(described: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The options as a constructor takes them, if they are small enough to look at."""
    options = dict(described)
    for name in ("sizes", "activation", "solver", "normalize", "gamma"):
        if name not in options:
            raise InvalidFile(f"its {name} is missing.")
    sizes = options["sizes"]
    if not isinstance(sizes, list) or len(sizes) != 3:
        raise InvalidFile(f"sizes must be three, not {sizes!r}.")
    options["sizes"] = [tuple(size) if isinstance(size, list) else size for size in sizes]
    options["activation"] = build_activation(options["activation"])
    options["solver"] = build_solver(options["solver"])
    _check_numbered(options["activation"], sizes)
    options["normalize"] = _normalize(options["normalize"], tensors)
    return options


def _check_numbered(activation: Activation, sizes: list[Any]) -> None:
    """Refuse an activation that numbers more units than anybody has."""
    image = sizes[0] if isinstance(sizes[0], list) else []
    claimed = [checks.count("every size", size) for size in (*image[1:], sizes[1])]
    if activation.block_size > 1 and prod(claimed) > _MOST_UNITS:
        raise InvalidFile(f"{prod(claimed)} units are more than an activation of blocks can number.")


def _normalize(sizes: Any, tensors: dict[str, Tensor]) -> Normalize | None:
    """A stage of any numbers, as many as the tensors have."""
    if sizes is None:
        return None
    parts = [tensors.get(f"normalize.{name}") for name in ("mean", "std")]
    if sizes != [None if part is None else part.numel() for part in parts]:
        raise InvalidFile(f"normalize must have the two sizes of its tensors, not {sizes!r}.")
    return Normalize(torch.zeros(sizes[0]), torch.ones(sizes[1]))


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LbenError) else f"{type(error).__name__}: {error}"
