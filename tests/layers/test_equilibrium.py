"""Equilibrium layers from images to images: bounded by construction for images of every size."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lben
from lben.implicit import equilibrium
from lben.parameterize.image import Padding
from lben.parameterize.skip import Skip
from lben.weights.stages import Equilibrium
from tests.layers.climbing import steepest, trained

PRECISE = lben.PeacemanRachford(tolerance=1e-9)
SKIPS: list[tuple[Skip | None, float]] = [
    (None, 0.1),
    (None, 1.0),
    (None, 4.0),
    ("linear", 0.1),
    ("linear", 1.0),
    ("linear", 4.0),
    ("identity", 1.0),
    ("identity", 4.0),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def bounded() -> list[object]:
    """Every skip and gamma on images of every kind; these take turns on every run, each skip with one gamma on one."""
    kinds: list[tuple[Padding, tuple[int, int]]] = [
        ("zeros", (3, 4)),
        ("circular", (5, 3)),
        ("zeros", (4, 4)),
        ("circular", (4, 4)),
    ]
    return [
        pytest.param(skip, gamma, padding, shape, marks=[] if turn % 4 == other else [pytest.mark.slow])
        for turn, (skip, gamma) in enumerate(SKIPS)
        for other, (padding, shape) in enumerate(kinds)
    ]


@pytest.mark.parametrize(("skip", "gamma", "padding", "shape"), bounded())
def test_no_pair_is_steeper_than_the_bound_after_training(
    skip: Skip | None, gamma: float, padding: Padding, shape: tuple[int, int]
) -> None:
    layer = lben.ImageLBEN(2, 4, 2, gamma=gamma, padding=padding, skip=skip).double()
    trained(layer, (2, *shape), rate=0.03 if gamma >= 1 else 0.01)
    assert lben.certify(layer.weights(shape))
    layer.solver = PRECISE
    assert 0.3 * gamma < steepest(layer, (2, *shape), pairs=6, steps=25) <= gamma * (1 + 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("padding", ["zeros", "circular"])
@pytest.mark.parametrize("skip", [None, "linear", "identity"])
def test_images_of_every_size_have_the_bound(skip: Skip | None, padding: Padding) -> None:
    layer = trained(lben.ImageLBEN(2, 3, 2, gamma=1.0, padding=padding, skip=skip), (2, 5, 4))
    for shape in [(3, 3), (4, 7), (8, 6)]:
        assert layer(torch.randn(3, 2, *shape)).shape == (3, 2, *shape)
        weights = layer.weights(shape)
        assert weights.shape == tuple(side + 2 * (padding == "zeros") for side in shape)
        assert lben.certify(weights)
        assert lben.certify(weights, rigorous=True)


@pytest.mark.parametrize("gamma", [None, 2.0])
@pytest.mark.parametrize("padding", ["zeros", "circular"])
@pytest.mark.parametrize("skip", [None, "linear", "identity"])
def test_a_layer_is_the_dense_network_of_its_weights(skip: Skip | None, padding: Padding, gamma: float | None) -> None:
    layer = lben.ImageLBEN(2, 3, 2, gamma=gamma, padding=padding, skip=skip, solver=PRECISE).double()
    x = torch.randn(4, 2, 4, 5, dtype=torch.float64)
    weights = layer.weights((4, 5)).detach()
    dense, rows = weights.dense(), x.flatten(1)
    z = equilibrium(dense.operator(), layer.activation, dense.inject(rows), PRECISE)
    expected = dense.readout(z, rows).reshape(4, 2, 4, 5)
    assert torch.allclose(layer(x), expected, atol=1e-7)
    assert torch.allclose(layer.eval()(x), expected, atol=1e-7)


def test_many_channels_go_through_transforms_and_are_the_same_function() -> None:
    layer = lben.ImageLBEN(24, 24, 24, gamma=1.0, solver=lben.PeacemanRachford(tolerance=1e-6)).eval()
    x = torch.randn(2, 24, 6, 6)
    weights = layer.weights((6, 6)).detach()
    y = layer(x)
    z = weights.hidden_rows(torch.relu(weights.hidden_images(weights.inject(x))))  # a start
    for _ in range(60):
        moved = torch.relu(weights.operator().affine(z, weights.inject(x)))
        z = torch.lerp(z, moved, 0.5)
    direct = F.conv2d(weights.hidden_images(z), weights.Wo, weights.by)
    assert torch.allclose(y, direct, atol=1e-4)


@pytest.mark.parametrize(("skip", "gamma"), [(None, 0.7), (None, None), ("linear", 0.7), ("identity", 1.0)])
def test_gradients_are_exact(skip: Skip | None, gamma: float | None) -> None:
    solver = lben.PeacemanRachford(tolerance=1e-12)
    layer = lben.ImageLBEN(1, 2, 1, gamma=gamma, skip=skip, activation=lben.Tanh(), solver=solver).double()
    names, values = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)

    def outputs(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))  # type: ignore[no-any-return]

    for mode in (True, False):
        layer.train(mode)
        assert torch.autograd.gradcheck(outputs, (x, *values), fast_mode=True)


def test_a_state_dict_brings_everything_back_and_refuses_another_layer() -> None:
    layer = trained(lben.ImageLBEN(2, 3, 2, gamma=1.0, skip="linear"), (2, 4, 4), steps=3)
    other = lben.ImageLBEN(2, 3, 2, gamma=1.0, skip="linear")
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, 5, 5)
    assert torch.equal(other.eval()(x), layer.eval()(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert torch.allclose(copy.deepcopy(layer).double()(x.double()).float(), layer(x), atol=1e-3)
    for options in ({"gamma": 2.0}, {"gamma": 1.0, "padding": "circular"}, {"gamma": 1.0, "epsilon": 0.5}):
        changed: dict[str, Any] = {"skip": "linear", **options}
        with pytest.raises(lben.InvalidInput, match="This state dict is of a network with"):
            lben.ImageLBEN(2, 3, 2, **changed).load_state_dict(layer.state_dict())
    assert "gamma=1.0" in repr(layer)
    assert "padding='zeros'" in repr(layer)


def test_a_stage_has_the_shapes_of_its_layer() -> None:
    layer = lben.ImageLBEN(2, 3, 4, gamma=1.0)
    stage = layer.stage((2, 5, 6))
    assert isinstance(stage, Equilibrium)
    assert stage.out_shape == layer.out_shape((2, 5, 6)) == (4, 5, 6)
    assert stage.in_features == stage.weights.in_features == 60
    assert lben.certify(stage.weights, activation=stage.activation)


def test_what_does_not_converge_is_said() -> None:
    layer = lben.ImageLBEN(2, 3, 2, gamma=1.0, solver=lben.PeacemanRachford(tolerance=1e-6, max_iterations=1))
    x = torch.randn(2, 2, 4, 4)
    with pytest.warns(lben.ConvergenceWarning, match="Falling back"):
        layer(x)
    with pytest.raises(lben.NotConverged, match="did not converge"):
        layer.eval()(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": "identity", "gamma": 0.5}, 'gamma must be at least 1 for skip="identity"'),
        ({"skip": "both"}, "skip must be"),
        ({"padding": "reflect"}, "padding must be"),
        ({"gamma": -1.0}, "gamma must be"),
        ({"kernel_size": 2}, "kernel_size must be odd"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"activation": lben.Softmax(2)}, "one activation for all its units"),
        ({"solver": "newton"}, "solver must be"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lben.InvalidInput, match=message):
        lben.ImageLBEN(2, 4, 2, **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 2, 2, 5), "images of at least 3 x 3 pixels, not 2 x 5"),
        (torch.zeros(2, 3, 5, 5), r"takes images of shape \(2, height, width\)"),
        (torch.zeros(2, 5, 5), "x must have shape"),
        (torch.zeros(2, 2, 5, 5, dtype=torch.float64), "x is float64 but the layer is float32"),
        (torch.full((1, 2, 5, 5), torch.nan), "x"),
    ],
)
def test_bad_images_are_named(x: Tensor, message: str) -> None:
    with pytest.raises(lben.InvalidInput, match=message):
        lben.ImageLBEN(2, 4, 2, gamma=1.0)(x)


def test_weights_need_a_size_and_a_skip_of_the_identity_as_many_channels() -> None:
    with pytest.raises(lben.InvalidInput, match="depend on the image"):
        lben.certify(lben.ImageLBEN(2, 4, 2, gamma=1.0))
    with pytest.raises(lben.InvalidInput, match="as many channels in as out, not 2 and 3"):
        lben.ImageLBEN(2, 4, 3, skip="identity")
    with pytest.raises(lben.InvalidInput, match="too small to train with"):
        lben.ImageLBEN(2, 4, 3, gamma=1e-4)(torch.zeros(1, 2, 4, 4))


class Tiers(nn.Module):
    """Two images of different size, the second of which is fed by the first: block lower triangular, as a whole.

    z1 = sigma(W11 z1 + U1 x + b1), z2 = sigma(W22 z2 + U2 (pooled W21 z1, pooled x) + b2); both are outputs.
    """

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.fine = lben.ImageLBEN(2, 4, 4, gamma=gamma)
        self.coarse = lben.ImageLBEN(4 * 4 + 2, 6, 6, gamma=gamma)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        coarse = self.coarse(torch.cat([F.pixel_unshuffle(fine, 2), 2 * F.avg_pool2d(x, 2)], dim=1))
        return torch.cat([fine.flatten(1), coarse.flatten(1)], dim=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_tiers_of_several_sizes_are_a_stack_of_layers(gamma: float) -> None:
    """Space to depth is an isometry and 2 avg_pool2d(., 2) a contraction, so that y = (f, c) moves by at most
    |f| <= g |x| and |c| <= g sqrt(g^2 + 1) |x|."""
    tiers = trained(Tiers(gamma), (2, 6, 6), rate=0.01)
    assert lben.certify(tiers.fine.weights((6, 6)))
    assert lben.certify(tiers.coarse.weights((3, 3)))
    tiers.fine.solver = tiers.coarse.solver = PRECISE
    whole = gamma * (1 + gamma**2 + 1) ** 0.5
    assert 0.1 * whole < steepest(tiers, (2, 6, 6), pairs=6, steps=25) <= whole * (1 + 1e-6)


def test_tiers_are_one_equilibrium_of_a_block_triangular_w() -> None:
    """z = (z1, z2) with W = [[W11, 0], [W21, W22]], W21 = U2 P Wo1: solved as one network, it is the stack of layers.

    Its metric is (s lam1, lam2), with s so large that the Schur complement of the condition is positive.
    """
    tiers = trained(Tiers(1.0).double(), (2, 6, 6), steps=5, rate=0.01)
    tiers.fine.solver = tiers.coarse.solver = PRECISE
    one, two = (layer.weights(size).detach().dense() for layer, size in ((tiers.fine, (6, 6)), (tiers.coarse, (3, 3))))
    P, Q = torch.zeros(162, 144).double(), torch.zeros(162, 72).double()  # coarse features: 16 of y1, and 2 of x
    units, inputs = (torch.eye(size, dtype=torch.float64) for size in (144, 72))
    P[:144] = F.pixel_unshuffle(units.reshape(-1, 4, 6, 6), 2).flatten(1).T
    Q[144:] = 2 * F.avg_pool2d(inputs.reshape(-1, 2, 6, 6), 2).flatten(1).T
    W21 = two.U @ P @ one.Wo
    assert one.lam is not None
    assert two.lam is not None
    side = two.lam[:, None] * W21
    shadow = side.T @ torch.linalg.solve(two.condition(None), side)
    s = 2 * float(torch.linalg.eigvals(torch.linalg.solve(one.condition(None), shadow)).real.max())
    coupled = lben.Weights(
        W=torch.cat([torch.cat([one.W, torch.zeros_like(W21).T], 1), torch.cat([W21, two.W], 1)]),
        U=torch.cat([one.U, two.U @ Q]),
        bz=torch.cat([one.bz, two.bz + two.U @ P @ one.by]),
        Wo=torch.block_diag(one.Wo, two.Wo),
        by=torch.cat([one.by, two.by]),
        lam=torch.cat([s * one.lam, two.lam]),
    )
    assert float(W21.abs().max()) > 1e-3
    assert lben.certify(coupled)
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    whole = lben.LBEN.from_weights(coupled, solver=PRECISE).eval()
    for solver in (PRECISE, lben.Newton(tolerance=1e-9)):
        rows = x.flatten(1)
        z = equilibrium(coupled.operator(), lben.ReLU(), coupled.inject(rows), solver)
        assert torch.allclose(coupled.readout(z, rows), tiers(x), atol=1e-6)
    assert torch.allclose(whole(x.flatten(1)), tiers(x), atol=1e-6)
