"""Models on disk: the same network comes back, and nothing else ever does."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import lben
from lben import files

NETWORKS: list[lben.EquilibriumNetwork] = [
    lben.LBEN(8, 6, 3, gamma=0.5, epsilon=0.25, normalize=lben.Normalize(0.1307, 0.3081)),
    lben.LBEN(8, 6, 3, activation=lben.LeakyReLU(0.2), solver=lben.Newton(tolerance=1e-6)),
    lben.MON(8, 6, 3, activation=lben.ELU(0.5), solver=lben.FISTA(alpha=0.02, on_failure="warn")),
    lben.UnconstrainedEN(8, 6, 3, solver=lben.Anderson(method=lben.DouglasRachford(alpha=0.5), memory=3)),
    lben.LBEN(8, 4, 3, gamma=2.0, activation=lben.PerUnit([lben.ReLU(), lben.Tanh()] * 2)).double(),
    lben.MON(2, 4, 3, normalize=lben.Normalize([0.1, 0.2], [1.0, 2.0])),
]


@pytest.mark.parametrize("net", NETWORKS, ids=lambda net: repr(net.activation))
def test_what_is_saved_comes_back(net: lben.EquilibriumNetwork, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    lben.save(net, path)
    again = lben.load(path)
    assert repr(again) == repr(net)
    assert type(again) is type(net)
    assert again.solver == net.solver
    assert again.activation == net.activation
    for (name, first), (other, second) in zip(net.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(first, second)
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    lben.save(NETWORKS[0], path)
    return path


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    for length in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(lben.InvalidFile, match=r"net\.safetensors"):
            lben.load(path)


def test_every_tampering_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    for where in range(40, len(content), max(1, len(content) // 150)):
        changed = bytearray(content)
        changed[where] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(lben.InvalidFile):
            lben.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with pytest.raises(lben.InvalidFile, match="is not a file"):
        lben.load(path)
    path.write_text("hello")
    with pytest.raises(lben.InvalidFile, match="not a whole safetensors file"):
        lben.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(lben.InvalidFile):
        lben.load(path)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(lben.InvalidFile, match="not written by lben"):
        lben.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "has format 99"),
        ({"network": "os.system"}, "does not describe a network"),
        ({"activation": {"name": "GELU"}}, "GELU"),
        ({"activation": {"name": "Elementwise", "fn": "print"}}, "Elementwise"),
        ({"activation": {"name": "ELU", "a": 5}}, "slope 5"),
        ({"solver": {"name": "Solver"}}, "Solver"),
        ({"sizes": [8, 7, 3]}, "does not describe a network"),
        ({"gamma": -1}, "gamma"),
    ],
)
def test_a_consistent_lie_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    """A file whose checksum was made to fit, but whose description does not make a network."""
    path = tmp_path / "net.safetensors"
    net = NETWORKS[0]
    tensors = dict(net.state_dict())
    text = json.dumps({"format": files.FORMAT, **files._describe(net), **change}, sort_keys=True)
    save_file(tensors, path, metadata={"lben": text, "sha256": files._digest(text, tensors)})
    with pytest.raises(lben.InvalidFile, match=words):
        lben.load(path)


def test_others_may_read_what_is_saved(tmp_path: Path) -> None:
    """The file has the mode of any new file, not that of a private temporary one."""
    other = tmp_path / "other"
    other.touch()
    assert saved(tmp_path).stat().st_mode == other.stat().st_mode


def test_subclasses_are_not_saved_as_their_parents(tmp_path: Path) -> None:
    class Mine(lben.LBEN):
        pass

    class Other(lben.ReLU):
        pass

    for net in (Mine(8, 6, 3), lben.LBEN(8, 6, 3, activation=Other())):
        with pytest.raises(lben.InvalidInput, match=r"lben\.save writes"):
            lben.save(net, tmp_path / "net")


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(lben.InvalidInput, match="disk full"):
        lben.save(NETWORKS[1], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def test_code_is_never_saved(tmp_path: Path) -> None:
    net = lben.LBEN(8, 6, 3, activation=lben.Elementwise(torch.tanh))
    with pytest.raises(lben.InvalidInput, match="Python code"):
        lben.save(net, tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())
