"""CIFAR-10: found as files and as an archive, read pixel by pixel, and refused by name when damaged."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import lben
from lben.data import ENVIRONMENT, cifar10
from lben.data import sources as data

NAMES = list(data._CIFAR10)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data of this machine, mirrors that refuse at once, and files of four images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr(data, "_MIRRORS", {"cifar10": ("http://127.0.0.1:9/",)})
    monkeypatch.setattr(data, "_CIFAR10", dict.fromkeys(NAMES, 4))


def contents() -> dict[str, bytes]:
    draw = np.random.default_rng(0)
    rows = {name: draw.integers(0, 256, (4, 3073), dtype=np.uint8) for name in NAMES}
    for index, array in enumerate(rows.values()):
        array[:, 0] = [index, 9, 0, 1]
    return {name: array.tobytes() for name, array in rows.items()}


def write(folder: Path, *, packed: bool = False, files: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = contents() if files is None else files
    if not packed:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder
    with tarfile.open(folder / data._CIFAR10_ARCHIVE, "w:gz") as archive:
        for name, content in {"readme.html": b"<p>", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inside", ["", "cifar10", "cifar-10-batches-bin"])
def test_files_and_archive_are_found_and_read(tmp_path: Path, inside: str, packed: bool) -> None:
    write(tmp_path / "here" / inside, packed=packed)
    found = cifar10(tmp_path / "here")
    assert found.train_images.shape == (20, 3 * 32 * 32)
    assert found.train_labels.tolist() == [label for index in range(5) for label in (index, 9, 0, 1)]
    assert found.test_labels.tolist() == [5, 9, 0, 1]
    assert found.train_images.dtype == torch.uint8
    third = np.frombuffer(contents()["data_batch_2.bin"], np.uint8)[2 * 3073 + 1 : 3 * 3073]
    assert np.array_equal(found.train_images[6].numpy(), third)
    green = found.train_images[6].reshape(3, 32, 32)[1, 2, 3]
    assert green == third[1024 + 2 * 32 + 3]


def test_nothing_of_an_archive_is_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", packed=True)
    cifar10(folder)
    assert [file.name for file in folder.iterdir()] == [data._CIFAR10_ARCHIVE]


def test_environment_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cache" / "lben" / "cifar10", packed=True)
    assert len(cifar10()) == 20
    monkeypatch.setenv(ENVIRONMENT, str(write(tmp_path / "there")))
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(cifar10()) == 20


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-1], r"should have 12,292 bytes, but has 12,291"),
        (lambda content: content + b"\0", r"should have 12,292 bytes, but has more"),
        (lambda content: bytes([10]) + content[1:], "labels from 0 to 9, but has 10"),
    ],
    ids=["cut", "long", "label"],
)
def test_damaged_files_are_refused_by_name(
    tmp_path: Path, packed: bool, change: Callable[[bytes], bytes], words: str
) -> None:
    files = contents()
    files[NAMES[3]] = change(files[NAMES[3]])
    folder = write(tmp_path / "here", packed=packed, files=files)
    with pytest.raises(lben.InvalidFile, match=rf"{NAMES[3]}.*{words}"):
        cifar10(folder)


@pytest.mark.parametrize("damage", ["cut", "text", "missing"])
def test_a_damaged_archive_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    files = contents()
    if damage == "missing":
        del files[NAMES[1]]
    path = write(tmp_path / "here", packed=True, files=files) / data._CIFAR10_ARCHIVE
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "text": b"not this", "missing": content}[damage])
    with pytest.raises(lben.InvalidFile, match=data._CIFAR10_ARCHIVE):
        cifar10(tmp_path / "here")


@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    (write(tmp_path / "here") / NAMES[0]).unlink()
    words = r"does not hold CIFAR10: data_batch_1.bin, .*, or cifar-10-binary.tar.gz were .* cifar-10-batches-bin\.$"
    with pytest.raises(lben.DataNotFound, match=words):
        cifar10(tmp_path / "here")
    with pytest.raises(lben.DataNotFound, match=r"cifar-10-binary\.tar\.gz of CIFAR10 is not at hand"):
        cifar10()
    with pytest.raises(lben.InvalidInput, match="is not a folder"):
        cifar10(tmp_path / "nowhere")
