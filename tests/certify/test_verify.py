"""Branching: what is proved is exactly true, what is attacked is, and with few units nothing stays open."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.numerics.multipliers import multipliers
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
    radius = float(lben.certified_radius(net, x, local=True).radius) * (1 + 0.6 * float(torch.rand(1, generator=g)) ** 2)
    found = lben.verify(net, x, label, radius, seconds=20)
    assert_true(net, found, x, label)
    return found.status[0], least_margin(w, x[0], int(label), radius)


def assert_true(net: nn.Module, found: lben.Verification, x: Tensor, y: Tensor) -> None:
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
