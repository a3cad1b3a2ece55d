"""What the commands do with tables: columns by name, and bounds in standardised and in own units."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table as Shown
from rich.text import Text
from torch import Tensor

import lben
from lben.certify.certificate import Domain
from lben.cli.common import out, say
from lben.data import ClassificationData, Columns, Table, TableData, read_columns, read_table, table_data
from lben.data.columns import Task
from lben.numerics.rounding import at_least, at_most
from lben.progress import track

TableOption = Annotated[Path | None, typer.Option("--table", help="A table: .csv, .tsv, .npz or .parquet.")]
Targets = Annotated[list[str] | None, typer.Option("--target", help="The table's column to predict; numbers: some.")]
TaskOption = Annotated[Task | None, typer.Option(help="What the target is; seen from it if not given.")]
Holdout = Annotated[float | None, typer.Option(help="The share of rows to test on.", show_default="0.2")]
TestTable = Annotated[Path | None, typer.Option(help="Another table to test on, instead of --holdout.")]
Ignored = Annotated[list[str] | None, typer.Option("--ignore", help="A column to leave out; may be repeated.")]
_LEAST_EPOCHS, _LEAST_STEPS = 10, 500
_SLACK = 1 + 1e-12  # for a few roundings


def check_alone(table: Path | None, data: Path | None, embedded: bool) -> None:
    """Refuse a table and images in one command."""
    if table is not None and (embedded or data is not None):
        raise lben.InvalidInput("--table excludes --data and --embedded, which are images.")


def lesson(
    table: Path | None,
    targets: list[str] | None,
    task: Task | None,
    holdout: float | None,
    test: Path | None,
    ignored: list[str] | None,
    seed: int,
    margin: float,
) -> TableData | None:
    """What is to be learned from a table, if there is one."""
    if table is None:
        if targets or task or test or ignored or holdout is not None:
            raise lben.InvalidInput("--target, --task, --holdout, --test-table and --ignore need --table.")
        return None
    if not targets:
        raise lben.InvalidInput("--table needs --target, the name of the column to predict.")
    if test is not None and holdout is not None:
        raise lben.InvalidInput("--holdout and --test-table exclude each other.")
    read = read_table(table)
    found = table_data(
        read.without(ignored) if ignored else read,
        targets,
        task=task,
        test=None if test is None else read_table(test),
        holdout=0.2 if holdout is None else holdout,
        seed=seed,
    )
    columns = found.columns
    if margin and not columns.classes:
        raise lben.InvalidInput(f"--margin is for classes, and {columns.targets[0].name!r} is a number.")
    what = f"{len(columns.classes)} classes" if columns.classes else "numbers"
    say(
        f"{columns.task.capitalize()} of {', '.join(repr(target.name) for target in columns.targets)} ({what}) from "
        f"{len(columns.inputs)} columns: {len(found.data):,} rows to train on, {len(_tested(found)[0]):,} to test on."
    )
    return found


def epochs_for(rows: int, batch_size: int) -> int:
    """Enough for a table of so many rows."""
    return max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(rows / batch_size)))


def normalize_of(found: TableData) -> lben.Normalize:
    """What standardises the columns, in double precision: a float32 would lose the digits of a large mean."""
    return lben.Normalize(found.mean, found.std, dtype=torch.float64)


def columns_in(network: Path, table: Path | None, *, needed: bool = True) -> Columns | None:
    """The columns that a network's file knows; None for one of images, for which there is no table."""
    columns = read_columns(network)
    if columns is None and table is not None:
        raise lben.InvalidInput(f"{network} was not trained on a table, and knows no columns: it takes no --table.")
    if columns is not None and table is None and needed:
        raise lben.InvalidInput(f"{network} takes the columns of a table: give one by --table.")
    return columns


def error_words(net: lben.EquilibriumNetwork, found: TableData) -> str:
    """The error of a network on the rows to test on."""
    x, y = _tested(found)
    return _error(net, found.columns, x, y)


def evaluate_table(net: lben.EquilibriumNetwork, columns: Columns, table: Path) -> None:
    """Say the error on a table."""
    rows, x = read_rows(columns, table)
    say(_error(net, columns, x, columns.answers(rows)))


def rows_to_certify(columns: Columns, table: Path | None, unit: Domain) -> Tensor | None:
    """The rows of a table, if there is one, to look at beside the bounds."""
    _check_unit(unit)
    return None if table is None else read_rows(columns, table)[1]


def certify_columns(net: lben.EquilibriumNetwork, columns: Columns, x: Tensor | None) -> None:
    """Show how far one column alone moves the outputs, in both units, and how far rows may move."""
    outputs, moved = "targets in standardised units", "its target, in the target's unit,"
    if columns.classes:
        outputs, moved = "the logits of classes", "the logits"
    say(f"In these bounds, inputs are columns in standardised units, and outputs are {outputs}.")
    try:
        _show_columns(net, columns, f"One column alone moves {moved} by at most")
        if x is not None and columns.classes:
            radius = lben.certified_radius(net, x).radius
            least, half = (at_least(float(value), 4) for value in (radius.min(), radius.median()))
            say(f"Certified radii of {len(x):,} rows, in standardised units: from {least} on, for half from {half} on.")
    except lben.NotWellPosed:
        say("No bound of a column is proved.")


def _show_columns(net: lben.EquilibriumNetwork, columns: Columns, title: str) -> None:
    shown = Shown(title=title)
    for name in (*(() if columns.classes else ("target",)), "column"):
        shown.add_column(name)
    for name in ("standard deviation", "per standard deviation", "per own unit"):
        shown.add_column(name, justify="right")
    std, places = stds(net), columns.places
    chosen = [None] if columns.classes else list(range(len(columns.targets)))
    work = [(target, column) for target in chosen for column in columns.inputs]
    for target, column in track(work, "Bounds of columns", len(work), show=None):
        place = places[column.name]
        bound = lben.tightest_bound(net, features=place, outputs=None if target is None else [target]).gamma
        assert bound is not None
        names, scale = [Text(column.name)], float(std[place].min())
        if target is not None:
            names, bound = [Text(columns.targets[target].name), *names], bound * columns.targets[target].std * _SLACK
        words = f"{scale:.4g}", at_most(bound, 4), at_most(bound / scale * _SLACK, 4)
        if column.texts is not None:  # from one of them to another, two entries move
            words = "", "", f"{at_most(bound / scale * math.sqrt(2) * _SLACK, 4)} a change of text"
        shown.add_row(*names, *words)
    out.print(shown)


def rows_to_attack(
    net: lben.EquilibriumNetwork, columns: Columns, table: Path, size: list[float], unit: Domain
) -> tuple[lben.EquilibriumNetwork, Tensor, Tensor, tuple[float, float]]:
    """A network of standardised rows, these and their classes, and a range so wide that it binds no attack."""
    _check_unit(unit)
    if not columns.classes:
        raise lben.InvalidInput("An attack looks for another class, but this network predicts numbers.")
    rows, x = read_rows(columns, table)
    y = columns.answers(rows)
    if net.normalize is not None:
        x, net.normalize = net.normalize(x.to(net.normalize.std)), None
    room = 2 * max(size) + 1.0
    return net, x, y, (float(x.min()) - room, float(x.max()) + room)


def _check_unit(unit: Domain) -> None:
    if unit == "pixels":
        raise lben.InvalidInput("--unit pixels is for images: a table is measured in standardised units.")


def read_rows(columns: Columns, table: Path) -> tuple[Table, Tensor]:
    """A table and its inputs, with a word on those of its columns that are not looked at."""
    rows = read_table(table)
    x = columns.encode(rows)
    unused = columns.unused(rows)
    if unused:
        say(f"Columns that are not used: {', '.join(map(repr, unused))}.", Console(stderr=True))
    return rows, x


def stds(net: lben.EquilibriumNetwork) -> Tensor:
    """What one standardised unit of each of the network's inputs is, in double precision."""
    if net.normalize is None:
        return torch.ones(net.in_features, dtype=torch.float64)
    return net.normalize.std.detach().double().expand(net.in_features)


def _tested(found: TableData) -> tuple[Tensor, Tensor]:
    data = found.data
    return data.test_inputs, data.test_labels if isinstance(data, ClassificationData) else data.test_targets


def _error(net: lben.EquilibriumNetwork, columns: Columns, x: Tensor, y: Tensor) -> str:
    """The error in words, of classes or in the targets' units; a row without an equilibrium is wrong, or left out."""
    found = lben.enclose(net, x).y
    lost = found.isnan().any(dim=1)
    without = f", {int(lost.sum())} of them without an equilibrium" if bool(lost.any()) else ""
    if columns.classes:
        wrong = (found.argmax(dim=1) != y) | lost
        return f"Test error {100 * float(wrong.double().mean()):.2f} % of {len(x):,} rows{without}."
    square = (found - y)[~lost].square().mean(dim=0).sqrt().tolist()
    parts = [
        f"{target.std * root:.4g} for {target.name!r} (which has a standard deviation of {target.std:.4g})"
        for target, root in zip(columns.targets, square, strict=True)
    ]
    return f"Root mean square error {', '.join(parts)}, on {len(x):,} rows{without}."
