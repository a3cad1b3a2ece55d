"""The names of stages, by which state dicts, certificates and files call them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from lben.errors import InvalidFile, InvalidInput

_TAKEN = ("in_shape", "training", "kept_stack")


def check_names(stages: Mapping[str, nn.Module], kind: type[nn.Sequential]) -> OrderedDict[str, nn.Module]:
    """Stages by their names, if these can be those of modules in a sequence of this kind."""
    for name in stages:
        if not isinstance(name, str) or not name or "." in name:
            raise InvalidInput(f"A stage must be named by a word without dots, not {name!r}.")
        if hasattr(kind, name) or name in _TAKEN:
            raise InvalidInput(f"A stage cannot be called {name!r}, a name that a stack has itself: choose another.")
    return OrderedDict(stages)


def describe_names(net: nn.Sequential) -> dict[str, list[str]]:
    """What a file says of the names of stages: nothing where these are their places."""
    names = list(net._modules)
    return {} if names == [str(place) for place in range(len(names))] else {"names": names}


def take_names(described: object) -> tuple[object, object]:
    """The names of stages in a description from a file, if it has any, and what else it says."""
    if not isinstance(described, dict) or "names" not in described:
        return None, described
    return described["names"], {key: value for key, value in described.items() if key != "names"}


def under_names(names: object, stages: Sequence[nn.Module], kind: type[nn.Sequential]) -> Sequence[Any]:
    """What a sequence of stages by these names is made from; by their places where there are none."""
    if names is None:
        return stages
    if not isinstance(names, list) or len(names) != len(stages) or not all(isinstance(name, str) for name in names):
        raise InvalidFile(f"names must be those of {len(stages)} stages, not {names!r}.")
    if len(set(names)) < len(names):
        raise InvalidFile(f"names must be of one stage each, and are {names!r}.")
    return [check_names(dict(zip(names, stages, strict=True)), kind)]
