"""Isometries and contractions without weights: they are their records, and keep or shrink distances."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lben
from lben.layers.base import Layer

CASES: list[tuple[Layer, tuple[int, ...], tuple[int, ...]]] = [
    (lben.SpaceToDepth(2), (3, 4, 6), (12, 2, 3)),
    (lben.SpaceToDepth(1), (3, 5, 7), (3, 5, 7)),
    (lben.SpaceToDepth(3), (1, 3, 3), (9, 1, 1)),
    (lben.PadChannels(5), (3, 4, 6), (5, 4, 6)),
    (lben.PadChannels(5), (3,), (5,)),
    (lben.PadChannels(3), (3, 2, 2), (3, 2, 2)),
    (lben.MaxMin(), (4, 3, 5), (4, 3, 5)),
    (lben.MaxMin(), (6,), (6,)),
]
NAMES = [f"{type(layer).__name__}-{shape}" for layer, shape, _ in CASES]


@pytest.mark.parametrize(("layer", "shape", "expected"), CASES, ids=NAMES)
def test_a_layer_is_its_record(layer: Layer, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = torch.randn(7, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stage = layer.stage(shape)
    y = layer(x)
    assert tuple(y.shape[1:]) == layer.out_shape(shape) == stage.out_shape == expected
    assert torch.equal(stage.apply(x.flatten(1)), y.flatten(1))


@pytest.mark.parametrize(("layer", "shape", "expected"), CASES, ids=NAMES)
def test_gradients_are_exact(layer: Layer, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(layer, x.requires_grad_())


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8))
def test_distances_are_kept_or_shrink(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64).reshape(2, 2, 2, 1)
    for layer, keeps in ((lben.PadChannels(3), True), (lben.MaxMin(), False)):
        before, after = (float((pair[0] - pair[1]).square().sum()) for pair in (x, layer(x)))
        assert after == before if keeps else after <= before * (1 + 1e-12)


def test_channels_are_sorted_in_pairs() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    assert lben.MaxMin()(x).tolist() == [[2, 1, 4, 3]]


def test_a_state_dict_of_another_is_refused() -> None:
    with pytest.raises(lben.InvalidInput, match="sizes"):
        lben.SpaceToDepth(2).load_state_dict(lben.SpaceToDepth(3).state_dict())
    lben.SpaceToDepth(2).load_state_dict(lben.SpaceToDepth(2).state_dict())
    assert repr(lben.SpaceToDepth(2)) == "SpaceToDepth(2)"


def test_bad_input_is_named() -> None:
    for layer, shape, words in (
        (lben.SpaceToDepth(2), (3, 5, 4), "cannot divide 5 x 4 pixels"),
        (lben.SpaceToDepth(2), (12,), r"images of shape \(channels, height, width\), not \(12,\)"),
        (lben.PadChannels(2), (3, 4, 4), "cannot take the 3 channels"),
        (lben.PadChannels(2), (), "samples that have channels"),
        (lben.MaxMin(), (3, 4, 4), "even number of channels"),
    ):
        with pytest.raises(lben.InvalidInput, match=words):
            layer.out_shape(shape)
        with pytest.raises(lben.InvalidInput, match=words):
            layer.stage(shape)
    with pytest.raises(lben.InvalidInput, match="even number"):
        lben.MaxMin()(torch.randn(2, 3))
    with pytest.raises(lben.InvalidInput, match="batch dimension"):
        lben.MaxMin()(torch.randn(4))
    with pytest.raises(lben.InvalidInput, match="float32 or float64"):
        lben.MaxMin()(torch.ones(2, 4, dtype=torch.int64))
    for wrong in (0, 1.5, "2"):
        with pytest.raises(lben.InvalidInput, match="integer of at least 1"):
            lben.SpaceToDepth(wrong)  # type: ignore[arg-type]
