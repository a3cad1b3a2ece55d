"""Checks of arguments and of packages: one clear sentence with what is wrong, before anything is computed."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as everywhere

from lben.errors import InvalidInput, MissingExtra, NotFinite

_MOST_ENTRIES = 2**31
FLOATS = (torch.float32, torch.float64)
_SMALLEST, _LARGEST = 1e-37, 1e37  # of single precision, with a decade to spare


def positive(name: str, value: float) -> float:
    """`value` as a float if it is above zero, finite, and neither in single precision a zero or an infinity."""
    real = number(name, value)
    if not (math.isfinite(real) and real > 0):
        raise InvalidInput(f"{name} must be a finite number above 0, not {value}.")
    if not _SMALLEST <= real <= _LARGEST:
        raise InvalidInput(f"{name} must lie between {_SMALLEST:g} and {_LARGEST:g}, not {value}.")
    return real


def rate(value: float) -> float:
    """`value` as a float if it is a rate of contraction that the leak of the ODE, which is 1, allows."""
    real = number("rate", value)
    if not 0 < real < 1:
        raise InvalidInput(f"rate must lie between 0 and 1, which is that of the leak -v alone, not {value}.")
    return real


def step_rate(value: float) -> float:
    """`value` as a float if distances can be multiplied by it at every step and never grow."""
    real = number("rate", value)
    if not 0 < real <= 1:
        raise InvalidInput(
            f"rate must lie in (0, 1], where 0.9 means that distances shrink to 0.9 of themselves a step, not {value}."
        )
    return real


def count(name: str, value: int) -> int:
    """`value` if it is an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InvalidInput(f"{name} must be an integer of at least 1, not {value!r}.")
    return int(value)


def affordable(what: str, *shape: int) -> None:
    """Refuse sizes of which a tensor would have more entries than anybody can have meant, before it is made."""
    if math.prod(shape) > _MOST_ENTRIES:
        sizes = " x ".join(str(size) if size < 2**60 else f"2^{size.bit_length() - 1}" for size in shape)
        raise InvalidInput(f"{what} would have {sizes} entries, more than the {_MOST_ENTRIES} that are made at most.")


def seed(value: int) -> int:
    """`value` if it can start a random number generator."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= value < 2**63:
        raise InvalidInput(f"seed must be an integer from 0 to 2^63 - 1, not {value!r}.")
    return int(value)


def number(name: str, value: float) -> float:
    """`value` as a float if it is a real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInput(f"{name} must be a number, not {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise InvalidInput(f"{name} is beyond every double: it must be below 1.8e308.") from None


def interval(name: str, ends: tuple[float, float]) -> tuple[float, float]:
    """`ends` as floats if they are two finite numbers, the smaller first."""
    pair = isinstance(ends, tuple | list) and len(ends) == 2
    pair = pair and all(isinstance(end, Real) and not isinstance(end, bool) for end in ends)
    if not pair or not -math.inf < ends[0] < ends[1] < math.inf:
        raise InvalidInput(f"{name} must be two numbers, the smaller first, not {ends!r}.")
    return float(ends[0]), float(ends[1])


def flag(name: str, value: bool) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {value!r}.")
    return value


def choice(name: str, value: str, kinds: tuple[str, ...]) -> str:
    """`value` if it is one of a few words."""
    if not isinstance(value, str) or value not in kinds:
        words = ", ".join(f'"{kind}"' for kind in kinds[:-1])
        raise InvalidInput(f'{name} must be {words} or "{kinds[-1]}", not {value!r}.')
    return value


def norm(value: str | float) -> Literal["2", "inf"]:
    """A norm by its name, which may be given as the number that it is, as to `torch.linalg.vector_norm`."""
    if isinstance(value, str | Real) and not isinstance(value, bool):
        if value in ("2", 2):
            return "2"
        if value in ("inf", math.inf):
            return "inf"
    raise InvalidInput(f'norm must be "2" or "inf", or one of these as a number, not {value!r}.')


def converted(tensor: Tensor, target: torch.dtype | torch.device | str) -> Tensor:
    """`tensor` in another dtype or on another device, if there is such a one."""
    if not isinstance(target, torch.dtype | torch.device | str):
        raise InvalidInput(f"Weights go to a torch.dtype or a device, not to {target!r}.")
    try:
        return tensor.to(target)
    except (AssertionError, RuntimeError) as error:  # torch's ways to say that there is no such device
        raise InvalidInput(f"Weights cannot go to {target!r}: {str(error).splitlines()[0]}.") from error


def placement(device: torch.device | str | int | None, dtype: torch.dtype | None) -> None:
    """Pass a device that is there and a dtype that networks have; None for either is what torch takes by itself."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in FLOATS):
        raise InvalidInput(f"dtype must be torch.float32 or torch.float64, not {dtype!r}.")
    if device is not None:
        known_device(device)


def known_device(device: torch.device | str | int) -> torch.device:
    """`device`, if there is such a one here."""
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise InvalidInput(f'device must be a torch.device or its name, such as "cuda", not {device!r}.')
    try:
        return torch.empty(0, device=device).device
    except (
        AssertionError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:  # torch has many words
        reason = str(error).splitlines()[0].rstrip(".")
        raise InvalidInput(f"There is no device {str(device)!r} here: {reason}.") from error


def floating(name: str, tensor: Tensor) -> Tensor:
    """`tensor` if it is a dense real tensor of single or double precision."""
    if not isinstance(tensor, Tensor):
        raise InvalidInput(f"{name} must be a torch.Tensor, not {type(tensor).__name__}.")
    if tensor.dtype not in FLOATS:
        raise InvalidInput(f"{name} must be float32 or float64, not {str(tensor.dtype)[6:]}: convert it first.")
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else f"of layout {str(tensor.layout)[6:]}"
        raise InvalidInput(f"{name} must be a dense tensor, but it is {kind}.")
    return tensor


def finite(name: str, tensor: Tensor) -> Tensor:
    """`tensor` if it has values, and among them no NaN and no infinity."""
    values = peeled(there(name, tensor))
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise NotFinite(f"{name} holds {values[where].item()} at index {where}: every entry must be finite.")
    return tensor


def finite_in_time(u: Tensor) -> None:
    """Pass a signal, times first, without NaN and infinity, or name the first time step that has one."""
    bad = ~torch.isfinite(u).flatten(1).all(dim=1)
    if bool(bad.any()):
        t = int(bad.nonzero()[0, 0])
        raise NotFinite(f"u holds NaN or infinity at time step {t} of {len(u)}: every entry must be finite.")


def bounded(what: str, *matrices: Tensor) -> None:
    """Pass matrices whose eigenvalues can be asked for: of NaN some are an error of LAPACK, and others end the process.

    Their entries are made of weights and metrics, each of which may be finite.
    """
    for matrix in matrices:
        if not bool(torch.isfinite(matrix).all()):
            raise NotFinite(f"{what} overflows: the weights or the metric are too large, or not finite.")


def there(name: str, tensor: Tensor) -> Tensor:
    """`tensor` if it has values."""
    if tensor.is_meta:
        raise InvalidInput(f"{name} is on the meta device, where tensors hold no numbers: load or make them first.")
    return tensor


def finite_sum(result: Tensor, **causes: Tensor | None) -> None:
    """Pass a `result` whose sum is finite at the cost of one call; else name the first cause that is not finite."""
    if math.isfinite((peeled(result) if transformed() else result).sum().item()):
        return
    for name, tensor in causes.items():
        if tensor is not None:
            finite(name, tensor)
    finite("U x + bz", result)


def alike(tensors: dict[str, Tensor]) -> None:
    """Pass tensors of one dtype, single or double, on one device."""
    first, like = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        floating(name, tensor)
        if tensor.dtype != like.dtype or tensor.device != like.device:
            raise InvalidInput(
                f"{name} is {tensor.dtype} on {tensor.device}, but {first} is {like.dtype} on {like.device}."
            )


def shapes(tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    """Pass tensors of the expected shapes."""
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected[name]:
            raise InvalidInput(f"{name} must have shape {expected[name]}, not {tuple(tensor.shape)}.")


def width(name: str, tensor: Tensor, size: int) -> Tensor:
    """`tensor` if its last dimension is `size`."""
    if tensor.dim() == 0 or tensor.shape[-1] != size:
        raise InvalidInput(
            f"{name} must have {size} features in its last dimension, but its shape is {tuple(tensor.shape)}."
        )
    return tensor


def features(name: str, tensor: Tensor, size: int, like: Tensor) -> Tensor:
    """`tensor` if its last dimension is `size` and it shares dtype and device with `like`."""
    width(name, floating(name, tensor), size)
    there(name, tensor)
    if tensor.dtype != like.dtype:
        raise InvalidInput(
            f"{name} is {str(tensor.dtype)[6:]} but the network is {str(like.dtype)[6:]}: convert one of them."
        )
    if tensor.device != like.device:
        raise InvalidInput(f"{name} is on {tensor.device} but the network is on {like.device}: move one of them.")
    return there(name, tensor)


def unchanged(kind: type, instead: str) -> None:
    """Refuse a class of others that changes what one of lben's computes, of which proofs know."""
    own = next(base for base in kind.__mro__ if base.__module__.startswith("lben."))
    for name in vars(kind):
        computes = name == "__call__" or not name.startswith("__")
        if own is not kind and not inspect.isabstract(own) and computes and hasattr(own, name):
            raise InvalidInput(
                f"{kind.__name__} has its own {name}, and of {own.__name__} alone is known what it does: use {instead}."
            )


def untouched(what: str, module: nn.Module) -> None:
    """Refuse a module that may compute something else than its class, in lben or torch, says."""
    kinds = type(module).__mro__
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        raise InvalidInput("There are hooks for all modules, which may do anything when one is called: remove them.")
    for name in vars(module):
        if callable(getattr(kinds[0], name, None)):
            raise InvalidInput(f"{what} has a {name} of its own, not that of its class: remove it first.")
    if module._forward_hooks or module._forward_pre_hooks:
        raise InvalidInput(
            f"{what} has hooks, which may do anything when it is called: remove them first (by what registered them, "
            "or nn.utils.remove_weight_norm, nn.utils.prune.remove and their like)."
        )
    first = next(place for place, kind in enumerate(kinds) if kind.__module__.split(".")[0] in ("lben", "torch"))
    ours = {name for kind in kinds[first:] if kind.__module__.startswith("lben.") for name in vars(kind)}
    watched = {name for name in ours if not name.startswith("__")} - {"extra_repr"} | {"__iter__"} if ours else set()
    for name, value in (item for kind in kinds[:first] for item in vars(kind).items()):
        if name in watched | {"__call__", "_call_impl"} and (callable(value) or isinstance(value, property)):
            raise InvalidInput(
                f"{what} has its own {name}, and of {kinds[first].__name__} alone is known what it does: put what "
                "yours adds into a module around it."
            )


def untouched_within(what: str, module: nn.Module) -> None:
    """Refuse a module of which any part may compute something else than its class says."""
    for name, part in module.named_modules():
        untouched(f"{what.rstrip(',')}, its {name}," if name else what, part)


def need(package: str, purpose: str, *, extra: str) -> Any:
    """A package beyond the core requirements, or one sentence that says what to install."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # theirs: Foolbox uses a name that SciPy is to drop
            warnings.simplefilter("ignore", SyntaxWarning)  # of orthogonium's docstrings, from Python 3.12 on
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{purpose} needs {package}: pip install 'lben[{extra}]'.") from error
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingExtra(f"{purpose} needs {package}, which is there but cannot be imported: {reason}") from error


def transformed() -> bool:
    """Whether tensors may be wrapped: by a transform of torch.func, a batch of gradients, or forward-mode AD.

    What decides by the values of tensors, or writes into them, must then look at `peeled` ones, or stand inside an
    autograd function, whose forward pass gets plain tensors.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def peeled(tensor: Tensor) -> Tensor:
    """The values of a tensor within all its wrappers, of every slice at once where a vmap has made slices of it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
