"""Where a training run stands, as one file: weights, the state of the optimizer, the history, and what decides it."""

from __future__ import annotations

import json
from inspect import ismethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lben.described import Described
from lben.disk import read_tensors, write_bytes, write_tensors
from lben.errors import InvalidFile
from lben.normalize import Normalize
from lben.train.feed import Fed
from lben.train.fingerprint import fingerprint, shape_of
from lben.train.judge import Data

CHECKPOINT = "checkpoint.safetensors"
"""Its name in the folder of a run."""
_KIND = "lben-run"
_SHOWN = 3  # differences that are named


def identity(net: nn.Module, data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides a run, by name, as plain values: network, data and recipe."""
    known: dict[str, Any] = {"network": type(net).__name__}
    for path, module in net.named_modules():
        prefix = f"{path}." if path else ""
        if path:
            known[path] = type(module).__name__
        if type(module).__module__.startswith("torch."):
            known[f"{prefix}options"] = module.extra_repr()
        facts = {**module.options(), **module.constants()} if isinstance(module, Described) else {}
        facts |= module.options() if isinstance(module, Normalize) else {}
        if not type(module).__module__.startswith(("torch.", "lben.")):
            facts |= {name: fact for name, fact in vars(module).items() if name[0] != "_" and name != "training"}
        known |= {f"{prefix}{name}": fingerprint(fact) for name, fact in facts.items() if not ismethod(fact)}
    for name, parameter in net.named_parameters():
        frozen = "" if parameter.requires_grad else ", frozen"
        known[name] = f"{shape_of(parameter)}{frozen}"
    known |= {"data": type(data).__name__, "training samples": len(data)}
    held = data.facts() if isinstance(data, Fed) else getattr(data, "__dict__", {})
    known |= {f"data.{name}": fingerprint(value) for name, value in held.items()}
    plain: dict[str, Any] = json.loads(json.dumps({**known, **options}))
    return plain


def check_identity(file: Path, found: object, wanted: dict[str, Any]) -> None:
    """Pass a checkpoint of the run that is wanted; else name what differs, with both values."""
    if not isinstance(found, dict):
        raise InvalidFile(f"{file} does not say which run it belongs to: use another folder, or do not resume.")
    absent = "absent"
    names = [name for name in {**wanted, **found} if found.get(name, absent) != wanted.get(name, absent)]
    if not names:
        return
    said = [f"{name} is {found.get(name, absent)} there and {wanted.get(name, absent)} here" for name in names[:_SHOWN]]
    more = f", and {len(names) - _SHOWN} more differ" if len(names) > _SHOWN else ""
    raise InvalidFile(f"{file} belongs to another run: {'; '.join(said)}{more}. Use another folder, or do not resume.")


def write_checkpoint(
    folder: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    known: dict[str, Any],
    history: list[dict[str, Any]],
) -> None:
    """Write all of it at once; the history again as text."""
    tensors = network_tensors(net)
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    write_tensors(folder / CHECKPOINT, _KIND, {"run": known, "history": history}, tensors)
    write_history(folder, history)


def restore_checkpoint(
    folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer, known: dict[str, Any]
) -> list[dict[str, Any]]:
    """Bring network and optimizer to where the checkpoint was written; an empty history where there is none."""
    file = folder / CHECKPOINT
    if not file.is_file():
        return []
    description, tensors = read_tensors(file, _KIND, "a training run")
    check_identity(file, description.get("run"), known)
    load_network(net, tensors)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    history: list[dict[str, Any]] = description["history"]
    return history


def network_tensors(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of its state dict, under names of their own; what else is in there is part of its identity."""
    return {f"net.{name}": value for name, value in net.state_dict().items() if isinstance(value, Tensor)}


def load_network(net: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `network_tensors`, for a network of the same identity."""
    found = {name[4:]: tensor for name, tensor in tensors.items() if name.startswith("net.")}
    net.load_state_dict({**net.state_dict(), **found})


def write_history(folder: Path, history: list[dict[str, Any]]) -> None:
    """The history as text, for people: a copy of what the checkpoint knows, written where it is not there already."""
    file, content = folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in history).encode()
    if not file.is_file() or file.read_bytes() != content:
        write_bytes(file, content)
