"""A stack is the container that torch's is: slices, sums, and stages by their names."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import lben


def images() -> lben.Sequential:
    """Of three channels, with stages that give no record, and one in training."""
    torch.manual_seed(0)
    return lben.Sequential(
        lben.Normalize([0.1, 0.2, 0.3], 0.5),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Dropout(),
        lben.SpaceToDepth(2),
        nn.AdaptiveAvgPool2d((1, 2)),
        nn.Flatten(),
        lben.SLL(32),
        nn.Linear(32, 3),
        in_shape=(3, 4, 8),
    ).eval()


def named() -> lben.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(OrderedDict(normalize=nn.Linear(4, 4), act=nn.ReLU()))
    return lben.Sequential(OrderedDict(first=nn.Linear(3, 4), block=inner, last=lben.LBEN(4, 5, 2, gamma=1.0))).eval()


@pytest.mark.parametrize("place", [slice(None, 4), slice(1, 5), slice(-2, None), slice(5, 8, 2), slice(3, 4)])
def test_a_slice_is_a_stack_of_the_same_stages(place: slice) -> None:
    net = images()
    part = net[place]
    like = nn.Sequential(OrderedDict(net._modules))[place]
    assert isinstance(part, lben.Sequential)
    assert isinstance(like, nn.Sequential)
    assert list(part.state_dict()) == list(like.state_dict())
    assert all(one is other for one, other in zip(part, like, strict=True))
    assert part.training is False
    before = list(net)[: list(net).index(part[0])]
    with torch.no_grad():
        x = nn.Sequential(*before)(torch.rand(2, 3, 4, 8))
        assert torch.equal(part(x), like(x))
    assert part.in_shape == tuple(x.shape[1:])
    assert part.bound() > 0


def test_slices_of_a_stack_bound_it_together() -> None:
    net = images()
    for cut in range(2, len(net) - 1):
        first, second = net[:cut], net[cut:]
        assert isinstance(first, lben.Sequential)
        assert isinstance(second, lben.Sequential)
        assert first.bound() * second.bound() == pytest.approx(net.bound(), rel=1e-12)
        assert (first + second).bound("pixels") == pytest.approx(net.bound("pixels"), rel=1e-12)  # type: ignore[operator]


def test_what_makes_no_stack_is_a_plain_sequence() -> None:
    net = images()
    for plain in (net[:0], net[:1], net[2:3], net[::-1], net + nn.Sequential(nn.GELU()), net + net, net * 2):
        assert type(plain) is nn.Sequential
    assert net[-1] is net[7]
    with pytest.raises(IndexError):
        net[8]
    with pytest.raises((TypeError, ValueError)):
        net + nn.Linear(3, 3)  # type: ignore[operator]


class Own(lben.Sequential):
    def __init__(self) -> None:
        super().__init__(lben.SLL(3), nn.Linear(3, 2))


def test_slices_of_a_stack_with_a_constructor_of_its_own_are_stacks() -> None:
    assert type(Own()[:1]) is type(Own() + nn.Sequential(nn.ReLU())) is lben.Sequential


def test_a_stage_that_stands_twice_counts_twice() -> None:
    torch.manual_seed(0)
    net = lben.Sequential(nn.Linear(3, 3)).double()
    x = torch.randn(4, 3).double()
    for twice in (net + net, net * 2, 2 * net):
        assert isinstance(twice, lben.Sequential)
        assert len(twice) == 2
        assert torch.equal(twice(x), net(net(x)))
        assert twice.bound() == pytest.approx(net.bound() ** 2, rel=1e-12)


def test_names_of_stages_are_kept(tmp_path: Path) -> None:
    net, x = named(), torch.randn(3, 3)
    assert next(iter(net.state_dict())) == "first.weight"
    assert "block.normalize Linear (its norm)" in str(lben.certify(net))
    assert "stages first to last joined: first Linear, block.normalize" in str(lben.tightest_bound(net))
    lben.save(net, tmp_path / "net")
    same = lben.load(tmp_path / "net").eval()
    assert list(same.state_dict()) == list(net.state_dict())
    assert torch.equal(same(x), net(x))
    lben.save(net[1:], tmp_path / "part")  # type: ignore[arg-type]
    assert list(dict(lben.load(tmp_path / "part").named_children())) == ["block", "last"]
    lben.save(images()[1:4], tmp_path / "places")  # type: ignore[arg-type]
    assert list(lben.load(tmp_path / "places")._modules) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OrderedDict(bound=nn.Linear(3, 3)), "cannot be called 'bound'"),
        (lambda: OrderedDict(normalize=nn.Linear(3, 3)), "cannot be called 'normalize'"),
        (lambda: OrderedDict(in_shape=nn.Linear(3, 3)), "cannot be called 'in_shape'"),
        (lambda: OrderedDict({"a.b": nn.Linear(3, 3)}), "a word without dots, not 'a.b'"),
        (lambda: OrderedDict({"": nn.Linear(3, 3)}), "a word without dots, not ''"),
        (lambda: OrderedDict(a=3), "takes modules, .* not 3"),
        (lambda: OrderedDict(), "at least one stage"),
        (lambda: lben.ReLU(), r"ReLU\(\) is for equilibria: use that of torch.nn here"),
        (lambda: nn.Identity(), "besides Identity and dropout"),
        (lambda: nn.Sequential(nn.Dropout()), "besides Identity and dropout"),
        (lambda: lben.Normalize(0.0, 1.0), "besides its Normalize"),
    ],
)
def test_what_is_no_stage_is_refused_by_name(make: object, words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.Sequential(make(), in_shape=3)  # type: ignore[operator]


def test_a_stage_of_another_precision_is_refused_by_name() -> None:
    with pytest.raises(lben.InvalidInput, match="Stage 2 LBEN is float64, but stage 0 Linear is float32"):
        lben.Sequential(nn.Linear(3, 3), nn.ReLU(), lben.LBEN(3, 2, 3, gamma=1.0).double())
    wide = lben.Normalize(0.0, 1.0, dtype=torch.float64)
    with pytest.raises(lben.InvalidInput, match="Stage 0 Normalize is float64, but stage 1 Linear is float32"):
        lben.Sequential(wide, nn.Linear(3, 3))
    single = lben.Sequential(lben.Normalize(0.0, 1.0), nn.Linear(3, 3).double())
    assert single(torch.rand(2, 3).double()).dtype is torch.float64
