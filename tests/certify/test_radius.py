"""Radii: true for every tolerance, tighter pair by pair, and no attack gets below them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import lben
from lben.certify import radius
from lben.certify.subject import Subject
from lben.data import embedded_mnist, pixels
from tests.problems import ACTIVATIONS, mnist_network, random_network

TOLERANCES = [1e-2, 1e-4, 1e-6, 1e-8]


def images() -> tuple[Tensor, Tensor]:
    """200 images that no network here was trained on."""
    data = embedded_mnist()
    return pixels(data.test_images[:200]), data.test_labels[:200]


@cache
def attacked(method: lben.AttackMethod) -> lben.Attack:
    x, y = images()
    return lben.attack(mnist_network(1.0), x, y, [0.5, 2.0, 4.0, 6.0], method=method, steps=10, restarts=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("method", ["fgm", "pgd", "deepfool"])
def test_no_attack_succeeds_below_the_radius(method: lben.AttackMethod, tolerance: float) -> None:
    x, y = images()
    solver = lben.PeacemanRachford(tolerance=tolerance)
    proved = lben.certified_radius(mnist_network(1.0), x, y, solver=solver).radius
    result = attacked(method)
    assert bool((result.error > result.clean_error).any())
    for size, success, distance in zip(result.epsilons.input, result.success, result.distances.input, strict=True):
        assert not bool((success & (proved > size)).any())
        assert not bool((success & (distance < proved)).any())


def test_a_loose_solver_only_shrinks_radii() -> None:
    net, (x, y) = mnist_network(1.0), images()
    exact = lben.certified_radius(net, x, y).radius
    assert float(exact.max()) > 1
    means = []
    for tolerance in TOLERANCES:
        loose = lben.certified_radius(net, x, solver=lben.PeacemanRachford(tolerance=tolerance))
        right = loose.predicted == y
        assert bool((loose.radius[right] <= exact[right] + 1e-9).all())
        means.append(float(loose.radius[right].sum()))
    assert means == sorted(means)
    assert means[-1] / float(exact.sum()) > 0.999


def test_pairs_prove_more_than_gamma() -> None:
    net, (x, y) = mnist_network(1.0), images()
    tight = lben.tightest_bound(net).gamma
    assert tight is not None
    pairs, joint = lben.certified_radius(net, x, y), lben.certified_radius(net, x, y, pairwise=False)
    assert bool((pairs.radius >= joint.radius).all())
    assert float(pairs.radius.mean()) > 1.05 * float(joint.radius.mean())
    off_diagonal = ~torch.eye(10, dtype=torch.bool)
    assert float(pairs.bounds[off_diagonal].max()) <= math.sqrt(2) * tight * (1 + 1e-9)
    assert joint.bounds[0, 1] == pytest.approx(math.sqrt(2))
    assert torch.equal(pairs.predicted, joint.predicted)
    free = lben.certified_radius(mnist_network(None), x, y, pairwise=False)  # a MON: no gamma, so its tightest bound
    assert free.bounds[0, 1] == pytest.approx(math.sqrt(2) * (lben.tightest_bound(mnist_network(None)).gamma or 0))


def test_the_bound_of_a_pair_is_that_of_its_difference() -> None:
    net = random_network("LBEN", (4, 6, 3), lben.Tanh(), gamma=2.0, size=1.0, spread=1.0, trained=2, seed=3)
    bounds = lben.certified_radius(net, torch.randn(2, 4).double()).bounds
    w = net.weights().detach()
    row = w.Wo[:1] - w.Wo[2:]
    pair = lben.Weights(w.W, w.U, w.bz, row, w.by[:1], w.lam)
    assert bounds[0, 2] == bounds[2, 0] == pytest.approx(lben.tightest_bound(pair).gamma, rel=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_nothing_inside_the_radius_changes_the_class(activation: lben.Activation) -> None:
    """Random directions and the gradient's, right at the radius: the class must stay."""
    net = random_network("LBEN", (3, 5, 4), activation, gamma=2.0, size=2.0, spread=0.5, trained=5, seed=1)
    net.solver = lben.Newton(tolerance=1e-11)
    torch.manual_seed(0)
    x = 3 * torch.randn(50, 3).double()
    found = lben.certified_radius(net, x, solver=lben.PeacemanRachford(tolerance=1e-3))
    assert float(found.radius.max()) > 0
    point = x.clone().requires_grad_()
    top = net(point).topk(2, dim=-1).values
    (toward,) = torch.autograd.grad((top[:, 1] - top[:, 0]).sum(), point)
    with torch.no_grad():
        assert torch.equal(net(x).argmax(-1), found.predicted)
        for step in (toward, *torch.randn(20, 50, 3).double()):
            direction = step / torch.linalg.vector_norm(step, dim=-1, keepdim=True).clamp(min=1e-300)
            moved = net(x + 0.999 * found.radius[:, None] * direction)
            safe = found.radius > 0
            assert torch.equal(moved.argmax(-1)[safe], found.predicted[safe])


def test_pixels_and_labels() -> None:
    net, (x, y) = mnist_network(1.0), images()
    assert net.normalize is not None
    inputs, in_pixels = lben.certified_radius(net, x), lben.certified_radius(net, x, domain="pixels")
    scale = float(net.normalize.std)
    assert (inputs.domain, in_pixels.domain) == ("input", "pixels")
    assert torch.allclose(in_pixels.radius, inputs.radius * scale)
    assert torch.allclose(in_pixels.bounds * scale, inputs.bounds)
    labelled = lben.certified_radius(net, x, y)
    assert bool((labelled.radius[labelled.predicted != y] == 0).all())
    assert torch.equal(labelled.radius[labelled.predicted == y], inputs.radius[inputs.predicted == y])
    accuracy = lben.certified_accuracy(net, x, y, [0.0, 1.0, 100.0])
    assert accuracy.accuracy[0] == pytest.approx(float((inputs.predicted == y).double().mean()), abs=0.002)
    assert accuracy.accuracy[1] == pytest.approx(float((labelled.radius > 1).double().mean()))
    assert accuracy.accuracy[2] == 0


def test_pairwise_bounds_are_kept_until_a_weight_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = radius._pairwise_bounds

    def counted(subject: Subject, progress: bool) -> radius.Pairs:
        calls.append(1)
        return original(subject, progress)

    monkeypatch.setattr(radius, "_pairwise_bounds", counted)
    net = random_network("MON", (3, 4, 3), lben.ReLU(), gamma=None, size=1, spread=1, trained=0, seed=0)
    x = torch.randn(5, 3).double()
    first = lben.certified_radius(net, x)
    assert torch.equal(lben.certified_radius(net, 2 * x).bounds, first.bounds)
    assert len(calls) == 1
    net.get_parameter("parameterization.Wo").data.mul_(2)
    second = lben.certified_radius(net, x)
    assert len(calls) == 2
    assert not torch.equal(first.bounds, second.bounds)
    with torch.no_grad():
        net.get_parameter("parameterization.Wo").mul_(10)  # in place, in double precision: no copy is made on the way
    assert torch.allclose(lben.certified_radius(net, x).bounds, 10 * second.bounds, rtol=1e-4)
    assert len(calls) == 3
    net.get_parameter("parameterization.bz").data.add_(1)  # no bound depends on a bias
    lben.certified_radius(net, x)
    assert len(calls) == 3


def test_what_cannot_be_solved_has_a_small_radius_and_raises_nothing() -> None:
    """W so large that double precision cannot reach the tolerance: the radii shrink by the error that is left."""
    torch.manual_seed(0)
    eye, U, Wo = torch.eye(4).double(), torch.randn(4, 3).double(), torch.randn(2, 4).double()
    weights = lben.Weights(-1e10 * eye, U, torch.zeros(4).double(), Wo, torch.zeros(2).double())
    x = torch.randn(50, 3).double()
    radii = lben.certified_radius(weights, x).radius
    z = (x @ U.T).clamp(min=0) / (1 + 1e10)
    row = Wo[0] - Wo[1]
    exact = (z @ row).abs()  # the gap; a slope of at least this much over the radius must exist
    assert bool((radii <= exact / float((row / (1 + 1e10)).abs().min() * 1e-3)).all())
    assert bool(torch.isfinite(radii).all())
    net = random_network("LBEN", (3, 4, 3), lben.ReLU(), gamma=1.0, size=1, spread=1, trained=0, seed=0)
    impossible = lben.certified_radius(net, x, solver=lben.PeacemanRachford(tolerance=1e-20, max_iterations=200))
    assert torch.allclose(impossible.radius, lben.certified_radius(net, x).radius, rtol=1e-6)


def test_bare_weights_and_batches() -> None:
    net = random_network("LBEN", (3, 4, 3), lben.Tanh(), gamma=1.0, size=1, spread=1, trained=2, seed=0)
    x = torch.randn(2, 5, 3).double()
    of_net = lben.certified_radius(net, x)
    of_weights = lben.certified_radius(net.weights().detach(), x, activation=lben.Tanh())
    assert of_net.radius.shape == of_net.predicted.shape == (2, 5)
    assert torch.allclose(of_net.radius, of_weights.radius)
    bare = lben.certified_radius(lben.UnconstrainedEN.from_weights(net.weights().detach(), activation=lben.Tanh()), x)
    assert torch.allclose(of_net.radius, bare.radius, rtol=1e-4)


def test_radii_and_shares_are_told_in_words_and_rounded_down() -> None:
    radius = torch.tensor([0.0, 1 / 3, 2 / 3], dtype=torch.float64)
    found = lben.CertifiedRadius(radius, torch.zeros(3, dtype=torch.int64), "pixels", torch.zeros(2, 2))
    assert str(found) == (
        "3 certified l2 radii from 0 to 0.666666, the median 0.333333, measured at pixels; zero for 1."
    )
    assert str(replace(found, radius=radius[:0])) == "No radii: there was no input."
    shares = lben.CertifiedAccuracy(torch.tensor([0.5, 1.0]), torch.tensor([2 / 3, 0.0], dtype=torch.float64), "input")
    assert (
        str(shares)
        == "Right, and proved to stay so: 66.66 % within 0.5, 0 % within 1, measured at the network's input."
    )
