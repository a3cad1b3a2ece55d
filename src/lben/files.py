"""Models on disk: one safetensors file whose header holds a JSON description. No pickle, so no code can run."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from lben import activations, multivariable, sets, solvers
from lben.activations import Activation, Elementwise, PerUnit, Scalar
from lben.convolutional import ConvLBEN, ConvMON, ConvNetwork, ConvUnconstrainedEN
from lben.equilibrium import BaseNetwork
from lben.errors import InvalidFile, InvalidInput
from lben.layered import LayeredNetwork
from lben.multivariable import Blocks, Multivariable, Projection
from lben.networks import LBEN, MON, UnconstrainedEN
from lben.normalize import Normalize
from lben.ode import ContractingODE
from lben.solvers import Anderson, Solver
from lben.weights import Weights

FORMAT = 1
Made = LBEN | MON | UnconstrainedEN | ContractingODE | ConvLBEN | ConvMON | ConvUnconstrainedEN
Saved = Made | LayeredNetwork
_IMAGES = ("kernel_size", "pool", "padding")
_OPTIONS: dict[type[Made], tuple[str, ...]] = {  # of each network, beyond what all have
    LBEN: ("gamma",),
    MON: (),
    UnconstrainedEN: (),
    ContractingODE: ("rate", "gamma"),
    ConvLBEN: (*_IMAGES, "gamma", "metric"),
    ConvMON: _IMAGES,
    ConvUnconstrainedEN: _IMAGES,
}
_NETWORKS: dict[str, type[Saved]] = {c.__name__: c for c in (*_OPTIONS, LayeredNetwork)}
_SETS = {c.__name__: c for c in (sets.Box, sets.Ball, sets.Simplex, sets.Polyhedron)}
_ABSTRACT = (Elementwise, Scalar, Multivariable)


def save(net: BaseNetwork, path: str | os.PathLike[str]) -> None:
    """Write a network to a file: to a temporary one first, so that no half of it is ever left."""
    if type(net) not in _NETWORKS.values():
        raise InvalidInput(f"lben.save writes {', '.join(_NETWORKS)}, not {type(net).__name__}.")
    if net.normalize is not None:
        net.normalize.validate()
    write_tensors(path, "lben", _describe(net), net.state_dict())


def load(path: str | os.PathLike[str]) -> Saved:
    """Read a network that `save` wrote, on the CPU; raises InvalidFile for anything else."""
    description, tensors = read_tensors(path, "lben", "a network")
    try:
        return _build(description, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidFile(f"{path} does not describe a network: {type(error).__name__}: {error}") from error


def write_tensors(
    path: str | os.PathLike[str], key: str, description: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write tensors with a description, under a key of the header, and a checksum of both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, **description}, sort_keys=True)
    write_bytes(path, serialize(plain, metadata={key: text, "sha256": _digest(text, plain)}))


def read_tensors(path: str | os.PathLike[str], key: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors that `write_tensors` wrote; raises InvalidFile for anything else."""
    if not Path(path).is_file():
        raise InvalidFile(f"{path} is not a file.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidFile(f"{path} is not a whole safetensors file: {error}.") from error
    text = metadata.get(key)
    if text is None:
        raise InvalidFile(f"{path} was not written by lben: its header has no description of {what}.")
    if metadata.get("sha256") != _digest(text, tensors):
        raise InvalidFile(f"{path} was changed after it was written: its checksum does not match its content.")
    try:
        description: dict[str, Any] = json.loads(text)
        found = description.pop("format")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFile(f"{path} does not describe {what}: {type(error).__name__}: {error}") from error
    if found != FORMAT:
        raise InvalidFile(f"{path} has format {found}, but this version of lben reads {FORMAT}.")
    return description, tensors


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file: to a temporary one first, so that no half of it is ever left."""
    target = check_target(path)
    temporary = target.parent / f".lben-{uuid.uuid4().hex}"
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """The path, if a file could be written there."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidInput(f"{str(path)!r} cannot be written: it must name a file in a directory that exists.")
    return target


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if it is not there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {str(path)!r} cannot be made: {error.strerror or error}.") from error
    return folder


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _describe(net: BaseNetwork) -> dict[str, Any]:
    rate = {"rate": net.rate} if isinstance(net, ContractingODE) else {}
    return {
        **rate,
        "network": type(net).__name__,
        **_describe_sizes(net),
        "dtype": str(net.parameterization.U.dtype)[6:],
        "gamma": net.gamma,
        "activation": _describe_activation(net.activation),
        "solver": _describe_solver(net.solver),
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
    activation = _build_activation(description["activation"])
    solver = _build_solver(description["solver"])
    sizes = description["normalize"]
    normalize = None if sizes is None else Normalize(torch.zeros(sizes[0]), torch.ones(sizes[1]))
    cls = _NETWORKS[description["network"]]
    if issubclass(cls, LayeredNetwork):
        stored = {name: tensors[f"parameterization.{name}"] for name in ("W", "U", "bz", "Wo", "by", "lam")}
        net: Saved = cls(Weights(**stored, gamma=description["gamma"]), activation, normalize)
        net.solver = solver
    else:
        shape: list[Any] = [tuple(size) if isinstance(size, list) else size for size in description["sizes"]]
        options: dict[str, Any] = {name: description[name] for name in _OPTIONS[cls]}
        if "parameterization.epsilon" in tensors:
            options["epsilon"] = tensors["parameterization.epsilon"].item()
        options |= {"activation": activation, "solver": solver, "normalize": normalize}
        net = cls(*shape, **options)
    net.to(getattr(torch, description["dtype"]))
    own = {name: tensor for name, tensor in net.state_dict().items() if name.endswith("_extra_state")}
    net.load_state_dict(own | tensors)  # older files have no such entries: all is in their description
    return net


def _describe_activation(activation: Activation) -> dict[str, Any]:
    if isinstance(activation, Elementwise):
        raise InvalidInput(
            "A network with an Elementwise activation holds Python code, which lben.save never writes: "
            "keep its state_dict, and make the network again with the same activation."
        )
    name = type(activation).__name__
    if getattr(multivariable, name, getattr(activations, name, None)) is not type(activation):
        raise InvalidInput(f"lben.save writes the activations of lben, not {activation!r}.")
    if isinstance(activation, PerUnit):
        return {"name": name, "activations": [_describe_activation(a) for a in activation.activations]}
    if isinstance(activation, Blocks):
        return {"name": name, "parts": [[_describe_activation(part), width] for part, width in activation.parts]}
    if isinstance(activation, Projection):
        kind = type(activation.set)
        if getattr(sets, kind.__name__, None) is not kind:
            raise InvalidInput(f"lben.save writes projections onto the sets of lben, not {activation.set!r}.")
        return {"name": name, "set": {"name": kind.__name__, **asdict(activation.set)}}  # type: ignore[call-overload]
    return {"name": name, **asdict(activation)}  # type: ignore[call-overload]


def _build_activation(description: dict[str, Any]) -> Activation:
    options = dict(description)
    name = options.pop("name")
    if name == "PerUnit":
        parts = [_build_activation(part) for part in options["activations"]]
        return PerUnit([part for part in parts if isinstance(part, Scalar)])
    if name == "Blocks":
        return Blocks([(_build_activation(part), width) for part, width in options["parts"]])
    if name == "Projection":
        found = dict(options["set"])
        return Projection(_SETS[found.pop("name")](**found))
    room = multivariable if name in multivariable.__all__ else activations
    cls = getattr(room, name) if name in room.__all__ else None
    if not (isinstance(cls, type) and issubclass(cls, Scalar | Multivariable)) or cls in _ABSTRACT:
        raise InvalidFile(f"there is no activation {name!r}")
    return cls(**options)


def _describe_solver(solver: Solver) -> dict[str, Any]:
    description: dict[str, Any] = {"name": type(solver).__name__, **asdict(solver)}
    if isinstance(solver, Anderson):
        description["method"] = _describe_solver(solver.method)
    if solver.backward is not None:
        description["backward"] = _describe_solver(solver.backward)
    return description


def _build_solver(description: dict[str, Any]) -> Solver:
    options = dict(description)
    name = options.pop("name")
    if name == "Anderson":
        options["method"] = _build_solver(options["method"])
    if options.get("backward") is not None:
        options["backward"] = _build_solver(options["backward"])
    cls = getattr(solvers, name) if name in solvers.__all__ else None
    if not (isinstance(cls, type) and issubclass(cls, Solver)) or cls is Solver:
        raise InvalidFile(f"there is no solver {name!r}")
    built: Solver = cls(**options)
    return built
