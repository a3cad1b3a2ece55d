"""SLL layers: bounded by construction, explicit, and equilibrium networks all the same."""

from __future__ import annotations

import copy

import pytest
import torch

import lben
from tests.layers.climbing import solved, steepest, trained
from tests.layers.gradients import check_gradients


@pytest.mark.parametrize("hidden", [None, 3, 12])
@pytest.mark.parametrize("activation", [lben.ReLU(), lben.Tanh(), lben.LeakyReLU(0.2)], ids=lambda a: type(a).__name__)
def test_no_pair_is_steeper_than_the_bound_after_training(hidden: int | None, activation: lben.Activation) -> None:
    torch.manual_seed(0)
    layer = trained(lben.SLL(7, hidden, activation=activation), (7,))
    assert lben.certify(layer)
    assert lben.certify(layer, rigorous=True)
    assert 0.9 < steepest(layer, (7,)) <= 1


@pytest.mark.parametrize(("high", "wide"), [(5, 6), (4, 4)])
@pytest.mark.parametrize(("hidden", "kernel_size"), [(None, 3), (2, 3), (5, 5)])
def test_no_pair_of_images_is_steeper_than_the_bound_after_training(
    hidden: int | None, kernel_size: int, high: int, wide: int
) -> None:
    torch.manual_seed(0)
    layer = trained(lben.ConvSLL(3, hidden, kernel_size=kernel_size), (3, high, wide))
    assert 0.9 < steepest(layer, (3, high, wide)) <= 1


def test_a_dense_layer_is_the_equilibrium_network_it_says() -> None:
    torch.manual_seed(0)
    layer = lben.SLL(6, 9, activation=lben.Tanh(), dtype=torch.float64)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    weights = layer.weights()
    assert not weights.W.any()
    torch.testing.assert_close(layer(x), solved(weights, x, layer.activation), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize(("high", "wide"), [(1, 4), (5, 6)])
def test_a_layer_of_images_is_the_equilibrium_network_it_says(high: int, wide: int, kernel_size: int) -> None:
    torch.manual_seed(0)
    layer = lben.ConvSLL(2, 3, kernel_size=kernel_size, activation=lben.Tanh(), dtype=torch.float64)
    x = torch.randn(4, 2, high, wide, dtype=torch.float64)
    weights = layer.weights((high, wide))
    for form in (weights, weights.dense()):
        y = solved(form, x.flatten(1), layer.activation).reshape(x.shape)
        torch.testing.assert_close(layer(x), y, rtol=1e-13, atol=1e-13)
    assert lben.certify(weights.dense())
    stage = layer.stage((2, high, wide))
    assert stage.out_shape == (2, high, wide) == layer.out_shape((2, high, wide))


def test_q_of_ones_scales_as_aol_does() -> None:
    torch.manual_seed(0)
    layer = lben.SLL(6, 4, dtype=torch.float64)
    torch.testing.assert_close(layer.scale(), (layer.weight @ layer.weight.T).abs().sum(1), rtol=2e-5, atol=0)


def test_the_perron_vector_of_a_nonnegative_gram_matrix_makes_the_convex_potential_layer() -> None:
    torch.manual_seed(0)
    layer = lben.SLL(6, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.abs_()
        gram = layer.weight @ layer.weight.T
        layer.log_q.copy_(torch.linalg.eigh(gram).eigenvectors[:, -1].abs().log())
    x = torch.randn(8, 6, dtype=torch.float64)
    step = 2 / torch.linalg.matrix_norm(layer.weight, 2) ** 2
    expected = x - step * torch.relu(x @ layer.weight.T + layer.bias) @ layer.weight
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_units_without_weights_do_nothing() -> None:
    layer = lben.SLL(3)
    with torch.no_grad():
        layer.weight.zero_()
    x = torch.randn(4, 3)
    torch.testing.assert_close(layer(x), x, rtol=1e-5, atol=0)
    assert lben.certify(layer)


def test_gradients_are_exact() -> None:
    torch.manual_seed(0)
    dense = lben.SLL(4, 3, activation=lben.Tanh(), dtype=torch.float64)
    conv = lben.ConvSLL(2, 3, activation=lben.Tanh(), dtype=torch.float64)
    for layer, shape in ((dense, (2, 4)), (conv, (1, 2, 3, 2))):
        check_gradients(layer, shape)


def test_copies_and_state_dicts_hold_all_of_it() -> None:
    layer = lben.ConvSLL(2, 3, kernel_size=5)
    twin = lben.ConvSLL(2, 3, kernel_size=5)
    x = torch.randn(1, 2, 4, 4)
    twin.load_state_dict(layer.state_dict())
    for other in (twin, copy.deepcopy(layer)):
        assert torch.equal(other(x), layer(x))
    with pytest.raises(lben.InvalidInput, match="kernel_size"):
        lben.ConvSLL(2, 3).load_state_dict(layer.state_dict())
    with pytest.raises(lben.InvalidInput, match="activation"):
        lben.ConvSLL(2, 3, kernel_size=5, activation=lben.Tanh()).load_state_dict(layer.state_dict())


def test_mixed_precision_is_turned_off_inside() -> None:
    layer = lben.ConvSLL(2)
    x = torch.randn(1, 2, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert torch.equal(y, layer(x))


def test_bad_input_is_named() -> None:
    dense, conv = lben.SLL(4), lben.ConvSLL(3)
    for given, words in (
        (torch.randn(2, 5), "4 features"),
        (torch.randn(2, 4, dtype=torch.float64), "float64"),
        (torch.full((2, 4), torch.nan), "nan"),
    ):
        with pytest.raises(lben.InvalidInput, match=words):
            dense(given)
    for given, words in (
        (torch.randn(2, 4, 5, 5), r"images of shape \(3, height, width\), not \(4, 5, 5\)"),
        (torch.randn(3, 5, 5), r"\(batch, channels, height, width\)"),
        (torch.randn(2, 3, 5, 5, dtype=torch.float64), "float64"),
        (torch.full((2, 3, 2, 2), torch.inf), "inf"),
    ):
        with pytest.raises(lben.InvalidInput, match=words):
            conv(given)
    broken = lben.SLL(4)
    with torch.no_grad():
        broken.log_q[1] = torch.nan
    with pytest.raises(lben.InvalidInput, match="log_q holds nan"):
        broken(torch.randn(2, 4))
    with pytest.raises(lben.InvalidInput, match="odd"):
        lben.ConvSLL(3, kernel_size=4)
    with pytest.raises(lben.InvalidInput, match="hidden_features"):
        lben.SLL(3, 0)
    with pytest.raises(lben.InvalidInput, match="single units"):
        lben.SLL(4, activation=lben.Softmax(2))
    with pytest.raises(lben.InvalidInput, match="one activation for all"):
        lben.ConvSLL(2, activation=lben.PerUnit([lben.ReLU(), lben.Tanh()]))
    for layer, shape in ((dense, (3,)), (conv, (3, 4)), (conv, (2, 4, 4))):
        with pytest.raises(lben.InvalidInput, match="takes"):
            layer.out_shape(shape)
