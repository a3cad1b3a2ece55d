"""Convolutional networks: the dense network of the same weights, derivatives, solvers, files and bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lben
from tests.layers.climbing import steepest, trained
from tests.problems import conv_network

SHAPE = (2, 4, 5)
PRECISE = lben.PeacemanRachford(tolerance=1e-12)
SLOW = lben.ForwardBackward(tolerance=1e-11, max_iterations=20_000)
NETWORKS: dict[str, Callable[[], lben.ConvNetwork]] = {
    "channel": lambda: conv_network(SHAPE, "channel", solver=PRECISE),
    "channel, padding": lambda: conv_network(SHAPE, "channel", padding=1, solver=PRECISE),
    "channel, no gamma": lambda: conv_network(SHAPE, "channel", gamma=None, solver=PRECISE),
    "identity": lambda: conv_network(SHAPE, "identity", solver=PRECISE),
    "pixel": lambda: conv_network(SHAPE, "pixel", solver=SLOW),
    "MON": lambda: lben.ConvMON(SHAPE, 3, 3, pool=1, solver=PRECISE).double().eval(),
    "unconstrained": lambda: lben.ConvUnconstrainedEN(SHAPE, 3, 3, pool=1, solver=PRECISE).double().eval(),
}


def images(count: int = 4, shape: tuple[int, int, int] = SHAPE, seed: int = 1) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense_twin(net: lben.ConvNetwork) -> lben.EquilibriumNetwork:
    weights = net.weights().detach().dense()
    if weights.lam is None:
        return lben.UnconstrainedEN.from_weights(weights, solver=PRECISE).eval()
    return lben.LBEN.from_weights(weights, epsilon=1e-3, solver=PRECISE).eval()


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_it_is_the_dense_network_of_its_weights(make: Callable[[], lben.ConvNetwork]) -> None:
    torch.manual_seed(0)
    net = make()
    x = images()
    expected = dense_twin(net)(x.flatten(1))
    assert torch.allclose(net(x), expected, atol=1e-9)
    assert torch.allclose(net(x.flatten(1)), expected, atol=1e-9)
    assert torch.allclose(net.train()(x), expected, atol=1e-9)
    solution = net.eval().solve(x[None])
    assert solution.z.shape == (1, 4, net.hidden_features)
    assert bool(solution.converged.all())


def test_zeros_around_the_image_and_pooling_are_what_they_say() -> None:
    net = conv_network((1, 4, 4), "channel", padding=1, pool=2, solver=PRECISE)
    x = images(3, (1, 4, 4))
    w = net.weights()
    z = net.solve(x).z.reshape(3, 6, 6, 3).permute(0, 3, 1, 2)
    pooled = torch.nn.functional.avg_pool2d(z, 2)
    assert torch.allclose(net(x), pooled.flatten(1) @ w.Wo.flatten(1).T + w.by, atol=1e-12)
    assert w.dense().U.shape == (108, 16)
    assert w.lam is not None
    assert w.lam.shape == (108,)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("training", [True, False])
def test_first_derivatives(make: Callable[[], lben.ConvNetwork], training: bool) -> None:
    torch.manual_seed(0)
    net = make().train(training)
    net.activation = lben.Tanh()
    names = [name for name, _ in net.named_parameters()]
    direction = torch.randn(2, 3, dtype=torch.float64)

    def loss(x: Tensor, *values: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))
        return (y * direction).sum()

    values = [p.detach().clone().requires_grad_() for p in net.parameters()]
    x = images(2).requires_grad_()
    gradients = torch.autograd.grad(loss(x, *values), [x, *values])
    for k, (tensor, gradient) in enumerate(zip([x, *values], gradients, strict=True)):
        step = torch.randn(tensor.shape, dtype=torch.float64)
        moved = [t.detach() for t in [x, *values]]
        ends = []
        for sign in (1e-5, -1e-5):
            moved[k] = tensor.detach() + sign * step
            ends.append(loss(*moved).item())
        slope = (ends[0] - ends[1]) / 2e-5
        assert slope == pytest.approx(float((gradient * step).sum()), rel=1e-5, abs=1e-7), names[k - 1] if k else "x"


@pytest.mark.parametrize("metric", ["channel", "pixel"])
def test_second_derivatives(metric: lben.Metric) -> None:
    net = conv_network((1, 3, 3), metric, channels=2, solver=PRECISE if metric == "channel" else SLOW)
    net.activation = lben.Tanh()
    net.get_buffer("parameterization.epsilon").fill_(8.0)  # which makes a few iterations enough
    kernel = net.get_parameter("parameterization.V").detach().clone().requires_grad_()
    entries = net.get_parameter("parameterization.d").detach().clone().requires_grad_()
    x = images(1, (1, 3, 3)).requires_grad_()

    def output(x: Tensor, V: Tensor, d: Tensor) -> Tensor:
        values = {"parameterization.V": V, "parameterization.d": d}
        y: Tensor = torch.func.functional_call(net, values, (x,))
        return y[:, :1]

    assert torch.autograd.gradgradcheck(output, (x, kernel, entries), atol=1e-5, rtol=1e-4, fast_mode=True)


SOLVERS: list[lben.Solver] = [
    lben.PeacemanRachford(tolerance=1e-10),
    lben.DouglasRachford(tolerance=1e-10),
    lben.ForwardBackward(tolerance=1e-10, max_iterations=20_000),
    lben.FISTA(tolerance=1e-10, max_iterations=20_000),
    lben.Anderson(tolerance=1e-10),
    lben.Newton(tolerance=1e-10),
    lben.FISTA(tolerance=1e-10, max_iterations=20_000, backward=lben.ForwardBackward(alpha=5e-2, tolerance=1e-10)),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: f"{type(s).__name__}{'' if s.backward is None else '*'}")
def test_every_solver_finds_the_same_equilibria_and_gradients(solver: lben.Solver) -> None:
    net = conv_network(SHAPE, "channel", solver=PRECISE)
    x = images().requires_grad_()
    expected = net(x)
    (slopes,) = torch.autograd.grad(expected.square().sum(), x)
    net.solver = solver
    found = net(x)
    assert torch.allclose(found, expected, atol=1e-7)
    assert torch.allclose(torch.autograd.grad(found.square().sum(), x)[0], slopes, atol=1e-6)


def test_a_solver_of_its_own_for_the_backward_pass_is_used() -> None:
    """The paper's setting; a backward solver that cannot converge shows that it is the one at work."""
    net = conv_network(SHAPE, "pixel", solver=lben.FISTA(backward=lben.ForwardBackward(max_iterations=1)))
    x = images().requires_grad_()
    y = net(x)
    with pytest.raises(lben.NotConverged, match="ForwardBackward"):
        y.sum().backward()


def test_training_falls_back_and_warns() -> None:
    for metric, safe in (("channel", "Newton"), ("pixel", "ForwardBackward")):
        net = conv_network(SHAPE, metric, solver=lben.FISTA(max_iterations=2, tolerance=1e-8)).train()  # type: ignore[arg-type]
        with pytest.warns(lben.ConvergenceWarning, match=f"Falling back to {safe}"):
            y = net(images())
        net.solver = lben.FISTA(tolerance=1e-10, max_iterations=50_000)
        assert torch.allclose(y, net(images()), atol=1e-6)


def test_channels_last_images_are_welcome_and_batches_do_not_matter() -> None:
    net = conv_network(SHAPE, "channel", solver=PRECISE)
    x = images(6)
    y = net(x)
    assert torch.equal(net(x.contiguous(memory_format=torch.channels_last)), y)
    assert torch.allclose(torch.cat([net(part) for part in x.split(2)]), y, atol=1e-10)
    assert torch.allclose(net(x.reshape(2, 3, *SHAPE)), y.reshape(2, 3, -1), atol=1e-10)
    assert torch.equal(net(x[0]), net(x[:1])[0])


@pytest.mark.parametrize("metric", ["channel", "identity", "pixel"])
def test_no_images_are_a_batch_too(metric: lben.Metric) -> None:
    net = conv_network(SHAPE, metric)
    x = images(0).requires_grad_()
    for training in (True, False):
        y = net.train(training)(x)
        assert y.shape == (0, net.out_features)
        assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    assert net.solve(x).z.shape == (0, net.hidden_features)
    assert lben.certified_radius(net, x.detach(), pairwise=False).radius.shape == (0,)


def test_memory_is_freed_and_does_not_grow_with_iterations() -> None:
    """What a step keeps for its backward pass is the same whether it iterates 20 times or 200."""
    sizes = []
    for tolerance in (1e-2, 1e-12):
        net = conv_network(SHAPE, "channel", solver=lben.PeacemanRachford(tolerance=tolerance)).train()
        saved: list[int] = []

        def pack(tensor: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            net(images()).sum().backward()
        sizes.append(sum(saved))
    assert sizes[0] == sizes[1]


def test_a_training_step_lowers_the_loss_and_keeps_the_bound() -> None:
    for metric in ("channel", "pixel", "identity"):
        torch.manual_seed(0)
        net = lben.ConvLBEN((1, 6, 6), 4, 3, gamma=0.8, pool=3, metric=metric)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        x, y = torch.randn(24, 36), torch.arange(24) % 3
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        assert net.eval().bound() == pytest.approx(0.8)


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 4, 4)])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(
    "metric", ["channel", *(pytest.param(m, marks=pytest.mark.slow) for m in ("identity", "pixel"))]
)
def test_no_pair_is_steeper_than_the_bound_after_training(
    metric: lben.Metric, gamma: float, shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    solver = SLOW if metric == "pixel" else PRECISE
    net = lben.ConvLBEN(shape, 4, 3, gamma=gamma, metric=metric, pool=1, solver=solver).double()
    trained(net, shape, rate=0.03 if gamma >= 1 else 0.01)
    assert lben.certify(net)
    assert 0.25 * gamma < steepest(net, shape, pairs=6, steps=25) <= gamma * (1 + 1e-6)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_what_is_saved_comes_back(make: Callable[[], lben.ConvNetwork], tmp_path: Path) -> None:
    net = make()
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net")
    assert isinstance(again, lben.ConvNetwork)
    assert repr(again) == repr(net)
    assert torch.equal(again.eval()(images()), net(images()))
    assert again.solver == net.solver


def test_a_backward_solver_is_saved(tmp_path: Path) -> None:
    solver = lben.FISTA(backward=lben.ForwardBackward(alpha=5e-2))
    lben.save(conv_network(SHAPE, "pixel", solver=solver), tmp_path / "net")
    assert lben.load(tmp_path / "net").solver == solver


def test_large_weights_are_not_made_dense() -> None:
    with pytest.raises(lben.InvalidInput, match="40960 x 40960"):
        lben.ConvLBEN((3, 32, 32), 40, 10, gamma=2.0).weights().dense()


SMALL = conv_network(SHAPE, "channel")
KERNELS = lben.ConvLBEN((1, 8, 8), 4, 3, pool=2, gamma=2.0).weights().detach()
BAD: list[tuple[str, Callable[[], object], str]] = [
    ("small image", lambda: lben.ConvLBEN((1, 2, 8), 4, 3, pool=2), "2 x 8 .* is smaller than the kernel, 3 x 3"),
    ("even kernel", lambda: lben.ConvMON((1, 8, 8), 4, 3, kernel_size=4), "kernel_size must be odd.* 4"),
    ("pool", lambda: lben.ConvLBEN((1, 8, 10), 4, 3), "pool = 4 does not divide the image, 8 x 10 with its padding"),
    ("pool after padding", lambda: lben.ConvLBEN((1, 8, 8), 4, 3, padding=1), "10 x 10"),
    ("padding", lambda: lben.ConvLBEN((1, 8, 8), 4, 3, padding=-1), "padding .* not -1"),
    ("in_shape", lambda: lben.ConvLBEN((8, 8), 4, 3), r"\(8, 8\)"),  # type: ignore[arg-type]
    ("no channels", lambda: lben.ConvLBEN((1, 8, 8), 0, 3), "channels .* 0"),
    ("metric", lambda: lben.ConvLBEN((1, 8, 8), 4, 3, metric="row"), "'row'"),  # type: ignore[arg-type]
    ("gamma", lambda: lben.ConvLBEN((1, 8, 8), 4, 3, gamma=-1.0), "gamma .* -1"),
    ("epsilon", lambda: lben.ConvMON((1, 8, 8), 4, 3, epsilon=0.0), "epsilon"),
    ("other size", lambda: SMALL(images(2, (2, 5, 5))), r"shape \(2, 4, 5\).*\(2, 2, 5, 5\)"),
    ("channels moved", lambda: SMALL(images(2).permute(0, 2, 3, 1)), r"\(2, 4, 5\).*\(2, 4, 5, 2\)"),
    ("float32", lambda: SMALL(images().float()), "float32 but the network is float64"),
    ("NaN", lambda: SMALL(images() * float("nan")), "x holds nan"),
    ("integers", lambda: SMALL(images().long()), "int64"),
    ("weights, gamma", lambda: replace(KERNELS, gamma=-1.0), "gamma must be .* not -1"),
    ("weights, bz", lambda: replace(KERNELS, bz=torch.zeros(9)), r"T must have shape \(9, 9"),
    ("weights, U", lambda: replace(KERNELS, U=torch.zeros(4, 2, 3, 3)), r"U must have shape \(4, 1, 3, 3\), not"),
    ("weights, Wo", lambda: replace(KERNELS, Wo=torch.zeros(3, 4, 3, 3)), r"Wo must have shape \(3, 4, 4, 4\)"),
    ("weights, entries", lambda: replace(KERNELS, entries=torch.ones(1)), r"entries must have shape \(4,\)"),
    ("weights, kernel", lambda: replace(KERNELS, T=torch.zeros(4, 4, 2, 2)), "odd size.* 2 and 3"),
    ("weights, metric", lambda: replace(KERNELS, metric="foo"), "'foo'"),  # type: ignore[arg-type]
    ("weights, dtype", lambda: KERNELS.to(torch.int64), "int64"),
    ("weights, pool", lambda: replace(KERNELS, geometry=lben.Geometry((1, 8, 8), 0, 3)), "pool = 3 .* 8 x 8"),
    ("weights, list", lambda: replace(KERNELS, U=[1]), "U must be a torch.Tensor"),  # type: ignore[arg-type]
    (
        "pixel by Peaceman-Rachford",
        lambda: lben.ConvLBEN((1, 8, 8), 4, 3, metric="pixel", solver=lben.PeacemanRachford()),
        'PeacemanRachford needs the resolvent.*"pixel".*FISTA.*ForwardBackward.*"channel" or "identity"',
    ),
    ("pixel by Newton", lambda: setattr(conv_network(SHAPE, "pixel"), "solver", lben.Newton()), "Newton needs"),
    (
        "pixel, backward by Douglas-Rachford",
        lambda: lben.ConvLBEN((1, 8, 8), 4, 3, metric="pixel", solver=lben.FISTA(backward=lben.DouglasRachford())),
        "DouglasRachford needs",
    ),
    ("pixel, tightest", lambda: lben.tightest_bound(conv_network(SHAPE, "pixel")), 'metric="pixel".*certify'),
    ("pixel, lam", lambda: lben.certify(conv_network(SHAPE, "pixel"), lam=torch.ones(60)), '"pixel"'),
    ("lam of a pixel", lambda: lben.certify(SMALL, lam=torch.arange(1.0, 61.0)), "same at all pixels"),
    ("lam of a channel", lambda: lben.certify(SMALL, lam=torch.ones(3)), r"\(60,\), not \(3,\)"),
    ("scs", lambda: lben.tightest_bound(SMALL, solver="scs"), "'scs'"),
    ("well_posed", lambda: lben.well_posed(SMALL), "dense"),
    ("torch's ReLU", lambda: lben.ConvLBEN((1, 8, 8), 4, 3, activation=nn.ReLU()), r"lben.ReLU\(\), not ReLU"),  # type: ignore[arg-type]
    ("torch's GELU", lambda: lben.certify(SMALL.weights(), activation=nn.GELU()), "not GELU"),  # type: ignore[call-overload]
    ("blocks", lambda: lben.certify(SMALL.weights(), activation=lben.Softmax(3)), "single units"),
    ("an activation more", lambda: lben.tightest_bound(SMALL, activation=lben.Tanh()), "a network has its own"),
    ("backward", lambda: lben.FISTA(backward="fast"), "'fast'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(lben.LbenError, match=words) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "gamma"), [(torch.float32, 5e-3), (torch.float64, 5e-5)])
def test_bounds_too_small_to_train_with_are_refused(dtype: torch.dtype, gamma: float) -> None:
    net = lben.ConvLBEN((1, 4, 4), 2, 3, gamma=gamma, pool=2).to(dtype)
    x = torch.rand(2, 16, dtype=dtype)
    with pytest.raises(lben.InvalidInput, match="too small to train with"):
        net(x)
    assert net.eval()(x).shape == (2, 3)
