"""Predictions for the rows of a table, with what is proved of each."""

from __future__ import annotations

import csv
import math
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
import typer
from torch import Tensor

import lben
from lben.cli.common import NetworkFile, say
from lben.cli.tables import columns_in, read_rows, stds
from lben.data import Columns
from lben.disk import check_target, write_bytes
from lben.numerics.rounding import at_least, at_most

RadiusUnit = Literal["standardised", "own"]
_DIGITS = 9  # of numbers that are written
_SLACK = 1e-12  # relative, far above what a few roundings are
Rows = list[list[str]]


class Uncertainty(NamedTuple):
    """How far inputs may be from those in the table: the l2 norm in standardised units, and which of them move."""

    radius: float
    features: list[int] | None


def predict(
    network: NetworkFile,
    table: Annotated[Path, typer.Argument(help="A table: .csv, .tsv, .npz or .parquet.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; else it is printed.")] = None,
    uncertainty: Annotated[
        list[str] | None,
        typer.Option(help="How far inputs are off: together, in standardised units; or COLUMN=AMOUNT, repeated."),
    ] = None,
    unit: Annotated[RadiusUnit, typer.Option(help="Radii of all columns together, or of each alone.")] = "standardised",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a prediction for each row of a table, and what is proved of it, as CSV.

    Classes come with a probability and a certified radius; with --uncertainty, also with whether they are proved under
    it. Numbers come with an interval that holds the network's answer for every input within --uncertainty.
    """
    if output is not None:
        check_target(output)
        if output.exists() and not force:
            raise lben.InvalidInput(f"{str(output)!r} is there already: --force overwrites it, or give another name.")
    net = lben.load(network).eval()
    columns = columns_in(network, table)
    assert columns is not None
    if not columns.classes and unit == "own":
        raise lben.InvalidInput("--unit is for radii: for numbers, give --uncertainty COLUMN=AMOUNT in own units.")
    rows, x = read_rows(columns, table)
    off = _uncertainty(net, columns, uncertainty or [])
    made = _classes(net, columns, x, off, unit) if columns.classes else _numbers(net, columns, x, off)
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(made)
    if output is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        write_bytes(output, text.getvalue().encode())
        say(f"{len(rows):,} predictions written to {output}.")


def _uncertainty(net: lben.EquilibriumNetwork, columns: Columns, given: list[str]) -> Uncertainty | None:
    """What --uncertainty says: one number for all, or amounts of columns in their own units."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return Uncertainty(_amount(given[0], given[0]), None)
    numeric = {column.name for column in columns.inputs if column.texts is None}
    amounts: dict[str, float] = {}
    for words in given:
        name, equals, amount = words.rpartition("=")
        if not equals or name not in numeric or name in amounts:
            known = ", ".join(sorted(numeric)) or "none"
            raise lben.InvalidInput(
                f"--uncertainty must be one number, or COLUMN=AMOUNT once for some columns of numbers ({known}), "
                f"not {words!r}."
            )
        amounts[name] = _amount(amount, words)
    features = [columns.places[name][0] for name in amounts]
    moved = torch.tensor(list(amounts.values()), dtype=torch.float64) / stds(net)[features]
    return Uncertainty(float(torch.linalg.vector_norm(moved)) * (1 + _SLACK), features)


def _amount(text: str, words: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise lben.InvalidInput(f"--uncertainty must be a finite number of at least 0, not {words!r}.")
    return amount


def _classes(
    net: lben.EquilibriumNetwork, columns: Columns, x: Tensor, off: Uncertainty | None, unit: RadiusUnit
) -> Rows:
    """A class, its probability and a certified radius a row; the radius of a column alone is that many stds of it."""
    y = lben.enclose(net, x).y
    try:
        radius = lben.certified_radius(net, x).radius
    except lben.NotWellPosed:  # then nothing is proved
        radius = torch.zeros(len(x), dtype=torch.float64)
    numeric = [column.name for column in columns.inputs if column.texts is None]
    scale = {"certified_radius": 1.0}
    if unit == "own":
        scale = {f"radius_{name}": float(stds(net)[columns.places[name][0]]) for name in numeric}
    proved = [] if off is None else ["certified"]
    made = [["row", f"predicted_{columns.targets[0].name}", "probability", *scale, *proved]]
    best = torch.nan_to_num(y, nan=-math.inf).argmax(dim=1)
    chances = y.softmax(dim=1).amax(dim=1).tolist()
    for index, (chance, distance) in enumerate(zip(chances, radius.tolist(), strict=True)):
        answer = ["", ""] if math.isnan(chance) else [columns.classes[int(best[index])], f"{chance:.6f}"]
        made.append([str(index + 1), *answer])
        made[-1] += [at_least(distance * factor * (1 - _SLACK), _DIGITS) for factor in scale.values()]
        made[-1] += [] if off is None else [str(distance > off.radius)]
    return made


def _numbers(net: lben.EquilibriumNetwork, columns: Columns, x: Tensor, off: Uncertainty | None) -> Rows:
    """A number in its target's unit a row, and the ends of an interval that holds all that inputs so near may give."""
    radius, features = (0.0, None) if off is None else off
    try:
        found = lben.certified_interval(net, x, radius, features=features)
        y, width = found.y, found.width
    except lben.NotWellPosed:  # then nothing is proved
        y = lben.enclose(net, x).y
        width = torch.full_like(y, math.inf)
    mean = torch.tensor([target.mean for target in columns.targets], dtype=torch.float64)
    std = torch.tensor([target.std for target in columns.targets], dtype=torch.float64)
    value = y * std + mean
    reach = width * std * (1 + _SLACK) + _SLACK * (mean.abs() + (y * std).abs())
    names = [target.name for target in columns.targets]
    made = [["row", *(word for name in names for word in (f"predicted_{name}", f"{name}_low", f"{name}_high"))]]
    for index, (values, reaches) in enumerate(zip(value.tolist(), reach.tolist(), strict=True)):
        made.append([str(index + 1)])
        for centre, far in zip(values, reaches, strict=True):
            ends = at_least(centre - far, _DIGITS), at_most(centre + far, _DIGITS)
            made[-1] += ["", "", ""] if math.isnan(centre) else [f"{centre:.{_DIGITS}g}", *ends]
    return made
