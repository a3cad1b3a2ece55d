"""`lben import`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lben
from tests.cli.test_commands import call
from tests.networks import published_files as files


def test_a_file_of_others_becomes_one_of_ours(tmp_path: Path) -> None:
    path, target = files.saved(tmp_path, files.dense_bounded(784), "fc_lip0.5_w7.params"), tmp_path / "net.safetensors"
    said = call("import", str(path), str(target))
    assert "Recognised: a dense LBEN with gamma, of the paper's authors; 784 inputs" in said
    assert "gamma = 0.5, from the name of the file." in said
    net, x = lben.load(target).eval(), torch.rand(3, 784, dtype=torch.float64)
    assert torch.equal(net(x), lben.import_checkpoint(path).net(x))
    assert lben.certify(net, 0.5)
    assert "--force overwrites it" in call("import", str(path), str(target), code=1)
    call("import", str(path), str(target), "--gamma", "0.25", "--mean", "0.5", "--std", "0.25", "--force")
    assert lben.load(target).gamma == 0.25
    assert lben.load(target).normalize.scale == 0.25


def test_images_may_have_any_size(tmp_path: Path) -> None:
    path, target = files.saved(tmp_path, files.conv_mon(2, (2, 4, 6))), tmp_path / "net.safetensors"
    call("import", str(path), str(target), "--image", "2", "4", "6", "--m", "0.5")
    assert lben.load(target).in_shape == (2, 4, 6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mean", "0.5"], "--mean and --std belong together"),
        ([], "neither in the file nor in its name: give gamma="),
        (["--gamma", "-1"], "gamma must be a finite number above 0"),
    ],
)
def test_nothing_is_written_of_what_is_refused(tmp_path: Path, options: list[str], words: str) -> None:
    path, target = files.saved(tmp_path, files.dense_bounded()), tmp_path / "net.safetensors"
    assert words in call("import", str(path), str(target), *options, code=1)
    path.write_bytes(b"damaged")
    call("import", str(path), str(target), "--gamma", "1", code=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.params"]
