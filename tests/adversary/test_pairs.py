"""Pairs of inputs, random and climbed, against every bound: no slope above one, no class change within a radius."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import lben
from tests.adversary.stacks import stacked
from tests.adversary.subjects import HERDS as EQUILIBRIA
from tests.adversary.subjects import Prey
from tests.adversary.tally import Tally, single_thread

_SLACK = 1e-13  # what rounding may do to a quotient of two norms
Bounds = dict[str, float]
HERDS = {**EQUILIBRIA, stacked: 2}


def claims(tally: Tally, where: str, prey: Prey) -> Bounds:
    """All bounds of the whole network that the library states."""
    net, domain = prey.net, prey.domain
    asked: dict[str, Callable[[], Any]] = {
        "certify": lambda: lben.certify(net, domain=domain),
        "tightest_bound": lambda: lben.tightest_bound(net, domain=domain),
        "product_bound": lambda: lben.product_bound(net, domain=domain),
        "bound": lambda: net.bound(domain),
    }
    found: Bounds = {}
    for name, ask in asked.items():
        answer = tally.attempt(name, where, ask)
        if isinstance(answer, float):
            found[name] = answer
        elif answer is not None and answer.holds and answer.gamma is not None:
            found[name] = answer.gamma
    return found


def slopes(prey: Prey, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lower bounds of the slopes of all outputs together, shape (count,), and of their differences, (count, p, p).

    The third is where outputs are known well enough to count.
    """
    one, two = prey.evaluate(first), prey.evaluate(second)
    distance = torch.linalg.vector_norm(first - second, dim=1) * (1 + _SLACK)
    moved, lost = two.y - one.y, one.error + two.error
    sound = (distance > 0) & moved.isfinite().all(dim=1) & lost.isfinite().all(dim=1)
    whole = (torch.linalg.vector_norm(moved, dim=1) - torch.linalg.vector_norm(lost, dim=1)) / distance
    apart = (moved[:, :, None] - moved[:, None]).abs() - lost[:, :, None] - lost[:, None]
    return whole.where(sound, 0.0), (apart / distance[:, None, None]).where(sound[:, None, None], 0.0), sound


def steepest(prey: Prey, x: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobians by differences, shape (count, p, d), and their first right singular vectors."""
    step = 1e-6 * max(prey.spread, 1e-3)
    shifted = x[:, None] + step * torch.eye(prey.inputs, dtype=x.dtype)
    y = prey.evaluate(x).y
    moved = prey.evaluate(shifted.reshape(-1, prey.inputs)).y.reshape(len(x), prey.inputs, -1)
    J = torch.nan_to_num(((moved - y[:, None]) / step).mT)
    return J, torch.linalg.svd(J).Vh[:, 0]


def targets(prey: Prey, count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs of pre-activations that are close: of any pattern, near kinks, or, of two units, within a narrow angle."""
    n = prey.net.hidden_features

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    v = prey.spread * torch.randn(count, n, generator=g, dtype=torch.float64)
    apart = 10 ** (-6 * random(count, 1))
    if prey.narrow is None:
        v = v * 10 ** (-6 * random(count, n)).round()
        return v, v * (1 + apart * random(count, n))
    angle = prey.narrow * (3 * random(count, n // 2) - 1)
    turned = angle + prey.narrow * apart * random(count, n // 2)
    lengths = v[:, : n // 2].abs()
    first, second = (torch.stack([lengths * a.sin(), lengths * a.cos()], dim=-1).flatten(1) for a in (angle, turned))
    return first, second


def hunt(tally: Tally, r: Random, where: str, prey: Prey, count: int, rounds: int) -> None:
    """Far and near pairs; then, again and again, the best of them, moved a little and turned where it is steepest."""
    bounds = claims(tally, where, prey)
    g = torch.Generator().manual_seed(r.randrange(2**31))

    def noise(rows: int) -> Tensor:
        return torch.randn(rows, prey.inputs, generator=g, dtype=torch.float64)

    first = prey.spread * noise(count)
    sizes = 10 ** (-8 * torch.rand(count, 1, generator=g, dtype=torch.float64))
    second = torch.where(
        torch.rand(count, 1, generator=g) < 0.5, prey.spread * noise(count), first + sizes * noise(count)
    )
    if prey.aim is not None:
        aimed = targets(prey, (10 if prey.narrow else 1) * count, g)
        first, second = (torch.cat([x, prey.aim(v)]) for x, v in zip((first, second), aimed, strict=True))
    pairwise = tally.attempt("radius", where, lambda: lben.certified_radius(prey.net, first[:4], domain=prey.domain))
    for _ in range(rounds):
        whole, apart, sound = slopes(prey, first, second)
        tally.count("pairs", len(first))
        tally.count("too loosely known to count", int((~sound).sum()))
        compare(tally, where, prey, bounds, whole, first, second)
        if pairwise is not None:
            excess = (apart / pairwise.bounds.clamp(min=1e-300) - 1).flatten(1).amax(dim=1)
            compare(tally, where, prey, {"pairwise": 1.0}, excess + 1, first, second)
        best = first[whole.topk(max(1, count // 20)).indices]
        first = best.repeat(-(-count // len(best)), 1)[:count]
        first = first + prey.spread * 10 ** (-4 * torch.rand(count, 1, generator=g, dtype=torch.float64)) * noise(count)
        lengths = prey.spread * 10 ** (-6 * torch.rand(count, 1, generator=g, dtype=torch.float64))
        second = first + lengths * steepest(prey, first)[1]
    for local in (False, True):
        within_radius(tally, where, prey, first[: count // 10], noise, local)
    near(tally, where, prey, first[: count // 10], g)


def near(tally: Tally, where: str, prey: Prey, x: Tensor, g: torch.Generator) -> None:
    """Walk within a radius, anywhere, and where it is steepest: no local bound is exceeded."""
    radius = prey.spread * 10 ** (-3 * float(torch.rand(1, generator=g)))
    found = tally.attempt("local", where, lambda: lben.local_bound(prey.net, x, radius, domain=prey.domain))
    if found is None or not len(x):
        return
    for k in range(6):
        direction = torch.randn(x.shape, generator=g, dtype=torch.float64) if k % 2 else steepest(prey, x)[1]
        share = 10 ** (-2 * torch.rand(len(x), 1, generator=g, dtype=torch.float64)) * (1 - 1e-12) * (-1) ** (k // 2)
        step = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True) * radius * share
        whole, _, _ = slopes(prey, x, x + step)
        tally.count("pairs", len(x))
        compare(tally, where, prey, {"local bound": 1.0}, whole / found.gamma.clamp(min=1e-300), x, x + step)
    cube(tally, where, prey, x[:2], radius, g)


def cube(tally: Tally, where: str, prey: Prey, x: Tensor, radius: float, g: torch.Generator) -> None:
    """Walk to corners of a cube: no local bound for features that move one by one is exceeded."""
    ask = lambda: lben.local_bound(prey.net, x, radius, norm="inf", domain=prey.domain)  # noqa: E731
    found = tally.attempt("local", where, ask)
    if found is None:
        return
    steep = steepest(prey, x)[1].sign()
    for direction in (steep, -steep, torch.randn(x.shape, generator=g, dtype=torch.float64).sign()):
        step = direction * radius * (1 - 1e-12)
        whole, _, _ = slopes(prey, x, x + step)
        tally.count("pairs", len(x))
        longest = torch.linalg.vector_norm(step, dim=1) / step.abs().amax(dim=1).clamp(min=1e-300)
        excess = whole * longest / found.gamma.clamp(min=1e-300)
        compare(tally, where, prey, {"local bound of a cube": 1.0}, excess, x, x + step)


def compare(tally: Tally, where: str, prey: Prey, bounds: Bounds, whole: Tensor, first: Tensor, second: Tensor) -> None:
    tally.count("comparisons", len(bounds) * len(whole))
    worst = int(whole.argmax())
    for name, bound in bounds.items():
        if float(whole[worst]) > bound * (1 + _SLACK):
            tally.fail(
                f"{name} of {where.split(',')[0]}: a pair is steeper",
                f"{where}: {name} = {bound!r} in {prey.domain}, slope {float(whole[worst])!r} between "
                f"{first[worst].tolist()} and {second[worst].tolist()}; {prey.net}",
            )


def within_radius(tally: Tally, where: str, prey: Prey, x: Tensor, noise: Callable[[int], Tensor], local: bool) -> None:
    """Walk as far as the radius allows, straight to the nearest other class and anywhere else."""
    ask = lambda: lben.certified_radius(prey.net, x, domain=prey.domain, local=local)  # noqa: E731
    found = tally.attempt("radius", where, ask)
    if found is None or not len(x):
        return
    J, _ = steepest(prey, x)
    i = found.predicted
    rows = torch.arange(len(x))
    for k in range(J.shape[1] + 1):
        direction = noise(len(x)) if k == J.shape[1] else J[:, k] - J[rows, i]
        length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        step = direction / length.where(length > 0, 1.0) * found.radius[:, None].clamp(max=1e100) * (1 - 1e-12)
        there = prey.evaluate(x + step)
        tally.count("pairs", len(x))
        over = there.y - there.error - (there.y + there.error)[rows, i][:, None]
        over[rows, i] = -1.0
        if bool((over > 0).any()):
            at = int((over > 0).any(dim=1).nonzero()[0, 0])
            tally.fail(
                f"radius of {where.split(',')[0]}: a class changes within it",
                f"{where}: radius {float(found.radius[at])!r} in {prey.domain} at {x[at].tolist()}, class "
                f"{int(i[at])}, to {(x + step)[at].tolist()}; {prey.net}",
            )


def run(
    herd: Callable[[Random], Prey], seeds: range, count: int, rounds: int, record: Callable[[str, object], None]
) -> None:
    single_thread()
    tally = Tally("pairs")
    for seed in seeds:
        r, where = Random(f"{herd.__name__} {seed}"), f"{herd.__name__}, seed {seed}"
        prey = tally.attempt(f"{herd.__name__} is made", where, lambda r=r: herd(r))  # type: ignore[misc]
        if prey is not None:
            tally.count("networks")
            hunt(tally, r, where, prey, count, rounds)
    assert tally.counts["networks"] > 0, "no network was made"
    tally.finish(record)


@pytest.mark.parametrize("herd", HERDS, ids=lambda herd: herd.__name__)
def test_no_pair_is_steeper_than_a_bound(
    herd: Callable[[Random], Prey], record_property: Callable[[str, object], None]
) -> None:
    run(herd, range(HERDS[herd]), 50, 3, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("herd", HERDS, ids=lambda herd: herd.__name__)
def test_no_pair_of_a_million_is_steeper_than_a_bound(
    herd: Callable[[Random], Prey], record_property: Callable[[str, object], None]
) -> None:
    run(herd, range(1000, 1060), 300, 9, record_property)
