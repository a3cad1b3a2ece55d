"""Activations and solvers as plain values, such as JSON has, and back; nothing but those of the library is made."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from lben import activations, multivariable, sets, solvers
from lben.activations import Activation, Elementwise, PerUnit
from lben.errors import InvalidFile, InvalidInput
from lben.multivariable import Blocks, Projection
from lben.solvers import Anderson, Solver

_SETS = {kind.__name__: kind for kind in (sets.Box, sets.Ball, sets.Simplex, sets.Polyhedron)}
_ACTIVATIONS: dict[str, type[Activation]] = {
    name: kind
    for room in (activations, multivariable)
    for name in room.__all__
    if isinstance(kind := getattr(room, name), type)
    and issubclass(kind, Activation)
    and not kind.__abstractmethods__
    and kind is not Elementwise
}
_SOLVERS: dict[str, type[Solver]] = {
    name: kind
    for name in solvers.__all__
    if isinstance(kind := getattr(solvers, name), type) and issubclass(kind, Solver) and not kind.__abstractmethods__
}
_DEEPEST = 8  # activations of activations, and solvers of solvers: more than anybody nests


def describe_activation(activation: Activation) -> dict[str, Any]:
    if isinstance(activation, Elementwise):
        raise InvalidInput(
            "A network with an Elementwise activation holds Python code, which lben.save never writes: "
            "keep its state_dict, and make the network again with the same activation."
        )
    name = type(activation).__name__
    if _ACTIVATIONS.get(name) is not type(activation):
        raise InvalidInput(f"lben.save writes the activations of lben, not {activation!r}.")
    if isinstance(activation, PerUnit):
        return {"name": name, "activations": [describe_activation(a) for a in activation.activations]}
    if isinstance(activation, Blocks):
        return {"name": name, "parts": [[describe_activation(part), width] for part, width in activation.parts]}
    if isinstance(activation, Projection):
        kind = type(activation.set)
        if _SETS.get(kind.__name__) is not kind:
            raise InvalidInput(f"lben.save writes projections onto the sets of lben, not {activation.set!r}.")
        return {"name": name, "set": {"name": kind.__name__, **asdict(activation.set)}}  # type: ignore[call-overload]
    return {"name": name, **asdict(activation)}  # type: ignore[call-overload]


def build_activation(description: object, depth: int = 0) -> Activation:
    name, options = _named("activation", description, depth)
    kind = _ACTIVATIONS.get(name)
    if kind is None:
        raise InvalidFile(f"there is no activation {name!r}.")
    if kind is PerUnit:
        (parts,) = take(name, options, "activations")
        if not isinstance(parts, list):
            raise InvalidFile(f"the activations of PerUnit must be a list, not {parts!r}.")
        return PerUnit([build_activation(part, depth + 1) for part in parts])  # type: ignore[misc] # checked by PerUnit
    if kind is Blocks:
        (parts,) = take(name, options, "parts")
        if not isinstance(parts, list) or not all(isinstance(part, list) and len(part) == 2 for part in parts):
            raise InvalidFile(f"the parts of Blocks must be pairs, not {parts!r}.")
        return Blocks([(build_activation(part, depth + 1), width) for part, width in parts])
    if kind is Projection:
        (described,) = take(name, options, "set")
        chosen, rest = _named("set", described, depth)
        if chosen not in _SETS:
            raise InvalidFile(f"there is no set {chosen!r}.")
        return Projection(_make(_SETS[chosen], rest))
    made: Activation = _make(kind, options)
    return made


def describe_solver(solver: Solver) -> dict[str, Any]:
    name = type(solver).__name__
    if _SOLVERS.get(name) is not type(solver):
        raise InvalidInput(f"lben.save writes the solvers of lben, not {solver!r}.")
    description: dict[str, Any] = {"name": name, **asdict(solver)}
    if isinstance(solver, Anderson):
        description["method"] = describe_solver(solver.method)
    if solver.backward is not None:
        description["backward"] = describe_solver(solver.backward)
    return description


def build_solver(description: object, depth: int = 0) -> Solver:
    name, options = _named("solver", description, depth)
    if name not in _SOLVERS:
        raise InvalidFile(f"there is no solver {name!r}.")
    if _SOLVERS[name] is Anderson:
        options["method"] = build_solver(options.get("method"), depth + 1)
    if options.get("backward") is not None:
        options["backward"] = build_solver(options["backward"], depth + 1)
    made: Solver = _make(_SOLVERS[name], options)
    return made


def take(what: str, options: object, *names: str) -> list[Any]:
    """The values of exactly these names."""
    if not isinstance(options, dict):
        raise InvalidFile(f"{what} must be described by names and values, not by {options!r}.")
    if set(options) != set(names):
        raise InvalidFile(
            f"{what} must have {', '.join(names) or 'no options'}, but has {', '.join(options) or 'none'}."
        )
    return [options[name] for name in names]


def _named(what: str, description: object, depth: int) -> tuple[str, dict[str, Any]]:
    if not isinstance(description, dict) or not isinstance(description.get("name"), str):
        raise InvalidFile(f"the {what} must be described by its name and its options, not by {description!r}.")
    if depth > _DEEPEST:
        raise InvalidFile(f"an {what} lies {depth} deep in others, and {_DEEPEST} is the most.")
    options = dict(description)
    return options.pop("name"), options


def _make(kind: type[Any], options: dict[str, Any]) -> Any:
    """A record of these options, which are all it has; it checks their values itself."""
    take(kind.__name__, options, *(option.name for option in fields(kind)))
    return kind(**options)
