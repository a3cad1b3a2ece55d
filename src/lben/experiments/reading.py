"""Records back from JSON that anybody may have changed: every field of its type, every number finite, or a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from lben.errors import InvalidFile, InvalidInput

T = TypeVar("T")


def read_record(file: Path, make: Callable[[Any], T], words: str) -> T:
    """What `make` makes of the JSON in a file; `words` say what the file is not, and what to do."""
    try:
        return make(json.loads(file.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(".") if isinstance(error, InvalidInput) else type(error).__name__
        raise InvalidFile(f"{file} {words} ({reason}).") from error


def record(cls: type[T], content: object) -> T:
    """A dataclass from a dict with its fields; those with a default may be absent."""
    return _value(cls, content, cls.__name__)  # type: ignore[no-any-return]


def _value(kind: Any, value: Any, name: str) -> Any:
    """The value, if it is of that type; a dict becomes the dataclass that is wanted."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for option in options:
        origin, inner = get_origin(option) or option, get_args(option)
        if isinstance(option, type) and is_dataclass(option) and isinstance(value, dict):
            return _record(option, value, name)
        if origin is list and isinstance(value, list):
            return [_value(inner[0], item, f"{name}[{k}]") for k, item in enumerate(value)]
        if origin is dict and isinstance(value, dict):
            return {key: _value(inner[1], item, f"{name}.{key}") for key, item in value.items()}
        if option is Any or (option is float and is_number(value)) or (option is type(None) and value is None):
            return value
        if option in (bool, int, str) and type(value) is option:
            return value
    shown = repr(value)
    raise InvalidInput(f"{name} is {shown if len(shown) < 60 else shown[:57] + '...'}")


def is_number(value: object) -> bool:
    """Whether it is a finite number, of a size that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def _record(cls: Any, content: dict[str, Any], name: str) -> Any:
    hints, known = get_type_hints(cls), [field.name for field in fields(cls)]
    strange = [key for key in content if key not in known]
    if strange:
        raise InvalidInput(f"{name} has no {strange[0][:60]!r}")
    try:
        return cls(**{key: _value(hints[key], value, f"{name}.{key}") for key, value in content.items()})
    except TypeError as error:  # a field without a default is absent
        raise InvalidInput(f"{name}: {error}") from error
