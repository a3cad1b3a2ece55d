"""Recurrent networks from their descriptions: what is said of one is checked before anything is made of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lben.activations.description import build_activation
from lben.described import fill
from lben.dynamics.ren import REN
from lben.errors import InvalidFile
from lben.parameterize.behaviours import build_behaviour
from lben.solvers.description import build_solver

_NAMES = ("sizes", "behaviour", "feedthrough", "acyclic", "initial", "activation", "solver")


def build_ren(described: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype) -> REN:
    """The network, made only once all that is said of it agrees with its tensors; no random stream is moved."""
    for name in _NAMES:
        if name not in described:
            raise InvalidFile(f"its {name} is missing.")
    options = dict(described)
    if not isinstance(options["sizes"], list) or len(options["sizes"]) != 4:
        raise InvalidFile(f"sizes must be four, not {options['sizes']!r}.")
    options["behaviour"] = build_behaviour(options["behaviour"])
    options["activation"] = build_activation(options["activation"])
    options["solver"] = build_solver(options["solver"])
    net = REN._restore(options, tensors)
    fill(net, described, tensors, dtype)
    net.validate()
    return net
