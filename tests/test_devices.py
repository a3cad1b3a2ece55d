"""Networks, data and results on another device than the CPU: a pretended one, since there is no GPU here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lben
from lben import baselines
from lben.data import ClassificationData
from lben.train import TrainConfig, error_rate, fit
from tests.pretend import copied, elsewhere

Make = Callable[..., nn.Module]
IMAGE = (1, 6, 6)
MAKERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "LBEN": (lambda **place: lben.LBEN(5, 8, 3, gamma=1.0, normalize=lben.Normalize(0.5, 0.3), **place), (5,)),
    "LBEN without gamma": (lambda **place: lben.LBEN(5, 8, 3, **place), (5,)),
    "LBEN, linear skip": (lambda **place: lben.LBEN(5, 8, 3, gamma=2.0, skip="linear", **place), (5,)),
    "LBEN, identity skip": (lambda **place: lben.LBEN(5, 8, 5, gamma=2.0, skip="identity", **place), (5,)),
    "LBEN, tied": (lambda **place: lben.LBEN(5, 8, 5, gamma=1.0, skip="identity", **place), (5,)),
    "LBEN of blocks": (lambda **place: lben.LBEN(5, 8, 3, gamma=1.0, activation=lben.Softmax(4), **place), (5,)),
    "MON": (lambda **place: lben.MON(5, 8, 3, **place), (5,)),
    "UnconstrainedEN": (lambda **place: lben.UnconstrainedEN(5, 8, 3, **place), (5,)),
    "ContractingODE": (lambda **place: lben.ContractingODE(5, 8, 3, rate=0.2, gamma=2.0, **place), (5,)),
    "ContractingODE of a gain": (lambda **place: lben.ContractingODE(5, 8, 3, rate=0.2, gain=2.0, **place), (5,)),
    "ConvLBEN": (lambda **place: lben.ConvLBEN(IMAGE, 2, 3, gamma=1.0, pool=2, **place), IMAGE),
    "ConvLBEN by pixels": (
        lambda **place: lben.ConvLBEN(IMAGE, 2, 3, epsilon=5.0, pool=2, metric="pixel", **place),
        IMAGE,
    ),
    "ConvMON": (lambda **place: lben.ConvMON(IMAGE, 2, 3, pool=2, **place), IMAGE),
    "ConvUnconstrainedEN": (lambda **place: lben.ConvUnconstrainedEN(IMAGE, 2, 3, pool=2, **place), IMAGE),
    "ImageLBEN": (lambda **place: lben.ImageLBEN(1, 2, 3, gamma=1.0, **place), IMAGE),
    "ImageLBEN, linear skip": (lambda **place: lben.ImageLBEN(1, 2, 3, gamma=1.0, skip="linear", **place), IMAGE),
    "SLL": (lambda **place: lben.SLL(5, 8, **place), (5,)),
    "ConvSLL": (lambda **place: lben.ConvSLL(1, 3, **place), IMAGE),
    "Sandwich": (lambda **place: lben.Sandwich(5, 8, **place), (5,)),
    "ConvSandwich": (lambda **place: lben.ConvSandwich(1, 3, **place), IMAGE),
    "Normalize": (lambda **place: lben.Normalize([0.1, 0.2], 0.3, **place), (2,)),
    "FeedForward": (lambda **place: baselines.FeedForward(5, 8, 3, **place), (5,)),
    "LMT": (lambda **place: baselines.LMT(5, 8, 3, normalize=lben.Normalize(0.5, 0.3), **place), (5,)),
}
HOLDERS = {
    "Exported",
    "ConvNetwork",
    "EquilibriumNetwork",
    "LayeredNetwork",
    "ODE",
    "Parallel",
    "Residual",
    "Sequential",
}
"""Made of modules or weights that are somewhere already."""
SMALL = 9  # numbers that a training step may fetch at once: those that say how far a solver is, and a matrix of outputs
FETCHED = {"UnconstrainedEN": 64, "ConvLBEN by pixels": 100, "ConvUnconstrainedEN": 36}
"""Whose W, or its kernel, is looked at on the CPU, to choose steps that converge: nothing is known of it before."""


@pytest.fixture
def away() -> Iterator[torch.device]:
    with elsewhere() as device:
        yield device


def made(name: str, **place: Any) -> nn.Module:
    torch.manual_seed(0)
    return MAKERS[name][0](**place)


def batch(name: str, count: int = 4) -> Tensor:
    return torch.rand(count, *MAKERS[name][1], generator=torch.Generator().manual_seed(1))


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def test_every_constructor_of_tensors_takes_a_device_and_a_dtype() -> None:
    public = {**{name: getattr(lben, name) for name in lben.__all__}, "FeedForward": baselines.FeedForward}
    for name, kind in public.items():
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and name not in HOLDERS:
            known = inspect.signature(kind).parameters
            weightless = not {"device", "dtype"} & known.keys() and not tensors(kind(*(2,) * len(known)))
            assert weightless or all(known[word].kind is known[word].KEYWORD_ONLY for word in ("device", "dtype")), name


@pytest.mark.parametrize("name", MAKERS)
def test_a_start_does_not_depend_on_the_device(name: str, away: torch.device) -> None:
    here, there, nowhere = made(name), made(name, device=away), made(name, device="meta")
    for path, tensor in tensors(here).items():
        assert tensors(there)[path].device == away, path
        assert torch.equal(tensors(there)[path].cpu(), tensor), path
        assert tensors(nowhere)[path].is_meta, path


@pytest.mark.parametrize("name", MAKERS)
def test_a_dtype_is_as_if_it_were_the_usual_one(name: str) -> None:
    double = made(name, dtype=torch.float64)
    try:
        torch.set_default_dtype(torch.float64)
        usual, single = made(name), made(name, dtype=torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    for path, tensor in tensors(double).items():
        if tensor.is_floating_point():
            assert tensor.dtype == torch.float64, path
            assert tensors(single)[path].dtype == torch.float32, path
            if not path.startswith("normalize"):  # made before, and converted
                assert torch.equal(tensor, tensors(usual)[path]), path


@pytest.mark.parametrize("name", MAKERS)
def test_other_types_and_devices_that_are_not_there_are_refused(name: str) -> None:
    wrong: tuple[Any, ...] = (torch.float16, torch.int64, "float32", np.ones(2))
    for dtype in wrong:
        with pytest.raises(lben.InvalidInput, match=r"dtype must be torch.float32 or torch.float64, not"):
            made(name, dtype=dtype)
    with pytest.raises(lben.InvalidInput, match="There is no device 'nonsense' here"):
        made(name, device="nonsense")
    with pytest.raises(lben.InvalidInput, match="device must be a "):
        made(name, device=1.5)


def test_the_normalisation_of_the_caller_stays_where_it_is() -> None:
    own = lben.Normalize(0.5, 0.5)
    moved = lben.LBEN(5, 8, 3, normalize=own, dtype=torch.float64).normalize
    assert (own.mean.dtype, moved.mean.dtype) == (torch.float32, torch.float64)  # type: ignore[union-attr]
    assert lben.LBEN(5, 8, 3, normalize=own).normalize is own


def answers(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs, gradients of all parameters and of x, in training, and outputs in evaluation."""
    x = x.clone().requires_grad_()
    free = [p for p in net.parameters() if p.requires_grad]
    y = net.train()(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *free])
    return [y.detach(), *gradients, net.eval()(x).detach()]


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "Normalize"])
def test_a_step_stays_on_its_device(name: str, away: torch.device) -> None:
    """Forward and backward agree with the CPU; what is fetched from the device is no batch, no gradient and no W."""
    x = batch(name)
    there = made(name, device=away)
    copied.clear()
    y = there(x.to(away))
    torch.autograd.backward(y.square().sum())
    assert max(copied, default=0) <= FETCHED.get(name, SMALL)
    assert sum(size > SMALL for size in copied) <= 1
    for here, other in zip(answers(made(name), x), answers(made(name, device=away), x.to(away)), strict=True):
        assert other.device == away
        assert torch.allclose(other.cpu(), here, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "solver",
    [
        lben.DouglasRachford(),
        lben.ForwardBackward(tolerance=1e-2),
        lben.FISTA(tolerance=1e-2),
        lben.Extragradient(tolerance=1e-2),
        lben.Newton(),
        lben.Anderson(),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_every_solver_works_there(solver: lben.Solver, away: torch.device) -> None:
    x, options = torch.rand(4, 5), {"gamma": 5.0, "epsilon": 5.0, "solver": solver, "activation": lben.Tanh()}
    torch.manual_seed(0)
    here = lben.LBEN(5, 8, 3, **options)  # type: ignore[arg-type]
    torch.manual_seed(0)
    there = lben.LBEN(5, 8, 3, **options, device=away)  # type: ignore[arg-type]
    for one, other in zip(answers(here, x), answers(there, x.to(away)), strict=True):
        assert torch.allclose(other.cpu(), one, rtol=1e-3, atol=1e-4)  # the same iterations


@pytest.mark.parametrize(
    "activation",
    [
        lben.LeakyReLU(0.1),
        lben.Sigmoid(),
        lben.Softplus(),
        lben.ELU(),
        lben.PerUnit([lben.ReLU()] * 4 + [lben.Tanh()] * 4),
        lben.Projection(lben.Ball(4)),
        lben.Projection(lben.Simplex(4)),
        lben.Projection(lben.Box(0.0, 1.0)),
        lben.Projection(lben.Polyhedron([[1.0, 0.5], [0.0, 1.0]], [0.1, 0.2])),
        lben.GroupSoftThreshold(4),
        lben.Blocks([(lben.Softmax(4), 4), (lben.ReLU(), 4)]),
    ],
    ids=repr,
)
def test_every_activation_works_there(activation: lben.Activation, away: torch.device) -> None:
    x = torch.rand(4, 5)
    torch.manual_seed(0)
    here = lben.LBEN(5, 8, 3, gamma=1.0, activation=activation)
    torch.manual_seed(0)
    there = lben.LBEN(5, 8, 3, gamma=1.0, activation=activation, device=away)
    for one, other in zip(answers(here, x), answers(there, x.to(away)), strict=True):
        assert torch.allclose(other.cpu(), one, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MAKERS)
def test_an_input_on_another_device_gets_one_sentence(name: str, away: torch.device) -> None:
    if name == "Normalize":
        return
    with pytest.raises(lben.InvalidInput, match=r"x is on cpu but the (network|layer) is on pretend:0: move one"):
        made(name, device=away)(batch(name))


def stack(device: torch.device | None) -> lben.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = [
        lben.Normalize(0.5, 0.25),
        lben.SpaceToDepth(2),
        lben.ConvSLL(4, 4),
        nn.Flatten(),
        nn.Linear(36, 6),
        lben.MaxMin(),
        lben.LBEN(6, 8, 3, gamma=2.0),
    ]
    return lben.Sequential(*parts, in_shape=IMAGE).to(device)


VERBS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "certified_radius": lambda net, x, y: lben.certified_radius(net, x, y, pairwise=False).radius,
    "certified_accuracy": lambda net, x, y: lben.certified_accuracy(net, x, y, [0.01], pairwise=False).accuracy,
    "enclose": lambda net, x, y: lben.enclose(net, x).y,
    "lower bound": lambda net, x, y: lben.lipschitz_lower_bound(net, x, restarts=1, steps=1).trace[:1],
    "attack": lambda net, x, y: lben.attack(net, x, y, [0.5], method="fgm").inputs,
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_take_data_on_any_device(verb: str, away: torch.device) -> None:
    """Network and data here or there: the same numbers, where the data are."""
    ask, x, y = VERBS[verb], batch("LBEN"), torch.tensor([0, 1, 2, 0])
    here = made("LBEN").eval()
    there = made("LBEN", device=away).eval()
    expected = ask(here, x, y)
    for net, inputs, labels in ((here, x.to(away), y.to(away)), (there, x, y), (there, x.to(away), y)):
        found = ask(net, inputs, labels)
        assert found.device == inputs.device
        assert torch.allclose(found.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["LBEN, linear skip", "MON", "ConvLBEN", "stack"])
def test_proofs_do_not_depend_on_the_device(name: str, away: torch.device) -> None:
    here, there = (stack(d) if name == "stack" else made(name, device=d) for d in (None, away))
    assert str(lben.certify(there)) == str(lben.certify(here))  # type: ignore[call-overload]
    x = torch.rand(2, *IMAGE) if name == "stack" else batch(name, 2)
    radii = [lben.certified_radius(net.eval(), x, pairwise=False).radius for net in (here, there)]  # type: ignore[arg-type]
    assert torch.equal(*radii)


def test_a_solution_lies_where_its_inputs_are(away: torch.device) -> None:
    net, x = made("LBEN", device=away).eval(), batch("LBEN").to(away)
    solution = net.solve(x)  # type: ignore[operator]
    assert {solution.z.device, solution.residual.device, solution.converged.device} == {away}
    assert solution.error_bound(net, x).device == away


def test_a_stack_works_there(away: torch.device) -> None:
    x = torch.rand(2, *IMAGE)
    for one, other in zip(answers(stack(None), x), answers(stack(away), x.to(away)), strict=True):
        assert torch.allclose(other.cpu(), one, rtol=1e-3, atol=1e-4)


def test_a_file_knows_no_device(away: torch.device, tmp_path: Path) -> None:
    there, file = made("LBEN", device=away), tmp_path / "net.safetensors"
    lben.save(there, file)  # type: ignore[arg-type]
    here, back = lben.load(file), lben.load(file, device=away)
    for path, tensor in tensors(made("LBEN")).items():
        assert torch.equal(tensors(here)[path], tensor)
        assert tensors(back)[path].device == away
    with pytest.raises(lben.InvalidInput, match="There is no device 'nonsense'"):
        lben.load(file, device="nonsense")
    made("LBEN").load_state_dict(there.state_dict())


def some_data(device: torch.device | None = None) -> ClassificationData:
    g = torch.Generator().manual_seed(3)
    x = torch.rand(60, 5, generator=g).to(device)
    y = (x.sum(dim=-1) > 2.5).long() + (x[:, 0] > 0.8).long()
    return ClassificationData(x[:40], y[:40], x[40:], y[40:])


RECIPE = TrainConfig(epochs=2, batch_size=16, learning_rate=1e-2)


@pytest.mark.parametrize("data_there", [True, False])
def test_training_is_the_same_there(data_there: bool, away: torch.device) -> None:
    """Batches go to the network from wherever the data are, in the same order, and nothing comes back by the batch."""
    here, there = made("LBEN"), made("LBEN", device=away)
    expected = fit(here, some_data(), RECIPE)
    data = some_data(away if data_there else None)
    found = fit(there, data, RECIPE)
    for path, tensor in tensors(here).items():
        assert tensors(there)[path].device == away
        assert torch.allclose(tensors(there)[path].cpu(), tensor, atol=1e-5)
    assert [row.loss for row in found] == pytest.approx([row.loss for row in expected], rel=1e-4)
    assert [row.test_error for row in found] == [row.test_error for row in expected]
    images = (data.test_inputs, data.test_labels)
    assert error_rate(there, *images) == error_rate(here, *images) == error_rate(there, *(t.cpu() for t in images))


def test_a_run_goes_on_on_another_device(away: torch.device, tmp_path: Path) -> None:
    """A checkpoint of a run there is that of the same run here."""
    fit(made("LBEN", device=away), some_data(), RECIPE, folder=tmp_path)
    here = made("LBEN")
    history = fit(here, some_data(), RECIPE, folder=tmp_path, resume=True)
    whole = fit(made("LBEN"), some_data(), RECIPE)
    assert len(history) == len(whole)
    assert history[-1].loss == pytest.approx(whole[-1].loss, rel=1e-4)


def test_trajectories_stay_there(away: torch.device) -> None:
    t, x = torch.linspace(0, 1, 5), torch.rand(4, 5)
    found = []
    for device in (None, away):
        ode = made("ContractingODE", device=device)
        v = ode.simulate(x.to(device), torch.zeros(4, 8, device=device), t.to(device))  # type: ignore[operator]
        found.append(ode.output(v))  # type: ignore[operator]
    assert found[1].device == away
    assert torch.allclose(found[0], found[1].cpu(), atol=1e-5)
