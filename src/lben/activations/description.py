"""Activations from their descriptions; nothing but those of the library is made."""

from __future__ import annotations

from dataclasses import fields

from lben.activations.base import Activation
from lben.activations.blocks import Blocks, GroupSoftThreshold, Projection, Softmax
from lben.activations.framed import Framed
from lben.activations.scalar import TABLE, PerUnit
from lben.activations.sets import Ball, Box, Polyhedron, Simplex
from lben.described import make_record, named, take
from lben.errors import InvalidFile

_SETS = {kind.__name__: kind for kind in (Box, Ball, Simplex, Polyhedron)}
_OTHERS: tuple[type[Activation], ...] = (GroupSoftThreshold, Softmax)
_RECORDS: dict[str, type[Activation]] = {kind.__name__: kind for kind in (*TABLE, *_OTHERS)}

_FRAMED = tuple(option.name for option in fields(Framed))


def build_activation(description: object, depth: int = 0) -> Activation:
    name, options = named("activation", description, depth)
    if name == PerUnit.__name__:
        (parts,) = take(name, options, "activations")
        if not isinstance(parts, list):
            raise InvalidFile(f"the activations of PerUnit must be a list, not {parts!r}.")
        return PerUnit([build_activation(part, depth + 1) for part in parts])  # type: ignore[misc] # checked by PerUnit
    if name == Blocks.__name__:
        (parts,) = take(name, options, "parts")
        if not isinstance(parts, list) or not all(isinstance(part, list) and len(part) == 2 for part in parts):
            raise InvalidFile(f"the parts of Blocks must be pairs, not {parts!r}.")
        return Blocks([(build_activation(part, depth + 1), width) for part, width in parts])
    if name == Framed.__name__:
        inside = build_activation(take(name, options, *_FRAMED)[-1], depth + 1)
        return Framed(**{**options, "activation": inside})
    if name == Projection.__name__:
        (described,) = take(name, options, "set")
        chosen, rest = named("set", described, depth)
        if chosen not in _SETS:
            raise InvalidFile(f"there is no set {chosen!r}.")
        return Projection(make_record(_SETS[chosen], rest))
    if name not in _RECORDS:
        raise InvalidFile(f"there is no activation {name!r}.")
    made: Activation = make_record(_RECORDS[name], options)
    return made


def is_own_activation(activation: Activation) -> bool:
    """Whether it is the library's own, in all its parts, so that its description says all of it."""
    if type(activation) is PerUnit:
        return all(map(is_own_activation, activation.activations))
    if type(activation) is Blocks:
        return all(is_own_activation(part) for part, _ in activation.parts)
    if type(activation) is Framed:
        return is_own_activation(activation.activation)
    if type(activation) is Projection:
        return type(activation.set) in _SETS.values()
    return type(activation) in _RECORDS.values()
