"""Whatever decides a run, as plain values: the same in every process for the same thing, and others for another."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FEW = 4  # entries that are shown as they are
_DEEPEST = 8


def fingerprint(value: object, depth: int = 0) -> Any:
    """A value as JSON knows it: what is short as it is, what is long by a digest, functions by their code.

    Objects are known by their class and by what they hold, not by their place in memory.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        return _tensor(value)
    if depth == _DEEPEST:
        return type(value).__qualname__
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        held = fingerprint([value.__defaults__, value.__kwdefaults__, cells], depth + 1)
        return f"{value.__qualname__}, code SHA-256 {_digest([_code(value.__code__), held])}"
    if isinstance(value, MethodType):
        return [fingerprint(value.__self__, depth + 1), fingerprint(value.__func__, depth + 1)]
    if isinstance(value, partial):
        return fingerprint([value.func, value.args, value.keywords], depth + 1)
    if isinstance(value, Mapping):
        return _entries({str(key): fingerprint(entry, depth + 1) for key, entry in value.items()})
    if isinstance(value, list | tuple | set | frozenset):
        return _entries([fingerprint(entry, depth + 1) for entry in value])
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    held = ", ".join(f"{name}={fingerprint(entry, depth + 1)}" for name, entry in vars(value).items())
    return f"{type(value).__qualname__}({held})"


def shape_of(tensor: Tensor) -> str:
    """Shape and dtype in words."""
    return f"{' x '.join(str(size) for size in tensor.shape) or 'one'} {str(tensor.dtype)[6:]}"


def _tensor(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.numel() <= _FEW:
        return tensor.tolist()
    digest = hashlib.sha256(tensor.flatten().view(torch.uint8).numpy().data).hexdigest()
    return f"{shape_of(tensor)}, SHA-256 {digest[:16]}"


def _entries(entries: list[Any] | dict[str, Any]) -> Any:
    return entries if len(entries) <= _FEW else f"{len(entries)} entries, SHA-256 {_digest(entries)}"


def _code(code: CodeType) -> list[Any]:
    constants = [_code(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
