"""Feed-through: D is below gamma by construction, the condition holds with it, and weights come back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import lben
from lben.parameterize.skip import HAIR, Skip, Skipped, Tied
from tests.layers import climbing

CASES: list[tuple[Skip, tuple[int, int, int], float | None]] = [
    *(("linear", sizes, gamma) for sizes in ((5, 7, 3), (3, 4, 6)) for gamma in (0.1, 1.0, 4.0, None)),
    *(("identity", (4, 5, 4), gamma) for gamma in (1.0, 1.5, 4.0, None)),
]


PRECISE = lben.PeacemanRachford(tolerance=1e-9)


def network(skip: Skip | None, sizes: tuple[int, int, int], gamma: float | None, **options: Any) -> lben.LBEN:
    torch.manual_seed(0)
    net = lben.LBEN(*sizes, gamma=gamma, skip=skip, **options).double()
    with torch.no_grad():
        net.get_parameter("parameterization.d").normal_(0, 0.5)
    return net


CLIMBED: list[tuple[Skip | None, tuple[int, int, int], float]] = [
    *((None, sizes, gamma) for sizes in ((5, 7, 3), (4, 6, 4)) for gamma in (0.1, 1.0, 4.0)),
    *(("linear", sizes, gamma) for sizes in ((5, 7, 3), (4, 6, 4)) for gamma in (0.1, 1.0, 4.0)),
    *(("identity", sizes, gamma) for sizes in ((5, 7, 5), (4, 6, 4)) for gamma in (1.0, 4.0)),
]


@pytest.mark.parametrize(("skip", "sizes", "gamma"), CLIMBED)
def test_no_pair_is_steeper_than_the_bound_after_training(
    skip: Skip | None, sizes: tuple[int, int, int], gamma: float
) -> None:
    net = climbing.trained(network(skip, sizes, gamma, solver=PRECISE), sizes[:1], rate=0.03 if gamma >= 1 else 0.01)
    assert lben.certify(net)
    assert net.bound() <= gamma * (1 + 1e-6)
    assert 0.5 * gamma < climbing.steepest(net, sizes[:1]) <= gamma * (1 + 1e-6)


def trained(net: lben.LBEN, steps: int = 25) -> tuple[lben.LBEN, Tensor]:
    x, y = torch.randn(32, net.in_features).double(), 3 * torch.randn(32, net.out_features).double()
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    return net.eval(), x


@pytest.mark.parametrize(("skip", "sizes", "gamma"), CASES)
def test_the_bound_survives_training_and_is_in_order(
    skip: Skip, sizes: tuple[int, int, int], gamma: float | None
) -> None:
    net, x = trained(network(skip, sizes, gamma, normalize=lben.Normalize(0.2, 0.5)))
    weights = net.weights().detach()
    assert weights.D is not None
    if gamma is not None:
        assert float(torch.linalg.matrix_norm(weights.D, 2)) < gamma
    assert lben.certify(net)
    assert lben.certify(net, rigorous=True)
    below, tight = lben.lipschitz_lower_bound(net, x, restarts=4, steps=20), lben.tightest_bound(net)
    assert tight
    assert tight.gamma is not None
    assert below.proved
    assert below.value <= tight.gamma <= min(gamma or 1e9, lben.product_bound(net)) * (1 + 1e-6)
    assert net.bound() >= tight.gamma * (1 - 1e-6)


@pytest.mark.parametrize(("skip", "sizes", "gamma"), CASES)
def test_the_condition_leaves_the_room_that_v_takes(
    skip: Skip, sizes: tuple[int, int, int], gamma: float | None
) -> None:
    """The Schur complement of the condition with D is 2 (V'V + eps I)."""
    form = network(skip, sizes, gamma).parameterization
    assert isinstance(form, Skipped)
    w, n = form().detach(), sizes[1]
    matrix = w.condition(gamma)
    if gamma is not None:
        corner = matrix[n:, n:]
        matrix = matrix[:n, :n] - matrix[:n, n:] @ torch.linalg.solve(corner, matrix[n:, :n])
    wanted = 2 * (form.V.T @ form.V + form.epsilon * torch.eye(n)).detach()
    allowed = 1e-9 if not isinstance(form, Tied) else 1e-3  # of which D is a hair from gamma
    assert float((matrix - wanted).abs().max()) <= allowed * float(wanted.abs().max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("along", ["random directions", pytest.param("all directions", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("skip", "sizes", "gamma"), CASES)
def test_outputs_are_those_of_the_equation_and_gradients_are_exact(
    skip: Skip, sizes: tuple[int, int, int], gamma: float | None, along: str
) -> None:
    net = network(skip, sizes, gamma, solver=lben.PeacemanRachford(tolerance=1e-13), activation=lben.Tanh())
    x = torch.randn(2, sizes[0]).double()
    w, z = net.weights(), net.solve(x).z
    assert w.D is not None
    assert torch.allclose(net(x), z @ w.Wo.T + x @ w.D.T + w.by)
    assert torch.allclose(net.eval()(x), net.train()(x))
    if skip == "identity":
        off = float((net(x) - x - z @ w.Wo.T - w.by).detach().abs().max())
        assert off <= 2 * HAIR * float(x.abs().max())
    names, values = zip(*net.named_parameters(), strict=True)
    free = [value.detach().requires_grad_() for value in values]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = functional_call(net, dict(zip(names, parameters, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(call, (x.requires_grad_(), *free), fast_mode=along == "random directions")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("skip", "sizes", "gamma"), CASES)
def test_weights_come_back(skip: Skip, sizes: tuple[int, int, int], gamma: float | None) -> None:
    net, x = trained(network(skip, sizes, gamma))
    again = lben.LBEN.from_weights(net.weights().detach(), gamma=gamma).eval()
    assert type(again.parameterization) is type(net.parameterization)
    for name, tensor in net.weights().detach().tensors().items():
        other = again.weights().detach().tensors()[name]
        assert torch.allclose(tensor, other, rtol=1e-7, atol=1e-9 * float(tensor.abs().max())), name
    assert torch.allclose(again(x), net(x), atol=1e-2)


def attacked(net: lben.LBEN, x: Tensor, size: Tensor) -> Tensor:
    """The classes at what 20 steps of ascent away from the own class reach within `size` of each x."""
    label = net(x).argmax(1, keepdim=True)
    moved = size[:, None] * torch.nn.functional.normalize(torch.randn_like(x))
    for _ in range(20):
        moved.requires_grad_()
        y = net(x + moved)
        others = y.scatter(1, label, -torch.inf)
        (slope,) = torch.autograd.grad((others.amax(1) - y.gather(1, label)[:, 0]).sum(), moved)
        ascent = torch.nn.functional.normalize(slope)
        moved = size[:, None] * torch.nn.functional.normalize(moved.detach() + 0.5 * size[:, None] * ascent)
    reached: Tensor = net(x + moved).argmax(1)
    return reached


@pytest.mark.parametrize(("skip", "sizes", "gamma"), CASES)
def test_files_bring_it_back_with_radii_that_no_attack_breaks(
    skip: Skip, sizes: tuple[int, int, int], gamma: float | None, tmp_path: Path
) -> None:
    net, x = trained(network(skip, sizes, gamma))
    net.solver = PRECISE
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net").eval()
    assert isinstance(again, lben.LBEN)
    assert type(again.parameterization) is type(net.parameterization)
    assert repr(again) == repr(net)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(again(x), net(x))
    assert str(lben.certify(again)) == str(lben.certify(net))
    found = lben.certified_radius(again, x)
    assert torch.equal(found.radius, lben.certified_radius(net, x).radius)
    assert torch.equal(found.predicted, net(x).argmax(1))
    assert bool((found.radius > 0).all())
    assert torch.equal(attacked(again, x, (1 - 1e-9) * found.radius), found.predicted)
    assert float((attacked(again, x, 20 * found.radius) != found.predicted).double().mean()) > 0.75


def test_a_norm_that_does_not_fit_is_refused() -> None:
    w = network("linear", (3, 4, 2), 2.0).weights().detach()
    assert w.D is not None
    with pytest.raises(lben.BoundNotMet, match="norm of D must be below gamma"):
        lben.LBEN.from_weights(w, gamma=0.5 * float(torch.linalg.matrix_norm(w.D, 2)))
    for make in (
        lben.MON.from_weights,
        lben.UnconstrainedEN.from_weights,
        partial(lben.ContractingODE.from_weights, rate=0.01),
    ):
        with pytest.raises(lben.InvalidInput, match="feed-through D"):
            make(w)
    with pytest.raises(lben.InvalidInput, match="feed-through D"):
        lben.ODE(lben.LBEN.from_weights(w)).output(torch.zeros(1, 4, dtype=w.W.dtype))
    with pytest.raises(lben.InvalidInput, match="feed-through D"):
        lben.LBEN.initialize_from(w, 1.0)
    for verb in (lben.contraction, lben.incremental_gain):
        with pytest.raises(lben.InvalidInput, match="feed-through D"):
            verb(w)
    untied = network("identity", (3, 4, 3), 2.0).weights().detach()
    with pytest.raises(lben.BoundNotMet, match="U must be -Psi Wo'"):
        lben.LBEN.from_weights(untied, gamma=1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skip": "identity", "gamma": 0.5}, "at least 1 with skip"),
        ({"skip": "identity", "gamma": 2.0}, "as many inputs as outputs, not 3 and 2"),
        ({"skip": "dense"}, 'skip must be "linear" or "identity"'),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.LBEN(3, 4, 2, **options)


def test_gamma_stays_where_it_can_be() -> None:
    tied, free = (lben.LBEN(3, 4, 3, gamma=gamma, skip="identity").parameterization for gamma in (1.0, 2.0))
    with pytest.raises(lben.InvalidInput, match="tied to Wo"):
        tied.gamma = 2.0
    with pytest.raises(lben.InvalidInput, match="above 1"):
        free.gamma = 1.0
    free.gamma = 3.0
    assert lben.certify(free(), 3.0)
