"""Data sets from their official files, found in a folder, in the cache, or downloaded."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import tarfile
import zlib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lben.checks import need
from lben.data.records import ImageData
from lben.errors import DataNotFound, InvalidFile, InvalidInput

MNIST_MEAN = 0.1307
"""Of the pixels, in [0, 1], of the training set of MNIST, for ``lben.Normalize(MNIST_MEAN, MNIST_STD)``."""

MNIST_STD = 0.3081
"""The standard deviation of the same pixels as ``MNIST_MEAN``."""

SVHN_MEAN = 0.4514
"""Of the pixels, in [0, 1], of the training set of SVHN, of all colours together, so that one length is one."""

SVHN_STD = 0.1993
"""The standard deviation of the same pixels as ``SVHN_MEAN``."""

CIFAR10_MEAN = 0.4734
"""Of the pixels, in [0, 1], of the training set of CIFAR-10, of all colours together, so that one length is one."""

CIFAR10_STD = 0.2516
"""The standard deviation of the same pixels as ``CIFAR10_MEAN``."""

ENVIRONMENT = "LBEN_DATA"
"""The environment variable that names the folder with the data sets."""

_MNIST = {  # SHA-256 of the files as they are inside their gzip containers, which differ between mirrors
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_LARGEST_IDX = 16 + 60_000 * 784
_SVHN = {"train_32x32.mat": 73_257, "test_32x32.mat": 26_032}  # and how many images each holds
_CIFAR10 = {**{f"data_batch_{number}.bin": 10_000 for number in range(1, 6)}, "test_batch.bin": 10_000}
_CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR10_ROW = 1 + 3 * 32 * 32  # bytes: the class, then the pixels, colour by colour
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "svhn": ("svhn", "SVHN/raw"),
    "cifar10": ("cifar10", "cifar-10-batches-bin"),
}
_MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "svhn": ("http://ufldl.stanford.edu/housenumbers/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}


def embedded_mnist() -> ImageData:
    """The part of MNIST that ships with the package: 6,000 train and 1,000 test images, stratified by digit.

    MNIST: LeCun, Cortes, Burges; CC BY-SA 3.0.

    Returns:
        An `ImageData`, of bytes.

    Examples:
        >>> digits = lben.data.embedded_mnist()
        >>> digits.train_images.shape, digits.train_images.dtype, len(digits.test_labels)
        (torch.Size([6000, 784]), torch.uint8, 1000)
    """
    with resources.files("lben.data").joinpath("mnist.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        return ImageData(
            torch.from_numpy(arrays["train_images"]),
            torch.from_numpy(arrays["train_labels"].astype(np.int64)),
            torch.from_numpy(arrays["test_images"]),
            torch.from_numpy(arrays["test_labels"].astype(np.int64)),
        )


def mnist(root: str | Path | None = None) -> ImageData:
    """MNIST, from its four idx files, gzipped or not: 60,000 train and 10,000 test images of 28 x 28 pixels.

    Each place is looked at with its subfolders `mnist` and `MNIST/raw`.

    Args:
        root: the folder to look in, alone; None: the folder that the environment variable LBEN_DATA names, then the
            user's cache, and where neither has the files they are downloaded to the cache (extra `experiments`).

    Returns:
        An `ImageData`, of bytes.

    Raises:
        DataNotFound: if the files are not there and cannot be downloaded.
        InvalidFile: if one is damaged.
        InvalidInput: if root is no folder.

    Examples:
        ``lben.data.mnist().train_images`` has shape (60000, 784). A folder without the files is named.

        >>> try:
        ...     lben.data.mnist(".")
        ... except lben.DataNotFound:
        ...     print("set LBEN_DATA")
        set LBEN_DATA
    """
    files = _find("mnist", [_MNIST], root, suffix=".gz")
    parts = {name: _idx(path, _MNIST[name]) for name, path in files.items()}
    images = {part: parts[f"{part}-images-idx3-ubyte"].reshape(-1, 784) for part in ("train", "t10k")}
    labels = {part: parts[f"{part}-labels-idx1-ubyte"].to(torch.int64) for part in ("train", "t10k")}
    return ImageData(images["train"], labels["train"], images["t10k"], labels["t10k"])


def svhn(root: str | Path | None = None) -> ImageData:
    """Cropped SVHN, from `train_32x32.mat` and `test_32x32.mat`: rows of 3 x 32 x 32 bytes, channel by channel.

    Each place is looked at with its subfolders `svhn` and `SVHN/raw`. Reading needs scipy (extra `experiments`).

    Args:
        root: the folder to look in, alone; None: the folder that the environment variable LBEN_DATA names, then the
            user's cache, and where neither has the files they are downloaded to the cache (extra `experiments`).

    Returns:
        An `ImageData`, of bytes.

    Raises:
        DataNotFound: if the files are not there and cannot be downloaded.
        InvalidFile: if one is damaged.
        InvalidInput: if root is no folder.

    Examples:
        ``lben.data.svhn().train_images`` has shape (73257, 3072). A folder without the files is named.

        >>> try:
        ...     lben.data.svhn(".")
        ... except lben.DataNotFound:
        ...     print("set LBEN_DATA")
        set LBEN_DATA
    """
    files = _find("svhn", [_SVHN], root)
    (train_images, train_labels), (test_images, test_labels) = (_mat(files[name], _SVHN[name]) for name in _SVHN)
    return ImageData(train_images, train_labels, test_images, test_labels)


def cifar10(root: str | Path | None = None) -> ImageData:
    """CIFAR-10, from `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, or the official archive of them.

    50,000 train and 10,000 test images, rows of 3 x 32 x 32 bytes, colour by colour. Each place is looked at with its
    subfolders `cifar10` and `cifar-10-batches-bin`; the archive, `cifar-10-binary.tar.gz`, is read as it is.

    Args:
        root: the folder to look in, alone; None: the folder that the environment variable LBEN_DATA names, then the
            user's cache, and where neither has the files they are downloaded to the cache (extra `experiments`).

    Returns:
        An `ImageData`, of bytes.

    Raises:
        DataNotFound: if the files are not there and cannot be downloaded.
        InvalidFile: if one is damaged.
        InvalidInput: if root is no folder.

    Examples:
        ``lben.data.cifar10().train_images`` has shape (50000, 3072). A folder without the files is named.

        >>> try:
        ...     lben.data.cifar10(".")
        ... except lben.DataNotFound:
        ...     print("set LBEN_DATA")
        set LBEN_DATA
    """
    files = _find("cifar10", [_CIFAR10, [_CIFAR10_ARCHIVE]], root)
    contents = _packed(files[_CIFAR10_ARCHIVE]) if _CIFAR10_ARCHIVE in files else _unpacked(files)
    images, labels = zip(*(_batch(name, *contents[name]) for name in _CIFAR10), strict=True)
    return ImageData(torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1])


def _find(dataset: str, choices: list[Iterable[str]], root: str | Path | None, suffix: str = "") -> dict[str, Path]:
    """A path for every name of one of the choices, from the first folder that has them; else the last, downloaded."""
    if root is not None:
        if not isinstance(root, str | Path) or not Path(root).is_dir():
            raise InvalidInput(f"The data folder {str(root)!r} is not a folder.")
        found = _look(dataset, choices, root)
        if found is None:
            either = f", or the same with {suffix}," if suffix else ""
            words = ", or ".join(", ".join(names) for names in choices)
            raise DataNotFound(
                f"{str(root)!r} does not hold {dataset.upper()}: {words}{either} were looked for there and "
                f"in its subfolders {' and '.join(_FOLDERS[dataset])}."
            )
        return found
    named = os.environ.get(ENVIRONMENT)
    found = _look(dataset, choices, named) if named else None
    if found is not None:
        return found
    pooch = need("pooch", f"To download {dataset.upper()}", extra="experiments")
    cache = Path(pooch.os_cache("lben"))
    found = _look(dataset, choices, cache)
    return found or {name: _download(pooch, dataset, name + suffix, cache / dataset) for name in choices[-1]}


def _look(dataset: str, choices: list[Iterable[str]], base: str | Path) -> dict[str, Path] | None:
    """A path for every name of one choice in this folder or one of its subfolders; None if none has them all."""
    for names in choices:
        for folder in (Path(base), *(Path(base, inside) for inside in _FOLDERS[dataset])):
            paths = {name: (folder / name, folder / f"{name}.gz") for name in names}
            found = {name: path for name, both in paths.items() for path in both if path.is_file()}
            if len(found) == len(paths):
                return found
    return None


def _download(pooch: object, dataset: str, name: str, folder: Path) -> Path:
    """One file from the first mirror that answers, with a progress bar."""
    reasons = []
    for mirror in _MIRRORS[dataset]:
        try:
            downloader = pooch.HTTPDownloader(progressbar=_Bar(name), timeout=30)  # type: ignore[attr-defined]
            path = pooch.retrieve(  # type: ignore[attr-defined]
                mirror + name, known_hash=None, fname=name, path=folder, downloader=downloader
            )
        except OSError as error:  # what requests raises: no network, no such page
            reasons.append(f"{mirror}: {type(error).__name__}")
        else:
            return Path(path)
    raise DataNotFound(
        f"{name} of {dataset.upper()} is not at hand and could not be downloaded ({'; '.join(reasons)}): put its files "
        f"into a folder and name that in the environment variable {ENVIRONMENT}, or put them into {folder}."
    )


class _Bar:
    """A progress bar as pooch wants it, drawn by rich."""

    def __init__(self, name: str) -> None:
        progress = need("rich.progress", "A download", extra="experiments").Progress()
        self._progress, self._task = progress, progress.add_task(name, total=None)
        progress.start()

    @property
    def total(self) -> int:
        return int(self._progress.tasks[0].total or 0)

    @total.setter
    def total(self, value: int) -> None:
        self._progress.update(self._task, total=value)

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()


def _idx(path: Path, checksum: str) -> Tensor:
    """The array of bytes in an idx file, gzipped or not, if its content is the one expected."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST_IDX + 1)  # and no more: a few bytes may unpack to more than memory holds
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidFile(f"{path} cannot be read: it is truncated or damaged ({error}).") from error
    if len(content) > _LARGEST_IDX or hashlib.sha256(content).hexdigest() != checksum:
        raise InvalidFile(f"{path} is not the file it should be, by the checksum of its content: remove or replace it.")
    sizes = [int.from_bytes(content[4 + 4 * k : 8 + 4 * k], "big") for k in range(content[3])]
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes).copy())


def _mat(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Images and labels of an SVHN file, in which the digit 0 has the label 10."""
    scipy_io = need("scipy.io", "The SVHN data set", extra="experiments")
    try:
        shapes = {name: shape for name, shape, _ in scipy_io.whosmat(path)}  # before anything is unpacked
        if shapes["X"] != (32, 32, 3, count) or math.prod(shapes["y"]) != count:
            raise ValueError(f"X has shape {shapes['X']} and y {shapes['y']}, but there should be {count} images")
        content = scipy_io.loadmat(path, variable_names=["X", "y"])
        images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1).astype(np.int64)
    except Exception as error:  # scipy raises whatever the damage leads to
        raise InvalidFile(f"{path} cannot be read as SVHN: it is truncated or damaged ({error}).") from error
    if images.shape != (32, 32, 3, count) or images.dtype != np.uint8 or labels.shape != (count,):
        raise InvalidFile(f"{path} should hold {count} images of 32 x 32 x 3 bytes, but X is {images.dtype}.")
    if labels.min() < 1 or labels.max() > 10:
        raise InvalidFile(f"{path} should hold labels from 1 to 10, but has {labels.min()} to {labels.max()}.")
    rows = np.ascontiguousarray(images.transpose(3, 2, 0, 1)).reshape(count, -1)
    return torch.from_numpy(rows), torch.from_numpy(labels % 10)


def _unpacked(files: dict[str, Path]) -> dict[str, tuple[Path, bytes]]:
    """The content of each file, and at most one byte more than it should have."""
    contents = {}
    for name, path in files.items():
        try:
            with path.open("rb") as file:
                contents[name] = path, file.read(_CIFAR10[name] * _CIFAR10_ROW + 1)
        except OSError as error:
            raise InvalidFile(f"{path} cannot be read ({error}).") from error
    return contents


def _packed(archive: Path) -> dict[str, tuple[Path, bytes]]:
    """The same from the archive, of which nothing is written to disk."""
    contents = {}
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for member in opened:
                name = Path(member.name).name
                file = opened.extractfile(member) if name in _CIFAR10 else None
                if file is not None:
                    contents[name] = archive, file.read(_CIFAR10[name] * _CIFAR10_ROW + 1)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise InvalidFile(f"{archive} cannot be read: it is truncated or damaged ({error}).") from error
    missing = [name for name in _CIFAR10 if name not in contents]
    if missing:
        raise InvalidFile(f"{archive} does not hold {missing[0]}: remove or replace it.")
    return contents


def _batch(name: str, path: Path, content: bytes) -> tuple[Tensor, Tensor]:
    """Images and labels of a file of CIFAR-10, rows of a label and 3 x 32 x 32 pixels."""
    words = f"{path}" if path.name == name else f"{name} in {path}"
    size = _CIFAR10[name] * _CIFAR10_ROW
    if len(content) != size:
        found = f"{len(content):,}" if len(content) < size else "more"
        raise InvalidFile(f"{words} should have {size:,} bytes, but has {found}: it is truncated or damaged.")
    rows = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, _CIFAR10_ROW).copy())
    if int(rows[:, 0].max()) > 9:
        raise InvalidFile(f"{words} should hold labels from 0 to 9, but has {int(rows[:, 0].max())}.")
    return rows[:, 1:].contiguous(), rows[:, 0].to(torch.int64)
