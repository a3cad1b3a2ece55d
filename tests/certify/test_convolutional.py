"""Certificates of convolutional networks agree with the dense ones, and prove what they say at any size."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lben
from lben.certify.channelwise import Channels
from lben.certify.convolutional import ConvSubject
from lben.certify.frequencies import Condition
from lben.certify.kinds import subject_of
from lben.certify.verified import decide, exceeds
from lben.operators.grid import Grid, complex_form, real_form
from tests.problems import conv_network

SHAPES = [(1, 4, 6), (3, 5, 5), (2, 4, 4)]


@pytest.mark.parametrize("in_shape", SHAPES)
@pytest.mark.parametrize("metric", ["channel", "identity", "pixel"])
def test_certify_agrees_with_the_dense_check(in_shape: tuple[int, int, int], metric: lben.Metric) -> None:
    net = conv_network(in_shape, metric, gamma=0.7)
    dense = net.weights().detach().dense()
    for gamma in (None, 0.7, 0.9, 3.0, 0.55, 0.2):
        ours, theirs = lben.certify(net, gamma), lben.certify(dense, gamma)
        sure = lben.certify(net, gamma, rigorous=True)
        assert sure.rigorous
        if metric == "pixel":
            assert ours.margin <= theirs.margin + 1e-12
            assert not (ours.holds or sure.holds) or theirs.holds
            if gamma in (None, 0.7):
                assert ours.margin == pytest.approx(theirs.margin, rel=1e-9)
                assert ours.holds
            continue
        assert ours.margin == pytest.approx(theirs.margin, rel=1e-9, abs=1e-10)
        assert ours.verdict == theirs.verdict
        assert sure.verdict in (ours.verdict, "undecided")
        if ours.holds and gamma in (None, 0.7):
            assert sure.holds


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    gamma=st.floats(0.1, 5.0),
    claimed=st.floats(0.1, 5.0),
    size=st.floats(0.1, 4.0),
    spread=st.floats(0.0, 1.5),
)
def test_verdicts_agree_in_any_metric(seed: int, gamma: float, claimed: float, size: float, spread: float) -> None:
    net = conv_network((2, 3, 4), "channel", gamma=gamma, size=size, spread=spread, seed=seed, channels=2)
    dense = net.weights().detach().dense()
    entries = torch.exp(spread * torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    lam = entries.repeat(12)
    ours, theirs = lben.certify(net, claimed, lam=lam), lben.certify(dense, claimed, lam=lam)
    assert ours.margin == pytest.approx(theirs.margin, rel=1e-7, abs=1e-9)
    if "undecided" not in (ours.verdict, theirs.verdict):
        assert ours.verdict == theirs.verdict
    sure = lben.certify(net, claimed, lam=lam, rigorous=True)
    assert sure.verdict in (theirs.verdict, "undecided")


def test_a_broken_bound_is_refused() -> None:
    """A kernel moved so that T + T' is indefinite: the claim fails in every way of checking it."""
    weights = conv_network((1, 4, 4), "channel").weights().detach()
    T = weights.T.clone()
    T[0, 0] = 0.0
    broken = lben.ConvWeights(
        T, weights.U, weights.bz, weights.Wo, weights.by, weights.entries, "channel", weights.geometry, weights.gamma
    )
    assert lben.certify(broken).verdict == lben.certify(broken.dense()).verdict == "fails"
    assert lben.certify(broken, rigorous=True).verdict == "fails"


def search(net: lben.ConvNetwork) -> tuple[Channels, torch.Tensor]:
    """The search for the tightest bound of a network, without its normalisation, and its own metric."""
    subject = subject_of(net)
    assert isinstance(subject, ConvSubject)
    w = subject.weights
    own = w.metric_entries()
    T, U, grid = w.symbols()
    q = complex_form(grid.forward(w.output.T.contiguous()))
    return Channels(T / own[:, None] + w.rho * (U @ U.mH) * own, U, q, w.rho * q / own[:, None], subject.mix, grid), own


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 4)])
@pytest.mark.parametrize("frequency", [(0, 0), (0, 1), (1, 2), (2, 2)])
def test_blocks_that_are_not_positive_are_helped_by_the_low_rank(
    shape: tuple[int, int], frequency: tuple[int, int]
) -> None:
    """D has eigenvalues -1/2 at one frequency, and a matrix of low rank adds a number to just these."""
    grid = Grid(*shape, torch.zeros(1, dtype=torch.float64))
    h, w = (size % limit for size, limit in zip(frequency, (grid.half, shape[1]), strict=True))
    D = torch.eye(2, dtype=torch.complex128).repeat(grid.half, shape[1], 1, 1)
    D[h, w] *= -0.5
    if (2 * h) % shape[0] == 0:
        D[h, -w] = D[h, w]
    D = D.reshape(-1, 2, 2)
    dense = grid.convolve(real_form(D.real, D.imag), torch.eye(2 * shape[0] * shape[1], dtype=torch.float64))
    values, vectors = torch.linalg.eigh(dense)
    below = vectors[:, values < 0]
    F = complex_form(grid.forward(below.contiguous()))
    for added, holds in ((1.0, True), (0.51, True), (0.49, False)):
        M = added * torch.eye(below.shape[1], dtype=torch.float64)
        terms = torch.ones(2, 2, dtype=torch.float64)
        condition = Condition(D, F, M, terms, 2.0, 1e-14 * terms, grid)
        assert condition.margin() == pytest.approx(added - 0.5)
        assert decide(condition) == ("holds" if holds else "fails")
        assert exceeds(condition, 0.4) == (added > 0.9)


@pytest.mark.parametrize("in_shape", SHAPES)
def test_the_rho_of_a_metric_is_that_of_the_dense_matrices(in_shape: tuple[int, int, int]) -> None:
    net = conv_network(in_shape, "channel", gamma=0.7)
    dense = net.weights().detach().dense()
    problem, own = search(net)
    entries = 1.3 * own * torch.linspace(0.9, 1.1, len(own), dtype=torch.float64)
    found = problem.measure(entries)
    assert found is not None
    lam = entries.repeat(dense.hidden_features // len(own))
    half = lam[:, None] * (torch.eye(len(lam), dtype=torch.float64) - dense.W)
    X, into = half + half.T - dense.Wo.T @ dense.Wo, lam[:, None] * dense.U
    assert found.rho == pytest.approx(float(torch.linalg.eigvalsh(into.T @ torch.linalg.solve(X, into))[-1]), rel=1e-9)
    shown = problem.restrict(found.x, found.z, 0.1)
    x, z = found.x[..., -1:], found.z[..., -1:]
    least = problem.restrict(x, z / torch.linalg.vector_norm(z), 0.1)
    assert float(torch.linalg.eigvalsh(least.matrix(entries, found.rho))[0]) == pytest.approx(0, abs=1e-6)
    assert shown.size > least.size
    assert problem.measure(1e-6 * own) is None


def test_the_derivatives_of_the_small_program_are_those_of_its_barrier() -> None:
    problem, own = search(conv_network((2, 3, 4), "channel", gamma=0.7))
    start = problem.measure(1.3 * own)
    assert start is not None
    z = start.z / torch.linalg.vector_norm(start.z, dim=(0, 1))
    small = problem.restrict(start.x[..., -1:], z[..., -1:], 0.1)
    C = len(own)

    def objective(variables: torch.Tensor) -> torch.Tensor:
        lam, rho = variables[:C], variables[C]
        matrix = small.matrix(lam, 0.0) + rho * torch.diag(torch.tensor([0.0, 1.0], dtype=torch.float64))
        return 3.0 * rho - torch.logdet(matrix) - lam.log().sum() + lam.sum()

    at = torch.cat([1.3 * own, torch.tensor([2.0 * start.rho], dtype=torch.float64)]).requires_grad_()
    point = small.feasible(at.detach()[:C], at[C].item())
    assert point is not None
    gradient, hessian = small.derivatives(point, 3.0, torch.ones(C, dtype=torch.float64))
    value = objective(at)
    assert 3.0 * at[C].item() - small.log_det(point) + at[:C].sum().item() == pytest.approx(value.item())
    assert torch.allclose(gradient, torch.autograd.grad(value, at)[0], rtol=1e-8)
    assert torch.allclose(hessian, torch.autograd.functional.hessian(objective, at.detach()), rtol=1e-7, atol=1e-8)


def test_on_single_pixels_the_tightest_bound_is_the_dense_one() -> None:
    """Where an image is one pixel, one entry a channel is one a unit."""
    for gamma in (0.7, None):
        net = conv_network((3, 1, 1), "channel", gamma=gamma, channels=5, kernel_size=1)
        ours, theirs = lben.tightest_bound(net), lben.tightest_bound(net.weights().detach().dense())
        assert ours.holds
        assert ours.gamma is not None
        assert ours.gamma == pytest.approx(theirs.gamma, rel=5e-3)
        assert theirs.gamma is not None
        assert ours.gamma > theirs.gamma * (1 - 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("metric", ["channel", "identity"])
@pytest.mark.parametrize("gamma", [0.7, None])
def test_the_tightest_bound_is_proved_and_no_metric_near_it_does_better(
    metric: lben.Metric, gamma: float | None
) -> None:
    net = conv_network((2, 4, 4), metric, gamma=gamma)
    dense = net.weights().detach().dense()
    found = lben.tightest_bound(net)
    assert found.gamma is not None
    assert found.gamma <= lben.product_bound(net) * (1 + 1e-4)
    if gamma is not None:
        assert found.gamma <= gamma * (1 + 1e-9)
    assert lben.certify(dense, found.gamma * (1 + 1e-6), lam=found.lam).holds
    assert lben.tightest_bound(net, rigorous=True).rigorous
    exact = lben.tightest_bound(dense).gamma
    assert exact is not None
    assert exact <= found.gamma * (1 + 1e-6)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(10):
            entries = torch.exp(size * torch.randn(3, generator=generator, dtype=torch.float64)).repeat(16)
            assert not lben.certify(dense, found.gamma * (1 - 1e-3), lam=found.lam * entries).holds


def test_the_product_bound_and_pixels() -> None:
    net = conv_network((2, 4, 4), "channel", gamma=0.7)
    assert lben.product_bound(net) == pytest.approx(lben.product_bound(net.weights().detach().dense()), rel=1e-9)
    pixel = conv_network((2, 4, 4), "pixel", gamma=0.7)
    assert lben.product_bound(pixel) >= lben.product_bound(pixel.weights().detach().dense())
    scaled = lben.ConvLBEN((2, 4, 4), 3, 3, gamma=0.7, normalize=lben.Normalize(0.4, 0.25))
    assert lben.certify(scaled, domain="pixels").gamma == pytest.approx(0.7 / 0.25)
    assert lben.certify(scaled, domain="pixels").holds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("metric", ["channel", "pixel"])
def test_radius_lower_bound_and_attack_tell_one_story(metric: lben.Metric) -> None:
    net = conv_network((1, 4, 4), metric, gamma=0.7)
    x = torch.rand(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = net(x).argmax(dim=-1)
    dense = net.weights().detach().dense()
    found = lben.certified_radius(net, x, labels)
    joint = lben.certified_radius(net, x, labels, pairwise=False)
    assert found.radius.shape == (6,)
    assert torch.equal(found.predicted, labels)
    assert bool((found.radius > 0).all())
    assert bool((joint.radius <= found.radius * (1 + 1e-3)).all())
    best = lben.certified_radius(dense, x.flatten(1), labels)
    assert bool((found.radius <= best.radius * (1 + 1e-4)).all())
    below = lben.lipschitz_lower_bound(net, x, restarts=4, steps=30)
    assert below.proved
    y1, y2 = net(below.inputs.reshape(2, 1, 4, 4))
    moved = float(torch.linalg.vector_norm(y1 - y2).detach())
    assert below.value <= moved / float(torch.linalg.vector_norm(below.inputs[0] - below.inputs[1])) + 1e-6
    above = lben.tightest_bound(dense).gamma
    assert above is not None
    assert 0.5 * above < below.value <= above
    attack = lben.attack(net, x, labels, [float(found.radius.min()), 50.0], method="pgd", steps=10, restarts=1)
    assert float(attack.error[0]) == 0.0
    assert attack.inputs.shape == (2, 6, 16)


def test_a_loose_solver_costs_radius_never_truth() -> None:
    net = conv_network((1, 4, 4), "channel", gamma=0.7)
    x = torch.rand(6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    precise = lben.certified_radius(net, x, pairwise=False).radius
    loose = lben.certified_radius(net, x, pairwise=False, solver=lben.PeacemanRachford(tolerance=1e-3)).radius
    assert bool((loose <= precise).all())
    assert bool((loose < precise).any())


def test_unconstrained_networks_are_certified_where_the_euclidean_metric_proves_them() -> None:
    torch.manual_seed(0)
    net = lben.ConvUnconstrainedEN((1, 4, 4), 3, 3).double().eval()
    assert lben.certify(net).holds
    assert lben.tightest_bound(net).holds
    with torch.no_grad():
        net.get_parameter("parameterization.W").mul_(30)
    assert lben.certify(net).verdict == "fails"
    with pytest.raises(lben.NotWellPosed):
        lben.certified_radius(net, torch.rand(1, 16, dtype=torch.float64))


def test_outputs_that_do_not_depend_on_inputs() -> None:
    for name in ("U", "Wo"):
        net = conv_network((1, 4, 4), "channel", gamma=0.7)
        with torch.no_grad():
            net.get_parameter(f"parameterization.{name}").zero_()
        gamma = lben.tightest_bound(net).gamma
        assert gamma is not None
        assert gamma < 1e-20


@pytest.mark.slow
def test_the_papers_size_is_certified_in_seconds() -> None:
    """40 channels at 32 x 32: 40,960 hidden units. Processor time, for the machine may be busy."""
    torch.manual_seed(0)
    net = lben.ConvLBEN((3, 32, 32), 40, 10, gamma=2.0, epsilon=5.0)
    started = time.process_time()
    assert lben.certify(net).holds
    assert lben.certify(net, 1.999).holds
    assert lben.certify(net, rigorous=True).holds
    assert (time.process_time() - started) / 3 < 10
    found = lben.tightest_bound(net)
    assert found.gamma is not None
    assert found.gamma < 2.0


def test_zeros_around_the_image_count_as_inputs_and_refute_nothing() -> None:
    torch.manual_seed(0)
    net = lben.ConvMON((1, 3, 3), 2, 2, pool=1, padding=1).double()
    tight = lben.tightest_bound(net)
    assert tight.gamma is not None
    assert "for inputs around the image, too" in tight.method
    between = lben.certify(net, 0.945 * tight.gamma, lam=tight.lam)
    assert between.verdict == "undecided"
    assert "neither proved nor refuted" in str(between)
    assert lben.certify(net.weights().detach().dense(), 0.945 * tight.gamma, lam=tight.lam).holds
