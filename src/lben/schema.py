"""What a file may say of a network: every field by its type, and every tensor by its shape and its range."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.convolutional import ConvLBEN, ConvMON, ConvNetwork, ConvUnconstrainedEN
from lben.descriptions import take
from lben.errors import InvalidFile
from lben.layered import LayeredNetwork
from lben.networks import LBEN, MON, UnconstrainedEN
from lben.ode import ContractingODE

Made = LBEN | MON | UnconstrainedEN | ContractingODE | ConvLBEN | ConvMON | ConvUnconstrainedEN
Saved = Made | LayeredNetwork
_ALL = ("network", "sizes", "dtype", "gamma", "activation", "solver", "normalize")
_IMAGES = ("kernel_size", "pool", "padding")
OPTIONS: dict[type[Saved], tuple[str, ...]] = {  # of each network, beyond what all have
    LBEN: ("gamma",),
    MON: (),
    UnconstrainedEN: (),
    ContractingODE: ("rate", "gamma"),
    ConvLBEN: (*_IMAGES, "gamma", "metric"),
    ConvMON: _IMAGES,
    ConvUnconstrainedEN: _IMAGES,
    LayeredNetwork: ("gamma",),
}
_TENSORS: dict[type[Saved], tuple[str, ...]] = {  # of each network, beyond U, bz, Wo and by
    LBEN: ("V", "N", "epsilon", "d"),
    MON: ("V", "N", "epsilon"),
    UnconstrainedEN: ("W",),
    ContractingODE: ("C", "kappa", "d"),
    ConvLBEN: ("V", "N", "epsilon", "d"),
    ConvMON: ("V", "N", "epsilon"),
    ConvUnconstrainedEN: ("W",),
    LayeredNetwork: ("W", "lam"),
}
NETWORKS: dict[str, type[Saved]] = {kind.__name__: kind for kind in OPTIONS}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def check_fields(description: dict[str, Any]) -> type[Saved]:
    """The kind of network, if the description has the fields of one, with values of their types."""
    name = description.get("network")
    cls = NETWORKS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise InvalidFile(f"there is no network {name!r}.")
    images = (*_IMAGES, "metric") if issubclass(cls, ConvNetwork) else ()
    take(cls.__name__, description, *dict.fromkeys((*_ALL, *images, *OPTIONS[cls])))
    sizes = description["sizes"]
    if not isinstance(sizes, list) or len(sizes) != 3:
        raise InvalidFile(f"sizes must be three, not {sizes!r}.")
    if images:
        if not isinstance(sizes[0], list) or len(sizes[0]) != 3:
            raise InvalidFile(f"the first of sizes must be that of an image, not {sizes[0]!r}.")
        for option in ("kernel_size", "pool"):
            checks.count(option, description[option])
        checks.count("padding", description["padding"] + 1)
    for size in [*sizes[0], *sizes[1:]] if images else sizes:
        checks.count("every size", size)
    if description["dtype"] not in DTYPES:
        raise InvalidFile(f"dtype must be float32 or float64, not {description['dtype']!r}.")
    if description["gamma"] is not None and "gamma" not in OPTIONS[cls]:
        raise InvalidFile(f"a {cls.__name__} has no gamma, but it is {description['gamma']!r}.")
    if images and "metric" not in OPTIONS[cls] and description["metric"] != "identity":
        raise InvalidFile(f"the metric of a {cls.__name__} is identity, not {description['metric']!r}.")
    normalize = description["normalize"]
    if normalize is not None and not (isinstance(normalize, list) and len(normalize) == 2):
        raise InvalidFile(f"normalize must have two sizes, not {normalize!r}.")
    return cls


def check_tensors(cls: type[Saved], description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Pass tensors that are those of a network with these fields, of the sizes that it claims."""
    expected = _shapes(cls, description)
    if set(tensors) != set(expected):
        raise InvalidFile(f"a {cls.__name__} of these options has {_listed(expected)}, not {_listed(tensors)}.")
    dtype = DTYPES[description["dtype"]]
    for name, tensor in tensors.items():
        shape, found = expected[name], tuple(tensor.shape)
        in_blocks = cls is LBEN and name == "parameterization.d" and len(found) == 1 and found < shape
        if found != shape and not in_blocks:  # d has one entry a block of units; the activation knows how many
            raise InvalidFile(f"{name} must have shape {shape}, not {found}.")
        if tensor.dtype not in DTYPES.values() or tensor.dtype.itemsize > dtype.itemsize:
            raise InvalidFile(f"{name} is {str(tensor.dtype)[6:]}, but the network is {description['dtype']}.")
        if tensor.is_meta:
            raise InvalidFile(f"{name} is a meta tensor, which has no entries.")
        checks.finite(name, tensor)
        if name.endswith((".epsilon", ".kappa", ".std", ".lam")) and not bool((tensor > 0).all()):
            raise InvalidFile(f"{name} must be above 0 in every entry, but its smallest is {float(tensor.min()):.6g}.")
    if cls is ContractingODE:
        kappa, room = float(tensors["parameterization.kappa"]), 1 - checks.rate(description["rate"])
        if not kappa <= room * (1 + torch.finfo(dtype).eps):
            raise InvalidFile(f"kappa = {kappa:.6g} is above 1 - rate = {room:.6g}.")


def _shapes(cls: type[Saved], description: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors of a network of these sizes."""
    into: tuple[int, ...]
    square: tuple[int, ...]
    out: tuple[int, ...]
    entries: tuple[int, ...] | None
    if issubclass(cls, ConvNetwork):
        (colours, height, width), n, p = description["sizes"]
        k, pool, padding = (description[name] for name in _IMAGES)
        high, wide = height + 2 * padding, width + 2 * padding
        into, square, out = (n, colours, k, k), (n, n, k, k), (p, n, high // pool, wide // pool)
        entries = {"channel": (n,), "pixel": (high, wide)}.get(description["metric"])
    else:
        d, n, p = description["sizes"]
        into, square, out, entries = (n, d), (n, n), (p, n), (n,)
    known = {"epsilon": (), "kappa": (), "lam": (n,), "d": entries, **dict.fromkeys(("V", "N", "W", "C"), square)}
    own = {"U": into, "bz": (n,), "Wo": out, "by": (p,)} | {name: known[name] for name in _TENSORS[cls]}
    shapes = {f"parameterization.{name}": shape for name, shape in own.items() if shape is not None}
    if description["normalize"] is not None:
        mean, std = description["normalize"]
        shapes |= {"normalize.mean": (mean,), "normalize.std": (std,)}
    return shapes


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"
