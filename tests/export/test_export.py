"""Exported networks: what they promise, what they return, and what they are made of."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lben
from lben.export import forms, images
from lben.export.fourier import FourierStep, Transformed
from tests.export.networks import ACTIVATIONS, KINDS, Make, lben_net, lively, with_activation
from tests.problems import name


def corners(made: lben.Exported, count: int = 24) -> Tensor:
    """Inputs at corners of the pixels' box, on its edges, and inside."""
    generator = torch.Generator().manual_seed(1)
    inside = torch.rand(count, *made.in_shape, generator=generator, dtype=torch.float64)
    edge = torch.where(torch.rand(inside.shape, generator=generator) < 0.5, inside, inside.round())
    fixed = [torch.full((1, *made.in_shape), value, dtype=torch.float64) for value in (0.0, 0.5, 1.0)]
    return torch.cat([*fixed, inside, edge, inside.round()]).to(made.dtype)


class Calls(TorchDispatchMode):
    """The operations that were called, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().split(".")[0])
        return func(*args, **(kwargs or {}))


def off(net: nn.Module, made: lben.Exported, x: Tensor) -> float:
    """How far an output is from the network's, at least: an enclosure of the truth is subtracted."""
    true = lben.enclose(net, x)  # type: ignore[arg-type]
    distance = (made(x)[0].flatten(1).double() - true.y.reshape(len(x), -1)).norm(dim=1)
    return float((distance - true.error.reshape(len(x), -1).norm(dim=1)).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_outputs_are_within_the_promise_and_of_the_network_s_shape(make: Make) -> None:
    net = lively(make)
    for accuracy in (1e-1, 1e-4):
        made = lben.export(net, accuracy=accuracy)  # type: ignore[arg-type]
        x = corners(made)
        assert off(net, made, x) <= made.error <= made.accuracy == accuracy
        assert torch.allclose(made(x)[0], net(x), atol=accuracy + 1e-3)
        assert made(x)[0].shape == net(x).shape
        assert made(x)[0].dtype == net(x).dtype
        assert made(x)[1].shape == (len(x),)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_every_activation_with_plain_operations(activation: lben.Activation) -> None:
    net = with_activation(activation)
    for dtype, accuracy in ((None, 1e-5), (torch.float32, 1e-2)):
        made = lben.export(net, accuracy=accuracy, dtype=dtype)
        assert made.inner == dtype or dtype is None
        assert off(net, made, corners(made)) <= made.error <= accuracy


def test_more_accuracy_takes_more_iterations_and_the_count_follows_from_the_contraction() -> None:
    net = lben_net().double()
    made = [lben.export(net, accuracy=accuracy) for accuracy in (1e-2, 1e-4, 1e-8)]
    counts = [one.iterations for one in made]
    assert counts == sorted(set(counts))
    steps = math.log(1e-4) / math.log(made[1].contraction)  # from 1e-4 to 1e-8
    assert abs(counts[2] - counts[1] - steps) <= 1


def test_the_contraction_is_that_of_the_cayley_operator_in_its_metric() -> None:
    net = with_activation(lben.ReLU()).double()
    fact = lben.export(net, accuracy=1e-6).equilibria[0]
    w = net.weights().detach()
    assert w.lam is not None
    eye, root = torch.eye(6, dtype=torch.float64), w.lam.sqrt()

    def norm(alpha: float) -> float:
        C = 2 * torch.linalg.inv(eye + alpha * (eye - w.W)) - eye
        return float(torch.linalg.matrix_norm(root[:, None] * C / root, 2))

    assert norm(fact.alpha) <= fact.contraction <= norm(fact.alpha) * (1 + 1e-6)
    assert all(norm(fact.alpha * factor) >= 0.999 * fact.contraction for factor in (0.5, 0.9, 1.1, 2.0))


def test_smaller_domains_take_fewer_iterations() -> None:
    net = lben_net().double()
    domains = (lben.InBox(0.0, 1.0), lben.InBall(0.5, 0.1), lben.InBox(0.5, 0.5))
    counts = [lben.export(net, accuracy=1e-9, domain=domain).iterations for domain in domains]
    assert counts[0] > counts[1] > counts[2] == 1


def test_the_sentence_says_what_is_proved() -> None:
    made = lben.export(lben_net(), accuracy=1e-3, domain=lben.InBall([0.0, 1.0, 0.0, 0.5], 2.0))
    assert "within 0.001 of the network's" in made.promise
    assert "every input within 2 of a point of 4 features" in made.promise
    assert f"in {made.iterations} iterations" in made.promise
    assert "every input with all entries in [-1, 1]" in lben.export(lben_net(), domain=lben.InBox(-1, 1)).promise
    assert lben.export(KINDS["feed-forward"]()).iterations == 0  # type: ignore[arg-type]


def test_bare_weights_take_an_activation() -> None:
    net = with_activation(lben.Tanh())
    x = corners(made := lben.export(net.weights().detach(), activation=lben.Tanh()))
    assert off(net, made, x) <= made.error


@pytest.mark.parametrize("kind", ["ConvLBEN", "ConvMON", "image, zeros", "image, circular", "deep"])
def test_equilibria_of_images_by_transforms_and_as_matrices(kind: str) -> None:
    """Two proofs of one contraction, and two ways to the same outputs."""
    net = lively(KINDS[kind]).double()
    one = lben.export(net, accuracy=1e-6)  # type: ignore[arg-type]
    with patch.object(forms, "MOST_UNITS", 0), patch.object(images, "MOST_TAPS", 0):
        other = lben.export(net, accuracy=1e-6)  # type: ignore[arg-type]
    assert any(isinstance(part, FourierStep) for part in other.modules())
    assert not any(isinstance(part, FourierStep) for part in one.modules())
    assert one.contraction == pytest.approx(other.contraction, rel=1e-3)
    x = corners(other)
    assert off(net, other, x) <= other.error <= 1e-6
    assert torch.allclose(other(x)[0], one(x)[0], atol=2e-6, rtol=0)
    assert not any(buffer.is_complex() for buffer in other.buffers())


def test_large_kernels_go_through_transforms() -> None:
    net = lben.Sequential(lben.ConvSandwich(3, 4), lben.ConvSLL(4, 3), in_shape=(3, 8, 9)).double().eval()
    made = lben.export(net, accuracy=1e-9)
    assert any(isinstance(part, Transformed) for part in made.modules())
    assert off(net, made, corners(made)) <= made.error


# --- the residual


def test_the_residual_is_the_one_that_anybody_can_compute() -> None:
    net = with_activation(lben.ReLU()).double()
    made = lben.export(net, accuracy=1e-1)
    x, w = corners(made), net.weights().detach()
    hidden = lben.Weights(w.W, w.U, w.bz, torch.eye(6, dtype=w.W.dtype), torch.zeros(6, dtype=w.W.dtype), w.lam)
    z, residual = lben.export(hidden, accuracy=1e-1)(x)
    again = torch.relu(z @ w.W.T + x @ w.U.T + w.bz)
    assert torch.allclose(residual, (z - again).norm(dim=1) / again.norm(dim=1), rtol=1e-6)
    assert float(residual.max()) > 1e-9  # so that something was compared


@pytest.mark.parametrize("make", [KINDS["LBEN"], KINDS["stack"], KINDS["feed-forward"], KINDS["deep"]])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_in_the_residual_of_its_row_alone(make: Make, value: float) -> None:
    made = lben.export(lively(make))  # type: ignore[arg-type]
    x = corners(made)[:3].clone()
    x[1].view(-1)[0] = value
    residual = made(x)[1]
    assert residual.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    "domain", [lben.InBox(0.0, 1.0), lben.InBox([-1.0, 0, 2, 0], [1.0, 0.5, 3, 5]), lben.InBall(1.0, 2.0)]
)
def test_outside_the_domain_the_residual_says_so(domain: lben.InBox | lben.InBall) -> None:
    made = lben.export(with_activation(lben.ReLU()), accuracy=1e-3, domain=domain)
    region = domain.region(4)
    directions = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = directions.norm(dim=1, keepdim=True)
    if region.half is not None:
        lengths = (directions.abs() / region.half).amax(dim=1, keepdim=True) * region.radius
    edge = directions / lengths * region.radius
    for share, outside in ((0.5, False), (1.0, False), (1.01, True), (1e4, True)):
        x = (region.center + share * edge).float()
        assert made(x)[1].isinf().tolist() == [outside] * 50


def test_far_outside_the_promise_the_output_is_as_right_as_it_is_solved() -> None:
    """|z - z*| <= |r| + |W r|/m in the metric, r = z - sigma(W z + b), wherever x is."""
    net = with_activation(lben.Tanh()).double()
    with torch.no_grad():
        net.get_parameter("parameterization.V").mul_(4)
    w = net.weights().detach()
    hidden = lben.Weights(w.W, w.U, w.bz, torch.eye(6, dtype=w.W.dtype), torch.zeros(6, dtype=w.W.dtype), w.lam)
    made = lben.export(hidden, accuracy=1e-2, domain=lben.InBox(0.0, 1e-3), activation=lben.Tanh())
    x = torch.randn(200, 4, dtype=torch.float64) * torch.logspace(-1, 3, 200, dtype=torch.float64)[:, None]
    z, residual = made(x)
    true = lben.enclose(hidden, x, activation=lben.Tanh())
    root = w.lam.sqrt() if w.lam is not None else 1.0
    r = z - torch.tanh(z @ w.W.T + x @ w.U.T + w.bz)
    bound = (r * root).norm(dim=1) + (r @ w.W.T * root).norm(dim=1) / lben.well_posed(hidden).monotonicity
    distance = ((z - true.y) * root).norm(dim=1)
    assert bool((distance <= bound * (1 + 1e-9) + 1e-9).all())
    broken = (z - true.y).norm(dim=1) > 0.1
    assert bool(broken.any())
    assert bool(residual[broken].isinf().all())


# --- what it is made of


def test_it_has_constants_alone_and_runs_a_fixed_number_of_products() -> None:
    made = lben.export(lben_net().double(), accuracy=1e-6)
    assert list(made.parameters()) == []
    assert not any(buffer.is_complex() for buffer in made.buffers())
    with Calls() as calls:
        made(corners(made))
    assert calls.names.count("aten::addmm") == made.iterations + 3  # b, c, all u but the first, W z and y
    assert not any("complex" in name or "linalg" in name or "_local_scalar" in name for name in calls.names)


def test_gradients_pass_and_are_near_the_network_s() -> None:
    net = with_activation(lben.Tanh()).double()
    made = lben.export(net, accuracy=1e-10)
    x = corners(made)[:4].requires_grad_()
    (one,) = torch.autograd.grad(made(x)[0].square().sum(), x)
    net.solver = lben.PeacemanRachford(tolerance=1e-12)
    (other,) = torch.autograd.grad(net(x).square().sum(), x)
    assert torch.allclose(one, other, atol=1e-7)


def test_weights_that_change_later_leave_it_as_it_is() -> None:
    net = lben_net()
    made = lben.export(net)
    x = corners(made)
    before = made(x)[0]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    assert torch.equal(made(x)[0], before)


# --- refusals


def test_what_rounding_leaves_no_room_for_is_refused_with_what_there_is_room_for() -> None:
    net = lben_net()
    with pytest.raises(lben.InvalidInput, match=r"1e-09 cannot be promised.* an accuracy of [0-9.e-]+ ") as refused:
        lben.export(net, accuracy=1e-9, dtype=torch.float32)
    least = float(str(refused.value).split("an accuracy of ")[1].split()[0])
    assert 1e-7 < lben.export(net, accuracy=least, dtype=torch.float32).error <= least
    with pytest.raises(lben.InvalidInput, match=r"outputs are float32: net.double\(\) rounds less"):
        lben.export(net, accuracy=1e-9)
    assert lben.export(net.double(), accuracy=1e-9).error <= 1e-9


def test_what_a_refusal_says_there_is_room_for_is_promised() -> None:
    net = lben.pretrained("mnist-gamma-1")
    with pytest.raises(lben.InvalidInput, match="cannot be promised") as refused:
        lben.export(net, accuracy=1e-7)
    least = float(str(refused.value).split("an accuracy of ")[1].split()[0])
    assert least < 1e-5
    assert lben.export(net, accuracy=least).error <= least


def test_too_many_iterations_are_refused_with_their_number() -> None:
    W = torch.tensor([[0.0, -900.0], [900.0, 0.0]], dtype=torch.float64)
    eye, none = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    stiff = lben.Weights(W, eye, none, eye, none, torch.ones(2, dtype=torch.float64))
    with pytest.raises(lben.InvalidInput, match=r"would take [0-9,]+ iterations, more than the 2,000"):
        lben.export(stiff)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accuracy": 0.0}, "accuracy must be a finite number above 0, not 0.0"),
        ({"accuracy": math.nan}, "accuracy must be a finite number above 0, not nan"),
        ({"domain": "pixels"}, r"domain must be an lben.InBox\(low, high\) or an lben.InBall"),
        ({"domain": lben.InBox([0.0] * 5, 1.0)}, "low has 5 entries, but the network takes 4 features"),
        ({"domain": lben.InBall([0.0] * 3, 1.0)}, "center has 3 entries, but the network takes 4 features"),
        ({"dtype": torch.float16}, "dtype must be torch.float32, torch.float64 or None, not torch.float16"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.export(lben_net(), **options)  # type: ignore[arg-type]


def test_bad_domains_are_named() -> None:
    for make, words in (
        (lambda: lben.InBox(1.0, 0.0), "The box is empty: low = 1 is above high = 0"),
        (lambda: lben.InBox(0.0, math.inf), "high must hold finite numbers"),
        (lambda: lben.InBox([0.0, 0.0], [1.0, 1.0, 1.0]), "low has 2 entries, high 3"),
        (lambda: lben.InBall(0.0, -1.0), "radius must be a finite number above 0"),
        (lambda: lben.InBall("nonsense", 1.0), "center must be a number or one number a feature"),  # type: ignore[arg-type]
    ):
        with pytest.raises(lben.InvalidInput, match=words):
            make()


def test_what_cannot_be_exported_says_why() -> None:
    with pytest.raises(lben.InvalidInput, match="ContractingODE cannot be exported: trajectories need an integrator"):
        lben.export(lben.ContractingODE(3, 4, 2, rate=0.3))
    hexagon = lben.Projection(lben.Polyhedron([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]))
    with pytest.raises(lben.InvalidInput, match="onto a Polyhedron cannot be exported: it is found by a solver"):
        lben.export(lben_net(activation=hexagon))
    free = lben.UnconstrainedEN(2, 2, 2)
    with torch.no_grad():
        free.get_parameter("parameterization.W").copy_(2 * torch.eye(2))
    with pytest.raises(lben.NotWellPosed):
        lben.export(free)
    with pytest.raises(lben.InvalidInput, match=r"An equilibrium network or lben.Weights is needed"):
        lben.export(nn.Linear(3, 2))  # type: ignore[arg-type]


def test_corners_of_small_boxes_one_by_one() -> None:
    """Every corner of a box of four features, for a network whose units switch there."""
    net = with_activation(lben.HardTanh()).double()
    made = lben.export(net, accuracy=1e-3, domain=lben.InBox(-3.0, 3.0))
    x = 3 * torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)), dtype=torch.float64)
    assert off(net, made, x) <= made.error
