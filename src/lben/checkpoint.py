"""Where a training run stands, as one file: weights, the state of the optimizer, the history, and its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lben.errors import InvalidFile, InvalidInput
from lben.files import read_tensors, write_bytes, write_tensors

_FILE, _KIND = "checkpoint.safetensors", "lben-run"


def write_checkpoint(
    folder: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    options: dict[str, Any],
    history: list[dict[str, Any]],
) -> None:
    """Write all of it at once; the history again as text."""
    tensors = {f"net.{name}": tensor for name, tensor in net.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    write_tensors(folder / _FILE, _KIND, {"config": options, "history": history}, tensors)
    write_bytes(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in history).encode())


def restore_checkpoint(
    folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Bring network and optimizer to where the checkpoint was written; an empty history where there is none."""
    file = folder / _FILE
    if not file.is_file():
        return []
    description, tensors = read_tensors(file, _KIND, "a training run")
    if description.get("config") != json.loads(json.dumps(options)):
        raise InvalidFile(f"{file} belongs to a run with other options: use another folder, or do not resume.")
    try:
        net.load_state_dict({name[4:]: t for name, t in tensors.items() if name.startswith("net.")})
    except (RuntimeError, InvalidInput) as error:
        raise InvalidFile(f"{file} belongs to another network: {str(error).splitlines()[0]}") from error
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    history: list[dict[str, Any]] = description["history"]
    return history
