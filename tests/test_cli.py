"""The command line, as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lben


def call(*arguments: str, code: int = 0) -> str:
    """Run `python -m lben`; its output, and its errors if it fails as it should."""
    run = subprocess.run(
        [sys.executable, "-m", "lben", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "120", "PATH": "", "HOME": "/nowhere"},
        timeout=300,
    )
    assert run.returncode == code, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    said = call(
        "train", str(folder / "net"), "--embedded", "--gamma", "1", "--hidden", "20", "--epochs", "1",
        "--run", str(folder / "run"),
    )  # fmt: skip
    assert "Test error" in said
    return folder


def test_help_names_every_command() -> None:
    said = call("--help")
    for command in ("train", "evaluate", "certify", "attack", "reproduce", "report"):
        assert command in said
        assert "--help" in call(command, "--help")


def test_train_writes_a_network_and_resumes(trained: Path) -> None:
    net = lben.load(trained / "net")
    assert (net.gamma, net.hidden_features) == (1.0, 20)
    said = call(
        "train", str(trained / "again"), "--embedded", "--gamma", "1", "--hidden", "20", "--epochs", "1",
        "--run", str(trained / "run"), "--resume",
    )  # fmt: skip
    assert "Test error" in said
    again = lben.load(trained / "again").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in net.state_dict().items())


def test_evaluate(trained: Path) -> None:
    assert "of 1,000 images" in call("evaluate", str(trained / "net"), "--embedded")


def test_certify_says_yes_or_no(trained: Path) -> None:
    said = call("certify", str(trained / "net"), "--rigorous")
    assert "at most 1 times" in said
    assert "proved, rounding included" in said
    assert "Tightest" in said
    assert "at least" in said
    assert "not proved" in call("certify", str(trained / "net"), "--gamma", "0.001", "--unit", "pixels", code=1)


def test_attack_shows_both_units_and_what_is_proved(trained: Path) -> None:
    said = call(
        "attack", str(trained / "net"), "--embedded", "--size", "1", "--size", "3", "--images", "50", "--steps", "5",
        "--restarts", "1",
    )  # fmt: skip
    for words in ("size at the input", "size in pixels", "0.3081", "0.9243", "at most, proved"):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("certify", "nowhere"), "nowhere is not a file"),
        (("train", "x", "--embedded", "--gamma", "-1"), "gamma must be"),
        (("train", "x", "--embedded", "--resume"), "--resume needs --run"),
        (("train", "x", "--embedded", "--model", "mon", "--gamma", "1"), "--gamma is for lben"),
        (("train", "x", "--data", "nowhere"), "'nowhere' is not a folder"),
        (("train", "x", "--data", ".", "--embedded"), "exclude each other"),
        (("train", "nowhere/x", "--embedded"), "directory that exists"),
        (("reproduce", "mnist", "x", "--quick", "--jobs", "0"), "--jobs must be"),
        (("reproduce", "mnist", "x", "--quick", "--data", "."), "give it no --data"),
        (("reproduce", "mnist", f"{__file__}/x", "--quick"), "cannot be made"),
        (("reproduce", "svhn", "x", "--quick", "--third"), "exclude each other"),
        (("reproduce", "regions", f"{__file__}/x"), "cannot be made"),
        (("report", "."), "no run.json"),
    ],
)
def test_errors_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    said = call(*arguments, code=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1
