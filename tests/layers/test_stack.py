"""Stacks as networks: trained, certified, copied and moved, with every layer that there is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lben
from lben.data import embedded_mnist as embedded
from lben.train import CrossEntropy, TrainConfig, fit


def deep() -> lben.Sequential:
    """Digits through explicit convolutions, an equilibrium of images, a matrix and an equilibrium of features."""
    return lben.Sequential(
        lben.Normalize(0.1307, 0.3081),
        lben.SpaceToDepth(4),
        lben.ConvSLL(16, 8),
        lben.ConvSandwich(16, 8),
        lben.ImageLBEN(8, 6, 8, gamma=1.0, skip="identity", solver=lben.PeacemanRachford(tolerance=1e-2)),
        lben.MaxMin(),
        nn.Flatten(),
        nn.Linear(8 * 49, 24),
        lben.SLL(24),
        lben.Sandwich(24, 20),
        lben.LBEN(20, 16, 10, gamma=2.0, solver=lben.PeacemanRachford(tolerance=1e-2)),
        in_shape=(1, 28, 28),
    )


@pytest.fixture(scope="module")
def trained() -> lben.Sequential:
    torch.manual_seed(0)
    net = deep()
    config = TrainConfig(epochs=2, batch_size=100, learning_rate=5e-3, loss=CrossEntropy(margin=0.5))
    history = fit(net, embedded(), config)
    assert history[-1].test_error < 0.15
    for part in net.modules():
        if isinstance(part, lben.LBEN | lben.ImageLBEN):
            part.solver = lben.PeacemanRachford(tolerance=1e-6)
    return net.double().eval()


def test_a_deep_network_that_was_trained_is_proved(trained: lben.Sequential) -> None:
    certificate = lben.certify(trained, domain="pixels", rigorous=True)
    assert certificate
    assert certificate.rigorous
    x = embedded().test_images[:40].double().reshape(-1, 1, 28, 28) / 255
    below = lben.lipschitz_lower_bound(trained, x[:8], restarts=1, steps=3, domain="pixels")
    tight = lben.tightest_bound(trained, domain="pixels")
    assert below.proved
    assert below.value <= (tight.gamma or 0) <= (certificate.gamma or 0) == pytest.approx(trained.bound("pixels"))


def test_no_attack_breaks_a_radius_of_a_deep_network(trained: lben.Sequential) -> None:
    data = embedded()
    x, y = data.test_images[:16].double().reshape(16, -1) / 255, data.test_labels[:16]
    found = lben.certified_radius(trained, x, y, pairwise=False, domain="pixels")
    assert float((found.radius > 0.05).double().mean()) > 0.5
    sizes = torch.tensor([0.1, 0.3, 1.0])
    attacked = lben.attack(trained, x, y, sizes, domain="pixels", steps=10, restarts=1)
    assert not bool((attacked.success & (found.radius > sizes[:, None])).any())
    inside = lben.enclose(trained, x)
    with torch.no_grad():
        assert bool(((trained(x) - inside.y).abs() <= inside.error + 1e-3).all())


def test_copies_are_the_same_function(trained: lben.Sequential) -> None:
    x = torch.rand(5, 1, 28, 28, dtype=torch.float64)
    other = deep().double().eval()
    other.load_state_dict(trained.state_dict())
    twin, single = copy.deepcopy(trained), deep().eval()
    single.load_state_dict(trained.state_dict())
    with torch.no_grad():
        y = trained(x)
        assert torch.equal(twin(x), y)
        assert torch.allclose(other(x), y, atol=0.1)  # its solvers are as they were made, rough
        assert torch.allclose(single(x.float()).double(), y, atol=0.1)
    assert other.bound("pixels") == trained.bound("pixels") == pytest.approx(single.bound("pixels"), rel=1e-4)


def test_gradients_of_a_stack_are_exact() -> None:
    torch.manual_seed(0)
    solver = lben.PeacemanRachford(tolerance=1e-13)
    net = lben.Sequential(
        lben.SpaceToDepth(2),
        lben.ConvSLL(4, 2, activation=lben.Tanh()),
        lben.ImageLBEN(4, 2, 1, gamma=1.0, activation=lben.Tanh(), solver=solver),
        nn.Flatten(),
        lben.Sandwich(9, 3, activation=lben.Tanh()),
        lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Tanh(), solver=solver),
        in_shape=(1, 6, 6),
    ).double()
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,), atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (2, 10), (9,), (2, 3, 3, 1)])
def test_samples_of_another_shape_than_the_bound_is_for_are_refused(shape: tuple[int, ...]) -> None:
    """Of a larger image the slope of this sum of neighbours is 8.69, and of three pixels a side at most 5.83."""
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.ones_(conv.weight)
    net = lben.Sequential(conv, in_shape=(1, 3, 3)).eval()
    assert net.bound() < 5.84
    with pytest.raises(lben.InvalidInput, match=r"made for samples of shape \(1, 3, 3\)"):
        net(torch.ones(shape))
    assert net(torch.ones(2, 1, 3, 3)).equal(net(torch.ones(2, 9)))


class _Louder(lben.SLL):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class _Loud(lben.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class _Mine(lben.Sequential):
    """A stack that says what it is made of, and does no more than a stack."""

    def __init__(self) -> None:
        super().__init__(lben.SLL(3), nn.Linear(3, 2))

    def training_step(self, x: Tensor) -> Tensor:
        y: Tensor = self(x)
        return y.square().mean()


class _Scaled(lben.Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class _Called(nn.Sequential):
    def __call__(self, *args: Any) -> Any:
        return 10 * super().__call__(*args)


class _Twice(nn.Sequential):
    def __iter__(self) -> Iterator[nn.Module]:
        return chain(super().__iter__(), super().__iter__())


class _Replaced(lben.SLL):
    def _call_impl(self, *args: Any, **named: Any) -> Any:
        return 10 * self.forward(*args, **named)


def _hooked_within(part: str) -> lben.LBEN:
    net = lben.LBEN(3, 3, 2, gamma=1.0, normalize=lben.Normalize(0.0, 1.0))
    _hooked(net.get_submodule(part))
    return net


def _hooked(module: Any) -> Any:
    module.register_forward_hook(lambda *args: 10 * args[2])
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lben.Sequential(_Louder(3)), "Stage 0 _Louder has its own forward, and of SLL alone"),
        (lambda: _Loud(lben.SLL(3)), "The network, _Loud, has its own forward"),
        (lambda: lben.Sequential(_Loud(lben.SLL(3))), "Stage 0 _Loud has its own forward"),
        (lambda: lben.Sequential(_hooked(lben.SLL(3))), "Stage 0 SLL has hooks"),
        (lambda: _hooked(lben.Sequential(lben.SLL(3))), "The network, Sequential, has hooks"),
        (lambda: _hooked(lben.LBEN(3, 3, 2, gamma=1.0)), "The network, LBEN, has hooks"),
        (lambda: _hooked_within("normalize"), "The network, LBEN, its normalize, has hooks"),
        (lambda: lben.Sequential(_hooked_within("parameterization")), "Stage 0 LBEN, its parameterization, has hooks"),
        (lambda: lben.LBEN(3, 3, 2, normalize=_Scaled(0.0, 1.0)), "its normalize, has its own forward, and of Norm"),
        (lambda: lben.Sequential(_Called(nn.Linear(3, 3)), in_shape=3), "_Called has its own __call__"),
        (lambda: lben.Sequential(_Twice(nn.Linear(3, 3)), in_shape=3), "Stage 0 _Twice has no known bound"),
        (lambda: lben.Sequential(_Replaced(3)), "Stage 0 _Replaced has its own _call_impl"),
    ],
)
def test_nothing_is_proved_of_code_that_is_not_read(make: Callable[[], lben.Sequential], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.certify(make().eval())


def test_nor_where_hooks_are_set_for_all_modules() -> None:
    net = lben.Sequential(lben.SLL(3))
    hook = nn.modules.module.register_module_forward_hook(lambda *args: 10 * args[2])
    try:
        with pytest.raises(lben.InvalidInput, match="There are hooks for all modules"):
            lben.certify(net)
        with pytest.raises(lben.InvalidInput, match="There are hooks for all modules"):
            lben.from_sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    finally:
        hook.remove()
    assert lben.certify(net)


def test_what_a_layer_of_lben_computes_is_not_changed_by_a_class_made_of_it() -> None:
    with pytest.raises(lben.InvalidInput, match=r"Louder has its own __call__, and of ReLU alone .* lben\.Elementwise"):

        class Louder(lben.ReLU):
            def __call__(self, v: Tensor) -> Tensor:
                return 10 * super().__call__(v)

    with pytest.raises(lben.InvalidInput, match="Wider has its own project, and of Box alone"):

        class Wider(lben.Box):
            def project(self, v: Tensor) -> Tensor:
                return 10 * super().project(v)


def test_a_stack_of_ones_own_that_computes_the_same_is_one() -> None:
    assert lben.certify(_Mine().eval())


FIRST: list[nn.Module] = [
    *(nn.BatchNorm1d(4), lben.MaxMin(), lben.PadChannels(6), nn.Unflatten(1, (2, 2)), nn.Flatten()),
    lben.Residual(nn.BatchNorm1d(4)),
]


@pytest.mark.parametrize("first", FIRST, ids=[type(stage).__name__ for stage in FIRST])
@pytest.mark.parametrize("leading", [(), (3,), (2, 4), (4, 1, 2), (0, 3)], ids=str)
def test_all_dimensions_in_front_of_a_sample_are_batch(first: nn.Module, leading: tuple[int, ...]) -> None:
    """As for certificates, though many stages of torch count dimensions from the batch."""
    for part in first.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_var.copy_(torch.tensor([1e-2, 1.0, 4.0, 1e2]))  # type: ignore[union-attr]
    net = lben.Sequential(first, nn.Flatten(), in_shape=4).eval()
    x = torch.randn(*leading, 4)
    rows = net(x.reshape(-1, 4))
    assert torch.equal(net(x), rows.reshape(*leading, rows.shape[1]))


def test_values_by_channel_are_for_images_alone() -> None:
    for shape in ((3, 1), (3, 5), (3, 2, 4, 5)):
        with pytest.raises(lben.InvalidInput, match="Stage 0 Normalize has 3 values, but its input has shape"):
            lben.Sequential(lben.Normalize([0.0, 0.5, 1.0], 0.1), nn.ReLU(), in_shape=shape)
    net = lben.Sequential(lben.Normalize(0.5, 0.25), nn.ReLU(), in_shape=(1, 5, 1))
    assert net.bound("pixels") == pytest.approx(4.0)


def test_a_softplus_that_jumps_is_not_certified_in_double_precision() -> None:
    net = lben.Sequential(nn.Linear(2, 2), nn.Softplus(), nn.Linear(2, 2))
    assert net.bound() > 0
    with pytest.raises(lben.InvalidInput, match=r"Stage 1, a Softplus, jumps .* make it with threshold=37"):
        net.double().bound()
    net[1] = nn.Softplus(threshold=37)
    assert net.bound() > 0
    at = torch.tensor([37.0], dtype=torch.float64)
    below, above = net[1](at), net[1](torch.nextafter(at, at + 1))
    assert 0 <= above - below <= torch.nextafter(at, at + 1) - at


def test_stacks_are_made_sliced_and_saved_in_mixed_precision(tmp_path: Path) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        net = lben.Sequential(lben.LBEN(4, 6, 4, gamma=1.0), lben.SLL(4))
        part = net[:1]
        lben.save(net, tmp_path / "net")
    assert isinstance(part, lben.Sequential)
    assert part.bound() == lben.Sequential(lben.load(tmp_path / "net")[0]).bound()


def test_stages_are_added_by_their_places() -> None:
    net = lben.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    net.append(nn.Linear(3, 2)).insert(1, nn.Tanh()).extend([nn.Linear(2, 2)])
    assert [type(stage).__name__[0] for stage in net] == ["L", "T", "L", "L", "L", "L", "L"]
    assert list(net._modules) == [str(place) for place in range(7)]
    assert net(torch.zeros(1, 3)).shape == (1, 2)
    with pytest.raises(lben.InvalidInput, match="Stages with names of their own get no others"):
        net[2:].append(nn.Linear(2, 2))  # type: ignore[operator]
    with pytest.raises(lben.InvalidInput, match=r"takes modules, .* not 3"):
        net.append(3)  # type: ignore[arg-type]


def test_a_stack_without_numbers_is_refused_by_name() -> None:
    with pytest.raises(lben.InvalidInput, match=r"0\.weight is on the meta device"):
        lben.Sequential(nn.Linear(3, 3)).to("meta").bound()
    layer = nn.Linear(3, 3)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse())
    sparse = lben.Sequential(layer)
    with pytest.raises(lben.InvalidInput, match=r"0\.weight must be a dense tensor, not of layout sparse_coo"):
        sparse.bound()


def test_samples_of_another_kind_are_refused_before_torch_sees_them() -> None:
    net = lben.Sequential(nn.Conv2d(1, 2, 3), in_shape=(1, 6, 6)).eval()
    for x, words in (
        (torch.zeros(2, 1, 6, 6, dtype=torch.uint8), "x is uint8, but this stack is float32: convert one of them"),
        (torch.zeros(2, 1, 6, 6, dtype=torch.float64), "x is float64, but this stack is float32"),
    ):
        with pytest.raises(lben.InvalidInput, match=words):
            net(x)
    assert net(torch.zeros(1, 6, 6)).shape == (2, 4, 4)
    other = torch.zeros(2, 1, 7, 7)
    for ask in (net, lambda x: lben.certified_radius(net, x), lambda x: lben.enclose(net, x)):
        with pytest.raises(
            lben.InvalidInput, match=r"x has shape \(2, 1, 7, 7\), but this stack is made for samples of"
        ):
            ask(other)


def test_a_first_stage_is_named_before_its_input_is_asked_for() -> None:
    for stage in (nn.LSTM(3, 3), nn.GELU(), nn.ModuleList([nn.Linear(3, 3)])):
        with pytest.raises(lben.InvalidInput, match=f"Stage 0 {type(stage).__name__} has no known bound"):
            lben.Sequential(stage)
    with pytest.raises(lben.InvalidInput, match="The first stage, Conv2d, fits many inputs"):
        lben.Sequential(nn.Conv2d(1, 1, 3))
    assert lben.Sequential(lben.Parallel(nn.Sequential(), nn.Linear(3, 3))).in_shape == (3,)
