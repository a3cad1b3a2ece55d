"""Sandwich layers: on the boundary of the condition by construction, and equilibrium networks all the same."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor

import lben
from tests.layers.climbing import solved, steepest, trained
from tests.layers.gradients import check_gradients

PADDINGS: tuple[Literal["zeros", "circular"], ...] = ("zeros", "circular")


@pytest.mark.parametrize("outputs", [3, 7, 12])
@pytest.mark.parametrize("activation", [lben.ReLU(), lben.Tanh()], ids=lambda a: type(a).__name__)
def test_no_pair_is_steeper_than_the_bound_after_training(outputs: int, activation: lben.Activation) -> None:
    torch.manual_seed(0)
    layer = trained(lben.Sandwich(7, outputs, activation=activation), (7,))
    assert lben.certify(layer)
    assert lben.certify(layer, rigorous=True)
    assert 0.3 < steepest(layer, (7,)) <= 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("high", "wide"), [(5, 6), (4, 4)])
@pytest.mark.parametrize(("outputs", "kernel_size"), [(2, 3), (5, 3)])
def test_no_pair_of_images_is_steeper_than_the_bound_after_training(
    outputs: int, kernel_size: int, high: int, wide: int, padding: Literal["zeros", "circular"]
) -> None:
    torch.manual_seed(0)
    layer = lben.ConvSandwich(3, outputs, kernel_size=kernel_size, padding=padding)
    layer = trained(layer, (3, high, wide))
    assert 0.3 < steepest(layer, (3, high, wide)) <= 1


def test_a_dense_layer_is_the_equilibrium_network_it_says() -> None:
    torch.manual_seed(0)
    layer = lben.Sandwich(6, 9, activation=lben.Tanh(), dtype=torch.float64)
    with torch.no_grad():
        layer.log_psi.normal_()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    weights = layer.weights().detach()
    assert not weights.W.any()
    torch.testing.assert_close(layer(x), solved(weights, x, layer.activation), rtol=1e-14, atol=1e-14)
    gap = weights.condition(1.0) / weights.metric().sqrt() / weights.metric().sqrt()[:, None]
    assert 0 < float(torch.linalg.eigvalsh(gap)[0]) < float(torch.linalg.eigvalsh(gap)[-1]) < 1e-5


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize(("high", "wide"), [(3, 4), (5, 6)])
def test_a_layer_of_images_is_the_equilibrium_network_it_says(
    high: int, wide: int, kernel_size: int, padding: Literal["zeros", "circular"]
) -> None:
    torch.manual_seed(0)
    layer = lben.ConvSandwich(2, 3, kernel_size=kernel_size, padding=padding, activation=lben.Tanh()).double()
    with torch.no_grad():
        layer.log_psi.normal_()
    x = torch.randn(4, 2, high, wide, dtype=torch.float64)
    weights = layer.weights((high, wide))
    for form in (weights, weights.dense()):
        y = solved(form, x.flatten(1), layer.activation).reshape(4, 3, high, wide)
        torch.testing.assert_close(layer(x), y, rtol=1e-12, atol=1e-13)
    assert lben.certify(weights.dense())
    assert lben.certify(layer.float().weights((high, wide)).dense())
    stage = layer.stage((2, high, wide))
    assert stage.out_shape == (3, high, wide) == layer.out_shape((2, high, wide))


def test_large_free_variables_break_nothing() -> None:
    torch.manual_seed(0)
    layer = lben.Sandwich(8, 8)
    with torch.no_grad():
        layer.X.mul_(30)
        layer.Y.mul_(30)
        layer.log_psi.normal_(0, 2)
    assert lben.certify(layer)


def test_gradients_are_exact() -> None:
    torch.manual_seed(0)
    dense = lben.Sandwich(4, 3, activation=lben.Tanh(), dtype=torch.float64)
    conv = lben.ConvSandwich(2, 2, kernel_size=1, activation=lben.Tanh(), dtype=torch.float64)
    for layer, shape in ((dense, (2, 4)), (conv, (1, 2, 3, 2))):
        check_gradients(layer, shape)


def test_functional_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    layer = lben.Sandwich(3, 2, activation=lben.Tanh(), dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def energy(tensors: dict[str, Tensor]) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, tensors, (x,))
        return y.square().sum()

    found = torch.func.grad(energy)(parameters)
    layer(x).square().sum().backward()
    for name, value in layer.named_parameters():
        torch.testing.assert_close(found[name], value.grad)


def test_copies_and_state_dicts_hold_all_of_it() -> None:
    layer = lben.ConvSandwich(2, 3, kernel_size=1, padding="circular")
    twin = lben.ConvSandwich(2, 3, kernel_size=1, padding="circular")
    x = torch.randn(1, 2, 4, 4)
    twin.load_state_dict(layer.state_dict())
    for other in (twin, copy.deepcopy(layer)):
        assert torch.equal(other(x), layer(x))
    with pytest.raises(lben.InvalidInput, match="padding"):
        lben.ConvSandwich(2, 3, kernel_size=1).load_state_dict(layer.state_dict())


def test_bad_input_is_named() -> None:
    dense, conv = lben.Sandwich(4, 2), lben.ConvSandwich(3, 2, padding="circular")
    for given, words in ((torch.randn(2, 5), "4 features"), (torch.full((2, 4), torch.nan), "nan")):
        with pytest.raises(lben.InvalidInput, match=words):
            dense(given)
    for given, words in (
        (torch.randn(2, 4, 5, 5), r"images of shape \(3, height, width\), not \(4, 5, 5\)"),
        (torch.randn(2, 3, 2, 5), "at least 3 x 3 pixels, not 2 x 5"),
        (torch.randn(3, 5, 5), r"\(batch, channels, height, width\)"),
        (torch.full((2, 3, 4, 4), torch.inf), "inf"),
    ):
        with pytest.raises(lben.InvalidInput, match=words):
            conv(given)
    broken = lben.Sandwich(4, 2)
    with torch.no_grad():
        broken.log_psi[1] = torch.nan
    with pytest.raises(lben.InvalidInput, match="log_psi holds nan"):
        broken(torch.randn(2, 4))
    with pytest.raises(lben.InvalidInput, match="odd"):
        lben.ConvSandwich(3, 3, kernel_size=2)
    with pytest.raises(lben.InvalidInput, match='"zeros" or "circular"'):
        lben.ConvSandwich(3, 3, padding="same")  # type: ignore[arg-type]
    with pytest.raises(lben.InvalidInput, match="out_features"):
        lben.Sandwich(3, 0)
    for layer, shape in ((dense, (3,)), (conv, (3, 4)), (conv, (2, 4, 4))):
        with pytest.raises(lben.InvalidInput, match="takes"):
            layer.out_shape(shape)
