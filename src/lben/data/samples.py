"""Samples to learn from: of the right type, range, shape and number, or refused with what was found."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lben import checks
from lben.errors import InvalidInput

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def tensor(name: str, value: Tensor | np.ndarray) -> Tensor:
    """The tensor, or that of a numpy array, if it is an ordinary one that is held in memory."""
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        try:
            return torch.from_numpy(np.require(value, requirements=["C", "W"]))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{name} is a numpy array of {value.dtype}, which torch does not have.") from error
    if not isinstance(value, Tensor):
        raise InvalidInput(f"{name} must be a torch.Tensor or a numpy array, not {type(value).__name__}.")
    if value.is_meta or value.layout != torch.strided:
        raise InvalidInput(f"{name} must be a plain tensor, not one on the meta device or in a sparse layout.")
    return value.detach()


def images(name: str, value: Tensor | np.ndarray) -> Tensor:
    """Rows of bytes, or of floats in [0, 1]."""
    return in_range(name, _rows(name, tensor(name, value)))


def in_range(name: str, found: Tensor) -> Tensor:
    """Bytes, or floats in [0, 1]: anything else has no known scale."""
    if found.dtype == torch.uint8:
        return found
    words = f"{name} must be bytes, uint8 from 0 to 255, or floats in [0, 1], but is {str(found.dtype)[6:]}"
    if found.dtype not in _FLOATS:
        raise InvalidInput(f"{words}.")
    checks.finite(name, found)
    low, high = (float(found.min()), float(found.max())) if found.numel() else (0.0, 1.0)
    if not 0 <= low <= high <= 1:
        raise InvalidInput(f"{words} from {low:.6g} to {high:.6g}.")
    return found


def labels(name: str, value: Tensor | np.ndarray) -> Tensor:
    """Classes, numbered from 0, one a sample."""
    found = tensor(name, value)
    if found.dtype not in _INTEGERS:
        raise InvalidInput(f"{name} must be integers, one class a sample, but is {str(found.dtype)[6:]}.")
    if found.dim() != 1:
        raise InvalidInput(f"{name} must have shape (count,), not {tuple(found.shape)}.")
    if found.numel() and int(found.min()) < 0:
        raise InvalidInput(f"{name} must be classes from 0 on, but holds {int(found.min())}.")
    return found.to(torch.int64)


def numbers(name: str, value: Tensor | np.ndarray) -> Tensor:
    """Rows of finite numbers."""
    found = _rows(name, tensor(name, value))
    if found.dtype not in (*_FLOATS, *_INTEGERS):
        raise InvalidInput(f"{name} must be real numbers, but is {str(found.dtype)[6:]}.")
    return checks.finite(name, found)


def _rows(name: str, found: Tensor) -> Tensor:
    if found.dim() < 2 or 0 in found.shape[1:]:
        raise InvalidInput(f"{name} must have shape (count, .., features), not {tuple(found.shape)}.")
    return found


def check_count(name: str, samples: Tensor, other: str, answers: Tensor) -> None:
    if len(samples) != len(answers):
        raise InvalidInput(f"{name} are {len(samples)}, but {other} are {len(answers)}: they must be as many.")
    if name.startswith("test") and not len(samples):
        raise InvalidInput(f"{name} is empty: there must be something to test on.")


def check_targets(outputs: Tensor, targets: Tensor) -> None:
    """Pass outputs and targets of one shape: torch would repeat the smaller."""
    if outputs.shape != targets.shape:
        raise InvalidInput(
            f"The network's outputs have shape {tuple(outputs.shape)}, but the targets {tuple(targets.shape)}. "
            "Targets that are floats are regression: for classes give integers."
        )


def check_classes(outputs: Tensor, labels: Tensor) -> None:
    """Pass one label a row of outputs, of which each has an output."""
    if outputs.shape[:-1] != labels.shape:
        raise InvalidInput(
            f"The network's outputs have shape {tuple(outputs.shape)}, but the labels {tuple(labels.shape)}."
        )
    if labels.numel() and int(labels.max()) >= outputs.shape[-1]:
        raise InvalidInput(f"There is a label {int(labels.max())}, but the network has {outputs.shape[-1]} outputs.")


def check_alike(train: Tensor, test: Tensor) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise InvalidInput(
            f"A sample to train on has shape {tuple(train.shape[1:])}, but to test on {tuple(test.shape[1:])}."
        )
