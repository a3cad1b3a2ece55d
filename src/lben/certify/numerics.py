"""The state of torch in which everything here computes, whatever the caller has set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def undisturbed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function with gradients on and mixed precision off, as inside `torch.no_grad` or autocast it could not."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with ExitStack() as settings:
            settings.enter_context(torch.inference_mode(False))
            settings.enter_context(torch.enable_grad())
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    settings.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return run
