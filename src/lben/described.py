"""Modules whose state dicts say what no tensor of theirs does: the bound, the activation, the geometry."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lben.errors import InvalidInput


class Described(nn.Module):
    """A module that writes a description into its state dict, and refuses a state dict of which another is true.

    The description is JSON, one character a number: a tensor like the others, which survives whatever is done to all
    tensors of a state dict alike (copies, averages, other precisions, safetensors).
    """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What decides the function and is in no tensor, by the name of the option that sets it."""

    def get_extra_state(self) -> Tensor:
        text = json.dumps(self.describe(), sort_keys=True)
        return torch.tensor(list(text.encode("ascii")), dtype=torch.float32, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Nothing is left to set: all that could differ was refused before any tensor was copied."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}_extra_state" in state_dict:
            self._refuse_other(_read(state_dict[f"{prefix}_extra_state"]))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _refuse_other(self, found: dict[str, Any]) -> None:
        own = json.loads(json.dumps(self.describe()))
        for name in own.keys() & found.keys():
            if own[name] != found[name]:
                raise InvalidInput(
                    f"This state dict is of a network with {name} = {found[name]}, and this network has {name} = "
                    f"{own[name]}: make it with the same {name}."
                )


def _read(state: Any) -> dict[str, Any]:
    try:
        codes = state.detach().to("cpu", torch.float64).round().to(torch.int64)
        description = json.loads(bytes(codes.tolist()))
    except (AttributeError, NotImplementedError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput("The description in this state dict cannot be read: it was changed.") from error
    if not isinstance(description, dict):
        raise InvalidInput("The description in this state dict cannot be read: it was changed.")
    return description
