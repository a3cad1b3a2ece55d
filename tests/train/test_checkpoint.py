"""Checkpoints: a run goes on to the bit after a kill, and from no other run's file."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import lben
from lben.data import ImageData
from lben.train import CrossEntropy, Optimizer, TrainConfig, fit
from tests.problems import ROOT, few_images
from tests.train.runs import APART, ONCE, network, plain, same, small_lben


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


RUN = (
    APART
    + """
fit(network(), few_images(1200, 1000), TrainConfig(epochs=12, batch_size=32), folder={folder!r}, resume=True)
"""
)


@pytest.mark.slow
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


def shuffled(count: int) -> ImageData:
    """Data of the same shapes with two labels exchanged."""
    data = few_images(count, 1000)
    labels = data.train_labels.clone()
    different = int((labels != labels[0]).nonzero()[0])
    labels[[0, different]] = labels[[different, 0]]
    return replace(data, train_labels=labels)


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
