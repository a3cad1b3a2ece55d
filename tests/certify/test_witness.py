"""Local radii in ball arithmetic: the same as in double precision, and nothing is proved that is not true."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.certify.evaluator import PRECISE, Evaluator
from lben.certify.locality import Locality, Norm
from lben.certify.subject import Certifiable
from lben.certify.witness import BallProof, Witness
from tests.certify.test_local import network


def networks() -> Iterator[tuple[Certifiable, Tensor]]:
    """Small ones of every kind that has local radii in balls, each with inputs."""
    for seed in range(3):
        net = network(seed, inputs=2 + seed, gamma=[None, 0.5, 2.0][seed])
        yield net, torch.randn(3, 2 + seed, dtype=torch.float64)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    yield lben.from_sequential(module), torch.randn(3, 3, dtype=torch.float64)
    skip = lben.LBEN(3, 5, 3, gamma=1.5, skip="linear", normalize=lben.Normalize(0.5, [0.25, 0.5, 1.0])).double()
    yield skip.eval(), torch.rand(3, 3, dtype=torch.float64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("norm", ["2", "inf"])
def test_balls_prove_what_double_precision_does(norm: Norm) -> None:
    for net, x in networks():
        plain = lben.certified_radius(net, x, local=True, norm=norm).radius
        sure = lben.certified_radius(net, x, local=True, norm=norm, rigorous=True).radius
        assert bool((sure <= plain * (1 + 1e-12)).all())
        assert bool((sure >= 0.99 * plain * (1 - 1e-12)).all())
        assert bool((sure > 0).all())


def test_nothing_false_is_proved() -> None:
    """Radii beyond an input of another class, with any moves and metrics; moves that are too small; a wrong class."""
    net = network(0, units=4)
    x = torch.randn(1, 2, dtype=torch.float64)
    chosen = int(net(x).argmax())
    locality = Locality.of(Evaluator.of(net).subject)
    proof, near = BallProof(locality), locality.near(x, PRECISE)
    own = torch.full((3, 4), math.nan, dtype=torch.float64)
    far = lben.certified_radius(net, x, local=True).radius
    while lben.verify(net, x, torch.tensor([chosen]), float(far)).status[0] != "attacked":
        far = far * 1.3
    for d in (1e-9, 0.1, 10.0, math.inf):
        moves = torch.full((4,), d, dtype=torch.float64)
        assert not proof.proves(x[0], near, chosen, Witness(float(far), moves, own))
        assert not proof.proves(x[0], near, (chosen + 1) % 3, Witness(1e-9, moves, own))
    tiny = torch.full((4,), 1e-12, dtype=torch.float64)
    assert not proof.proves(x[0], near, chosen, Witness(float(far) / 10, tiny, own))
    assert proof.proves(x[0], near, chosen, Witness(1e-9, torch.full_like(tiny, 1e-6), own))


def test_a_wrong_equilibrium_proves_nothing_far() -> None:
    """v that is off shows in its residual, which is paid for: the radius is less, and 0 where it is far off."""
    net = network(1)
    x = torch.randn(2, 2, dtype=torch.float64)
    radii = []
    for tolerance in (1e-12, 1e-2, 0.3):
        solver = lben.PeacemanRachford(tolerance=tolerance)
        radii.append(lben.certified_radius(net, x, local=True, rigorous=True, solver=solver).radius)
    assert bool((radii[0] >= radii[1]).all() & (radii[1] >= radii[2]).all())


def test_what_has_no_proof_in_balls_is_refused_by_name() -> None:
    x = torch.zeros(1, 3, dtype=torch.float64)
    smooth = lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Tanh()).double()
    with pytest.raises(lben.InvalidInput, match="ball arithmetic is for ReLU, LeakyReLU and Identity, not for Tanh"):
        lben.certified_radius(smooth, x, local=True, rigorous=True)
    with pytest.raises(lben.InvalidInput, match="ask for local=True"):
        lben.certified_radius(smooth, x, rigorous=True)


def test_every_radius_is_told_once_and_as_it_is_returned() -> None:
    net = network(0)
    x = torch.randn(6, 2, dtype=torch.float64)
    y = net(x).argmax(dim=-1)
    y[2] = (y[2] + 1) % 3
    for options in ({}, {"local": True}, {"local": True, "rigorous": True}):
        told: dict[int, float] = {}

        def found(index: Tensor, radius: Tensor, told: dict[int, float] = told) -> None:
            assert not set(index.tolist()) & set(told)
            told.update(zip(index.tolist(), radius.tolist(), strict=True))

        few = slice(3) if "rigorous" in options else slice(6)
        result = lben.certified_radius(net, x[few], y[few], found=found, **options)  # type: ignore[arg-type]
        assert [told[k] for k in range(len(told))] == result.radius.tolist()
        assert told[2] == 0
        accuracy = lben.certified_accuracy(net, x[few], y[few], [0.2], **options)  # type: ignore[arg-type]
        assert float(accuracy.accuracy) == pytest.approx(float((result.radius > 0.2).double().mean()))


def test_radii_of_stacks_are_proved_in_balls() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    first, last = lben.LBEN(4, 6, 4, gamma=1.0), lben.LBEN(4, 6, 3, gamma=1.0)
    for net in (lben.Sequential(first, nn.ReLU(), last), lben.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))):
        found = lben.certified_radius(net.eval(), x, local=True).radius
        proved = lben.certified_radius(net, x, local=True, rigorous=True).radius
        assert bool((proved <= found).all())
        assert bool((proved > 0.5 * found).all())
