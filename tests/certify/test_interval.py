"""Intervals hold what inputs within a distance give; bounds of some features and outputs are true, and tighter."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import lben

STD = [0.5, 2.0, 1.0, 4.0, 0.25]


def network(skip: Literal["linear"] | None = None) -> lben.LBEN:
    torch.manual_seed(3)
    normalize = lben.Normalize([1.0, 0.0, -2.0, 5.0, 0.0], STD)
    net = lben.LBEN(5, 8, 3, gamma=1.5, skip=skip, normalize=normalize, activation=lben.Tanh()).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return net


def rows() -> Tensor:
    return 2 * torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def climb(net: lben.LBEN, x: Tensor, free: Tensor, radius: float, output: int, sign: float) -> Tensor:
    """An output pushed as far as a gradient search gets it, by moves at the network's input within the radius."""
    std, moved = torch.tensor(STD, dtype=torch.float64), 1e-3 * torch.randn(x.shape, dtype=torch.float64) * free
    for _ in range(10):
        moved = moved.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(sign * net(x + moved * std)[:, output].sum(), moved)
        moved = moved.detach() + gradient * free
        moved = moved * (radius / torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp(min=1e-12))
    y: Tensor = net(x + moved * std)
    return y[:, output].detach()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("skip", "features"), [(None, None), (None, [0, 4]), ("linear", [1])])
def test_no_search_leaves_the_interval(skip: Literal["linear"] | None, features: list[int] | None) -> None:
    net, x, radius = network(skip), rows(), 0.7
    net.solver = lben.PeacemanRachford(tolerance=1e-10)
    found = lben.certified_interval(net, x, radius, features=features)
    free = torch.ones(5, dtype=torch.float64)
    if features is not None:
        free[[k for k in range(5) if k not in features]] = 0
    reached = 0.0
    for output in range(3):
        high, low = (climb(net, x, free, radius, output, sign) for sign in (1.0, -1.0))
        assert bool((high <= found.high[:, output] + 1e-8).all())
        assert bool((low >= found.low[:, output] - 1e-8).all())
        reached = max(reached, float(((high - low) / (2 * found.width[:, output])).max()))
    assert reached > 0.5, "the search is too weak, or the interval too wide, to tell anything"


def test_a_radius_of_zero_leaves_the_error_of_the_solver_alone() -> None:
    net, x = network(), rows()
    found, point = lben.certified_interval(net, x, 0.0), lben.enclose(net, x)
    assert torch.equal(found.y, point.y)
    assert torch.allclose(found.width, point.error, rtol=1e-9, atol=0)
    assert bool((found.low < found.y).all() and (found.y < found.high).all())
    rough = lben.certified_interval(net, x, 0.0, solver=lben.PeacemanRachford(tolerance=1e-2))
    assert bool((rough.low <= point.y).all() and (point.y <= rough.high).all())
    assert float(rough.width.max()) > 1e-6


@pytest.mark.parametrize("skip", [None, "linear"])
def test_bounds_of_a_part_are_those_of_its_weights(skip: Literal["linear"] | None) -> None:
    net = network(skip)
    w, whole = net.weights().detach(), lben.tightest_bound(net).gamma
    assert whole is not None
    for outputs, features in (([0], [3]), ([1, 2], [0, 4]), ([2], None), (None, [1])):
        i, j = (slice(None) if part is None else part for part in (outputs, features))
        part = replace(w, U=w.U[:, j], Wo=w.Wo[i], by=w.by[i], D=None if w.D is None else w.D[i][:, j], gamma=None)
        found = lben.tightest_bound(net, outputs=outputs, features=features)
        assert found
        assert found.gamma is not None
        assert found.gamma == pytest.approx(lben.tightest_bound(part, activation=net.activation).gamma, rel=1e-9)
        assert found.gamma <= whole * (1 + 1e-6)
        own = lben.tightest_bound(net, outputs=outputs, features=features, domain="pixels").gamma
        assert own == pytest.approx(found.gamma / min(torch.tensor(STD)[j].tolist()), rel=1e-6)


def test_other_kinds_give_the_bound_of_the_whole() -> None:
    torch.manual_seed(0)
    stack = lben.Sequential(nn.Linear(5, 4), lben.MaxMin(), lben.LBEN(4, 5, 3, gamma=1.0)).double()
    assert lben.tightest_bound(stack, features=[0]).gamma == lben.tightest_bound(stack).gamma
    found = lben.certified_interval(stack, rows(), 0.5, features=[2])
    assert bool((found.bounds == found.bounds[0]).all())


def test_one_feature_of_a_common_scale() -> None:
    torch.manual_seed(0)
    net = lben.LBEN(4, 6, 2, gamma=1.0, normalize=lben.Normalize(0.5, 0.25)).double()
    at_input, in_pixels = (lben.tightest_bound(net, features=[2], domain=d).gamma for d in ("input", "pixels"))
    assert at_input is not None
    assert in_pixels == pytest.approx(4 * at_input, rel=1e-6)


def test_intervals_are_told_in_one_line() -> None:
    """What is printed is true, too: the widest and the ends are rounded outwards."""
    found = lben.certified_interval(network(), rows(), 0.25)
    told = re.fullmatch(
        r"Within 0\.25 in the l2 norm \(input\), 9 certified intervals around outputs, \+-\S+ to \+-(\S+), "
        r"all between (\S+) and (\S+)\.",
        str(found),
    )
    assert told is not None
    half, low, high = map(float, told.groups())
    assert half >= float(found.width.max()) > 0.999 * half
    assert low <= float(found.low.min())
    assert high >= float(found.high.max())
    assert "+-0.25, all" in str(replace(found, width=torch.full_like(found.width, 0.25)))
    assert str(lben.certified_interval(network(), rows()[:0], 0.25)) == "No intervals: there was no input."


def test_bad_input_is_named() -> None:
    net, x = network(), rows()
    for radius in (-1.0, math.nan, math.inf):
        with pytest.raises(lben.InvalidInput, match="radius must be a finite number of at least 0"):
            lben.certified_interval(net, x, radius)
    for features, words in (([], "list of numbers"), ([5], "there is 5"), ([True], "there is True"), ([1, 1], "once")):
        with pytest.raises(lben.InvalidInput, match=words):
            lben.tightest_bound(net, features=features)
        with pytest.raises(lben.InvalidInput, match=words):
            lben.certified_interval(net, x, 1.0, features=features)
    with pytest.raises(lben.InvalidInput, match="outputs must be"):
        lben.tightest_bound(net, outputs="01")  # type: ignore[arg-type]
    loose = lben.UnconstrainedEN(5, 8, 3).double()
    with torch.no_grad():
        dict(loose.named_parameters())["parameterization.W"].copy_(5 * torch.eye(8))
    with pytest.raises(lben.NotWellPosed):
        lben.certified_interval(loose, x, 1.0)
