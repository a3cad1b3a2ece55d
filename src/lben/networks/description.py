"""Networks from their descriptions: what is said of one is checked field by field, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.description import build_activation, is_own_activation
from lben.activations.scalar import Elementwise
from lben.described import fill
from lben.errors import InvalidFile, InvalidInput
from lben.networks.base import BaseNetwork
from lben.networks.convolutional import ConvLBEN, ConvMON, ConvUnconstrainedEN
from lben.networks.dense import LBEN, MON, UnconstrainedEN
from lben.networks.layered import LayeredNetwork
from lben.normalize import Normalize
from lben.solvers.base import Solver
from lben.solvers.description import build_solver, is_own_solver

Kinds = Mapping[str, type[BaseNetwork]]
"""The networks that can be read, by their names."""

NETWORKS: Kinds = {
    kind.__name__: kind for kind in (LBEN, MON, UnconstrainedEN, LayeredNetwork, ConvLBEN, ConvMON, ConvUnconstrainedEN)
}
MOST_UNITS = 2**20
"""Of an activation that numbers them all."""


def check_own(activation: Activation | None, solver: Solver | None = None) -> None:
    """Refuse what a description does not say all of."""
    if isinstance(activation, Elementwise):
        raise InvalidInput(
            "A network with an Elementwise activation holds Python code, which lben.save never writes: "
            "keep its state_dict, and make the network again with the same activation."
        )
    if activation is not None and not is_own_activation(activation):
        raise InvalidInput(f"lben.save writes the activations of lben, and sets of lben, not {activation!r}.")
    if solver is not None and not is_own_solver(solver):
        raise InvalidInput(f"lben.save writes the solvers of lben, not {solver!r}.")


def build_network(
    cls: type[BaseNetwork], described: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype
) -> BaseNetwork:
    """The network, made only once all that is said of it agrees with its tensors; no random stream is moved."""
    net = cls._restore(_options(described, tensors), tensors)
    fill(net, described, tensors, dtype)
    net.validate()
    return net


def build_normalize(sizes: Any, tensors: dict[str, Tensor], path: str = "") -> Normalize:
    """A stage of any numbers, as many as the tensors have."""
    parts = [tensors.get(f"{path}{name}") for name in ("mean", "std")]
    if sizes != [None if part is None else part.numel() for part in parts]:
        raise InvalidFile(f"normalize must have the two sizes of its tensors, not {sizes!r}.")
    return Normalize(torch.zeros(sizes[0]), torch.ones(sizes[1]))


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
    if options["normalize"] is not None:
        options["normalize"] = build_normalize(options["normalize"], tensors, "normalize.")
    return options


def _check_numbered(activation: Activation, sizes: list[Any]) -> None:
    """Refuse an activation that numbers more units than anybody has."""
    image = sizes[0] if isinstance(sizes[0], list) else []
    claimed = [checks.count("every size", size) for size in (*image[1:], sizes[1])]
    if activation.block_size > 1 and prod(claimed) > MOST_UNITS:
        raise InvalidFile(f"{prod(claimed)} units are more than an activation of blocks can number.")
