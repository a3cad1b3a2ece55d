"""What functions need where the compiler, batches of gradients or nested derivatives meet them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")


def as_it_is(function: Callable[P, R]) -> Callable[P, R]:
    """A function that `torch.compile` leaves alone: it runs between two graphs.

    `torch.compiler.disable` does that, but would import the compiler, which takes as long as torch itself: so it waits
    until somebody else has imported it.
    """
    disabled: list[Callable[P, R]] = []

    @wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **named)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **named)

    return run


def backward_rule(rule: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """The backward rule of an autograd function, run as it is, that takes `is_grads_batched=True` as well."""
    plain = as_it_is(rule)

    @wraps(rule)
    def run(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not any(map(torch._C._functorch.is_legacy_batchedtensor, grads)):
            return plain(ctx, *grads)
        return _sliced(partial(plain, ctx), grads)

    return run


def forward_rule(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The `jvp` of an autograd function, run as it is, for transforms within transforms and for batched tangents.

    It is a rule of ctx, the saved tensors and the tangents. Torch turns forward mode off in a `jvp`, for outer levels
    of torch.func too, whose derivatives would silently be zero: it is turned on again, for tensors whose tangents at
    the level of this rule are taken off.
    """
    plain = as_it_is(rule)

    @wraps(rule)
    def run(ctx: Any, *tangents: Any) -> Tensor:
        saved = ctx.saved_tensors
        if torch._C._are_functorch_transforms_active():
            with forward_ad._set_fwd_grad_enabled(True):
                return plain(ctx, [_primal(t) for t in saved], *(_primal(t) for t in tangents))
        if not any(isinstance(t, Tensor) and torch._C._functorch.is_legacy_batchedtensor(t) for t in tangents):
            return plain(ctx, saved, *tangents)
        (found,) = _sliced(lambda *one: (plain(ctx, saved, *one),), tangents)
        assert found is not None
        return found

    return run


def _primal(value: Any) -> Any:
    return forward_ad.unpack_dual(value).primal if isinstance(value, Tensor) else value


def _sliced(rule: Callable[..., tuple[Tensor | None, ...]], args: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """What a rule makes of batched tensors.

    The batches of `torch.autograd` are of an older kind than those of `torch.func.vmap`, and autograd functions have no
    rule for them. So they are given to `vmap`, and its results are batched again as they were.
    """
    torch._C._vmapmode_increment_nesting()
    level = torch._C._vmapmode_decrement_nesting()
    batched = [isinstance(a, Tensor) and torch._C._functorch.is_legacy_batchedtensor(a) for a in args]
    whole = [torch._remove_batch_dim(a, level, 0, 0) for a, own in zip(args, batched, strict=True) if own]
    wanted: list[bool] = []

    def defined(*slices: Tensor) -> tuple[Tensor, ...]:
        rest = iter(slices)
        found = rule(*(next(rest) if own else a for a, own in zip(args, batched, strict=True)))
        wanted[:] = [result is not None for result in found]
        return tuple(result for result in found if result is not None)

    results = iter(torch.func.vmap(defined)(*whole))
    return tuple(torch._add_batch_dim(next(results).contiguous(), 0, level) if want else None for want in wanted)
