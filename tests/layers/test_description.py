"""Stacks on disk: the same stack comes back, and nothing else ever does."""

from __future__ import annotations

import copy
import io
import json
import math
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.layers.description import LAYERS, stack_tensors
from tests.test_files import JUNK, craft, described, loaded_or_refused, places, replaced


def images() -> lben.Sequential:
    """All that can stand in a stack of images, blocks in blocks included."""
    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding="same", bias=False), nn.BatchNorm2d(8, momentum=None), nn.ELU(0.5))
    return lben.Sequential(
        lben.Normalize([0.1, 0.2], [0.5, 0.25]),
        lben.SpaceToDepth(2),
        lben.ConvSLL(8, 4),
        lben.Residual(block, nn.Dropout2d(0.1), lben.Residual(nn.Conv2d(8, 8, 1), nn.LeakyReLU(0.2))),
        lben.Parallel(nn.Conv2d(8, 4, 1), nn.Sequential(lben.MaxMin(), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU6())),
        lben.ConvSandwich(4, 4),
        lben.ImageLBEN(4, 2, 4, gamma=1.5, skip="linear", solver=lben.FISTA()),
        lben.PadChannels(6),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(6, 3),
        in_shape=(2, 8, 8),
    )


def features() -> lben.Sequential:
    return lben.Sequential(
        lben.Sequential(nn.Linear(3, 4), nn.Hardtanh(0.0, math.inf), lben.SLL(4, 5, activation=lben.Tanh())),
        nn.Sequential(
            OrderedDict(f=nn.Linear(4, 4, bias=False), g=nn.Softplus(2.0, 40.0), h=nn.BatchNorm1d(4, affine=False))
        ),
        lben.LBEN(4, 6, 4, gamma=1.0, activation=lben.PerUnit([lben.ReLU(), lben.Tanh()] * 3)),
        lben.Sandwich(4, 3),
        lben.Parallel(nn.Sequential(), nn.Identity(), lben.MON(3, 4, 3, normalize=lben.Normalize(0.5, 2.0))),
        nn.Sigmoid(),
    )


def pooled() -> lben.Sequential:
    conv = lben.ConvLBEN((2, 2, 2), 2, 3, gamma=1.0, pool=1, kernel_size=1)
    head = nn.Conv2d(1, 2, (3, 1), stride=2, padding=(1, 0), dilation=1, padding_mode="zeros")
    return lben.Sequential(head, nn.MaxPool2d((1, 2)), nn.Dropout(), conv, in_shape=(1, 4, 8)).double()


STACKS = (images, features, pooled)


def ready(make: Any) -> lben.Sequential:
    """A stack whose batch norms have seen something, in evaluation."""
    torch.manual_seed(0)
    net: lben.Sequential = make()
    like = next(net.parameters())
    with torch.no_grad():
        net.train()(torch.rand(8, *net.in_shape, dtype=like.dtype))
    return net.eval()


def inputs(net: lben.Sequential) -> Tensor:
    return torch.rand(5, *net.in_shape, generator=torch.Generator().manual_seed(1)).to(next(net.parameters()).dtype)


@pytest.mark.parametrize("make", STACKS)
def test_what_is_saved_comes_back(make: Any, tmp_path: Path) -> None:
    net = ready(make)
    state = torch.get_rng_state()
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(again) is lben.Sequential
    assert again.training
    assert described(again) == described(net)
    assert stack_tensors(net).keys() == stack_tensors(again).keys()
    assert all(torch.equal(stack_tensors(again)[name], tensor) for name, tensor in stack_tensors(net).items())
    assert torch.equal(again.eval()(inputs(net)), net(inputs(net)))
    assert str(lben.certify(again)) == str(lben.certify(net))


def test_every_layer_of_lben_is_tried() -> None:
    inside = {type(part).__name__ for make in STACKS for part in make().modules()}
    assert inside >= {*LAYERS, "Residual", "Parallel", "Sequential", "Normalize"}


@pytest.mark.parametrize("make", STACKS)
def test_copies_and_other_precisions_are_the_same_stack(make: Any, tmp_path: Path) -> None:
    net = ready(make)
    x, gamma = inputs(net), lben.certify(net).gamma
    assert gamma is not None
    assert torch.equal(copy.deepcopy(net)(x), net(x))
    assert lben.certify(copy.deepcopy(net)).gamma == gamma
    double = copy.deepcopy(net).to(torch.float64)
    assert torch.allclose(double(x.double()), net(x).double(), atol=2e-3)
    assert lben.certify(double).gamma == pytest.approx(gamma, rel=1e-5)
    lben.save(double, tmp_path / "net")
    assert torch.equal(lben.load(tmp_path / "net").eval()(x.double()), double(x.double()))
    buffer, other = io.BytesIO(), make().to(x.dtype).eval()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), net(x))
    assert lben.certify(other).gamma == gamma


def test_a_module_that_was_read_is_saved(tmp_path: Path) -> None:
    """Copies in two places of one module come back as two of them."""
    f = nn.Linear(3, 3)
    net = lben.read(nn.Sequential(f, nn.ReLU(inplace=True), f).eval(), 3)
    lben.save(net, tmp_path / "net")
    x = torch.rand(4, 3)
    assert torch.equal(lben.load(tmp_path / "net").eval()(x), net(x))


@pytest.mark.parametrize("make", STACKS)
def test_any_field_may_hold_anything(make: Any, tmp_path: Path) -> None:
    """Whatever stands in any field, or any tensor, with a checksum that fits: a whole stack or InvalidFile."""
    net = ready(make)
    path, whole, tensors, draw = tmp_path / "net", described(net), stack_tensors(net), random.Random(0)
    ways = list(places(whole))
    for place in draw.sample(ways, min(20, len(ways))):
        for junk in draw.sample(JUNK, 2):
            text = json.dumps(replaced(whole, place, junk))
            craft(path, text, tensors)
            again = loaded_or_refused(path)
            if again is not None:
                assert described(again) == json.loads(text)
    text = json.dumps(whole)
    for name, tensor in draw.sample(list(tensors.items()), min(8, len(tensors))):
        wrong = torch.float64 if tensor.dtype == torch.float32 else torch.float32
        for other in (
            tensor.to(wrong),
            tensor.to(torch.float16),
            tensor.flatten()[:0],
            tensor[None],
            -1 - tensor.abs(),
        ):
            craft(path, text, {**tensors, name: other})
            again = loaded_or_refused(path)
            assert again is None or (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
        if tensor.is_floating_point():
            craft(path, text, {**tensors, name: torch.full_like(tensor, math.nan)})
            assert loaded_or_refused(path) is None
        craft(path, text, {other: t for other, t in tensors.items() if other != name})
        assert loaded_or_refused(path) is None
    for name in ("11.weight", "0", "x", "00.mean", "3.weight", "3.body.9.weight", "4.branches.2.0.weight", "٠.mean"):
        craft(path, text, {**tensors, name: torch.zeros(3, dtype=next(iter(tensors.values())).dtype)})
        assert loaded_or_refused(path) is None


@pytest.mark.parametrize("make", STACKS)
def test_damage_anywhere_is_found(make: Any, tmp_path: Path) -> None:
    net, path, draw = ready(make), tmp_path / "net", random.Random(0)
    lben.save(net, path)
    content = path.read_bytes()
    for _ in range(60):
        changed, where = bytearray(content), draw.randrange(len(content))
        changed[where] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(changed))
        again = loaded_or_refused(path)
        assert again is None or torch.equal(again.eval()(inputs(net)), net(inputs(net)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in_shape": [4, 4]}, "Stage"),
        ({"in_shape": 3}, "in_shape must be a list of sizes, not 3"),
        ({"in_shape": [10**6, 10**6]}, "has more than the 16777216 features"),
        ({"stages": {}}, r"stages must be a list, not \{\}"),
        ({"stages": []}, "none of its stages has a tensor"),
        ({"dtype": "float64"}, "0.mean is float32, but must be float64"),
        ({"more": 1}, "Sequential must have in_shape, stages"),
        ({0: {"name": "os.system"}}, "stage 0: there is no stage 'os.system'"),
        ({0: {"name": "nn.Bilinear"}}, "stage 0: there is no stage 'nn.Bilinear'"),
        ({0: 3}, "stage 0: the stage must be described by its name"),
        ({0: {"name": "Normalize", "sizes": [1, 1]}}, "stage 0: normalize must have the two sizes"),
        (
            {10: {"name": "nn.Linear", "in_features": 6}},
            "stage 10: nn.Linear must have in_features, out_features, bias",
        ),
        (
            {10: {"name": "nn.Linear", "in_features": 10**6, "out_features": 3, "bias": True}},
            r"stage 10: weight must have shape \(3, 1000000\), not \(3, 6\)",
        ),
        ({8: {"name": "nn.AvgPool2d", "kernel_size": [2], "stride": 2, "padding": 0}}, "must be two numbers"),
        ({8: {"name": "nn.AvgPool2d", "kernel_size": 4, "stride": 4.0, "padding": 0}}, "stride must be an integer"),
        ({7: {"name": "PadChannels", "sizes": [10**9]}}, "Stage 10|features"),
        ({2: {"name": "ConvSLL", "sizes": [8, 4], "kernel_size": 3, "activation": {"name": "GELU"}}}, "GELU"),
    ],
)
def test_a_consistent_lie_is_refused(change: dict[Any, Any], words: str, tmp_path: Path) -> None:
    net = images()
    whole = described(net)
    for key, value in change.items():
        (whole["stages"] if isinstance(key, int) else whole)[key] = value
    craft(tmp_path / "net", json.dumps(whole), stack_tensors(net))
    with pytest.raises(lben.InvalidFile, match=words) as caught:
        lben.load(tmp_path / "net")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("depth", [9, 3000, 200_000])
def test_deep_nests_are_refused(depth: int, tmp_path: Path) -> None:
    text = json.dumps({**described(lben.Sequential(nn.Linear(1, 1))), "stages": ["here"]})
    inner = '{"name": "nn.Sequential", "stages": [' * depth + '{"name": "nn.Identity"}' + "]}" * depth
    craft(tmp_path / "net", text.replace('"here"', inner), {})
    with pytest.raises(lben.InvalidFile, match="does not describe a network"):
        lben.load(tmp_path / "net")
    nested: nn.Module = nn.Linear(2, 2)
    for _ in range(9):
        nested = nn.Sequential(nested)
    with pytest.raises(lben.InvalidInput, match="9 deep in others, and 8 is the most"):
        lben.save(lben.Sequential(nested, in_shape=2), tmp_path / "other")


def test_what_load_would_refuse_is_not_saved(tmp_path: Path) -> None:
    class Mine(nn.Sequential):
        pass

    class Other(lben.Sequential):
        pass

    class Own(lben.SLL):
        pass

    hooked, mixed = lben.Sequential(nn.Linear(2, 2)), lben.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    mixed[1].double()
    hooked[0].register_forward_hook(lambda *_: None)
    cases: list[tuple[lben.Sequential, str]] = [
        (hooked, "has hooks"),
        (mixed, "1.weight is float64, but must be float32"),
        (lben.Sequential(nn.Linear(2, 2)).half(), "dtype must be float32 or float64"),
        (lben.Sequential(lben.LBEN(2, 2, 2, activation=lben.Elementwise(torch.tanh))), "Python code"),
        (lben.Sequential(Own(2)), "not Own"),
        (Other(nn.Linear(2, 2)), "not Other"),
    ]
    for net, words in cases:
        with pytest.raises(lben.InvalidInput, match=words):
            lben.save(net, tmp_path / "net")
    assert not list(tmp_path.iterdir())
    lben.save(lben.Sequential(Mine(nn.Linear(2, 2)), in_shape=2), tmp_path / "net")  # it does what nn.Sequential does
    assert type(lben.load(tmp_path / "net")[0]) is nn.Sequential
