"""What a network is beside its tensors, written down once: files, state dicts, checkpoints and `repr` all read it.

Values are plain, such as JSON has: numbers, words, lists, and for an activation or a solver its name and its options.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import signature
from itertools import groupby
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from lben.errors import InvalidFile, InvalidInput

M = TypeVar("M", bound=nn.Module)
_LONGEST = 400  # letters of a value that a state dict holds as it is; of a longer one, a digest
_DEEPEST = 8  # activations of activations, solvers of solvers, blocks of blocks: more than anybody nests


class Described(nn.Module):
    """A module whose state dict says what it is beside its tensors, and refuses a state dict of which another is true.

    There the description is JSON, one character a number: a tensor like the others, which survives whatever is done to
    all tensors of a state dict alike (copies, averages, other precisions, safetensors).
    """

    elsewhere: ClassVar[tuple[str, ...]] = ("solver", "normalize")
    """Options that a state dict does not hold: they do not decide the weights, or are tensors of their own."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What decides the function beside its tensors, by the name of the option that sets it.

        Returns:
            A dictionary of values.
        """

    def constants(self) -> dict[str, float]:
        """Numbers that are tensors, and that a state dict may not change all the same.

        Returns:
            A dictionary of numbers.
        """
        return {}

    def describe(self) -> dict[str, Any]:
        """The options as plain values, as a file and a state dict keep them.

        Returns:
            A dictionary that JSON can hold.
        """
        return {name: plain(value) for name, value in self.options().items()}

    def get_extra_state(self) -> Tensor:
        text = json.dumps(self._stated(), sort_keys=True)
        return torch.tensor(list(text.encode("ascii")), dtype=torch.float32, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Nothing is left to set: all that could differ was refused before any tensor was copied.

        Args:
            state: what a state dict holds of the options.
        """

    def _stated(self) -> dict[str, Any]:
        described = {name: value for name, value in self.describe().items() if name not in self.elsewhere}
        return {name: _short(value) for name, value in {**described, **self.constants()}.items()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}_extra_state" in state_dict:
            self._refuse_other(_read(state_dict[f"{prefix}_extra_state"]))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _refuse_other(self, found: dict[str, Any]) -> None:
        """What one of the two does not know, it does not have: None."""
        own = json.loads(json.dumps(self._stated()))
        for name in (*own, *found):
            mine, its = own.get(name), found.get(name)
            if mine != its:
                raise InvalidInput(
                    f"This state dict is of a network with {name} = {shown(its)}, and this network has "
                    f"{name} = {shown(mine)}: make it with the same {name}."
                )


def plain(value: Any) -> Any:
    """A value as JSON has it; whatever can `describe` itself by what that says, and what is none of ours in words."""
    if hasattr(value, "describe"):
        return value.describe()
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral | Real):  # those of numpy, too
        return int(value) if isinstance(value, Integral) else float(value)
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def describe_record(record: Any) -> dict[str, Any]:
    """The name of a frozen record, and its fields."""
    return {"name": type(record).__name__, **{f.name: plain(getattr(record, f.name)) for f in fields(record)}}


def shown(value: Any) -> str:
    """A plain value as people write it: ReLU(), 5 x ReLU(), 1 x Tanh()."""
    if isinstance(value, dict) and "name" in value:
        rest = [f"{name}={shown(entry)}" for name, entry in value.items() if name != "name"]
        return f"{value['name']}({', '.join(rest)})"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ", ".join(f"{len(list(run))} x {text}" for text, run in groupby(map(shown, value)))
    return str(value)


def _short(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    if len(text) <= _LONGEST:
        return value
    name = value.get("name", "") if isinstance(value, dict) else ""
    return f"{name} SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}".strip()


def _read(state: Any) -> dict[str, Any]:
    try:
        codes = state.detach().to("cpu", torch.float64).round().to(torch.int64)
        description = json.loads(bytes(codes.tolist()))
    except (AttributeError, NotImplementedError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput("The description in this state dict cannot be read: it was changed.") from error
    if not isinstance(description, dict):
        raise InvalidInput("The description in this state dict cannot be read: it was changed.")
    return description


def take(what: str, options: object, *names: str) -> list[Any]:
    """The values of exactly these names, in a description that comes from a file."""
    if not isinstance(options, dict):
        raise InvalidFile(f"{what} must be described by names and values, not by {options!r}.")
    if set(options) != set(names):
        raise InvalidFile(
            f"{what} must have {', '.join(names) or 'no options'}, but has {', '.join(options) or 'none'}."
        )
    return [options[name] for name in names]


def named(what: str, description: object, depth: int) -> tuple[str, dict[str, Any]]:
    """The name and the options of something that may be `depth` deep in others."""
    if not isinstance(description, dict) or not isinstance(description.get("name"), str):
        raise InvalidFile(f"the {what} must be described by its name and its options, not by {description!r}.")
    if depth > _DEEPEST:
        raise InvalidFile(f"the {what} lies {depth} deep in others, and {_DEEPEST} is the most.")
    options = dict(description)
    return options.pop("name"), options


def make_record(kind: type[Any], options: dict[str, Any]) -> Any:
    """A record of these options, which are all it has; it checks their values itself."""
    take(kind.__name__, options, *(option.name for option in fields(kind) if option.init))
    return kind(**options)


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What a file holds of a module: parameters and buffers, without the words of its state dict."""
    return {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("_extra_state")}


def made(make: Callable[[], M], tensors: dict[str, Tensor]) -> M:
    """What `make` makes, with any weights of the shapes of these tensors; no random stream is moved.

    It is made without memory first, so that nothing large is made where the two disagree.
    """
    with torch.device("meta"):
        like = make()
    shapes = {name: tensor.shape for name, tensor in stored_tensors(like).items()}
    if shapes.keys() != tensors.keys():
        what = type(like).__name__
        raise InvalidInput(f"a {what} of these options has {_listed(shapes)}, not {_listed(tensors)}.")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise InvalidInput(f"{name} must have shape {tuple(shape)}, not {tuple(tensors[name].shape)}.")
    with torch.random.fork_rng(devices=[]):
        return make()


def arguments(kind: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those options that the constructor takes; a description does not say on which device something is made."""
    known = signature(kind).parameters.keys() - {"device", "dtype"}
    return {name: value for name, value in options.items() if name in known}


def agree(what: str, description: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse a description that is not the one of what was made of it."""
    take(what, description, *own)
    for name, value in own.items():
        if description[name] != value:
            raise InvalidFile(f"the {name} of this {what} is {value!r}, not {description[name]!r}.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def fill(net: Described, described: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Give a network that was made from a description these tensors, if it is what is described."""
    net.to(dtype)
    agree(type(net).__name__, described, net.describe())
    with torch.no_grad():
        for path, tensor in stored_tensors(net).items():
            tensor.copy_(tensors[path])
