"""A device that is none: tensors on it hold their numbers on the CPU, but refuse to meet those that are there.

There is no GPU where the tests run. To torch this is a device like others (`x.device`, `.to`, factories, autograd,
optimizers), with CUDA's manners: a tensor of the CPU, other than a single number or an index, is refused beside one of
it, `.numpy()` fails, and what is copied to the CPU is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
except ImportError:  # of an older torch
    pytest.skip("This torch knows no device that is written in Python.", allow_module_level=True)

NAME = "pretend"
_CPU = torch.device("cpu")
_MIXING = ("aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put", "aten::_index_put_impl", "aten::set_")


_LAZY = {"aten::_conj": torch.conj_physical, "aten::_neg_view": torch.neg}


class There(Tensor):
    """A tensor on the device, and `here`, its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
        )
        made.here = here
        return made  # type: ignore[no-any-return]

    def __init__(self, here: Tensor) -> None: ...

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.here})"

    def backward(self, *args: Any, **kwargs: Any) -> None:
        with _alone():  # again: `torch.inference_mode(False)` forgets it
            super().backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def tolist(self) -> Any:
        _note(self)
        return self.here.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = copy = self.detach().clone().requires_grad_(self.requires_grad)
        return copy

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        name = func._schema.name.removesuffix("_") if func._schema.name != "aten::copy_" else func._schema.name
        if name not in _MIXING:
            _refuse_strangers(func, args, kwargs)
        if target is not None:
            kwargs["device"] = _CPU
        if name in _LAZY:  # bits of which nothing is known down here
            return There(_LAZY[name](args[0].here))
        found = func(*tree_map(_here, args), **tree_map(_here, kwargs))
        if target is not None and torch.device(target).type == "cpu":
            _note(found)
            return found
        if name == "aten::copy_" and not isinstance(args[0], There):
            _note(args[0])
            return args[0]
        wrapped = tree_map(lambda t: There(t) if isinstance(t, Tensor) else t, found)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, There) else value


def _refuse_strangers(func: Any, args: Any, kwargs: Any) -> None:
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and not isinstance(leaf, There) and leaf.dim() > 0:
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device, but one is on {leaf.device}.")


There.__module__ = "torch"  # by which Foolbox knows whose tensors it has

copied: list[int] = []
"""How many numbers each copy to the CPU had, since `elsewhere` began."""


def _note(tensor: Tensor) -> None:
    copied.append(tensor.numel())


class _Factories(TorchDispatchMode):
    """Makes what is asked for on the device: zeros, ones, copies of what is on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        wanted = target is not None and torch.device(target).type == NAME
        if wanted and not any(isinstance(leaf, There) for leaf in tree_leaves((args, kwargs))):
            return There(func(*args, **{**kwargs, "device": _CPU}))
        return func(*args, **kwargs)


def _alone() -> torch.autograd.set_multithreading_enabled:
    """Without autograd's threads, one a device: they were counted before there was this one."""
    return torch.autograd.set_multithreading_enabled(False)


@cache
def _registered() -> torch.library.Library:
    """The device as torch knows it, with what `torch.tensor` and its like need below the reach of modes."""
    _setup_privateuseone_for_python_backend(NAME)
    getattr(torch, NAME).get_amp_supported_dtype = list  # torch's checkpointing asks every device, also from the CPU
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _empty, "PrivateUse1")
    library.impl("_copy_from", _copy, "PrivateUse1")
    return library


def _empty(size: list[int], stride: list[int], dtype: torch.dtype, **rest: Any) -> Tensor:
    return There(torch.empty_strided(size, stride, dtype=dtype))


def _copy(source: Tensor, target: There, non_blocking: bool = False) -> Tensor:
    target.here.copy_(source)
    return target


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device, while there is one."""
    _registered()
    copied.clear()
    with _alone(), _Factories():  # type: ignore[no-untyped-call]
        yield torch.device(NAME, 0)
