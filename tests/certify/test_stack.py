"""Stacks: what bounds their stages bounds them, one metric over several stages is better, and errors add up."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.certify import norms
from lben.certify import stack as stacks
from lben.certify.certificate import StackCertificate
from lben.certify.joined import joined
from lben.certify.kinds import subject_of
from lben.certify.links import links_of
from lben.certify.norms import convolution_norm
from lben.certify.stack import StackSubject
from lben.weights.linear import Convolution

BODIES: dict[str, Any] = {
    "two equilibria": lambda: [lben.LBEN(6, 9, 5, gamma=0.99), lben.LBEN(5, 9, 3, gamma=1.0)],
    "skips": lambda: [lben.LBEN(6, 7, 6, gamma=1.0, skip="identity"), lben.LBEN(6, 7, 3, gamma=2.0, skip="linear")],
    "no gamma": lambda: [lben.MON(6, 8, 4, activation=lben.Tanh()), lben.LBEN(4, 5, 3)],
    "plain between": lambda: [nn.Linear(6, 5), nn.ReLU(), lben.LBEN(5, 6, 4, gamma=1.5), nn.ELU(), nn.Linear(4, 3)],
    "residual": lambda: [lben.Residual(nn.Linear(6, 6), nn.LeakyReLU(0.2)), lben.LBEN(6, 5, 3, gamma=0.5)],
    "equilibrium in a residual": lambda: [lben.Residual(lben.LBEN(6, 5, 6, gamma=0.7)), nn.Linear(6, 3)],
    "normalize": lambda: [
        lben.LBEN(6, 9, 5, gamma=0.99),
        lben.Normalize([0.1, -2.0, 3.0, 0.0, 1.0], [0.3, 1.0, 7.0, 0.5, 0.1]),
        lben.LBEN(5, 9, 3, gamma=1.0),
        lben.Normalize(0.2, 1 / 1.5),
    ],
    "batch norm": lambda: [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Hardtanh(-1, 2), nn.Linear(5, 3)],
}


def stack(kind: str, seed: int = 0) -> lben.Sequential:
    torch.manual_seed(seed)
    net = lben.Sequential(*BODIES[kind]()).double()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean, part.running_var = torch.randn(5).double(), torch.rand(5).double() + 0.1
    return net.eval()


@pytest.mark.parametrize("kind", BODIES)
def test_a_joined_network_is_the_stack(kind: str) -> None:
    """The one equilibrium network that is searched computes what the stages do, one after another."""
    net = stack(kind)
    subject = subject_of(net)
    assert isinstance(subject, StackSubject)
    whole = joined(subject.links)
    x = torch.randn(7, 6, dtype=torch.float64)
    solver = lben.PeacemanRachford(tolerance=1e-12)
    assert torch.allclose(whole.settled().outputs(x, solver), net(x), atol=1e-3)
    assert torch.allclose(whole.settled().outputs(x, solver), subject.outputs(x, solver), atol=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", BODIES)
def test_bounds_of_a_stack_are_in_order(kind: str) -> None:
    net = stack(kind)
    below = lben.lipschitz_lower_bound(net, torch.randn(8, 6), restarts=4, steps=40)
    tight = lben.tightest_bound(net, rigorous=True)
    alone = math.prod(link.tightest_factor(rigorous=False).bound for link in links_of(net.weights().precise().stages))
    assert below.proved
    assert tight
    assert tight.gamma is not None
    assert 0 < below.value <= tight.gamma <= alone * (1 + 1e-9) <= net.bound() * (1 + 1e-6)


def test_one_metric_over_two_equilibria_is_better_than_two() -> None:
    gains = []
    for seed in range(4):
        net = stack("two equilibria", seed)
        found = lben.tightest_bound(net)
        alone = 1.0
        for stage in net:
            assert isinstance(stage, lben.LBEN)
            alone *= lben.tightest_bound(stage).gamma or math.inf
        assert found.gamma is not None
        gains.append(found.gamma / alone)
        assert "joined" in str(found)
    assert max(gains) < 0.98


@pytest.mark.parametrize("std", [1 / 1.5, [0.7, 0.3, 2.0]])
def test_a_scale_behind_the_last_stages_leaves_their_pairs_as_they_were(std: float | list[float]) -> None:
    torch.manual_seed(0)
    stages = [lben.SLL(6, 8), lben.Sandwich(6, 5), lben.Sandwich(5, 3)]
    scale = 1 / torch.tensor(std, dtype=torch.float64).expand(3)
    plain, scaled = (subject_of(lben.Sequential(*stages, *tail).double()) for tail in ([], [lben.Normalize(0.1, std)]))
    for i, j in ((0, 1), (0, 2), (2, 1)):
        pair = scaled.difference(i, j).bound().gamma
        assert pair < 0.99 * math.sqrt(2) * scaled.bound().gamma
        if scale[i] == scale[j]:
            assert pair == pytest.approx(float(scale[i]) * plain.difference(i, j).bound().gamma, rel=1e-4)


def test_a_normalisation_beyond_powers_of_two_stands_alone() -> None:
    normalize = lben.Normalize(0.0, 1e-200, dtype=torch.float64)
    net = lben.Sequential(nn.Linear(3, 2).double(), normalize, nn.Linear(2, 2).double())
    found = lben.tightest_bound(net)
    assert isinstance(found, StackCertificate)
    assert len(found.factors) == 3


def test_in_pixels_the_factors_have_that_of_the_normalisation() -> None:
    net = lben.Sequential(lben.Normalize(0.5, 0.25), lben.LBEN(6, 9, 5, gamma=1.0), torch.nn.Linear(5, 3), in_shape=6)
    found = lben.certify(net, domain="pixels")
    assert isinstance(found, StackCertificate)
    assert [factor.name for factor in found.factors] == ["Normalize", "1 LBEN", "2 Linear"]
    assert math.prod(factor.bound for factor in found.factors) == pytest.approx(found.gamma, rel=1e-12)


def test_a_stack_too_large_to_join_says_what_was_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_MOST_UNITS", 16)
    torch.manual_seed(0)
    net = lben.Sequential(lben.LBEN(6, 9, 5, gamma=1.0), lben.LBEN(5, 4, 4, gamma=1.0), lben.LBEN(4, 4, 3, gamma=1.0))
    found = lben.tightest_bound(net)
    assert "stages 1 to 2 joined: 1 LBEN, 2 LBEN" in str(found)
    assert isinstance(found, StackCertificate)
    assert len(found.factors) == 2
    assert lben.lipschitz_lower_bound(net, restarts=3, steps=20).value <= (found.gamma or 0)
    x = torch.randn(5, 6)
    assert bool((lben.certified_radius(net, x).radius >= lben.certified_radius(net, x, pairwise=False).radius).all())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["two equilibria", "plain between", "residual"])
@pytest.mark.parametrize("seed", range(2))
def test_the_bound_survives_training(kind: str, seed: int) -> None:
    net = stack(kind, seed).train()
    x, y = torch.randn(32, 6).double(), torch.randn(32, 3).double() * 5
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(25):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    net.eval()
    certificate = lben.certify(net, rigorous=True)
    assert certificate
    assert certificate.gamma == pytest.approx(net.bound(), rel=1e-12)
    found = lben.lipschitz_lower_bound(net, x, restarts=6, steps=60)
    assert found.value <= (lben.tightest_bound(net).gamma or 0)


@pytest.mark.parametrize("kind", BODIES)
def test_a_rough_solver_is_paid_for(kind: str) -> None:
    """Errors of early stages pass through those behind them."""
    net, x = stack(kind), torch.randn(5, 6, dtype=torch.float64)
    precise = lben.enclose(net, x)
    assert float(precise.error.max()) < 1e-9
    for tolerance in (1e-1, 1e-3):
        rough = lben.enclose(net, x, solver=lben.PeacemanRachford(tolerance=tolerance))
        assert bool(((rough.y - precise.y).abs() <= rough.error + precise.error).all())


SHAPES = [
    (stride, padding, dilation, groups, kernel)
    for stride, padding, dilation, groups, kernel in itertools.product((1, 2), (0, 1, 2), (1, 2), (1, 2), (1, 2, 3))
    if dilation * (kernel - 1) + 1 <= 5
]


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups", "kernel"), SHAPES)
def test_the_norm_of_a_convolution(
    stride: int, padding: int, dilation: int, groups: int, kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a matrix it is the norm; the circular one is never below it, and not far above."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups).double()
    stage = lben.Sequential(conv, in_shape=(2, 5, 6)).weights().precise().stages[0]
    assert isinstance(stage, Convolution)
    true = _matrix_norm(conv)
    exact, _ = convolution_norm(stage)
    monkeypatch.setattr(norms, "_MOST_ENTRIES", 0)
    above, method = convolution_norm(stage)
    assert "circular" in method
    assert exact == pytest.approx(true, rel=1e-9)
    assert true <= exact * (1 + 1e-15)
    assert true <= above * (1 + 1e-15) < 2 * true


@pytest.mark.parametrize("stride", [1, 2])
def test_the_norm_of_a_circular_convolution(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, stride, 1, padding_mode="circular").double()
    stage = lben.Sequential(conv, in_shape=(2, 6, 4)).weights().precise().stages[0]
    assert isinstance(stage, Convolution)
    monkeypatch.setattr(norms, "_MOST_ENTRIES", 0)
    assert convolution_norm(stage)[0] == pytest.approx(_matrix_norm(conv, (2, 6, 4)), rel=1e-9)


@pytest.mark.parametrize(
    ("size", "kernel", "dilation"), [((1, 4), 5, 1), ((2, 2), 3, 1), ((3, 5), 3, 2), ((1, 4), 7, 1)]
)
def test_a_circular_kernel_may_be_larger_than_its_image(
    size: tuple[int, int], kernel: int, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its taps go round: of the frequencies of a larger torus none need be one of the image's."""
    torch.manual_seed(0)
    high, wide = (min(side, dilation * (kernel - 1) // 2) for side in size)
    around, sides = (high, wide), ((2 * high) // dilation + 1, (2 * wide) // dilation + 1)
    conv = nn.Conv2d(2, 3, sides, padding=around, dilation=dilation, padding_mode="circular").double()
    monkeypatch.setattr(norms, "_MOST_ENTRIES", 0)
    for weights in ("drawn", "alternating"):
        with torch.no_grad():
            if weights == "alternating":
                conv.weight.copy_(
                    ((-1.0) ** torch.arange(conv.weight[0, 0].numel())).reshape(sides).expand_as(conv.weight)
                )
        stage = lben.Sequential(conv, in_shape=(2, *size)).weights().precise().stages[0]
        assert isinstance(stage, Convolution)
        assert convolution_norm(stage)[0] == pytest.approx(_matrix_norm(conv, (2, *size)), rel=1e-9)


def _matrix_norm(conv: nn.Conv2d, shape: tuple[int, int, int] = (2, 5, 6)) -> float:
    with torch.no_grad():
        units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
        matrix: Tensor = (conv(units) - conv(torch.zeros_like(units))).flatten(1)
        return float(torch.linalg.matrix_norm(matrix, 2))


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (lambda: lben.Sequential(), "at least one stage"),
    "no module": (
        lambda: lben.Sequential(torch.relu),  # type: ignore[arg-type]
        "takes modules",
    ),
    "no shape": (lambda: lben.Sequential(nn.Flatten(), nn.Linear(4, 2)), "say in_shape"),
    "widths": (lambda: lben.Sequential(nn.Linear(4, 3), lben.LBEN(4, 3, 2)), r"takes inputs of shape \(4,\), but gets"),
    "linear": (lambda: lben.Sequential(lben.LBEN(4, 3, 2), nn.Linear(3, 2)), "takes 3 features, but gets"),
    "image": (lambda: lben.Sequential(nn.Conv2d(3, 4, 3), in_shape=(1, 8, 8)), r"\(3, height, width\)"),
    "small image": (lambda: lben.Sequential(nn.Conv2d(1, 4, 5), in_shape=(1, 4, 4)), "kernel is larger than the image"),
    "unknown": (
        lambda: lben.Sequential(nn.Linear(4, 4), nn.GELU()),
        "1 GELU has no known bound: use an activation with slopes",
    ),
    "overlap": (lambda: lben.Sequential(nn.MaxPool2d(3, 2), in_shape=(1, 8, 8)), "use stride = kernel_size"),
    "padding": (
        lambda: lben.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), in_shape=(1, 8, 8)),
        "lengthens distances",
    ),
    "residual": (lambda: lben.Sequential(lben.Residual(nn.Linear(4, 3)), in_shape=4), "adds an output of shape"),
    "in place": (lambda: lben.Sequential(lben.Residual(nn.ReLU(inplace=True)), in_shape=4), "inplace=False"),
    "only a normalisation": (lambda: lben.Sequential(lben.Normalize(0, 1), in_shape=4), "besides its Normalize"),
    "channels or columns": (
        lambda: lben.Sequential(lben.Normalize([0, 0, 0], 1.0), nn.Flatten(), in_shape=(3, 3, 3)),
        "channels or the columns",
    ),
    "below one": (lambda: lben.LBEN(4, 3, 4, gamma=0.5, skip="identity"), "gamma must be"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(lben.InvalidInput, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_joined_stages_are_called_by_their_own_names() -> None:
    """Stages without a record, and a normalisation at the head, do not move the numbers of others."""
    net = lben.Sequential(
        lben.Normalize(0.5, 0.25),
        nn.Conv2d(1, 2, 3),
        nn.Dropout(),
        nn.Sequential(nn.ReLU(), nn.Flatten()),
        nn.Dropout(),
        nn.Linear(8, 4),
        lben.LBEN(4, 5, 3, gamma=1.0, normalize=lben.Normalize(0.0, 2.0)),
        in_shape=(1, 4, 4),
    ).eval()
    joined = "stages 3.0 to 6 joined: 3.0 ReLU, 3.1 Flatten, 5 Linear, 6 LBEN, its Normalize, 6 LBEN ("
    assert joined in str(lben.tightest_bound(net))
    inner = lben.LBEN(4, 5, 3, gamma=1.0, normalize=lben.Normalize(0.0, 2.0))
    alone = lben.Sequential(nn.Identity(), inner, in_shape=4)
    assert "stage 1 joined: 1 LBEN, its Normalize, 1 LBEN" in str(lben.tightest_bound(alone))


@pytest.mark.parametrize("std", [None, 0.5, [0.5] + [2.0] * 5])
@pytest.mark.parametrize("kind", ["two equilibria", "residual", "plain between"])
def test_bounds_of_parts_of_a_stack_are_those_of_the_joined_network(kind: str, std: Any) -> None:
    inner = stack(kind)
    net = inner if std is None else lben.Sequential(lben.Normalize(0.2, std), *inner, in_shape=6).eval()
    domain: Any = "input" if std is None else "pixels"
    whole = lben.tightest_bound(net, domain=domain).gamma or 0
    x = torch.randn(1, 6, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(lambda x: net(x)[0], x)[:, 0]
    for rows, columns in (([1], None), ([0, 2], [2, 4]), (None, [0])):
        found = lben.tightest_bound(net, domain=domain, outputs=rows, features=columns)
        assert found
        seen = slopes[rows or slice(None)][:, columns or slice(None)]
        assert float(torch.linalg.matrix_norm(seen, 2)) <= (found.gamma or 0) * 1.001
        assert (found.gamma or 0) < 0.995 * whole
    alone = lben.certified_interval(net, x, 0.1, domain=domain).bounds
    assert float(alone[1]) == pytest.approx(lben.tightest_bound(net, domain=domain, outputs=[1]).gamma, rel=1e-6)
    assert float(alone.max()) <= whole * (1 + 1e-6)


def test_bounds_of_parts_of_a_stack_of_images_are_those_of_the_whole() -> None:
    net = lben.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), in_shape=(1, 4, 4))
    assert lben.tightest_bound(net, outputs=[0], features=[1]).gamma == lben.tightest_bound(net).gamma


def test_a_stage_of_which_nothing_is_proved_has_no_bound() -> None:
    torch.manual_seed(0)
    free = lben.UnconstrainedEN(4, 5, 3)
    with torch.no_grad():
        free.get_parameter("parameterization.W").copy_(2 * torch.eye(5))
    net = lben.Sequential(nn.Linear(4, 4), free).eval()
    with pytest.raises(lben.BoundNotMet, match="1 UnconstrainedEN no bound is proved, since no diagonal") as caught:
        net.bound()
    assert ". " not in str(caught.value)
    assert not lben.certify(net)
    assert lben.certify(net).verdict == "undecided"


def test_a_batch_norm_must_be_in_evaluation() -> None:
    net = lben.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    with pytest.raises(lben.InvalidInput, match=r"call \.eval\(\) first"):
        lben.certify(net)
    assert lben.certify(net.eval())


def test_another_metric_cannot_be_given() -> None:
    with pytest.raises(lben.InvalidInput, match="every stage has a metric of its own"):
        lben.certify(stack("two equilibria"), 1.0, lam=torch.ones(18))


def test_what_was_kept_is_found_again_when_a_stage_changes() -> None:
    net, x = stack("two equilibria"), torch.randn(4, 6).double()
    before = lben.certified_radius(net, x)
    with torch.no_grad():
        first = net[0]
        assert isinstance(first, lben.LBEN)
        first.parameterization.U.mul_(0.5)
    after = lben.certified_radius(net, x)
    assert not torch.allclose(before.bounds, after.bounds)
    assert torch.allclose(after.bounds, lben.certified_radius(net.weights(), x).bounds)
