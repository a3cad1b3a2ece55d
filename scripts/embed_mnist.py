"""Choose the part of MNIST that ships with the package: 6,000 train and 1,000 test images, stratified.

    python scripts/embed_mnist.py DIRECTORY

DIRECTORY holds the four official idx files, gzipped or not. Run once; the result is committed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEED = 0
TARGET = Path(__file__).parent.parent / "src" / "lben" / "data" / "mnist.npz"
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def read(directory: Path, name: str) -> NDArray[np.uint8]:
    """The entries of an idx file, its content checked; images come as rows of 784."""
    plain, zipped = directory / name, directory / f"{name}.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(zipped.read_bytes())
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise SystemExit(f"{name} in {directory} is not the official file.")
    images = "images" in name
    data = np.frombuffer(content, dtype=np.uint8, offset=16 if images else 8)
    return data.reshape(-1, 784) if images else data


def stratified(labels: NDArray[np.uint8], size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices of `size` images, as many of each digit as its share of all, to the nearest."""
    share = np.bincount(labels, minlength=10) * size / len(labels)
    counts = np.floor(share).astype(int)
    counts[np.argsort(counts - share)[: size - counts.sum()]] += 1
    chosen = [rng.choice(np.flatnonzero(labels == digit), counts[digit], replace=False) for digit in range(10)]
    return np.sort(np.concatenate(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    rng = np.random.default_rng(SEED)
    arrays: dict[str, NDArray[np.uint8]] = {}
    for part, prefix, size in (("train", "train", 6000), ("test", "t10k", 1000)):
        images = read(directory, f"{prefix}-images-idx3-ubyte")
        labels = read(directory, f"{prefix}-labels-idx1-ubyte")
        index = stratified(labels, size, rng)
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images[index], labels[index]
    np.savez_compressed(
        TARGET,
        train_images=arrays["train_images"],
        train_labels=arrays["train_labels"],
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"],
    )
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
