"""Free variables to weights and back: the identity of `direct_gamma`, and conditions that training cannot break."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from lben.parameterize.dense import LipschitzBounded, Monotone, WellPosed
from lben.parameterize.direct import direct_weight
from lben.weights.convolutional import Metric
from lben.weights.dense import Weights

NETWORKS: list[Callable[[], lben.LBEN | lben.MON | lben.UnconstrainedEN]] = [
    lambda: lben.LBEN(6, 5, 3, gamma=0.7),
    lambda: lben.LBEN(6, 5, 3),
    lambda: lben.MON(6, 5, 3),
    lambda: lben.UnconstrainedEN(6, 5, 3),
]


def smallest(matrix: torch.Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix.detach())[0])


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4)),
    gamma=st.floats(1e-3, 1e3),
    epsilon=st.floats(1e-3, 10),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_identity(sizes: tuple[int, int, int], gamma: float, epsilon: float, dtype: torch.dtype, seed: int) -> None:
    """2 Lam - Lam W - W' Lam - (Wo'Wo + Lam U U' Lam)/gamma = 2 (V'V + eps I)."""
    torch.manual_seed(seed)
    p = LipschitzBounded(*sizes, gamma, epsilon).to(dtype)
    with torch.no_grad():
        p.d.normal_()
        left = p().condition(gamma)
        right = 2 * (p.V.T @ p.V + p.epsilon * torch.eye(sizes[1], dtype=dtype))
        weights = p()
        cancelling = weights.metric().max() * (1 + weights.W.abs().max())  # Lam - Lam W, whose rounding the sum keeps
        scale = float(left.abs().max() + weights.condition(None).abs().max() + cancelling)
    assert float((left - right).abs().max()) <= 40 * torch.finfo(dtype).eps * scale


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_condition_survives_training(gamma: float, optimizer: type[torch.optim.Adam] | type[torch.optim.SGD]) -> None:
    """After 25 large steps the inequality still holds, from the weights alone, and so does the bound between points."""
    torch.manual_seed(0)
    net = lben.LBEN(10, 8, 3, gamma=gamma).double()
    steps = optimizer(net.parameters(), lr=0.05)
    x, y = torch.randn(64, 10, dtype=torch.float64), torch.randint(3, (64,))
    for _ in range(25):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        steps.step()
    weights = net.weights().detach()
    assert smallest(weights.condition(gamma)) > 0
    net.eval()
    net.solver = lben.PeacemanRachford(tolerance=1e-11)
    with torch.no_grad():
        slopes = (net(x[:-1]) - net(x[1:])).norm(dim=1) / (x[:-1] - x[1:]).norm(dim=1)
    assert float(slopes.max()) <= gamma


@pytest.mark.parametrize("make", [WellPosed, Monotone])
def test_well_posedness_survives_training(make: type[Monotone]) -> None:
    torch.manual_seed(0)
    p = make(4, 6, 2).double()
    steps = torch.optim.SGD(p.parameters(), lr=0.1)
    for _ in range(25):
        steps.zero_grad()
        W = p.hidden_weight()
        (W @ W.T).trace().backward()
        steps.step()
    assert smallest(p().condition(None)) > 0


@pytest.mark.parametrize("make", NETWORKS)
def test_from_weights_reproduces(make: Callable[[], lben.LBEN | lben.MON | lben.UnconstrainedEN]) -> None:
    torch.manual_seed(3)
    net = make().double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.7)
    weights = net.weights().detach()
    again = type(net).from_weights(weights).weights().detach()
    for name, tensor in weights.tensors().items():
        assert torch.allclose(getattr(again, name), tensor, atol=1e-9), name
    assert again.gamma == weights.gamma


def test_from_weights_reproduces_weights_that_leave_little_room() -> None:
    """Any weights that satisfy the condition, not only our own: epsilon becomes what they leave room for."""
    torch.manual_seed(0)
    p = LipschitzBounded(6, 5, 3, 0.7, epsilon=1e-6).double()
    with torch.no_grad():
        p.V.zero_()
        weights = p().detach()
    net = lben.LBEN.from_weights(weights, epsilon=1.0)
    assert float(net.parameterization.epsilon) == pytest.approx(1e-6, rel=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(net.weights().W, weights.W, atol=1e-9)


def test_epsilon_is_at_most_what_was_asked() -> None:
    weights = lben.LBEN(6, 5, 3, gamma=1.0, epsilon=2.0).double().weights().detach()
    net = lben.LBEN.from_weights(weights, epsilon=0.25)
    assert float(net.parameterization.epsilon) == 0.25  # type: ignore[arg-type]
    assert torch.allclose(net.weights().W, weights.W, atol=1e-9)


def test_all_kinds_start_from_the_same_point() -> None:
    """The weights of the smallest gamma with Lambda = I satisfy the condition of every other kind."""
    torch.manual_seed(0)
    start = lben.LBEN(20, 12, 4, gamma=0.2).double().weights().detach()
    assert torch.equal(start.metric(), torch.ones(12, dtype=torch.float64))
    x = torch.randn(5, 20, dtype=torch.float64)
    nets: list[lben.EquilibriumNetwork] = [
        lben.LBEN.from_weights(start),
        lben.LBEN.from_weights(start, gamma=5.0),
        lben.LBEN.from_weights(replace(start, gamma=None)),
        lben.MON.from_weights(start),
        lben.UnconstrainedEN.from_weights(start),
    ]
    outputs = []
    for net in nets:
        net.solver = lben.PeacemanRachford(tolerance=1e-12)
        outputs.append(net.eval()(x))
        assert torch.allclose(net.weights().W, start.W, atol=1e-9)
    assert [net.gamma for net in nets] == [0.2, 5.0, None, None, None]
    assert all(torch.allclose(y, outputs[0], atol=1e-9) for y in outputs)


def two_by_two(w12: float, w22: float, lam: tuple[float, float]) -> Weights:
    W = torch.tensor([[0, w12], [0, w22]], dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    return Weights(W, eye, zeros, eye, zeros, torch.tensor(lam, dtype=torch.float64))


def test_two_by_two_example() -> None:
    """Example `param`: 4 (1 - w22) > w12^2 for the Euclidean metric; any w22 < 1 for diag(1, a) with a large."""
    inside = two_by_two(1.9, 0.0, (1.0, 1.0))
    assert torch.allclose(lben.MON.from_weights(inside).weights().W, inside.W, atol=1e-9)
    outside = two_by_two(3.0, 0.5, (1.0, 1.0))
    with pytest.raises(lben.NotWellPosed) as caught:
        lben.MON.from_weights(outside)
    assert caught.value.eigenvalue == pytest.approx(smallest(outside.condition(None)))
    scaled = two_by_two(3.0, 0.5, (1.0, 10.0))
    assert torch.allclose(lben.LBEN.from_weights(scaled).weights().W, scaled.W, atol=1e-9)
    with pytest.raises(lben.NotWellPosed):
        lben.LBEN.from_weights(two_by_two(0.0, 1.0, (1.0, 1e6)))


def test_bound_not_met_names_the_eigenvalue() -> None:
    weights = lben.LBEN(6, 5, 3, gamma=1.0).double().weights().detach()
    with pytest.raises(lben.BoundNotMet) as caught:
        lben.LBEN.from_weights(weights, gamma=1e-3)
    assert caught.value.eigenvalue == pytest.approx(smallest(weights.condition(1e-3)))
    assert f"{caught.value.eigenvalue:.6g}" in str(caught.value)


def test_rounding_that_breaks_the_bound_is_refused() -> None:
    """Extreme free variables in float32 lose the inequality, so `bound` must not assert it; float64 keeps it."""
    torch.manual_seed(0)
    net = lben.LBEN(20, 30, 5, gamma=1.0)
    p = net.parameterization
    assert isinstance(p, LipschitzBounded)
    with torch.no_grad():
        p.d.normal_(0, 5)
        p.V.zero_()[:3].normal_(0, 3000)
    with pytest.raises(lben.BoundNotMet):
        net.bound()
    assert net.double().bound() == 1.0


@pytest.mark.parametrize(("gamma", "metric"), [(None, False), (None, True), (0.5, True)])
def test_hand_written_backward(gamma: float | None, metric: bool) -> None:
    torch.manual_seed(0)
    V, N, U, Wo = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 4), (4, 4), (4, 6), (3, 4))
    )
    d = torch.randn(4, dtype=torch.float64, requires_grad=True) if metric else None
    epsilon = torch.tensor(0.3, dtype=torch.float64)

    W = partial(direct_weight, gamma=gamma, epsilon=epsilon)
    inputs: tuple[Any, ...] = (V, N, d, U, Wo)
    assert torch.autograd.gradcheck(W, inputs)
    assert torch.autograd.gradgradcheck(W, inputs)


@pytest.mark.parametrize(
    ("metric", "gamma"), [("dense", 1e-3), *((metric, 1e-2) for metric in ("dense", "channel", "pixel"))]
)
def test_a_small_gamma_trains(metric: Metric | Literal["dense"], gamma: float) -> None:
    """W starts at a size that does not depend on gamma, and a few steps of Adam end without a warning."""
    torch.manual_seed(0)
    x, labels = torch.rand(8, 1, 8, 8), torch.arange(8) % 3
    net: lben.LBEN | lben.ConvLBEN
    if metric == "dense":
        x, net = x.flatten(1), lben.LBEN(64, 12, 3, gamma=gamma)
    else:
        net = lben.ConvLBEN((1, 8, 8), 2, 3, gamma=gamma, metric=metric)
    assert net.weights().detach().operator().norm < 100
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    assert lben.certify(net, gamma).holds


@pytest.mark.parametrize("gamma", [9.9e-4, 1e-6, 1e-12, 1e-20, 1e-37])
def test_a_gamma_that_cannot_be_trained_is_refused_in_training_alone(gamma: float) -> None:
    nets = (lben.LBEN(9, 5, 2, gamma=gamma), lben.ConvLBEN((1, 3, 3), 2, 2, gamma=gamma, pool=1))
    words = r"too small to train with in float32: give at least 0.0?01, .* multiply"
    for net in nets:
        with pytest.raises(lben.InvalidInput, match=words):
            net(torch.rand(2, 9))
        assert lben.certify(net, gamma)
        assert bool(net.eval()(torch.rand(2, 9)).isfinite().all())
    with pytest.raises(lben.InvalidInput, match=words):
        lben.LBEN.initialize_from(nets[0].weights(), gamma)


@pytest.mark.parametrize("gamma", [0, -1.0, math.inf, "x", True, torch.tensor(2.0)])
def test_a_bound_set_later_is_checked(gamma: Any) -> None:
    for net in (lben.LBEN(9, 5, 2, gamma=1.0), lben.ConvLBEN((1, 4, 4), 2, 2, gamma=1.0)):
        with pytest.raises(lben.InvalidInput, match="gamma must"):
            net.parameterization.gamma = gamma
        assert net.gamma == 1.0
