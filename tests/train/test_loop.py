"""The training loop: seeded, the same in two processes, and honest about what it loses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import lben
from lben.data import ImageData, RegressionData, embedded_mnist
from lben.train import CrossEntropy, MeanSquare, TrainConfig, error_rate, fit
from tests.problems import ROOT, few_images
from tests.train.runs import APART, ONCE, network, plain, same, small_lben


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


PAIR = (
    APART
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
net = network().double()
net.solver = lben.PeacemanRachford(tolerance=1e-12)
fit(net, few_images(199, 1000), TrainConfig(epochs=2, batch_size=33), folder={folder!r})
dist.destroy_process_group()
"""
)


@pytest.mark.slow
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


class Together:
    """What `torch.distributed` is to two threads of one process."""

    def __init__(self) -> None:
        self.barrier, self.local, self.parts = threading.Barrier(2, timeout=60), threading.local(), [torch.empty(0)] * 2

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return hasattr(self.local, "rank")

    def get_rank(self) -> int:
        rank: int = self.local.rank
        return rank

    def get_world_size(self) -> int:
        return 2

    def all_reduce(self, tensor: Tensor) -> None:
        self.parts[self.get_rank()] = tensor.clone()
        self.barrier.wait()
        tensor.copy_(self.parts[0] + self.parts[1])
        self.barrier.wait()


def test_two_threads_reach_the_weights_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 33 in shares of 17 and 16, without the processes."""
    together = Together()
    monkeypatch.setattr("lben.train.loop.distributed", together)
    nets = [network().double() for _ in range(3)]
    with torch.no_grad():  # what a process without a seed of its own would begin with
        for parameter in nets[1].parameters():
            parameter.mul_(1.5)

    def train(net: lben.LBEN, rank: int | None) -> None:
        if rank is not None:
            together.local.rank = rank
        net.solver = lben.PeacemanRachford(tolerance=1e-12)
        folder = None if rank is None else tmp_path / f"rank {rank}"
        fit(net, few_images(98, 20), TrainConfig(epochs=2, batch_size=33), folder=folder)

    train(nets[2], None)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(train, nets[rank], rank) for rank in range(2)]:
            done.result()
    for name, tensor in nets[2].state_dict().items():
        for net in nets[:2]:
            assert torch.allclose(tensor, net.state_dict()[name], rtol=1e-7, atol=1e-9), name
    assert (tmp_path / "rank 0" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "rank 1" / "checkpoint.safetensors").exists()


def test_the_seed_decides() -> None:
    states = []
    for seed in (0, 0, 1):
        net = network()
        fit(net, few_images(200, 1000), TrainConfig(epochs=1, seed=seed))
        states.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


@pytest.mark.parametrize("make", [network, plain, lambda: lben.UnconstrainedEN(784, 8, 10)])
def test_divergence_is_called_by_its_name(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """A learning rate far too large: no "W holds nan", and no checkpoint of what is left."""
    config = TrainConfig(epochs=3, learning_rate=1e36, schedule="constant", batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lben.ConvergenceWarning)
        with pytest.raises(lben.Diverged, match=r"diverged in epoch 1 of 3, at step \d of 4 .*lower the learning rate"):
            fit(make(), few_images(64, 40), config, folder=tmp_path)
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


def test_a_loss_that_does_not_fit_is_refused() -> None:
    data = RegressionData(torch.rand(8, 3), torch.rand(8, 2), torch.rand(4, 3), torch.rand(4, 2))
    with pytest.raises(lben.InvalidInput, match="MeanSquare"):
        fit(lben.LBEN(3, 4, 2, gamma=1.0), data, TrainConfig(epochs=1, loss=CrossEntropy()))
    with pytest.raises(lben.InvalidInput, match="function of network, outputs and targets"):
        TrainConfig(loss=nn.MSELoss())


def test_a_label_out_of_range_is_no_divergence() -> None:
    """Wherever it stands: in a later batch to train on, or among those to test on."""
    x, y = torch.rand(40, 3), torch.zeros(40, dtype=torch.long)
    wrong = y.clone()
    wrong[7] = 2
    for data in (ImageData(x, y, x, wrong), ImageData(x, wrong, x, y)):
        with pytest.raises(lben.InvalidInput, match="There is a label 2, but the network has 2 outputs"):
            fit(lben.LBEN(3, 4, 2, gamma=1.0), data, TrainConfig(epochs=2, batch_size=4))
