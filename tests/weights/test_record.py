"""Records of weights, of every kind: copies hold the same numbers, and `same` sees what decides W and every bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import lben
from lben.weights.record import Record, same

KINDS: dict[str, Callable[[], Record]] = {
    "dense": lambda: lben.LBEN(16, 6, 3, gamma=0.7).weights(),
    "feed-through": lambda: lben.LBEN(16, 6, 3, gamma=0.7, skip="linear").weights(),
    "no metric": lambda: lben.UnconstrainedEN(16, 6, 3).weights(),
    "channel": lambda: lben.ConvLBEN((1, 4, 4), 2, 3, gamma=0.7, pool=2).weights(),
    "pixel": lambda: lben.ConvLBEN((1, 4, 4), 2, 3, gamma=0.7, pool=2, metric="pixel").weights(),
}


@pytest.fixture(params=KINDS)
def weights(request: pytest.FixtureRequest) -> Record:
    torch.manual_seed(0)
    return KINDS[request.param]()


def changed(weights: Record, **fields: Any) -> Record:
    other: Record = replace(weights, **fields)  # type: ignore[type-var] # every record is a dataclass
    return other


def test_copies_hold_the_same_numbers_without_history_or_shared_memory(weights: Record) -> None:
    assert any(tensor.requires_grad for tensor in weights.tensors().values())
    copy = weights.detach().clone()
    assert same(copy, weights)
    precise = weights.precise()
    for name, tensor in weights.tensors().items():
        assert not copy.tensors()[name].requires_grad
        assert copy.tensors()[name].data_ptr() != tensor.data_ptr()
        assert precise.tensors()[name].dtype == torch.float64
        assert torch.equal(precise.tensors()[name].float(), tensor)
    assert same(precise.to(torch.float32), weights)
    assert not same(precise, weights)


def test_all_but_the_biases_decides(weights: Record) -> None:
    for name, tensor in weights.tensors().items():
        last = torch.arange(tensor.numel()).reshape(tensor.shape) == tensor.numel() - 1
        other = torch.where(last, tensor + 0.01, tensor)
        assert same(weights, changed(weights, **{name: other})) == (name in ("bz", "by")), name
    assert not same(weights, changed(weights, gamma=0.8))


def test_what_is_no_number_is_refused_by_the_name_of_its_tensor(weights: Record) -> None:
    for name, tensor in weights.tensors().items():
        with pytest.raises(lben.InvalidInput, match=rf"\b{name}\b"):
            changed(weights, **{name: torch.full_like(tensor, torch.nan)}).validate()
    for name in {"lam", "entries"} & weights.tensors().keys():
        with pytest.raises(lben.InvalidInput, match=f"{name} must be positive"):
            changed(weights, **{name: -weights.tensors()[name]}).validate()
