"""Feed-forward and residual networks as equilibrium networks: the same function, and LipSDP as its tightest bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lben
from lben.networks.layered import layered_metric
from lben.operators.dense import DenseOperator
from lben.solvers.base import Problem
from lben.solvers.loop import solve
from tests.problems import lipsdp

SMOOTH: list[Callable[[], nn.Module]] = [nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU]
KINKED: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    nn.ReLU6,
    lambda: nn.LeakyReLU(0.2),
    lambda: nn.Hardtanh(-0.5, 2.0),
    lambda: nn.Softplus(beta=3),
    nn.Identity,
]


def layers(sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    """A plain network in double precision, with an activation between its linear layers."""
    torch.manual_seed(seed)
    stages: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for n, m in pairwise(sizes[1:]):
        stages += [activation(), nn.Linear(n, m)]
    return nn.Sequential(*stages).double()


def product_of_norms(module: nn.Module) -> float:
    norms = [
        float(torch.linalg.matrix_norm(m.weight.detach(), 2)) for m in module.modules() if isinstance(m, nn.Linear)
    ]
    return math.prod(norms)


def tightest(net: lben.LayeredNetwork | lben.Weights) -> float:
    gamma = lben.tightest_bound(net).gamma
    assert gamma is not None
    return gamma


@st.composite
def sequentials(draw: st.DrawFn) -> tuple[nn.Sequential, int]:
    """Linear layers, activations, batch norms, dropout and residual blocks, in any order that fits."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    inputs = width = draw(st.integers(1, 5))
    stages: list[nn.Module] = [nn.Linear(inputs, inputs)]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["linear", "activation", "norm", "dropout", "residual", "nested"]))
        activation = draw(st.sampled_from(SMOOTH + KINKED))
        if kind == "linear":
            stages.append(nn.Linear(width, new := draw(st.integers(1, 5)), bias=draw(st.booleans())))
            width = new
        elif kind == "activation":
            stages.append(activation())
        elif kind == "norm":
            norm = nn.BatchNorm1d(width, affine=draw(st.booleans()))
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            stages.append(norm)
        elif kind == "dropout":
            stages.append(nn.Dropout())
        elif kind == "residual":
            inner = lben.Residual(nn.Tanh())
            stages.append(lben.Residual(nn.Linear(width, 3), activation(), inner, nn.Linear(3, width)))
        else:
            stages.append(nn.Sequential(nn.Linear(width, width), activation()))
    return nn.Sequential(*stages).double().eval(), inputs


@settings(max_examples=15, deadline=None)
@given(sequentials(), st.integers(0, 10**6))
def test_outputs_gradients_and_bounds_of_any_sequential(drawn: tuple[nn.Sequential, int], seed: int) -> None:
    """The same outputs and gradients to rounding, one sweep, and a bound above every slope between random inputs."""
    module, inputs = drawn
    net = lben.from_sequential(module, input_shape=inputs)
    x = 2 * torch.randn(8, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x.requires_grad_()
    y, expected = net(x), module(x)
    assert torch.allclose(y, expected, atol=1e-8, rtol=1e-12)  # torch's own softplus is off by 2e-9 above 20
    weights = torch.randn_like(y)
    (grad,), (grad_expected,) = (torch.autograd.grad((out * weights).sum(), x) for out in (y, expected))
    assert torch.allclose(grad, grad_expected, atol=1e-7)
    assert net.solve(x).iterations == 1
    assert bool((net.weights().W.triu() == 0).all())
    bound = tightest(net)
    y, x = y.detach(), x.detach()
    slopes = torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)
    assert float(slopes.max()) <= bound * (1 + 1e-6) + 1e-8


@pytest.mark.parametrize("sizes", [(4, 5, 3), (3, 6, 5, 2), (4, 5, 4, 5, 3)])
def test_tightest_bound_is_lipsdp_and_below_the_product_of_norms(sizes: tuple[int, ...]) -> None:
    module = layers(sizes)
    bound = tightest(lben.from_sequential(module))
    matrices = [m.weight.detach() for m in module if isinstance(m, nn.Linear)]
    assert bound == pytest.approx(lipsdp(matrices), rel=1e-5)
    assert bound <= product_of_norms(module)


def test_the_linear_part_of_a_leaky_relu_is_no_slope() -> None:
    """The bound is that of LipSDP for slopes in [0.2, 1], which is below that for [0, 1]."""
    module = layers((4, 6, 5, 3), lambda: nn.LeakyReLU(0.2))
    matrices = [m.weight.detach() for m in module if isinstance(m, nn.Linear)]
    bound = tightest(lben.from_sequential(module))
    assert bound == pytest.approx(lipsdp(matrices, 0.2), rel=1e-5)
    assert bound < 0.99 * lipsdp(matrices)


def test_a_hardtanh_without_a_ceiling_is_a_relu() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Hardtanh(-0.5, float("inf")), nn.Linear(4, 2)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    assert torch.allclose(lben.from_sequential(module)(x), module(x), atol=1e-13)


def test_a_module_that_stands_in_several_places_counts_in_each() -> None:
    torch.manual_seed(0)
    relu, linear = nn.ReLU(), nn.Linear(4, 4)
    block = lben.Residual(linear, relu)
    module = nn.Sequential(linear, relu, block, block, nn.Sequential(linear, relu, linear, relu), linear).double()
    net, x = lben.from_sequential(module), torch.randn(9, 4, dtype=torch.float64)
    assert net.hidden_features == 20
    assert torch.allclose(net(x), module(x))
    slopes = torch.stack([torch.autograd.functional.jacobian(module, point) for point in x])
    gamma = lben.tightest_bound(net).gamma
    assert gamma is not None
    assert float(torch.linalg.matrix_norm(slopes, 2).max()) <= gamma


def test_a_linear_network_has_its_norm_as_bound() -> None:
    for sizes in ((4, 6, 2), (2, 3, 5)):
        module = layers(sizes, nn.Identity)
        matrix = torch.linalg.multi_dot([m.weight.detach() for m in reversed(module) if isinstance(m, nn.Linear)])
        net = lben.from_sequential(module)
        assert net.hidden_features == min(sizes[0], sizes[-1])
        assert lben.tightest_bound(net).gamma == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-6)


def test_what_passes_a_residual_block_is_not_bounded_as_a_slope() -> None:
    """x - 2 relu(x) = -|x| has slope one, and that is the bound; with x as a slope in [0, 1] it would be two."""
    first, last = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    with torch.no_grad():
        first.weight.copy_(torch.eye(3))
        last.weight.copy_(-2 * torch.eye(3))
    net = lben.from_sequential(nn.Sequential(lben.Residual(first, nn.ReLU(), last)))
    assert tightest(net) == pytest.approx(1, rel=1e-5)
    assert tightest(net.weights()) == pytest.approx(2, rel=1e-5)  # bare weights: ReLU for every unit


def test_convolutions_and_pools_are_folded() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        lben.Normalize(0.5, 0.25),
        nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        lben.Residual(nn.Conv2d(3, 3, 3, padding="same"), nn.Tanh(), nn.Dropout2d()),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 2, 1, groups=1, bias=False),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    module.double().train()(torch.rand(16, 2, 8, 8).double())  # which moves the running statistics
    module.eval()
    net = lben.from_sequential(module, input_shape=(2, 8, 8))
    x = torch.rand(5, 2, 8, 8, dtype=torch.float64)
    assert torch.allclose(net(x.flatten(1)), module(x), atol=1e-13)
    at_input, in_pixels = lben.tightest_bound(net), lben.tightest_bound(net, domain="pixels")
    assert at_input.gamma is not None
    assert in_pixels.gamma == pytest.approx(4 * at_input.gamma, rel=1e-5)


def test_an_imported_network_is_certified_attacked_and_kept_like_any_other(tmp_path: Path) -> None:
    module = layers((6, 8, 8, 3)).float()
    net = lben.from_sequential(module)
    x = torch.rand(10, 6)
    radius = lben.certified_radius(net, x)
    assert torch.equal(radius.predicted, module(x).argmax(dim=-1))
    assert float(radius.radius.min()) > 0
    result = lben.attack(net, x, radius.predicted, [0.9 * float(radius.radius.min()), 10.0])
    assert float(result.error[0]) == 0
    below, tight = lben.lipschitz_lower_bound(net, x, restarts=4, steps=10), lben.tightest_bound(net, rigorous=True)
    assert tight.gamma is not None
    assert below.proved
    assert 0.5 * tight.gamma < below.value <= tight.gamma
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net")
    assert isinstance(again, lben.LayeredNetwork)
    assert repr(again) == repr(net)
    assert torch.equal(again(x), net(x))
    assert torch.equal(again.weights().metric(), net.weights().metric())


def test_the_metric_proves_deep_networks_with_large_norms() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        module = layers([3] + [6] * 8 + [2])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(float(torch.rand(()) * 20))
        W = lben.from_sequential(module).weights().W
        operator = DenseOperator(W, layered_metric(W))
        assert operator.sure_monotonicity > 0.01


def test_back_substitution_agrees_with_other_solvers_forward_and_backward() -> None:
    net = lben.from_sequential(layers((4, 6, 6, 3), nn.Tanh))
    W, lam = net.weights().W, net.weights().lam
    b = torch.randn(7, 12, dtype=torch.float64)
    for operator in (DenseOperator(W, lam), DenseOperator(W, lam).transpose()):
        problem = Problem(operator, lben.Tanh(), b)
        swept = solve(lben.BackSubstitution(tolerance=1e-14), problem)
        assert swept.iterations == 1
        other = solve(lben.Newton(tolerance=1e-12), problem)
        assert torch.allclose(swept.z, other.z, atol=1e-11)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, x)
    assert torch.autograd.gradgradcheck(net, x)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**2


class Skip(nn.Sequential):
    """A sequence that does more than its layers say."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = input + self[0](input)
        return y


class Twice(lben.Residual):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def doubled() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([nn.Linear(4, 3), nn.GELU()], "Layer 1, GELU, is none of the activations.*and Hardtanh.$"),
        ([nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.LayerNorm(3))], "Layer 1.1, LayerNorm"),
        ([nn.Linear(4, 3), Square()], "Layer 1, Square"),
        ([nn.Linear(4, 3), nn.BatchNorm1d(3)], "BatchNorm1d, is in training mode"),
        ([nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False).eval()], "no running statistics"),
        ([nn.Linear(4, 3), nn.Linear(4, 3)], r"Layer 1, Linear, does not fit an input of shape \(3,\)"),
        ([lben.Residual(nn.Linear(4, 3))], r"adds an output of shape \(3,\) to its input of \(4,\)"),
        ([nn.Linear(4, 3), nn.ELU(2.0)], r"ELU\(a=2.0\) has slope 2"),
        ([nn.Conv2d(1, 2, 3), nn.ReLU()], "first layer is Conv2d.* input_shape"),
        ([nn.ReLU()], "first layer is ReLU"),
        ([], "holds no layers"),
        ([nn.Linear(4, 4), Skip(nn.Linear(4, 4))], "Layer 1, Skip, is a module of its own kind"),
        ([nn.Linear(4, 4), Twice(nn.Linear(4, 4))], "Layer 1, Twice, has its own forward"),
        ([doubled()], "Layer 0, Linear, has hooks"),
        ([nn.Linear(4, 4), lben.Residual(doubled())], "Layer 1.0, Linear, has hooks"),
        ([nn.Linear(4, 4), nn.Flatten(0)], "Layer 1, Flatten, mixes the samples"),
        ([nn.Linear(4, 4), nn.Hardtanh(-float("inf"), 1.0)], "Layer 1, Hardtanh, must have a finite min_val"),
    ],
)
def test_what_cannot_be_folded_is_named(stages: list[nn.Module], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.from_sequential(nn.Sequential(*stages))


def test_other_bad_input_is_named() -> None:
    with pytest.raises(lben.InvalidInput, match="not list"):
        lben.from_sequential([nn.Linear(2, 2)])  # type: ignore[arg-type]
    with pytest.raises(lben.InvalidInput, match=r"input_shape .* not 0"):
        lben.from_sequential(nn.Sequential(nn.ReLU()), input_shape=(3, 0))
    with pytest.raises(lben.InvalidInput, match=r"such as \(1, 28, 28\), not 3.5"):
        lben.from_sequential(nn.Sequential(nn.ReLU()), input_shape=3.5)  # type: ignore[arg-type]
    with pytest.raises(lben.InvalidInput, match="Layer 0, Skip, is a module of its own kind"):
        lben.from_sequential(Skip(nn.Linear(2, 2)))
    with pytest.raises(lben.InvalidInput, match="Layer 0, ModuleList, is none of the layers"):
        lben.from_sequential(nn.ModuleList([nn.Linear(2, 2)]))
    with pytest.raises(lben.InvalidInput, match="lazy layers"):
        lben.from_sequential(nn.Sequential(nn.LazyLinear(2)))
    empty = nn.Linear(2, 1)
    empty.weight, empty.bias = nn.Parameter(torch.zeros(0, 2)), nn.Parameter(torch.zeros(0))
    with pytest.raises(lben.InvalidInput, match="Layer 0, Linear, has no outputs"):
        lben.from_sequential(nn.Sequential(empty, nn.ReLU()))
    with pytest.raises(lben.InvalidInput, match="float16"):
        lben.from_sequential(nn.Sequential(nn.Linear(2, 2)).half())
    with pytest.raises(lben.InvalidInput, match="BackSubstitution needs a strictly block lower triangular W"):
        lben.LBEN(3, 4, 2, solver=lben.BackSubstitution())(torch.zeros(1, 3))
    with pytest.raises(lben.InvalidInput, match="not strictly block lower triangular"):
        lben.LayeredNetwork(lben.UnconstrainedEN(3, 4, 2).weights(), lben.ReLU())
    with pytest.raises(lben.InvalidInput, match="feed-through D"):
        lben.LayeredNetwork(lben.SLL(3).weights(), lben.ReLU())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(784, 500, 500, 10), (784, *[200] * 5, 10)])
def test_a_thousand_units_in_minutes(sizes: tuple[int, ...]) -> None:
    module = layers(sizes)
    bound = lben.tightest_bound(lben.from_sequential(module))
    assert bound.gamma is not None
    assert bound.method.startswith("barrier method, checked")
    assert bound.gamma < 0.5 * product_of_norms(module)


def test_more_units_than_can_be_certified_are_refused_before_they_are_made() -> None:
    module = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12544, 10))
    with pytest.raises(lben.InvalidInput, match="12,544 units are too many"):
        lben.from_sequential(module, input_shape=(1, 28, 28))


@pytest.mark.parametrize(
    ("stage", "words"),
    [(lben.Normalize(0.0, 2.0), "at the head alone"), (lben.LBEN(4, 3, 4, gamma=1.0), r"lben.certify\(net\)")],
)
def test_modules_of_our_own_are_refused_with_what_helps(stage: nn.Module, words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.from_sequential(nn.Sequential(nn.Linear(4, 4), stage))
