"""Networks on disk: one safetensors file whose header holds their description. No pickle, so no code can run.

What a file says is checked field by field, and the sizes it claims against the tensors that it holds, before anything
is made of it. What comes out says of itself what the file says.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.described import stored_tensors
from lben.disk import WRONG, read_tensors, write_tensors
from lben.dynamics.contracting import ContractingODE
from lben.errors import InvalidFile, InvalidInput, LbenError, MissingExtra
from lben.layers.description import build_stack, describe_stack, stack_tensors
from lben.layers.reading import read
from lben.layers.stack import Sequential
from lben.networks.base import BaseNetwork
from lben.networks.description import NETWORKS, Kinds, build_network, check_own

KINDS: Kinds = {**NETWORKS, ContractingODE.__name__: ContractingODE}
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save(net: BaseNetwork | Sequential, path: str | os.PathLike[str]) -> None:
    """Write a network, or a stack of stages, to a file: to a temporary one first, so that no half of it is ever left.

    Nothing is written that `load` would not read.
    """
    if type(net) is not Sequential and type(net) not in KINDS.values():
        raise InvalidInput(f"lben.save writes {', '.join(KINDS)} and Sequential, not {type(net).__name__}.")
    if isinstance(net, BaseNetwork):
        check_own(net.activation, net.solver)
    else:
        read(list(net), net.in_shape)  # refuses hooks, and what does not fit
    tensors = {name: checks.there(name, tensor) for name, tensor in _tensors(net).items()}
    description = _describe(net)
    try:
        _build(description, tensors)
    except WRONG as error:
        raise InvalidInput(f"This network cannot be saved as it is: {_reason(error)}") from error
    write_tensors(path, "lben", description, tensors)


def load(path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Any:
    """Read a network or a stack that `save` wrote, in training mode; raises InvalidFile for all else.

    device: where it goes; the CPU if not given, wherever it was when it was saved.
    """
    checks.placement(device, None)
    description, tensors = read_tensors(path, "lben", "a network")
    try:
        return _build(description, tensors).to(device=device)
    except MissingExtra:
        raise
    except WRONG as error:
        raise InvalidFile(f"{path} does not describe a network: {_reason(error)}") from error


def _tensors(net: BaseNetwork | Sequential) -> dict[str, Tensor]:
    return stored_tensors(net) if isinstance(net, BaseNetwork) else stack_tensors(net)


def _describe(net: BaseNetwork | Sequential) -> dict[str, Any]:
    if isinstance(net, BaseNetwork):
        dtype, own = net.parameterization.U.dtype, net.describe()
    else:
        numbers = (tensor.dtype for tensor in stack_tensors(net).values() if tensor.is_floating_point())
        dtype, own = next(numbers, torch.float32), describe_stack(net, KINDS)
    return {"network": type(net).__name__, "dtype": str(dtype)[6:], **own}


def _build(description: dict[str, Any], tensors: dict[str, Tensor]) -> BaseNetwork | Sequential:
    """The network, made only once all that is said of it agrees with its tensors; no random stream is moved."""
    described = dict(description)
    name, dtype = described.pop("network", None), described.pop("dtype", None)
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidFile(f"dtype must be float32 or float64, not {dtype!r}.")
    if name == "Sequential":
        return build_stack(described, tensors, _DTYPES[dtype], KINDS)
    cls = KINDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise InvalidFile(f"there is no network {name!r}.")
    for path, tensor in tensors.items():
        if tensor.dtype not in _DTYPES.values() or tensor.dtype.itemsize > _DTYPES[dtype].itemsize:
            raise InvalidFile(f"{path} is {str(tensor.dtype)[6:]}, but the network is {dtype}.")
    return build_network(cls, described, tensors, _DTYPES[dtype])


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LbenError) else f"{type(error).__name__}: {error}"
