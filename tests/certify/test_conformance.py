"""Every verb on every kind of network: a new kind is one line here, and must agree with itself as all others do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.experiments.baselines import FeedForward
from tests.problems import conv_network

SCALE = 0.25


def normalized() -> lben.Normalize:
    return lben.Normalize(0.5, SCALE)


def convolutional(metric: lben.Metric, **options: Any) -> lben.ConvLBEN:
    net = conv_network((1, 4, 4), metric, **{"gamma": 0.7, **options})
    net.normalize = normalized().double()
    return net


def read(*layers: nn.Module) -> lben.LayeredNetwork:
    return lben.from_sequential(nn.Sequential(normalized(), *layers))


class Imaged(nn.Module):
    """A layer of images as a network of rows: what it is for images of one size."""

    def __init__(self, layer: lben.ImageLBEN, in_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layer, self.in_shape, self.normalize = layer, in_shape, normalized()
        self.activation = layer.activation

    def weights(self) -> lben.ImageWeights:
        return self.layer.weights(self.in_shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        images = self.normalize(x).reshape(-1, *self.in_shape)
        y: Tensor = self.layer(images)
        return y.reshape(*x.shape[:-1], -1)


KINDS: dict[str, Callable[[], Any]] = {
    "LBEN": lambda: lben.LBEN(16, 6, 3, gamma=0.7, normalize=normalized()),
    "LBEN without gamma": lambda: lben.LBEN(16, 6, 3, normalize=normalized(), activation=lben.Tanh()),
    "LBEN in blocks": lambda: lben.LBEN(16, 6, 3, gamma=0.7, activation=lben.Softmax(3), normalize=normalized()),
    "linear skip": lambda: lben.LBEN(16, 6, 3, gamma=0.7, skip="linear", normalize=normalized()),
    "MON": lambda: lben.MON(16, 6, 3, normalize=normalized()),
    "UnconstrainedEN": lambda: lben.UnconstrainedEN(16, 6, 3, normalize=normalized()),
    "ContractingODE": lambda: lben.ContractingODE(16, 6, 3, rate=0.1, gamma=0.7, normalize=normalized()),
    "ODE": lambda: lben.ODE(lben.LBEN(16, 6, 3, gamma=0.7, normalize=normalized())),
    "layered": lambda: read(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
    "linear units": lambda: read(nn.Linear(16, 4), lben.Residual(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3)),
    "feed-forward": lambda: FeedForward(16, 6, 3, normalize=normalized()),
    "convolutional, channel": lambda: convolutional("channel"),
    "convolutional, identity": lambda: convolutional("identity", padding=1, channels=2, pool=2),
    "convolutional, pixel": lambda: convolutional("pixel"),
    "convolutional MON": lambda: lben.ConvMON((1, 4, 4), 2, 3, pool=2, normalize=normalized()),
    "stack": lambda: lben.Sequential(
        *(lben.LBEN(16, 6, 5, gamma=0.9, normalize=normalized()), nn.Tanh(), nn.Linear(5, 4)),
        *(lben.LBEN(4, 5, 4, gamma=1.0, skip="identity"), lben.MON(4, 6, 3)),
    ),
    "stack of images": lambda: lben.Sequential(
        *(normalized(), nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(2)),
        *(lben.Residual(nn.Conv2d(2, 2, 3, padding=1), nn.LeakyReLU(0.1)), nn.AvgPool2d(2), nn.Flatten()),
        *(lben.LBEN(2, 5, 3, gamma=0.7),),
        in_shape=(1, 4, 4),
    ),
    "convolutional, image to image": lambda: Imaged(
        lben.ImageLBEN(1, 2, 1, gamma=0.7, padding="circular", skip="linear"), (1, 3, 3)
    ),
}
STACKS = [kind for kind in KINDS if kind.startswith("stack")]
UNSEARCHED = ("convolutional, pixel",)  # tightest_bound has no method for these, and says so
DENSE_VERBS: list[Callable[..., Any]] = [
    lben.well_posed,
    lben.contraction,
    lben.incremental_gain,
    lben.frequency_test,
]
STEADY = ("LBEN in blocks", "linear skip")  # nothing is known of their ODEs
DENSE = [kind for kind in KINDS if "convolutional" not in kind and kind not in STACKS]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def net(kind: str) -> Any:
    torch.manual_seed(0)
    return KINDS[kind]().double().eval()


@pytest.fixture
def x(net: Any) -> Tensor:
    return torch.rand(12, net.weights().in_features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class TestConformance:
    """Answers of different verbs about one network never contradict each other."""

    def test_its_own_claim_is_proved_twice(self, net: Any, kind: str) -> None:
        plain, sure = lben.certify(net), lben.certify(net, rigorous=True)
        assert plain
        assert sure
        claimed = pytest.approx(net.bound(), rel=1e-12) if kind in STACKS else net.weights().gamma
        assert plain.gamma == sure.gamma == claimed
        assert plain.lam.shape == (net.weights().hidden_features,)

    def test_bounds_are_in_order(self, net: Any, kind: str) -> None:
        below, product = lben.lipschitz_lower_bound(net, restarts=2, steps=10), lben.product_bound(net)
        assert below.proved
        if kind in UNSEARCHED:
            with pytest.raises(lben.InvalidInput, match="tightest_bound has no method"):
                lben.tightest_bound(net)
            tight = min(product, lben.certify(net).gamma or math.inf)
        else:
            found = lben.tightest_bound(net, rigorous=True)
            assert found
            assert found.gamma is not None
            tight = found.gamma
        assert 0 < below.value <= tight <= product * 1.005
        assert lben.certify(net, 1.5 * max(product, tight))
        assert not lben.certify(net, 0.9 * below.value)

    def test_pixels_are_the_input_times_the_scale(self, net: Any, kind: str) -> None:
        verbs: list[Callable[..., Any]] = [lben.certify] if kind in UNSEARCHED else [lben.certify, lben.tightest_bound]
        for verb in verbs:
            at_input, in_pixels = verb(net), verb(net, domain="pixels")
            assert bool(at_input) == bool(in_pixels)
            if at_input.gamma is not None:
                assert in_pixels.gamma * SCALE == pytest.approx(at_input.gamma, rel=1e-6)
        assert lben.product_bound(net, domain="pixels") * SCALE == pytest.approx(lben.product_bound(net), rel=1e-9)

    def test_outputs_lie_in_their_enclosure(self, net: Any, x: Tensor) -> None:
        found = lben.enclose(net, x)
        assert found.proved
        assert bool(((net(x) - found.y).abs() <= found.error + 1e-2).all())
        rough = lben.enclose(net, x, solver=lben.PeacemanRachford(tolerance=1e-3))
        assert bool(((rough.y - found.y).abs() <= rough.error + found.error).all())

    def test_outputs_within_a_radius_lie_in_their_interval(self, net: Any, x: Tensor) -> None:
        found = lben.certified_interval(net, x, 0.5, domain="pixels")
        moved = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        near = lben.enclose(net, x + 0.5 * moved / torch.linalg.vector_norm(moved, dim=1, keepdim=True))
        assert bool((near.y + near.error >= found.low).all())
        assert bool((near.y - near.error <= found.high).all())
        assert bool((found.bounds <= lben.product_bound(net, domain="pixels") * 1.005).all())

    @pytest.mark.sampled(2)
    def test_nothing_inside_a_radius_has_another_class(self, net: Any, x: Tensor) -> None:
        pairwise, joint = (lben.certified_radius(net, x, pairwise=flag, domain="pixels") for flag in (True, False))
        assert torch.equal(pairwise.predicted, net(x).argmax(dim=-1))
        assert bool((pairwise.radius >= joint.radius * (1 - 1e-9)).all())
        labels = pairwise.predicted
        sizes = torch.tensor([0.5, 2.0])
        attacked = lben.attack(net, x, labels, sizes, domain="pixels", steps=4, restarts=1)
        inside = pairwise.radius > sizes[:, None]
        assert not bool((attacked.success & inside).any())
        accuracy = lben.certified_accuracy(net, x, labels, sizes, domain="pixels").accuracy
        assert torch.allclose(accuracy, inside.double().mean(dim=1))

    def test_bare_weights_say_the_same(self, net: Any, kind: str) -> None:
        with torch.no_grad():
            weights, sigma = net.weights(), None if kind in STACKS else net.activation
        of_net, bare = lben.certify(net), lben.certify(weights, activation=sigma)
        assert (of_net.verdict, of_net.gamma) == (bare.verdict, bare.gamma)
        assert torch.equal(of_net.lam, bare.lam)
        assert lben.product_bound(weights, activation=sigma) == lben.product_bound(net)
        with pytest.raises(lben.InvalidInput, match="activation is for bare weights"):
            lben.certify(net, activation=lben.ReLU())

    def test_what_is_known_of_dense_weights_alone_is_refused_by_name(self, net: Any, kind: str) -> None:
        for verb in DENSE_VERBS:
            if kind in DENSE and (kind not in STEADY or verb is lben.well_posed):
                assert verb(net) is not None
                continue
            with pytest.raises(lben.InvalidInput, match=r"dense weights|single units|feed-through"):
                verb(net)
