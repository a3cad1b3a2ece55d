"""`--device`, as a user gives it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lben
from tests.cli.test_commands import call
from tests.pretend import NAME, elsewhere

TRAIN = ("--embedded", "--gamma", "1", "--hidden", "8", "--epochs", "1", "--batch-size", "1000")


def test_a_network_trained_elsewhere_is_the_same_network(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    call("train", str(here), *TRAIN)
    with elsewhere():
        call("train", str(there), *TRAIN, "--device", NAME)
        evaluate = ("evaluate", str(there), "--embedded")
        assert call(*evaluate, "--device", NAME) == call(*evaluate)
    for one, other in zip(lben.load(here).parameters(), lben.load(there).parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_a_network_is_attacked_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    lben.save(lben.LBEN(784, 4, 10, gamma=1.0), file)
    attack = ("attack", str(file), "--embedded", "--images", "5", "--size", "1", "--method", "fgm")
    with elsewhere():
        assert call(*attack, "--device", NAME) == call(*attack)


@pytest.mark.parametrize("command", ["train", "evaluate", "certify", "attack"])
@pytest.mark.parametrize("device", ["nonsense", "cuda"])
def test_a_device_that_is_not_there_is_one_sentence(command: str, device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        return
    file = tmp_path / "net.safetensors"
    if command != "train":
        lben.save(lben.LBEN(784, 4, 10), file)
    rest = {"train": ["--embedded"], "evaluate": ["--embedded"], "certify": [], "attack": ["--size", "1", "--embedded"]}
    said = call(command, str(file), *rest[command], "--device", device, code=1)
    assert f"There is no device '{device}' here: " in said
    assert said.count("\n") == 1
    assert command != "train" or not file.exists()
