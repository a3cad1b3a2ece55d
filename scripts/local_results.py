"""Local radii on MNIST's test images: a table of certified accuracy, and a search for what would contradict a radius.

    python scripts/local_results.py table [--images 10000] [--folder docs/results/mnist-local] [--networks ...]
    python scripts/local_results.py corners [--images 10000] [--folder ...] [--networks ...]
    python scripts/local_results.py verified [--images 1000] [--sizes 0.3 ...] [--seconds 3] [--networks ...]
    python scripts/local_results.py certified [--images 10000] [--seconds 3]
    python scripts/local_results.py soundness [--images 2000] [--folder ...] [--networks ...]

MNIST is found as `lben.data.mnist` finds it. What is done is written chunk by chunk, and not done again: start it again
with the same folder and it goes on. `table` writes table.json; `corners` corners.json, of radii in the l-infinity norm;
`verified` verified.json: what `lben.verify` decides of the first images, in the pixel range. `soundness` writes
soundness.json, and ends with an error if any attack succeeded within a radius. index.md has the tables of all of them.
`certified` is about the two networks of recipe `certified`, and writes verified.json beside them: how many images
global bounds prove at the size a network is for, and what `lben.verify` decides of those that they nearly prove.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lben
from lben.certify.verify import Status
from lben.data import mnist, pixels
from lben.disk import write_bytes
from lben.experiments.measure import RADII
from lben.experiments.nearby import CORNERS

NETWORKS = {
    "mnist-gamma-0.2": "LBEN, γ = 0.2",
    "mnist-gamma-0.4": "LBEN, γ = 0.4",
    "mnist-gamma-0.8": "LBEN, γ = 0.8",
    "mnist-gamma-1": "LBEN, γ = 1",
    "mnist-gamma-5": "LBEN, γ = 5",
    "mnist-gamma-none": "LBEN, γ < ∞",
    "mnist-mon": "MON",
}
TOLERANCES = (1e-2, 1e-4, 1e-6, 1e-8)
METHODS: tuple[lben.attacks.AttackMethod, ...] = ("fgm", "pgd", "deepfool")
CHUNK, STEPS = 250, 20
CERTIFIED = {"for-0.3-pixels": 0.3, "for-1.58-pixels": 1.58}
NEAREST = 0.95  # of a size, from where on images are nearly proved
STATES: tuple[Status, ...] = ("proved", "attacked", "undecided")
SECONDS = 3.0  # an image, if not said otherwise
WIDE = (-20.0, 21.0)  # in place of the pixel range: attacks that may leave it, as the certificates allow
KINDS = ("global", "local", "attacked", "attacked, beyond the pixel range")
CUBES = ("global / sqrt(d)", "local / sqrt(d)", "local")


def chunks(images: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The test images, a few at a time, with the number of the first."""
    data = mnist()
    for start in range(0, images, CHUNK):
        part = slice(start, min(start + CHUNK, images))
        yield start, pixels(data.test_images[part]), data.test_labels[part]


def counted(net: Any, x: Tensor, y: Tensor) -> dict[str, Any]:
    """How many of some images keep their class at each of RADII."""
    everywhere = lben.certified_radius(net, x, y, domain="pixels").radius
    started = time.process_time()
    around = lben.certified_radius(net, x, y, domain="pixels", local=True).radius
    seconds = time.process_time() - started
    found: dict[str, Any] = {"images": len(x), "seconds": seconds}
    for kind, radius in zip(KINDS, (everywhere, around), strict=False):
        found[kind] = [int((radius > size).sum()) for size in RADII]
    for kind, bounds in zip(KINDS[2:], ((0.0, 1.0), WIDE), strict=True):
        result = lben.attack(net, x, y, RADII, domain="pixels", steps=STEPS, restarts=1, bounds=bounds)
        found[kind] = (~result.success).sum(dim=1).tolist()
    return found


def cornered(net: Any, x: Tensor, y: Tensor) -> dict[str, Any]:
    """How many keep their class where every pixel moves by up to each of CORNERS."""
    root = x.shape[-1] ** 0.5
    everywhere = lben.certified_radius(net, x, y, domain="pixels").radius / root
    around = lben.certified_radius(net, x, y, domain="pixels", local=True).radius / root
    started = time.process_time()
    cubes = lben.certified_radius(net, x, y, domain="pixels", local=True, norm="inf").radius
    found: dict[str, Any] = {"images": len(x), "seconds": time.process_time() - started}
    for kind, radius in zip(CUBES, (everywhere, around, cubes), strict=True):
        found[kind] = [int((radius > size).sum()) for size in CORNERS]
    return found


def read(path: Path) -> dict[str, dict[str, Any]]:
    """What is done already."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(path: Path, known: dict[str, dict[str, Any]]) -> None:
    write_bytes(path, (json.dumps(known, indent=1) + "\n").encode())


def keep(path: Path, known: dict[str, dict[str, Any]]) -> None:
    """What is done, and index.md beside it."""
    write(path, known)
    write_index(path.parent)


def table(images: int, path: Path, networks: list[str], count: Callable[[Any, Tensor, Tensor], dict[str, Any]]) -> None:
    """What is counted of some images at a time."""
    known = read(path)
    for name in networks:
        net, done = lben.pretrained(name), known.setdefault(name, {})
        for start, x, y in chunks(images):
            if done.get(str(start), {}).get("images") != len(x):
                done[str(start)] = count(net, x, y)
                keep(path, known)
                print(f"{name}: {start + len(x)} of {images}", flush=True)


def rows(known: dict[str, dict[str, Any]], sizes: Sequence[float], kinds: Sequence[str]) -> Iterator[str]:
    """Of each network and size, the shares of all images in percent."""
    for name, done in known.items():
        total = sum(one["images"] for one in done.values())
        each = sum(one["seconds"] for one in done.values()) / total
        for k, size in enumerate(sizes):
            shares = [100 * sum(one[kind][k] for one in done.values()) / total for kind in kinds]
            cells = " | ".join(f"{share:.2f} %" for share in shares)
            yield f"| {NETWORKS[name]} | {total:,} | {size:g} | {cells} | {each:.3f} |"


def written(known: dict[str, dict[str, Any]]) -> str:
    """The table, in percent."""
    lines = [
        "# Local certificates on the MNIST test images",
        "",
        "The share of test images that keep the right class under every perturbation up to a size, in the l2 norm of",
        "pixels in [0, 1]: proved by global bounds of pairs, proved by local bounds, and left by 20 steps of projected",
        "gradient within the pixel range and beyond it, which no certificate exceeds. The networks are those that ship",
        "with the package. Made by `python scripts/local_results.py table`.",
        "",
        "| network | images | size | global | local | attacked | attacked beyond the range | seconds an image |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *rows(known, RADII, KINDS)]) + "\n"


def verified(images: int, folder: Path, networks: list[str], sizes: list[float], limit: float) -> None:
    """What is decided within the pixel range, in so many seconds an image after its local radius."""
    path = folder / "verified.json"
    known = read(path)
    for name in networks:
        net, done = lben.pretrained(name), known.setdefault(name, {})
        for start, x, y in chunks(images):
            for size in sizes:
                key = f"{start} at {size:g}"
                if done.get(key, {}).get("images") == len(x):
                    continue
                found = lben.verify(net, x, y, size, seconds=limit, domain="pixels", bounds=(0.0, 1.0))
                states = {word: found.status.count(word) for word in STATES}
                seconds = {"seconds": float(found.seconds.sum()), "limit": limit}
                done[key] = {"images": len(x), "size": size, **seconds, **states}
                keep(path, known)
                print(f"{name} at {size:g}: {start + len(x)} of {images}, {states}", flush=True)


def certified(images: int, folder: Path, names: list[str], limit: float) -> None:
    """How many images the wide networks prove at their own size, by global bounds, and among images a little below."""
    path, data = folder / "verified.json", mnist()
    x, y = pixels(data.test_images[:images]), data.test_labels[:images]
    for name in names:
        size, net = CERTIFIED[name], lben.load(folder / name / "network.safetensors").eval()
        radius = lben.certified_radius(net, x, y, domain="pixels").radius
        done = read(path).get(name, {})
        done["global"] = {"images": len(y), "size": size, "proved": int((radius > size).sum())}
        near = ((radius <= size) & (radius > NEAREST * size)).nonzero()[:, 0]
        near = near[radius[near].argsort(descending=True)]
        print(f"{name}: {done['global']}; {len(near)} are near", flush=True)
        for k in near.tolist():
            if str(k) not in done:
                one = slice(k, k + 1)
                found = lben.verify(net, x[one], y[one], size, seconds=limit, domain="pixels", bounds=(0.0, 1.0))
                told = {"status": found.status[0], "seconds": float(found.seconds[0]), "limit": limit}
                done[str(k)] = {"radius": float(radius[k]), **told}
                write(path, {**read(path), name: done})
                print(f"{name}: image {k}: {done[str(k)]}", flush=True)


def write_index(folder: Path) -> None:
    """index.md, of what is there."""
    writers = {"table": written, "verified": decided, "corners": written_corners, "soundness": told}
    parts = [(folder / f"{name}.json", told_by) for name, told_by in writers.items()]
    texts = [told_by(read(path)) for path, told_by in parts if path.exists()]
    write_bytes(folder / "index.md", "\n".join(texts).encode())


def decided(known: dict[str, dict[str, Any]]) -> str:
    """The table of `verified`, in percent of the images."""
    lines = [
        "## Decided by `lben.verify`",
        "",
        "The share of the first test images of which it is proved that every image, with pixels in [0, 1], within the",
        "size has the right class; of which there is one that has another; and which are undecided when the time for",
        "an image is up (but for the bound at hand). A certificate of the table above holds beyond the pixel range,",
        "too. Made by `python scripts/local_results.py verified`.",
        "",
        "| network | images | size | proved | attacked | undecided | time for an image | seconds an image |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, done in known.items():
        for size in RADII:
            some = [one for one in done.values() if one["size"] == size]
            total = sum(one["images"] for one in some)
            if total:
                cells = " | ".join(f"{100 * sum(one[word] for one in some) / total:.1f} %" for word in STATES)
                each, limit = sum(one["seconds"] for one in some) / total, max(one["limit"] for one in some)
                lines.append(f"| {NETWORKS[name]} | {total:,} | {size:g} | {cells} | {limit:g} s | {each:.2f} |")
    return "\n".join(lines) + "\n"


def written_corners(known: dict[str, dict[str, Any]]) -> str:
    """The table of `corners`, in percent."""
    lines = [
        "## Where every pixel may move",
        "",
        "The share of test images of which it is proved that they keep the right class where every pixel moves by up",
        "to ε: by the l2 radii, global and local, over √784, and by radii in the l-infinity norm itself. Made by",
        "`python scripts/local_results.py corners`.",
        "",
        "| network | images | ε | global l2 / √d | local l2 / √d | local l∞ | seconds an image |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *rows(known, CORNERS, CUBES)]) + "\n"


def told(known: dict[str, dict[str, Any]]) -> str:
    """What `soundness` found."""
    lines = [
        "## Attacks within the radii",
        "",
        "Local radii with solvers of four tolerances, attacked by one step of the fast gradient, by 20 steps of",
        "projected gradient and by DeepFool, within the pixel range and beyond it: inputs that an attack made within",
        "the radius of their image, and the ends of the strongest moves put just inside it, which are evaluated in",
        "balls. Made by `python scripts/local_results.py soundness`.",
        "",
        "| network | tolerance | images | with a radius | attacked inputs within it | of another class |",
        "|---|---|---|---|---|---|",
    ]
    totals: dict[tuple[str, str], list[int]] = {}
    for key, one in known.items():
        name, tolerance = key.split(", ")[:2]
        sums = totals.setdefault((name, tolerance.removeprefix("tolerance ")), [0, 0, 0, 0])
        counts = (one[word] for word in ("images", "radii", "attacked inputs within a radius", "broken"))
        sums[:] = [total + count for total, count in zip(sums, counts, strict=True)]
    for (name, tolerance), sums in totals.items():
        lines.append(f"| {NETWORKS[name]} | {tolerance} | " + " | ".join(f"{total:,}" for total in sums) + " |")
    return "\n".join(lines) + "\n"


def contradicted(net: Any, x: Tensor, y: Tensor, tolerance: float) -> dict[str, int]:
    """Attacks of some images near and within their radii: how many were made, and how many succeeded within one."""
    solver = lben.PeacemanRachford(tolerance=tolerance)
    radius = lben.certified_radius(net, x, y, local=True, domain="pixels", solver=solver).radius
    net.solver = solver
    sizes = radius[radius > 0].quantile(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)).tolist()
    made = broken = 0
    for method in METHODS:
        for bounds in ((0.0, 1.0), WIDE):
            result = lben.attack(
                net, x, y, sizes, method=method, domain="pixels", steps=STEPS, restarts=1, bounds=bounds
            )
            within = result.distances.pixels < radius
            made += int(within.sum())
            broken += int((result.success & within).sum())
            moved, distance = (result.inputs[-1] - x).double(), result.distances.pixels[-1].clamp(min=1e-12)
            edge = x + moved * ((1 - 1e-9) * radius / distance)[:, None]
            made += int((radius > 0).sum())
            broken += int(((lben.enclose(net, edge).y.argmax(dim=-1) != y) & (radius > 0)).sum())
    return {
        "images": len(x),
        "radii": int((radius > 0).sum()),
        "attacked inputs within a radius": made,
        "broken": broken,
    }


def soundness(images: int, folder: Path, networks: list[str]) -> None:
    """No attack succeeds within a local radius, however loosely the equilibria behind it were solved."""
    path = folder / "soundness.json"
    known = read(path)
    for name in networks:
        for tolerance in TOLERANCES:
            net = lben.pretrained(name)
            for start, x, y in chunks(images):
                key = f"{name}, tolerance {tolerance:g}, images from {start}"
                if known.get(key, {}).get("images") != len(x):
                    known[key] = contradicted(net, x, y, tolerance)
                    keep(path, known)
                    print(f"{key}: {known[key]}", flush=True)
    broken = sum(one["broken"] for one in known.values())
    made = sum(one["attacked inputs within a radius"] for one in known.values())
    print(f"{made:,} attacked inputs within radii, {broken} of another class.")
    if broken:
        raise SystemExit("A radius is contradicted: this must not happen, please report it.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("table", "corners", "verified", "certified", "soundness"))
    parser.add_argument("--images", type=int)
    parser.add_argument("--folder", type=Path, default=Path("docs/results/mnist-local"))
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS, *CERTIFIED])
    parser.add_argument("--sizes", nargs="+", type=float, choices=RADII, default=RADII, help="of verified")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of verified and certified, for an image")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    known = list(CERTIFIED if asked.what == "certified" else NETWORKS)
    names = asked.networks or known
    if not set(names) <= set(known):
        parser.error(f"{asked.what} is about {', '.join(known)}")
    if asked.what in ("table", "corners"):
        count = counted if asked.what == "table" else cornered
        table(asked.images or 10_000, asked.folder / f"{asked.what}.json", names, count)
    elif asked.what == "verified":
        verified(asked.images or 1000, asked.folder, names, asked.sizes, asked.seconds)
    elif asked.what == "certified":
        certified(asked.images or 10_000, asked.folder.with_name("mnist-certified"), names, asked.seconds)
    else:
        soundness(asked.images or 2000, asked.folder, names)


if __name__ == "__main__":
    main()
