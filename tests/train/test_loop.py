"""The training loop: seeded, resumable to the bit after a kill, and the same in two processes."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import lben
from lben.data import ImageData, RegressionData, embedded_mnist
from lben.train import CrossEntropy, MeanSquare, Optimizer, TrainConfig, error_rate, fit
from lben.train.fingerprint import fingerprint
from tests.problems import ROOT, few_images


def network(gamma: float | None = 1.0) -> lben.LBEN:
    torch.manual_seed(0)
    solver = lben.PeacemanRachford(tolerance=1e-3)
    return lben.LBEN(784, 20, 10, gamma=gamma, normalize=lben.Normalize(0.1307, 0.3081), solver=solver)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("make", [network, plain])
def test_it_learns_and_tells(make: type, tmp_path: Path) -> None:
    net = make()
    history = fit(net, few_images(2000, 1000), TrainConfig(epochs=3, learning_rate=5e-3), folder=tmp_path)
    assert [row.epoch for row in history] == [1, 2, 3]
    assert history[-1].test_error < 0.2
    assert history[-1].loss < history[0].loss
    assert history[-1].test_error == error_rate(net, embedded_mnist().test_images, embedded_mnist().test_labels)[0]
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["test_error"] for row in rows] == [row.test_error for row in history]
    if isinstance(net, lben.LBEN):
        assert history[-1].iterations
        assert history[-1].residual is not None
        assert history[-1].residual <= 1e-3
        assert lben.certify(net).holds
    else:
        assert history[-1].iterations is None


class Enough(Exception):
    """The interruption of a run."""


def stopping_after(batches: int) -> nn.Module:
    """The network, which interrupts its training after some batches."""
    net, left = network(), iter(range(batches))

    def count(module: nn.Module, given: object, outputs: object) -> None:
        if module.training and next(left, None) is None:
            raise Enough

    net.register_forward_hook(count)
    return net


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_resuming_is_exact(optimizer: Optimizer, tmp_path: Path) -> None:
    config = TrainConfig(epochs=4, optimizer=optimizer, weight_decay=1e-4, learning_rate=5e-3)
    straight = network()
    whole = fit(straight, few_images(600, 1000), config, folder=tmp_path / "whole")
    with pytest.raises(Enough):
        fit(stopping_after(12), few_images(600, 1000), config, folder=tmp_path / "part")
    again = network()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.add_(1)
    resumed = fit(again, few_images(600, 1000), config, folder=tmp_path / "part", resume=True)
    assert same(straight.state_dict(), again.state_dict())
    assert [row.loss for row in resumed] == [row.loss for row in whole]


RUN = """
import sys, torch, lben
from pathlib import Path
sys.path.insert(0, {root!r})
from lben.train.fingerprint import fingerprint
from tests.problems import few_images
from tests.train.test_loop import network
from lben.train import TrainConfig, fit
torch.set_num_threads(1)
fit(network(), few_images(1200, 1000), TrainConfig(epochs=12, batch_size=32), folder={folder!r}, resume=True)
"""


def test_a_killed_process_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """SIGKILL at some moment, twice; then to the end. The weights are those of a run in one go, bit for bit."""
    codes = {name: RUN.format(root=str(ROOT), folder=str(tmp_path / name)) for name in ("whole", "killed")}
    kills = 0
    for epochs in (2, 5):
        process = subprocess.Popen([sys.executable, "-c", codes["killed"]])
        history = tmp_path / "killed" / "history.jsonl"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if history.is_file() and len(history.read_text().splitlines()) >= epochs:
                time.sleep(0.03)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 1
    for name in codes:
        subprocess.run([sys.executable, "-c", codes[name]], check=True)
    files = [load_file(tmp_path / name / "checkpoint.safetensors") for name in codes]
    assert same(files[0], files[1])


PAIR = """
import sys, torch
sys.path.insert(0, {root!r})
import torch.distributed as dist, lben
from lben.train.fingerprint import fingerprint
from tests.problems import few_images
from tests.train.test_loop import network
from lben.train import TrainConfig, fit
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = network().double()
net.solver = lben.PeacemanRachford(tolerance=1e-12)
fit(net, few_images(199, 1000), TrainConfig(epochs=2, batch_size=33), folder={folder!r})
dist.destroy_process_group()
"""


def test_two_processes_reach_the_weights_of_one(tmp_path: Path) -> None:
    script = tmp_path / "pair.py"
    script.write_text(PAIR.format(root=str(ROOT), folder=str(tmp_path / "pair")))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(launcher, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    alone = network().double()
    alone.solver = lben.PeacemanRachford(tolerance=1e-12)
    fit(alone, few_images(199, 1000), TrainConfig(epochs=2, batch_size=33))
    together = load_file(tmp_path / "pair" / "checkpoint.safetensors")
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(tensor, together[f"net.{name}"], rtol=1e-7, atol=1e-9), name


def test_the_seed_decides() -> None:
    states = []
    for seed in (0, 0, 1):
        net = network()
        fit(net, few_images(200, 1000), TrainConfig(epochs=1, seed=seed))
        states.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


def small_lben(hidden: int = 6, **options: object) -> lben.LBEN:
    chosen: dict[str, object] = {"gamma": 1.0, "solver": lben.PeacemanRachford(tolerance=1e-3)}
    chosen["normalize"] = lben.Normalize(0.1307, 0.3081)
    return lben.LBEN(784, hidden, 10, **{**chosen, **options})  # type: ignore[arg-type]


def shuffled(count: int) -> ImageData:
    """Data of the same shapes with two labels exchanged."""
    data = few_images(count, 1000)
    labels = data.train_labels.clone()
    different = int((labels != labels[0]).nonzero()[0])
    labels[[0, different]] = labels[[different, 0]]
    return replace(data, train_labels=labels)


ONCE = TrainConfig(epochs=1)
OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], ImageData], TrainConfig, str]] = {
    "gamma": (lambda: small_lben(gamma=0.2), lambda: few_images(64, 1000), ONCE, "gamma is 1.0 there and 0.2 here"),
    "no gamma": (lambda: small_lben(gamma=None), lambda: few_images(64, 1000), ONCE, "gamma is 1.0 there and None"),
    "epsilon": (lambda: small_lben(epsilon=2.0), lambda: few_images(64, 1000), ONCE, r"epsilon is 1.0 there and 2.0"),
    "activation": (
        lambda: small_lben(activation=lben.Tanh()), lambda: few_images(64, 1000), ONCE, r"activation is ReLU.* Tanh",
    ),
    "solver": (
        lambda: small_lben(solver=lben.PeacemanRachford(tolerance=1e-2)), lambda: few_images(64, 1000), ONCE,
        r"solver is .*0\.001.* there and .*0\.01",
    ),
    "normalize": (
        lambda: small_lben(normalize=lben.Normalize(0.0, 0.5)), lambda: few_images(64, 1000), ONCE, "normalize.mean",
    ),
    "none": (lambda: small_lben(normalize=None), lambda: few_images(64, 1000), ONCE, "normalize .*there and absent"),
    "precision": (lambda: small_lben().double(), lambda: few_images(64, 1000), ONCE, "float32 there and .*float64"),
    "sizes": (lambda: small_lben(7), lambda: few_images(64, 1000), ONCE, "6 x 784 .*there and 7 x 784"),
    "class": (lambda: lben.MON(784, 6, 10), lambda: few_images(64, 1000), ONCE, "network is LBEN there and MON here"),
    "plain": (lambda: plain(), lambda: few_images(64, 1000), ONCE, "network is LBEN there and Sequential here"),
    "samples": (lambda: small_lben(), lambda: few_images(65, 1000), ONCE, "samples is 64 there and 65 here"),
    "labels": (lambda: small_lben(), lambda: shuffled(64), ONCE, r"data\.train_labels is 64 int64, SHA.* there"),
    "tests": (lambda: small_lben(), lambda: few_images(64, 900), ONCE, r"data\.test_images is 1000 x 784"),
    "epochs": (
        lambda: small_lben(), lambda: few_images(64, 1000), TrainConfig(epochs=2), "epochs is 1 there and 2 here",
    ),
    "loss": (
        lambda: small_lben(), lambda: few_images(64, 1000), TrainConfig(epochs=1, loss=CrossEntropy(1.0)),
        r"loss is CrossEntropy\(margin=0.0\) there",
    ),
    "seed": (lambda: small_lben(), lambda: few_images(64, 1000), TrainConfig(epochs=1, seed=1), "seed is 0 there"),
}  # fmt: skip


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    """Whatever decides a run: another one of it may not go on from the checkpoint, nor touch it."""
    fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    for name, (net, data, config, words) in OTHERS.items():
        with pytest.raises(lben.InvalidFile, match=words):
            pytest.fail(f"{name}: {fit(net(), data(), config, folder=tmp_path, resume=True)}")
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path, resume=True)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(lben.InvalidInput, match="holds a run already: resume=True"):
        fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_network_inside_another_is_known_too(tmp_path: Path) -> None:
    fit(nn.Sequential(small_lben()), few_images(64, 1000), ONCE, folder=tmp_path)
    with pytest.raises(lben.InvalidFile, match=r"0\.gamma is 1\.0 there and 0\.2 here"):
        fit(nn.Sequential(small_lben(gamma=0.2)), few_images(64, 1000), ONCE, folder=tmp_path, resume=True)


def squared(net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - nn.functional.one_hot(labels, 10)).square().mean()


def test_a_loss_is_known_by_its_name_and_not_by_its_place_in_memory() -> None:
    other = FunctionType(squared.__code__, squared.__globals__, "squared")
    assert repr(other) != repr(squared)
    assert TrainConfig(loss=other).description() == TrainConfig(loss=squared).description()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half")
    with pytest.raises(lben.InvalidFile, match="not a whole"):
        fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path, resume=True)
    with pytest.raises(lben.InvalidInput, match="needs the folder"):
        fit(small_lben(), few_images(64, 1000), ONCE, resume=True)


@pytest.mark.parametrize("damage", [b"", b'{"epoch": 1, "lo', b"\xff\xfe", None])
def test_a_damaged_history_is_mended_from_the_checkpoint(damage: bytes | None, tmp_path: Path) -> None:
    fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path)
    file = tmp_path / "history.jsonl"
    whole = file.read_bytes()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    fit(small_lben(), few_images(64, 1000), ONCE, folder=tmp_path, resume=True)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("make", [network, plain, lambda: lben.UnconstrainedEN(784, 8, 10)])
def test_divergence_is_called_by_its_name(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """A learning rate far too large: no "W holds nan", and no checkpoint of what is left."""
    config = TrainConfig(epochs=3, learning_rate=1e36, schedule="constant", batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lben.ConvergenceWarning)
        with pytest.raises(lben.Diverged, match=r"diverged in epoch 1 of 3, at step \d of 4 .*lower the learning rate"):
            fit(make(), few_images(64, 1000), config, folder=tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()


class SuddenlyLost:
    """Cross-entropy that is NaN after some batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        self.left -= 1
        return CrossEntropy()(net, logits, labels) * (1.0 if self.left >= 0 else torch.nan)


def test_the_last_checkpoint_before_a_divergence_is_kept(tmp_path: Path) -> None:
    config = TrainConfig(epochs=3, batch_size=16, loss=SuddenlyLost(6))
    with pytest.raises(lben.Diverged, match=r"in epoch 2 of 3, at step 3 of 4 \(the loss is nan\)"):
        fit(small_lben(), few_images(64, 1000), config, folder=tmp_path)
    kept = load_file(tmp_path / "checkpoint.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.values())
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 1
    with pytest.raises(lben.InvalidInput, match="cannot begin: the loss is nan"):
        fit(small_lben(), few_images(64, 1000), replace(config, loss=SuddenlyLost(0)))


def test_bad_inputs_are_not_called_a_divergence() -> None:
    data = RegressionData(torch.rand(8, 3), torch.rand(8, 2), torch.rand(4, 3), torch.rand(4, 2))
    object.__setattr__(data, "train_inputs", data.train_inputs.clone().index_fill(0, torch.arange(4, 8), torch.nan))
    with pytest.raises(lben.InvalidInput, match="x "):
        fit(lben.LBEN(3, 4, 2, gamma=1.0), data, TrainConfig(epochs=1, batch_size=1, loss=MeanSquare()))


def test_nothing_to_train_or_to_test_is_said() -> None:
    data = few_images(64, 1000)
    with pytest.raises(lben.InvalidInput, match="no sample to train"):
        fit(plain(), replace(data, train_images=data.train_images[:0], train_labels=data.train_labels[:0]), ONCE)
    with pytest.raises(lben.InvalidInput, match="something to test on"):
        fit(plain(), replace(data, test_images=data.test_images[:0], test_labels=data.test_labels[:0]), ONCE)
    with pytest.raises(lben.InvalidInput, match="no parameters"):
        fit(nn.ReLU(), data, ONCE)


def test_one_cycle_is_the_one_of_torch() -> None:
    config, steps = TrainConfig(epochs=5, learning_rate=0.01), 20
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, 100)
    ours, theirs = [], []
    for step in range(100):
        ours.append(config.rate(step, steps))
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 0.05 * 0.01
    assert max(ours) == pytest.approx(0.01)


def test_schedules() -> None:
    step = TrainConfig(epochs=40, schedule="step", step_epochs=10)
    assert [step.rate(100 * epoch, 100) for epoch in (0, 9, 10, 39)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-6])
    cosine = TrainConfig(epochs=10, schedule="cosine")
    assert [cosine.rate(s, 10) for s in (0, 50, 100)] == pytest.approx([1e-3, 5e-4, 0])
    assert TrainConfig(schedule="constant").rate(5, 10) == 1e-3


def test_margin() -> None:
    logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    net = plain()
    assert CrossEntropy(2.0)(net, logits, labels) == pytest.approx(float(torch.tensor(2.0).log()))
    assert CrossEntropy()(net, logits, labels) < CrossEntropy(1.0)(net, logits, labels)


class Moody(nn.Module):
    """A network that has no answer for images that are bright in one corner."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 400] > 0.99).any()):
            raise lben.NotConverged("no equilibrium", 1.0)
        logits: Tensor = self.inner(x)
        return logits


def test_lost_batches_and_unanswered_images_are_counted() -> None:
    data = few_images(400, 1000)
    moody = int((data.test_images[:, 400] > 252).sum())
    assert moody > 0
    (row,) = fit(Moody(), data, TrainConfig(epochs=1, batch_size=8))
    assert 0 < row.lost < 50
    assert row.unanswered == moody
    assert row.test_error >= moody / 1000
    with pytest.raises(lben.NotConverged):
        fit(Moody(), data, TrainConfig(epochs=1, batch_size=8, on_lost="stop"))


def test_progress_shows_error_iterations_and_residual(capsys: pytest.CaptureFixture[str]) -> None:
    fit(network(), few_images(64, 1000), TrainConfig(epochs=1), progress=True, name="a network")
    shown = capsys.readouterr().err
    for word in ("a network", "epoch 1 of 1", "test error", "iterations"):
        assert word in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs .* not 0"),
        ({"learning_rate": -1.0}, "learning_rate .* not -1.0"),
        ({"schedule": "wild"}, "'wild'"),
        ({"optimizer": "magic"}, "'magic'"),
        ({"on_lost": "cry"}, "'cry'"),
        ({"seed": -1}, "seed .* not -1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"loss": "soft"}, "loss .* 'soft'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        TrainConfig(**options)  # type: ignore[arg-type]


class Opaque:
    """A loss, or data, that Python shows by its place in memory."""

    def __init__(self, *held: object) -> None:
        self.held = held


def test_things_are_known_by_what_they_hold() -> None:
    """Not by how they print: lists, objects, functions and their closures that differ anywhere have other prints."""
    rows = list(torch.zeros(1000, 5))
    other = [*rows[:500], torch.ones(5), *rows[501:]]
    scaled = [lambda y, k=k: k * y for k in (1, 2)]

    def times(factor: float) -> Callable[[float], float]:
        return lambda y: factor * y

    dataset = torch.utils.data.TensorDataset
    pairs: list[tuple[object, object]] = [
        (Opaque(1), Opaque(100)),
        (rows, other),
        (dataset(torch.zeros(50, 3)), dataset(torch.ones(50, 3))),
        (lben.Elementwise(lambda v: torch.tanh(v)), lben.Elementwise(lambda v: v.clamp(-1, 1))),
        (scaled[0], scaled[1]),
        (times(1), times(2)),
        (partial(pow, 1), partial(pow, 2)),
        ({"a": rows}, {"a": other}),
    ]
    for one, two in pairs:
        assert fingerprint(one) == fingerprint(copy.deepcopy(one))
        assert fingerprint(one) != fingerprint(two)


def test_a_loss_that_does_not_fit_is_refused() -> None:
    data = RegressionData(torch.rand(8, 3), torch.rand(8, 2), torch.rand(4, 3), torch.rand(4, 2))
    with pytest.raises(lben.InvalidInput, match="MeanSquare"):
        fit(lben.LBEN(3, 4, 2, gamma=1.0), data, ONCE)
    with pytest.raises(lben.InvalidInput, match="function of network, outputs and targets"):
        TrainConfig(loss=nn.MSELoss())
