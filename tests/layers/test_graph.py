"""Plain modules, read through their code: the same function, and nothing that is not exact."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lben
from tests.layers.climbing import steepest


class Block(nn.Module):
    """A block as torchvision writes it: one ReLU for all places, in place, and out += identity."""

    def __init__(self, channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module | None = None
        if (channels, stride) != (out_channels, 1):
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.shortcut is None else self.shortcut(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        y: Tensor = self.relu(out)
        return y


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, 4), Block(4, 6, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        x = self.pool(self.blocks(x))
        x = F.dropout(x.view(x.size(0), -1), training=self.training)
        y: Tensor = self.head(x)
        return y if extra is None else y * extra


def resnet() -> ResNet:
    """With statistics that say something."""
    torch.manual_seed(0)
    net = ResNet()
    with torch.no_grad():
        for _ in range(3):
            net.train()(torch.randn(16, 3, 8, 8))
    return net.eval()


def test_a_small_resnet_is_read_and_certified() -> None:
    net = resnet()
    stack = lben.read(net, (3, 8, 8))
    kinds = [type(stage).__name__ for stage in stack]
    assert kinds[2:8] == ["MaxPool2d", "Residual", "ReLU", "Parallel", "ReLU", "AdaptiveAvgPool2d"]
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(stack(x), net(x), atol=1e-6)
    certificate, tight = lben.certify(stack), lben.tightest_bound(stack)
    assert certificate
    assert certificate.gamma is not None
    assert tight.gamma is not None
    below = lben.lipschitz_lower_bound(stack, x.flatten(1), restarts=4, steps=10)
    climbed = max(below.value, steepest(net, (3, 8, 8)))
    assert 0 < climbed <= tight.gamma <= certificate.gamma
    assert lben.certified_radius(stack, x).radius.shape == (5,)


def test_weights_are_shared() -> None:
    net = resnet()
    stack = lben.read(net, (3, 8, 8))
    own = copy.deepcopy(stack)
    before = lben.certify(stack).gamma
    with torch.no_grad():
        net.head.weight.mul_(2)
    after = lben.certify(stack).gamma
    assert before is not None
    assert after == pytest.approx(2 * before)
    assert lben.certify(own).gamma == before
    assert {id(p) for p in stack.parameters()} == {id(p) for p in net.parameters()}


class Code(nn.Module):
    """Two layers, and code that uses them."""

    def __init__(self, code: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.f, self.g, self.code = nn.Linear(4, 4), nn.Linear(4, 4), code
        self.act, self.scale = nn.ReLU(inplace=True), nn.Parameter(torch.ones(4))
        self.calm, self.steep = nn.ReLU(), nn.Threshold(-1e5, 0.0, inplace=True)

    def forward(self, x: Tensor) -> Any:
        return self.code(self, x)


def branchy(m: Any, x: Tensor) -> Any:
    y = m.f(x)
    z = m.g(y) + x
    return m.g(z) + y


def updated(m: Any, x: Tensor) -> Any:
    y = m.f(x)
    z = y
    y += m.g(y)
    return y + z


def sized(m: Any, x: Tensor) -> Any:
    count, wide = x.shape
    _ = wide * x.dim()
    return m.f(x).view(count, -1)


READ: list[Callable[[Any, Any], Any]] = [
    lambda m, x: x + m.f(x),
    lambda m, x: torch.relu(torch.add(m.f(x), x)).add(m.g(x)) + x,
    lambda m, x: m.act(m.f(x)) + m.g(torch.tanh(m.f(x))) + x + x,
    lambda m, x: F.leaky_relu(m.f(x), 0.2).contiguous() + F.elu(m.g(x), alpha=0.5),
    lambda m, x: m.g(F.softplus(m.f(x), 2.0, 40.0)) + F.hardtanh(x, -2.0, 0.5),
    lambda m, x: (m.f(x) + m.f(x)).reshape(x.shape[0], -1).sigmoid(),
    lambda m, x: m.f(x).view(-1, 4).flatten(1).relu_(),
    lambda m, x: torch.flatten(F.relu6(m.f(x), inplace=True), 1),
    lambda m, x: m.g(m.f(x) + m.g(x + m.f(x))),
    lambda m, x: m.calm(m.g(m.calm(m.f(x)))) + m.g(x) + x,
    lambda m, x: sum([m.f(x), m.g(x)]),
    sized,
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", READ, ids=range(len(READ)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_read_is_the_same_function(code: Callable[[Any, Any], Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Code(code).to(dtype).eval()
    stack = lben.read(net, 4)
    x = 3 * torch.randn(64, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(stack(x), net(x.clone()), atol=1e-5 if dtype == torch.float32 else 1e-12)
    tight, product = lben.tightest_bound(stack).gamma, stack.bound()
    assert tight is not None
    assert steepest(net, (4,)) <= tight <= product


def far_off(m: Any, x: Tensor) -> Any:
    """Differs from its layers at inputs that no comparison is made on."""
    y = m.f(x)
    y.masked_fill_(y > 1e4, 0)
    return m.g(torch.relu(y))


REFUSED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda m, x: torch.cat([m.f(x), x], 1), r"cat \(node cat\) joins tensors"),
    (lambda m, x: m.f(x) * m.g(x), r"mul \(node mul\) multiplies or divides tensors"),
    (lambda m, x: x * m.scale, "multiplies or divides"),
    (lambda m, x: x - m.f(x), r"sub \(node sub\) subtracts"),
    (lambda m, x: m.f(x) if x.sum() > 0 else m.g(x), "may not depend on the values"),
    (lambda m, x: torch.sort(m.f(x))[0], "is none of the functions that are known"),
    (lambda m, x: F.gelu(m.f(x)), r"gelu \(node gelu\) is none of the functions"),
    (lambda m, x: F.linear(x, m.scale.diag()), "has weights of its own"),
    (lambda m, x: m.f(x) + 1, "must add two tensors"),
    (lambda m, x: m.f(x) + m.scale, "a tensor that is no input"),
    (lambda m, x: torch.add(x, m.f(x), alpha=2), "scales what it adds"),
    (lambda m, x: m.f(x).view(x.size(0), 2, 2), r"must leave samples of shape \(4,\) as rows of 4"),
    (lambda m, x: m.f(x).view(-1, 2), "must leave samples"),
    (lambda m, x: torch.flatten(m.f(x)), "must flatten all of a sample"),
    (lambda m, x: F.dropout(m.f(x)), "drops at random in evaluation"),
    (lambda m, x: (m.f(x), m.g(x)), "not one tensor"),
    (lambda m, x: m.f(x, x), "must be called with one tensor alone"),
    (lambda m, x: (y := m.f(x)) + m.act(y) + y, "works in place on what .* uses afterwards"),
    (branchy, "sums that overlap"),
    (updated, r"iadd .* works in place on what .* uses afterwards"),
    (lambda m, x: None, "not one tensor"),
    (far_off, r"masked_fill_ \(node masked_fill_\) is no part of what forward returns"),
    (lambda m, x: (y := m.f(x), m.steep(y), m.g(y))[2], "steep is no part of what forward returns"),
]


@pytest.mark.parametrize(("code", "words"), REFUSED, ids=range(len(REFUSED)))
def test_anything_else_is_refused_in_one_sentence(code: Callable[[Any, Any], Any], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words) as caught:
        lben.read(Code(code).eval(), 4)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_modules_in_the_wrong_state_are_refused() -> None:
    with pytest.raises(lben.InvalidInput, match=r"call \.eval\(\) first"):
        lben.read(resnet().train(), (3, 8, 8))
    hooked = resnet()
    hooked.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(lben.InvalidInput, match=r"Module blocks\.0, Block, has hooks"):
        lben.read(hooked, (3, 8, 8))
    with pytest.raises(lben.InvalidInput, match=r"takes an nn\.Module, not str"):
        lben.read("net", 4)  # type: ignore[arg-type]
    for shape in ((), 0, (3, 0, 8), "8", None):
        with pytest.raises(lben.InvalidInput, match="in_shape"):
            lben.read(resnet(), shape)  # type: ignore[arg-type]
    with pytest.raises(lben.InvalidInput, match=r"stem Conv2d takes images of shape \(3, height, width\)"):
        lben.read(resnet(), (1, 8, 8))
    with pytest.raises(lben.InvalidInput, match="norm LayerNorm has no known bound"):
        lben.read(nn.Sequential().eval().append(nn.Linear(4, 4)).append(Normed()).eval(), 4)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


def test_a_module_that_says_one_thing_and_does_another_is_refused() -> None:
    """What decides between tracing and calling is not seen in the graph, but in the outputs."""

    def code(m: Any, x: Tensor) -> Any:
        return m.f(x) if isinstance(x, torch.fx.Proxy) else m.g(x)

    with pytest.raises(lben.InvalidInput, match="does not compute what its layers say"):
        lben.read(Code(code).eval(), 4)


def test_layers_of_lben_stand_in_plain_modules() -> None:
    torch.manual_seed(0)

    def code(m: Any, x: Tensor) -> Any:
        return m.layer(x) + m.f(x)

    net = Code(code)
    net.layer = lben.LBEN(4, 6, 4, gamma=0.5, normalize=lben.Normalize(0.5, 2.0))
    stack = lben.read(net.eval(), (4,))
    x = torch.randn(8, 4)
    assert torch.equal(stack(x), net(x))
    bound = stack.bound()
    assert math.isclose(bound, 0.25 + float(torch.linalg.matrix_norm(net.f.weight.detach(), 2)), rel_tol=1e-4)


def test_branches_side_by_side() -> None:
    torch.manual_seed(0)
    net = lben.Sequential(lben.Parallel(nn.Sequential(), nn.Linear(3, 3), nn.Tanh()), in_shape=3)
    x = torch.randn(4, 3)
    first, second, third = net[0].branches  # type: ignore[misc]
    assert torch.allclose(net(x), first(x) + second(x) + third(x))
    tight = lben.tightest_bound(net).gamma
    assert tight is not None
    assert steepest(net, (3,)) <= tight <= net.bound()
    with pytest.raises(lben.InvalidInput, match="at least two branches, and got 1"):
        lben.Parallel(nn.Linear(3, 3))
    with pytest.raises(lben.InvalidInput, match=r"takes modules, .* not 3"):
        lben.Parallel(nn.Linear(3, 3), 3)  # type: ignore[arg-type]
    with pytest.raises(lben.InvalidInput, match=r"adds an output of shape \(4,\) to an output of \(3,\)"):
        lben.Sequential(lben.Parallel(nn.Linear(3, 3), nn.Linear(3, 4)), in_shape=3)
    with pytest.raises(lben.InvalidInput, match="works in place on the input"):
        lben.Sequential(lben.Parallel(nn.Linear(3, 3), nn.ReLU(inplace=True)), in_shape=3)


class Pooled(nn.Module):
    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.head, self.code = nn.Conv2d(1, 4, 3), nn.Linear(4, 2), code

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.code(self.conv(x)))
        return y


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x.mean((2, 3)),
        lambda x: torch.mean(x, dim=[-1, -2]),
        lambda x: x.mean(dim=(2, 3), keepdim=True).flatten(1),
    ],
)
def test_means_of_all_pixels_are_pools(code: Callable[[Tensor], Tensor]) -> None:
    net = Pooled(code).eval()
    stack = lben.read(net, (1, 8, 8))
    x = torch.rand(5, 1, 8, 8)
    assert torch.allclose(stack(x), net(x), atol=1e-6)
    assert steepest(net, (1, 8, 8)) <= stack.bound()


@pytest.mark.parametrize("code", [lambda x: x.mean(2).mean(2), lambda x: x.mean(), lambda x: x.mean(1)])
def test_other_means_are_refused(code: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(
        lben.InvalidInput, match=r"must take the mean of all pixels of images: write x\.mean\(\(2, 3\)\)"
    ):
        lben.read(Pooled(code).eval(), (1, 8, 8))
