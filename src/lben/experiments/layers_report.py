"""What the report says of a study of layers: one table, how they learned, and what is proved at which size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lben.experiments import figures
from lben.experiments.layers import WATCHED, Stacked
from lben.experiments.page import NONE, Picture, Table, percent
from lben.experiments.running import Run


def facts(run: Run, results: Sequence[Stacked]) -> list[str]:
    """What a reader must know to read the table."""
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    minutes = sum(result.seconds for result in results) / 60
    found = [
        f"Made by `{run.command}` on {run.data}; begun {run.began}; {versions}; the rows took {minutes:.0f} minutes "
        "in all."
    ]
    if not results:
        return found
    sizes, config = results[0].row["architecture"], results[0].row["config"]
    attacked = " or ".join(f"{count:,}" for count in sorted({result.proved.attacked_images for result in results}))
    found += [
        f"One architecture: pixels over {sizes['std']:.4g}, space to depth, {_layers(sizes['depth'][0])} of "
        f"{sizes['channels']} channels, space to depth, {_layers(sizes['depth'][1])} of {4 * sizes['channels']} "
        f"channels, {sizes['hidden']} hidden units, logits; bounded by {sizes['gamma']:.4g} from normalised images to "
        "logits, but for the plain one. A layer that is an equilibrium stands once for all of its scale. Hidden "
        "units and logits are of the row's own kind, of SLL sandwich layers, of mix an equilibrium. All rows have "
        f"the same {config['epochs']} epochs, seed, optimizer and batches, and but for the plain one the same learning "
        f"rate; the loss is {config['loss']}, but where a row is named for another.",
        "Radii are in the l2 norm and in pixels of [0, 1]. What is certified is proved from the weights alone, on all "
        "test images, with the solver's error and all rounding accounted for; layers of other packages are read as the "
        "plain convolutions and matrices that they compute, and count with their norms; large convolutions, of more "
        "than 2^22 entries as matrices, with that of a circular one, which is above. The attack takes 20 steps "
        f"of projected gradient, on the first {attacked} test images alone: what it leaves may lie below what is "
        "proved of all.",
        "The cost is that of a training step, which took turns with the plain network's.",
    ]
    return found


def _layers(count: int) -> str:
    return "one layer" if count == 1 else f"{count} layers"


def tables(results: Sequence[Stacked]) -> list[Table]:
    """One row a kind of layer."""
    if not results:
        return []
    radii = [f"{255 * radius:.0f}/255" for radius in results[0].proved.radii]
    groups = [
        ("", ["layers"]),
        ("error, %", [""]),
        ("certified accuracy, %, at", radii),
        ("attacked accuracy, %, at", radii),
        ("bound", [""]),
        ("a step", ["× plain"]),
        ("parameters", [""]),
    ]
    rows = []
    for result in results:
        proved = result.proved
        shares = [NONE] * len(radii) if proved.certified is None else [percent(share) for share in proved.certified]
        shares += [percent(share, 1) for share in proved.attacked]
        bound = NONE if proved.bound is None else f"{proved.bound:.4g}"
        cost, size = f"{result.relative_seconds:.1f}", f"{proved.parameters:,}"
        rows.append([result.row["name"], percent(proved.error), *shares, bound, cost, size])
    return [Table("Layers", groups, rows)]


def pictures(results: Sequence[Stacked], folder: Path) -> list[Picture]:
    if not results:
        return []
    return [
        Picture(
            figures.draw_certified(results, folder)[0],
            "Certified and attacked accuracy against the radius",
            "Accuracy that is proved (filled) and that an attack leaves (hollow), against the size of the change.",
        ),
        Picture(
            figures.draw_training(results, folder, scale="linear")[0],
            "Training and test error by epoch",
            "Error by epoch, on the training images while they are learned, changed as they are (left), and on the "
            f"first {WATCHED:,} test images (right).",
        ),
    ]
