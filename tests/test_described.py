"""State dicts carry what decides the function, and refuse that of another network by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

import lben
from lben.networks.base import BaseNetwork

SHAPE = (1, 4, 4)
NETWORKS: dict[str, Callable[..., BaseNetwork]] = {
    "LBEN": lambda **options: lben.LBEN(16, 6, 3, **{"gamma": 1.0, **options}),
    "MON": lambda **options: lben.MON(16, 6, 3, **options),
    "UnconstrainedEN": lambda **options: lben.UnconstrainedEN(16, 6, 3, **options),
    "ContractingODE": lambda **options: lben.ContractingODE(16, 6, 3, **{"rate": 0.5, "gamma": 1.0, **options}),
    "square LBEN": lambda **options: lben.LBEN(16, 6, 16, **{"gamma": 2.0, **options}),
    "residual LBEN": lambda **options: lben.LBEN(16, 6, 16, **{"gamma": 2.0, "skip": "identity", **options}),
    "ConvLBEN": lambda **options: lben.ConvLBEN(SHAPE, 2, 3, **{"gamma": 1.0, "pool": 2, **options}),
    "ConvMON": lambda **options: lben.ConvMON(SHAPE, 2, 3, pool=2, **options),
}
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("LBEN", {"gamma": 2.0}, "gamma = 1.0"),
    ("LBEN", {"gamma": None}, "gamma = 1.0"),
    ("LBEN", {"epsilon": 0.1}, "epsilon = 1.0"),
    ("LBEN", {"skip": "linear"}, "skip = None"),
    ("square LBEN", {"skip": "identity"}, "skip = None"),
    ("residual LBEN", {"skip": None}, "skip = identity"),
    ("LBEN", {"activation": lben.Tanh()}, r"activation = ReLU\(\)"),
    ("LBEN", {"activation": lben.PerUnit([lben.ReLU()] * 5 + [lben.Tanh()])}, "5 x ReLU.*1 x Tanh"),
    ("MON", {"epsilon": 0.1}, "epsilon = 1.0"),
    ("UnconstrainedEN", {"activation": lben.LeakyReLU(0.1)}, "LeakyReLU.*0.1"),
    ("ContractingODE", {"gamma": 2.0}, "gamma = 1.0"),
    ("ContractingODE", {"rate": 0.25}, "rate = 0.5"),
    ("ConvLBEN", {"gamma": 2.0}, "gamma = 1.0"),
    ("ConvLBEN", {"epsilon": 0.1}, "epsilon = 1.0"),
    ("ConvMON", {"epsilon": 0.1}, "epsilon = 1.0"),
]


def make(kind: str, **options: Any) -> BaseNetwork:
    torch.manual_seed(0)
    return NETWORKS[kind](**options).eval()


def inputs() -> Tensor:
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "options", "named"), OTHERS)
@pytest.mark.parametrize("strict", [True, False])
def test_a_state_dict_of_another_network_is_refused_and_nothing_is_changed(
    kind: str, options: dict[str, Any], named: str, strict: bool
) -> None:
    net, other = make(kind), make(kind, **options)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(lben.InvalidInput, match=named):
        net.load_state_dict(other.state_dict(), strict=strict)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("kind", NETWORKS)
def test_repr_says_every_option_and_every_constant_once(kind: str) -> None:
    net = make(kind)
    shown = repr(net)
    said = {name for name, value in net.options().items() if value is not None} - {"sizes"}
    for name in {*said, *net.constants()}:
        assert len(re.findall(rf"\b{name}=", shown)) == 1, shown


def test_images_of_another_geometry_are_refused() -> None:
    small = lben.ConvLBEN((1, 4, 4), 2, 3, gamma=1.0, pool=2)
    for shape, pool, padding in (((1, 8, 8), 4, 0), ((1, 2, 2), 2, 1)):
        with pytest.raises(lben.InvalidInput, match=r"sizes|padding|pool"):
            lben.ConvLBEN(shape, 2, 3, gamma=1.0, pool=pool, padding=padding).load_state_dict(small.state_dict())


def test_the_order_of_activations_counts() -> None:
    both = [lben.ReLU()] * 3 + [lben.Tanh()] * 3
    net = lben.LBEN(16, 6, 3, gamma=1.0, activation=lben.PerUnit(both))
    with pytest.raises(lben.InvalidInput, match="activation"):
        net.load_state_dict(lben.LBEN(16, 6, 3, gamma=1.0, activation=lben.PerUnit(both[::-1])).state_dict())


def test_functions_of_python_are_not_compared() -> None:
    net, other = (lben.LBEN(16, 6, 3, activation=lben.Elementwise(lambda v: torch.tanh(v) / 2)) for _ in range(2))
    net.load_state_dict(other.state_dict())
    assert torch.equal(net.weights().W, other.weights().W)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_state_dict_survives_what_is_done_to_all_its_tensors(kind: str, tmp_path: Path) -> None:
    net = make(kind)
    y = net(inputs())
    state = net.state_dict()
    save_file(state, tmp_path / "state.safetensors")
    torch.save(state, tmp_path / "state.pt")
    treated = {
        "clone": {name: tensor.clone() for name, tensor in state.items()},
        "average": {name: 0.9 * tensor + 0.1 * tensor for name, tensor in state.items()},
        "double": {name: tensor.double() for name, tensor in state.items()},
        "safetensors": load_file(tmp_path / "state.safetensors"),
        "weights only": torch.load(tmp_path / "state.pt", weights_only=True),
    }
    for name, tensors in treated.items():
        for assign in (False, True):
            twin = NETWORKS[kind]().eval()
            twin.load_state_dict(tensors, assign=assign and name != "double")
            assert torch.allclose(twin(inputs()), y, atol=1e-4), name
    average = AveragedModel(net, use_buffers=True)
    average.update_parameters(net)
    average.update_parameters(net)
    copy.deepcopy(average).load_state_dict(average.state_dict())
    assert torch.allclose(average.eval()(inputs()), y, atol=1e-4)


def test_what_is_no_description_is_refused() -> None:
    net = make("LBEN")
    for bad in (
        torch.tensor([1.0]),
        torch.tensor([float("nan")]),
        torch.zeros(0),
        "text",
        torch.empty(3, device="meta"),
    ):
        with pytest.raises(lben.InvalidInput, match="description"):
            net.load_state_dict({**net.state_dict(), "_extra_state": bad})


@pytest.mark.parametrize("kind", NETWORKS)
def test_files_bring_every_epsilon_back(kind: str, tmp_path: Path) -> None:
    net = make(kind, **({} if kind in ("UnconstrainedEN", "ContractingODE") else {"epsilon": 0.0123}))
    lben.save(net, tmp_path / "net.safetensors")
    assert torch.equal(lben.load(tmp_path / "net.safetensors").eval()(inputs()), net(inputs()))


@pytest.mark.parametrize("bad", [0.0, -0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["LBEN", "ConvLBEN"])
def test_a_std_that_is_none_is_refused_wherever_it_comes_in(kind: str, bad: float, tmp_path: Path) -> None:
    net = make(kind, normalize=lben.Normalize(0.1, 0.5))
    assert net.normalize is not None
    state = {**net.state_dict(), "normalize.std": torch.tensor([bad])}
    with pytest.raises(lben.InvalidInput, match="std"):
        net.load_state_dict(state)
    assert float(net.normalize.std) == 0.5
    with pytest.raises(lben.InvalidInput, match="std"):
        lben.Normalize(0.0, bad)
    net.normalize.std.fill_(bad)
    for claim in (
        lambda: net.bound("pixels"),
        lambda: lben.certify(net, domain="pixels"),
        lambda: lben.certified_radius(net, inputs()),
        lambda: lben.save(net, tmp_path / "net.safetensors"),
        lambda: net.normalize.gain,
    ):
        with pytest.raises(lben.InvalidInput, match="std"):
            claim()
    assert not list(tmp_path.iterdir())


def test_one_mean_and_std_a_channel() -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    net = lben.ConvLBEN((3, 4, 4), 2, 3, gamma=1.0, pool=2, normalize=lben.Normalize(mean, std)).eval()
    plain = copy.deepcopy(net)
    plain.normalize = None
    x = torch.rand(5, 3, 4, 4)
    scaled = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(net(x), plain(scaled), atol=1e-5)
    assert torch.allclose(net(x.flatten(1)), plain(scaled), atol=1e-5)
    assert net.bound("pixels") == pytest.approx(1 / 0.2435)
    shared = lben.ConvLBEN((3, 4, 4), 2, 3, pool=2, normalize=lben.Normalize(mean, 0.5))
    assert shared.normalize is not None
    assert shared.normalize.gain == 2.0
    with pytest.raises(lben.InvalidInput, match="one a channel"):
        lben.ConvLBEN((3, 4, 4), 2, 3, pool=2, normalize=lben.Normalize(mean[:2], std[:2]))
