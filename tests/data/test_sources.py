"""Data sets: found in order, checked, and refused by name when damaged."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

import lben
from lben.data import ENVIRONMENT, embedded_mnist, mnist, svhn
from lben.data import sources as data

NAMES = list(data._MNIST)
FULL = os.environ.get(ENVIRONMENT)  # before the fixture below hides it


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data of this machine: an empty cache, no setting, and mirrors that refuse at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr(data, "_MIRRORS", {"mnist": ("http://127.0.0.1:9/",), "svhn": ("http://127.0.0.1:9/",)})


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_small_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch, *, zipped: bool) -> dict[str, bytes]:
    """Four idx files with the right names and a few embedded images, whose checksums are made the expected ones."""
    small = embedded_mnist()
    arrays = [small.train_images[:20].reshape(-1, 28, 28), small.train_labels[:20]]
    arrays += [small.test_images[:10].reshape(-1, 28, 28), small.test_labels[:10]]
    contents = {name: idx(array.numpy()) for name, array in zip(NAMES, arrays, strict=True)}
    monkeypatch.setattr(data, "_MNIST", {n: hashlib.sha256(c).hexdigest() for n, c in contents.items()})
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / (name + ".gz" * zipped)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return contents


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inside", ["", "mnist", "MNIST/raw"])
def test_idx_files_are_found_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool, inside: str
) -> None:
    write_small_mnist(tmp_path / "here" / inside, monkeypatch, zipped=zipped)
    small, found = embedded_mnist(), mnist(tmp_path / "here")
    assert torch.equal(found.train_images, small.train_images[:20])
    assert torch.equal(found.test_labels, small.test_labels[:10])
    assert found.train_images.dtype == torch.uint8
    assert found.train_labels.dtype == torch.int64


def test_option_then_environment_then_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small_mnist(tmp_path / "cache" / "lben" / "mnist", monkeypatch, zipped=True)
    assert len(mnist().train_labels) == 20
    broken = {name: tmp_path / name for name in ("option", "environment")}
    for folder in broken.values():
        folder.mkdir()
        for name in NAMES:
            (folder / name).write_bytes(b"not this")
    monkeypatch.setenv(ENVIRONMENT, str(broken["environment"]))
    with pytest.raises(lben.InvalidFile, match="environment"):
        mnist()
    with pytest.raises(lben.InvalidFile, match="option"):
        mnist(broken["option"])


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, zipped: bool
) -> None:
    write_small_mnist(tmp_path, monkeypatch, zipped=zipped)
    path = tmp_path / (NAMES[2] + ".gz" * zipped)
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"cut": content[:middle], "changed": flipped, "empty": b""}[damage])
    with pytest.raises(lben.InvalidFile, match=NAMES[2]):
        mnist(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_off_line_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(lben.DataNotFound, match=ENVIRONMENT) as caught:
        mnist()
    assert str(tmp_path / "cache" / "lben" / "mnist") in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(lben.DataNotFound, match="SVHN"):
        svhn()
    with pytest.raises(lben.InvalidInput, match="is not a folder"):
        mnist(tmp_path / "nowhere")


def test_a_folder_without_the_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for is looked for there and nowhere else."""
    write_small_mnist(tmp_path / "elsewhere", monkeypatch, zipped=True)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "elsewhere"))
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / NAMES[0]).touch()
    with pytest.raises(lben.DataNotFound, match=rf"empty' does not hold MNIST: {NAMES[0]}, .* or the same with \.gz"):
        mnist(empty)
    with pytest.raises(lben.DataNotFound, match=r"empty' does not hold SVHN: train_32x32.mat, test_32x32.mat were"):
        svhn(empty)
    with pytest.raises(lben.InvalidInput, match="is not a folder"):
        mnist(3)  # type: ignore[arg-type]
    assert len(mnist().train_labels) == 20


def test_local_files_need_no_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small_mnist(tmp_path / "here", monkeypatch, zipped=True)
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(mnist(tmp_path / "here").train_labels) == 20
    with pytest.raises(lben.MissingExtra, match="To download MNIST needs pooch"):
        mnist()
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "here"))
    assert len(mnist().train_labels) == 20


def test_no_more_is_unpacked_than_the_largest_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two megabytes that unpack to two gigabytes are refused after what a file of MNIST may hold."""
    write_small_mnist(tmp_path, monkeypatch, zipped=True)
    (tmp_path / f"{NAMES[0]}.gz").write_bytes(gzip.compress(bytes(2**20)) * 2000)
    tracemalloc.start()
    with pytest.raises(lben.InvalidFile, match=NAMES[0]):
        mnist(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 4 * data._LARGEST_IDX
    tracemalloc.stop()


def test_damage_anywhere_in_an_svhn_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever scipy makes of flipped bits: images of the right shape, or InvalidFile."""
    write_small_svhn(tmp_path, monkeypatch)
    path, draw = tmp_path / "train_32x32.mat", random.Random(0)
    content = path.read_bytes()
    for _ in range(150):
        changed = bytearray(content)
        changed[draw.randrange(300 if draw.random() < 0.8 else len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(changed))
        with suppress(lben.InvalidFile):
            assert svhn(tmp_path).train_images.shape == (5, 3072)


def write_small_svhn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    labels = np.array([[10], [1], [2], [9], [10]])
    monkeypatch.setattr(data, "_SVHN", dict.fromkeys(data._SVHN, 5))
    for name in data._SVHN:
        scipy.io.savemat(folder / name, {"X": images, "y": labels})
    return images


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_small_svhn(tmp_path, monkeypatch)
    found = svhn(tmp_path)
    assert found.train_labels.tolist() == [0, 1, 2, 9, 0]
    assert found.test_images.shape == (5, 3 * 32 * 32)
    first = found.train_images[3].reshape(3, 32, 32).numpy()
    assert np.array_equal(first[1], images[:, :, 1, 3])


@pytest.mark.parametrize("damage", ["cut", "few", "labels"])
def test_damaged_svhn_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    images = write_small_svhn(tmp_path, monkeypatch)
    path = tmp_path / "test_32x32.mat"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:300])
    elif damage == "few":
        scipy.io.savemat(path, {"X": images[..., :3], "y": np.ones((3, 1))})
    else:
        scipy.io.savemat(path, {"X": images, "y": np.full((5, 1), 11)})
    with pytest.raises(lben.InvalidFile, match="test_32x32"):
        svhn(tmp_path)


@pytest.mark.skipif(FULL is None, reason=f"the full MNIST is not at hand: set {ENVIRONMENT}")
def test_full_mnist() -> None:
    found = mnist(FULL)
    assert found.train_images.shape == (60_000, 784)
    assert found.test_images.shape == (10_000, 784)
    assert torch.bincount(found.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
