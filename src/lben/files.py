"""Models on disk: one safetensors file whose header holds a JSON description. No pickle, so no code can run.

What a file says is checked field by field, and the sizes it claims against the tensors that it holds, before anything
is made of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from lben import checks
from lben.convolutional import ConvNetwork
from lben.descriptions import build_activation, build_solver, describe_activation, describe_solver
from lben.equilibrium import BaseNetwork
from lben.errors import InvalidFile, InvalidInput, LbenError, MissingExtra
from lben.layered import LayeredNetwork
from lben.multivariable import Blocks, Multivariable
from lben.normalize import Normalize
from lben.ode import ContractingODE
from lben.schema import DTYPES, NETWORKS, OPTIONS, Saved, check_fields, check_tensors
from lben.weights import Weights
from lben.writing import write_bytes

FORMAT = 1
_MOST_UNITS = 2**20  # of an activation that numbers them all
_WRONG = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


def save(net: BaseNetwork, path: str | os.PathLike[str]) -> None:
    """Write a network to a file: to a temporary one first, so that no half of it is ever left.

    Nothing is written that `load` would not read.
    """
    if type(net) not in NETWORKS.values():
        raise InvalidInput(f"lben.save writes {', '.join(NETWORKS)}, not {type(net).__name__}.")
    description = _describe(net)
    tensors = {name: checks.there(name, tensor) for name, tensor in _tensors(net).items()}
    try:
        _build(json.loads(_text(description)), tensors)
    except _WRONG as error:
        raise InvalidInput(f"This network cannot be saved as it is: {_reason(error)}") from error
    write_tensors(path, "lben", description, tensors)


def load(path: str | os.PathLike[str]) -> Saved:
    """Read a network that `save` wrote, on the CPU and in training mode; raises InvalidFile for anything else."""
    description, tensors = read_tensors(path, "lben", "a network")
    try:
        return _build(description, tensors)
    except MissingExtra:
        raise
    except _WRONG as error:
        raise InvalidFile(f"{path} does not describe a network: {_reason(error)}") from error


def write_tensors(
    path: str | os.PathLike[str], key: str, description: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write tensors with a description, under a key of the header, and a checksum of both."""
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = _text({"format": FORMAT, **description})
    write_bytes(path, serialize(plain, metadata={key: text, "sha256": _digest(text, plain)}))


def read_tensors(path: str | os.PathLike[str], key: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors that `write_tensors` wrote; raises InvalidFile for anything else."""
    try:
        if not Path(path).is_file():
            raise InvalidFile(f"{path} is not a file.")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except LbenError:
        raise
    except (SafetensorError, OSError, *_WRONG) as error:
        raise InvalidFile(f"{path} is not a whole safetensors file: {error}.") from error
    text = metadata.get(key)
    if text is None:
        raise InvalidFile(f"{path} was not written by lben: its header has no description of {what}.")
    if metadata.get("sha256") != _digest(text, tensors):
        raise InvalidFile(f"{path} was changed after it was written: its checksum does not match its content.")
    try:
        description: dict[str, Any] = json.loads(text)
        found = description.pop("format")
    except _WRONG as error:
        raise InvalidFile(f"{path} does not describe {what}: {type(error).__name__}: {error}") from error
    if type(found) is not int or found != FORMAT:
        raise InvalidFile(f"{path} has format {found}, but this version of lben reads {FORMAT}.")
    return description, tensors


def _text(description: dict[str, Any]) -> str:
    """JSON, in which the numbers of numpy are numbers like others."""
    return json.dumps(description, sort_keys=True, default=_plain)


def _plain(value: object) -> int | float:
    if isinstance(value, Integral | Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise InvalidInput(f"{value!r} has no place in a file.")


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LbenError) else f"{type(error).__name__}: {error}"


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(net: BaseNetwork) -> dict[str, Tensor]:
    """The parameters and buffers; an extra state says what the description says."""
    return {name: tensor for name, tensor in net.state_dict().items() if not name.endswith("_extra_state")}


def _describe(net: BaseNetwork) -> dict[str, Any]:
    rate = {"rate": net.rate} if isinstance(net, ContractingODE) else {}
    return {
        **rate,
        "network": type(net).__name__,
        **_describe_sizes(net),
        "dtype": str(net.parameterization.U.dtype)[6:],
        "gamma": net.gamma,
        "activation": describe_activation(net.activation),
        "solver": describe_solver(net.solver),
        "normalize": None if net.normalize is None else [net.normalize.mean.numel(), net.normalize.std.numel()],
    }


def _describe_sizes(net: BaseNetwork) -> dict[str, Any]:
    if not isinstance(net, ConvNetwork):
        return {"sizes": [net.in_features, net.hidden_features, net.out_features]}
    form, geometry = net.parameterization, net.parameterization.geometry
    return {
        "sizes": [list(geometry.in_shape), form.channels, net.out_features],
        "kernel_size": form.U.shape[-1],
        "pool": geometry.pool,
        "padding": geometry.padding,
        "metric": form.metric,
    }


def _build(description: dict[str, Any], tensors: dict[str, Tensor]) -> Saved:
    """The network, made only once all that is said of it agrees with its tensors; no random stream is moved."""
    cls = check_fields(description)
    dtype = DTYPES[description["dtype"]]
    check_tensors(cls, description, tensors)
    with torch.random.fork_rng(devices=[]):
        net = _make(cls, description, tensors)
    net.to(dtype)
    own: dict[str, Tensor] = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise InvalidFile(f"{name} should have shape {tuple(own[name].shape)}, not {tuple(tensor.shape)}.")
        with torch.no_grad():
            own[name].copy_(tensor)
    return net


def _make(cls: type[Saved], description: dict[str, Any], tensors: dict[str, Tensor]) -> Saved:
    """A network of this description, with any weights."""
    activation, solver = build_activation(description["activation"]), build_solver(description["solver"])
    sizes = description["normalize"]
    normalize = None if sizes is None else Normalize(torch.zeros(sizes[0]), torch.ones(sizes[1]))
    if issubclass(cls, LayeredNetwork):
        stored = {name: tensors[f"parameterization.{name}"].clone() for name in ("W", "U", "bz", "Wo", "by", "lam")}
        layered = cls(Weights(**stored, gamma=description["gamma"]), activation, normalize)
        layered.solver = solver
        return layered
    options: dict[str, Any] = {name: description[name] for name in OPTIONS[cls]}
    if issubclass(cls, ConvNetwork):
        image, channels, outputs = description["sizes"]
        units = channels * math.prod(size + 2 * description["padding"] for size in image[1:])
        if isinstance(activation, Blocks | Multivariable) and units > _MOST_UNITS:
            raise InvalidFile(f"{units} units are more than an activation of blocks can number.")
        shape: tuple[Any, ...] = (tuple(image), channels, outputs)
    else:
        shape = tuple(description["sizes"])
    made: Saved = cls(*shape, **options, activation=activation, solver=solver, normalize=normalize)
    return made
