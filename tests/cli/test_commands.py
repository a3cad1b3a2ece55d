"""The command line, as a user calls it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import typer
from torch import nn

import lben
from lben.__main__ import main
from lben.experiments.mnist import quick, rows
from lben.experiments.running import read_description, slug
from tests.problems import few_images


def call(*arguments: str, code: int = 0) -> str:
    """Run what `lben` runs, in this process; its output, and its errors if it fails as it should."""
    output, errors, returned = StringIO(), StringIO(), 0
    environment = patch.dict(os.environ, {"COLUMNS": "120", "HOME": "/nowhere"})
    with environment, patch.object(sys, "argv", ["lben", *arguments]), redirect_stdout(output), redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            if isinstance(end.code, str):
                errors.write(f"{end.code}\n")
            returned = 1 if isinstance(end.code, str) else int(end.code or 0)
    assert returned == code, output.getvalue() + errors.getvalue()
    return output.getvalue() + errors.getvalue()


def call_apart(*arguments: str) -> str:
    """Run `python -m lben` with next to no environment; its output."""
    run = subprocess.run(
        [sys.executable, "-m", "lben", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
            "PATH": "",
            "HOME": "/nowhere",
            "PYTHONPATH": str(Path(lben.__file__).parent.parent),
        },
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    said = call_apart(
        "train", str(folder / "net"), "--embedded", "--gamma", "1", "--hidden", "20", "--epochs", "1",
        "--run", str(folder / "run"),
    )  # fmt: skip
    assert "Test error" in said
    return folder


def test_help_names_every_command() -> None:
    said = call("--help")
    networks, others = ("train", "evaluate", "certify", "attack", "predict"), ("import", "reproduce", "report")
    for command in (*networks, "export", "page", *others):
        assert command in said
        assert "--help" in call(command, "--help")


def test_every_option_has_a_help_text() -> None:
    from lben.cli.main import app

    def commands(command: Any) -> Iterator[Any]:
        yield command
        for other in getattr(command, "commands", {}).values():
            yield from commands(other)

    found = list(commands(typer.main.get_command(app)))
    assert len(found) == 15
    for command in found:
        assert command.help, command.name
        for parameter in command.params:
            assert parameter.help, (command.name, parameter.name)


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


def test_a_run_with_another_bound_or_other_data_is_refused(trained: Path) -> None:
    """It went on from the checkpoint, said the error of that, and wrote a network with another bound."""
    options = ["--embedded", "--hidden", "20", "--epochs", "1", "--run", str(trained / "run"), "--resume"]
    said = call("train", str(trained / "other"), *options, "--gamma", "0.2", code=1)
    assert "another run: gamma is 1.0 there and 0.2 here. Use another" in said.replace("\n", " ")
    assert not (trained / "other").exists()


def test_nothing_is_overwritten_unless_told_to(trained: Path) -> None:
    before = (trained / "net").read_bytes()
    assert "--force overwrites it" in call("train", str(trained / "net"), "--embedded", code=1)
    said = call("train", str(trained / "new"), "--embedded", "--run", str(trained / "run"), code=1)
    assert "checkpoint.safetensors' is there already" in said
    assert (trained / "net").read_bytes() == before
    short = ["--embedded", "--epochs", "1", "--hidden", "5"]
    call("train", str(trained / "forced"), *short)
    call("train", str(trained / "forced"), *short, "--seed", "1", "--force")


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the end of a second epoch, whose checkpoint is not written yet."""
    lines = iter(range(2))

    def line(bar: object, words: str) -> None:
        if next(lines) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("lben.progress._RichBar.line", line)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("folder", [True, False])
def test_ctrl_c_says_how_to_go_on_with_a_training(folder: bool, tmp_path: Path) -> None:
    command = ["train", str(tmp_path / "net"), "--embedded", "--epochs", "5", "--hidden", "5"]
    said = call(*command, *["--run", str(tmp_path / "run")] * folder, code=130)
    assert ("--resume goes on from the last whole epoch" if folder else "nothing is kept without --run") in said
    assert not (tmp_path / "net").exists()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_says_how_to_go_on_with_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lben.experiments.mnist.embedded_mnist", lambda: few_images(200, 12))
    said = call("reproduce", "mnist", str(tmp_path), "--recipe", "ours", "--quick", "--jobs", "1", code=130)
    assert said == "Interrupted. The same command goes on from here.\n"
    assert "--recipe ours" in read_description(tmp_path).command
    row, *others = quick(rows("ours"))
    assert [path.parent.name for path in tmp_path.glob("*/checkpoint.safetensors")] == [slug(row.name)]
    history = row.train(row.network(), few_images(200, 12), tmp_path / slug(row.name), progress=False)
    assert len(history) == row.config.epochs
    assert not any((tmp_path / slug(other.name)).exists() for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("folder", [True, False])
def test_an_interrupted_training_says_how_to_go_on(folder: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lben", "train", "net", "--embedded", "--epochs", "5000", "--hidden", "5"]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test in the background would not
    with subprocess.Popen(
        command + ["--run", "run"] * folder, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    ) as process:
        assert process.stderr is not None
        assert "epoch 1 of 5000" in process.stderr.readline()
        process.stderr.readline()  # the checkpoint of the first epoch is written now
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert ("--resume goes on from the last whole epoch" if folder else "nothing is kept without --run") in said
    assert not (tmp_path / "net").exists()


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    said = call("train", str(tmp_path / "net"), "--embedded", "--learning-rate", "1e9", "--hidden", "5", code=1)
    assert "Training diverged in epoch 1 of 10" in said
    assert "lower the learning rate" in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("metric", "gamma", "code"), [("channel", "1", 0), ("pixel", "1e-6", 1)])
def test_certify_takes_convolutional_networks(metric: lben.Metric, gamma: str, code: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    solver = lben.ForwardBackward() if metric == "pixel" else None
    lben.save(lben.ConvLBEN((1, 4, 4), 1, 2, gamma=1.0, metric=metric, solver=solver), tmp_path / "net")
    said = call("certify", str(tmp_path / "net"), "--gamma", gamma, code=code)
    assert f"at most {float(gamma):g} times" in said
    assert "Tightest: " in said
    assert "at least" in said


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    front = nn.Sequential(nn.Conv2d(1, 2, 4, stride=4), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    head = lben.LBEN(98, 8, 10, gamma=1.0)
    lben.save(lben.Sequential(lben.Normalize(0.1307, 0.3081), front, head, in_shape=(1, 28, 28)), tmp_path / "net")
    return tmp_path / "net"


def test_a_stack_is_taken_as_a_network_is(stack: Path) -> None:
    assert "of 1,000 images" in call("evaluate", str(stack), "--embedded")
    said = call("certify", str(stack), "--unit", "pixels")
    assert "1.0 Conv2d, with 1.1 BatchNorm2d (the norm of both as one)" in said
    assert "Tightest: " in said


@pytest.mark.slow
def test_a_stack_is_attacked_as_a_network_is(stack: Path) -> None:
    attacked = call(
        "attack", str(stack), "--embedded", "--size", "1", "--images", "20", "--steps", "3",
        "--restarts", "1",
    )  # fmt: skip
    assert "0.3081" in attacked
    assert "at most, proved" in attacked


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="This system has no /dev/full")
class TestAFullDisk:
    """It is one sentence."""

    @pytest.mark.slow
    @pytest.mark.parametrize("command", [["--version"], ["certify", "--help"]])
    def test_apart(self, command: list[str]) -> None:
        with Path("/dev/full").open("w") as full:
            run = subprocess.run(
                [sys.executable, "-m", "lben", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (run.returncode, run.stderr) == (1, "Error: No space left on device.\n")

    def test_here(self) -> None:
        arguments = patch.object(sys, "argv", ["lben", "certify", "--help"])
        told = pytest.raises(SystemExit, match=r"^Error: No space left on device\.$")
        with Path("/dev/full").open("w") as full, arguments, redirect_stdout(full), told:
            main()


@pytest.mark.slow
def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "lben", "--version"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (1, b"")


def test_version() -> None:
    assert call("--version").strip() == f"lben {lben.__version__}"


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
        (("train", "x", "--embedded", "--hidden", "-3"), "--hidden must be an integer of at least 1, not -3"),
        (("train", "x", "--embedded", "--hidden", "9" * 30), "--hidden must be at most 20,000"),
        (("train", "x", "--embedded", "--margin", "nan"), "margin must be a finite number, not nan"),
        (("attack", "x", "--embedded", "--size", "1", "--images", "-5"), "--images must be an integer of at least 1"),
        (("attack", "x", "--embedded", "--size", "-1"), "--size must be a finite number of at least 0, not -1"),
        (("attack", "x", "--embedded", "--size", "nan"), "--size must be a finite number of at least 0, not nan"),
        (("reproduce", "mnist", "x", "--quick", "--jobs", "0"), "--jobs must be"),
        (("reproduce", "mnist", "x", "--quick", "--data", "."), "give it no --data"),
        (("reproduce", "mnist", f"{__file__}/x", "--quick"), "cannot be made"),
        (("reproduce", "svhn", "x", "--quick", "--third"), "exclude each other"),
        (("reproduce", "svhn", "x", "--quick", "--only", "UNC"), "There is no row 'UNC', but MON, LBEN"),
        (("reproduce", "layers", "x", "--quick", "--only", "Cayley"), "There is no row 'Cayley', but plain, ortho"),
        (("reproduce", "layers", "x", "--data", "nowhere"), "'nowhere' is not a folder"),
        (("reproduce", "regions", f"{__file__}/x"), "cannot be made"),
        (("report", "."), "no run.json"),
    ],
)
def test_errors_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    said = call(*arguments, code=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1
