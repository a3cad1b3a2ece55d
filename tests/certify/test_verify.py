"""Branching: what is proved is exactly true, what is attacked is, and with few units nothing stays open."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.certify.certificate import Domain
from lben.certify.locality import Norm
from lben.certify.subject import Certifiable
from tests.certify.test_local import network

EDGE = 1e-7  # margins nearer to 0 than this are within rounding of the edge


def least_margin(w: lben.Weights, x: Tensor, label: int, radius: float, slope: float = 0.0) -> float:
    """The least of y_label - y_j over all j and all inputs within the radius of x, shape (2,), by enumeration.

    For every pattern of sides v is linear in x, and so is the margin: over the pattern's part of the disk it is least
    at the disk's end against its gradient, where two kinks meet or where one meets the circle. All such points of all
    patterns, evaluated by the patterns that they belong to.
    """
    n, points = w.hidden_features, []
    patterns = torch.tensor(list(product((slope, 1.0), repeat=n)), dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64)
    for s in patterns:
        A = torch.linalg.inv(eye - w.W * s)
        J, v0 = A @ w.U, A @ (w.U @ x + w.bz)
        out = w.Wo * s @ J
        for j in range(len(out)):
            g = out[label] - out[j]
            if float(g.norm()) > 0:
                points.append(-radius * g / g.norm())
        lengths = J.norm(dim=1)
        foot = -v0[:, None] * J / lengths.square()[:, None]
        half = (radius**2 - foot.square().sum(dim=1)).clamp(min=0).sqrt()
        across = torch.stack([-J[:, 1], J[:, 0]], dim=1) / lengths[:, None]
        points += [*(foot + half[:, None] * across), *(foot - half[:, None] * across)]
        for a, b in combinations(range(n), 2):
            if abs(float(torch.linalg.det(J[[a, b]]))) > 1e-12:
                points.append(torch.linalg.solve(J[[a, b]], -v0[[a, b]]))
    moves = torch.stack(points)
    moves = moves[moves.norm(dim=1) <= radius * (1 + 1e-12)]
    return float(margins(w, x + moves, label, slope).min())


def margins(w: lben.Weights, x: Tensor, label: int, slope: float) -> Tensor:
    """The least difference at each input, by the patterns that fit there, but for rounding."""
    bias, found = x @ w.U.T + w.bz, torch.full((len(x),), torch.nan, dtype=torch.float64)
    for s in torch.tensor(list(product((slope, 1.0), repeat=w.hidden_features)), dtype=torch.float64):
        v = torch.linalg.solve(torch.eye(len(s), dtype=s.dtype) - w.W * s, bias.T).T
        fits = torch.where(s == 1, v > -1e-9, v < 1e-9).all(dim=1)
        y = (s * v) @ w.Wo.T + w.by
        apart = y[:, label : label + 1] - y
        apart[:, label] = torch.inf
        found = torch.where(fits & found.isnan(), apart.amin(dim=1), found)
    assert not bool(found.isnan().any())
    return found


def judged(seed: int, units: int) -> tuple[str, float]:
    """One random network and input, with a radius near where the class changes, and the exact margin there."""
    net = network(seed, units=units, gamma=[None, 0.5, 2.0][seed % 3])
    w = net.weights().detach()
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 2, generator=g, dtype=torch.float64)
    label = net(x).argmax(dim=-1)
    share = float(torch.rand(1, generator=g))
    radius = float(lben.certified_radius(net, x, local=True).radius) * (1 + share)
    found = lben.verify(net, x, label, radius, seconds=20)
    assert_true(net, found, x, label)
    return found.status[0], least_margin(w, x[0], int(label), radius)


def assert_true(net: Certifiable, found: lben.Verification, x: Tensor, y: Tensor) -> None:
    """Every counterexample is within the radius and proved to have another class."""
    for status, point, start, label in zip(found.status, found.counterexample, x, y, strict=True):
        assert (status == "attacked") is bool(point.isfinite().all())
        if status == "attacked":
            assert float((point - start.double()).norm()) <= found.radius
            sure = lben.enclose(net, point[None])
            above = sure.y - sure.error - (sure.y + sure.error)[:, label]
            assert float(above.max()) > 0


@pytest.mark.parametrize("seed", range(12))
def test_small_networks_are_decided_and_rightly(seed: int) -> None:
    status, margin = judged(seed, 2 + seed % 5)
    assert status == ("proved" if margin > 0 else "attacked") or abs(margin) < EDGE


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_small_networks_are_decided_and_rightly(part: int) -> None:
    for seed in range(100 + 20 * part, 120 + 20 * part):
        status, margin = judged(seed, 2 + seed % 7)
        assert status == ("proved" if margin > 0 else "attacked") or abs(margin) < EDGE, (seed, status, margin)


def test_leaky_units_stacks_and_pixels() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(0.2), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    net = lben.LBEN(2, 4, 3, gamma=2.0, activation=lben.LeakyReLU(0.3), normalize=lben.Normalize(0.5, 0.25)).double()
    x = torch.rand(3, 2, dtype=torch.float64)
    for each in (lben.from_sequential(module), net.eval()):
        domain: Domain = "pixels" if each is net else "input"
        with torch.no_grad():
            y = each(x).argmax(dim=-1)
        sure = lben.certified_radius(each, x, local=True, domain=domain).radius
        for size in (float(sure.min()) * 0.9, float(sure.max()) * 1.3, float(sure.max()) * 4):
            found = lben.verify(each, x, y, size, domain=domain, seconds=20)
            assert_true(each, found, x, y)
            assert "undecided" not in found.status
            assert all(status == "proved" for status, known in zip(found.status, sure, strict=True) if known >= size)
    assert found.share("attacked") > 0


def test_a_wrong_label_is_its_own_counterexample_and_cubes_are_divided() -> None:
    net = network(3, units=5)
    x = torch.randn(4, 2, dtype=torch.float64)
    y = net(x).argmax(dim=-1)
    found = lben.verify(net, x, (y + 1) % 3, 1e-3)
    assert found.status == ("attacked",) * 4
    assert torch.equal(found.counterexample, x)
    assert "4 attacked" in str(found)
    sizes = lben.certified_radius(net, x, local=True, norm="inf").radius
    for size in (3 * float(sizes.max()), 1.2 * float(sizes.median())):
        cubes = lben.verify(net, x, y, size, norm="inf", seconds=1)
        for status, point, start, label in zip(cubes.status, cubes.counterexample, x, y, strict=True):
            if status == "attacked":
                assert float((point - start).abs().max()) <= size
                assert int(net(point[None]).argmax()) != int(label)
            if status == "proved":
                corners = start + size * (2 * torch.rand(4000, 2, dtype=torch.float64) - 1).mul(2).clamp(-1, 1)
                assert bool((net(corners).argmax(dim=-1) == label).all())
    assert "proved" in cubes.status


def test_time_is_kept_and_what_cannot_be_divided_is_refused() -> None:
    net = network(0, inputs=6, units=40)
    x = torch.randn(1, 6, dtype=torch.float64)
    y = net(x).argmax(dim=-1)
    size = 1.5 * float(lben.certified_radius(net, x, local=True).radius)
    found = lben.verify(net, x, y, size, seconds=0.2)
    assert float(found.seconds) < 20
    smooth = lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Tanh()).double()
    with pytest.raises(lben.InvalidInput, match="verify is for ReLU, LeakyReLU and Identity, not for Tanh"):
        lben.verify(smooth, torch.zeros(1, 3), torch.zeros(1, dtype=torch.long), 0.1)
    for bad in ({"radius": 0.0}, {"radius": 1.0, "seconds": 0.0}, {"radius": 1.0, "norm": "1"}):
        with pytest.raises(lben.InvalidInput, match="must be"):
            lben.verify(net, x, y, **bad)
    with pytest.raises(lben.InvalidInput, match="x is empty"):
        lben.verify(net, x[:0], y[:0], 1.0)


def test_the_edge_of_a_network_of_two_units() -> None:
    """Of one feature, on which both units stay linear up to where the class changes."""
    W, by = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([-0.07, 0.0], dtype=torch.float64)
    U, bz = torch.tensor([[-2.0], [1.8]], dtype=torch.float64), torch.tensor([-1.0, 0.25], dtype=torch.float64)
    Wo, x = torch.tensor([[-1.0, 0.9], [0.0, 0.0]], dtype=torch.float64), torch.tensor([[0.12]], dtype=torch.float64)
    weights = lben.Weights(W, U, bz, Wo, by, torch.ones(2, dtype=torch.float64))
    edge = 0.12 + (0.9 * 0.25 - 0.07) / (0.9 * 1.8)
    for share, status in ((0.5, "proved"), (0.99, "proved"), (0.999, "proved"), (1.001, "attacked")):
        found = lben.verify(weights, x, torch.zeros(1, dtype=torch.int64), share * edge)
        assert found.status == (status,), share
    assert float(lben.certified_radius(weights, x, local=True).radius) > 0.9 * edge


@pytest.mark.parametrize("seed", range(6))
def test_a_range_is_respected_and_leaves_nothing_open(seed: int) -> None:
    """Against a fine grid of the part of the disk that is within the range; what it leaves open is near the edge."""
    net = network(seed, units=3 + seed % 3, gamma=2.0)
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 2, generator=g, dtype=torch.float64)
    y = net(x).argmax(dim=-1)
    size = float(lben.certified_radius(net, x, local=True).radius) * 1.5
    side = torch.linspace(-size, size, 301, dtype=torch.float64)
    points = x + torch.cartesian_prod(side, side)
    for low, high in ((0.0, 1.0), (float(x.min()), float(x.max()) + size / 3)):
        inside = ((points >= low) & (points <= high)).all(dim=1) & ((points - x).norm(dim=1) <= size)
        out = net(points[inside] if bool(inside.any()) else x).detach()
        margin = out[:, int(y)] - out.scatter(1, y.expand(len(out))[:, None], -torch.inf).amax(dim=1)
        found = lben.verify(net, x, y, size, bounds=(low, high), seconds=20)
        assert found.bounds == (low, high)
        assert f"of inputs between {low:g} and {high:g}" in str(found)
        assert_true(net, found, x, y)
        if found.status == ("attacked",):
            assert bool(((found.counterexample >= low) & (found.counterexample <= high)).all())
        assert float(margin.min()) > 0 or found.status == ("attacked",)
        assert found.status == ("proved",) or float(margin.min()) < 1e-2


def test_a_range_proves_more_on_images() -> None:
    net, data = lben.pretrained("mnist-gamma-1"), lben.data.embedded_mnist()
    x, y = lben.data.pixels(data.test_images[5:9]), data.test_labels[5:9]
    anywhere = lben.verify(net, x, y, 1.58, domain="pixels", seconds=2.0)
    images = lben.verify(net, x, y, 1.58, domain="pixels", seconds=4.0, bounds=(0.0, 1.0))
    assert images.status.count("proved") > anywhere.status.count("proved")
    for status, more in zip(anywhere.status, images.status, strict=True):
        assert status != "proved" or more == "proved"
    with pytest.raises(lben.InvalidInput, match="outside bounds"):
        lben.verify(net, x + 2, y, 1.0, bounds=(0.0, 1.0))
    with pytest.raises(lben.InvalidInput, match="the smaller first"):
        lben.verify(net, x, y, 1.0, bounds=(1.0, 0.0))


@pytest.mark.parametrize("norm", ["2", "inf"])
def test_a_narrow_range_is_small_however_large_the_radius(norm: Norm) -> None:
    net, x = network(1, units=6, gamma=2.0), torch.full((1, 2), 0.5, dtype=torch.float64)
    found = lben.verify(net, x, net(x).argmax(dim=-1), 100.0, norm=norm, bounds=(0.5, 0.5 + 1e-6), seconds=20)
    assert found.status == ("proved",)
    assert int(found.branches) == 2  # a part for each other class, none divided


def alone(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_what_cancels_or_underflows_proves_nothing_false() -> None:
    """One unit whose 1 - W slope is rounded by much; and outputs so small that their squares underflow."""
    W, slope, y = 0.9999999981219687, 0.9999999980189951, -388698089.3862959
    steep = lben.Weights(
        alone(W)[None], alone(1.0)[None], alone(-1.0), alone(1.0, 0.0)[:, None], alone(-y, 0.0), alone(1.0)
    )
    found = lben.verify(
        steep, alone(0.0)[None], torch.zeros(1, dtype=torch.int64), 0.5000000005, activation=lben.LeakyReLU(slope)
    )
    assert found.status != ("proved",)  # exactly: the class changes at 0.5
    for size in (1.1e-161, 1e-160, 1.0):
        small = lben.Weights(
            alone(0.0)[None],
            alone(1e-3)[None],
            alone(-10.0),
            torch.zeros(2, 1, dtype=torch.float64),
            alone(size, 0.0),
            alone(1.0),
            D=alone(-size, 0.0)[:, None],
        )
        for radius in (1 + 5e-10, 1.001):  # y0 - y1 = size (1 - x)
            found = lben.verify(small, alone(0.0)[None], torch.zeros(1, dtype=torch.int64), radius)
            assert found.status != ("proved",)
