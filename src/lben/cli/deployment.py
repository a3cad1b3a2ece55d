"""Write a network in a form that runs without lben."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import lben
from lben.cli.common import NetworkFile, say
from lben.data import read_columns
from lben.export.onnx import check_onnx


def export(
    network: NetworkFile,
    file: Annotated[Path, typer.Argument(help="Where to write it, a name that ends in .onnx.", show_default=False)],
    accuracy: Annotated[float, typer.Option(help="How far outputs may be from the network's, in the l2 norm.")] = 1e-4,
    low: Annotated[float, typer.Option(help="The least that an entry of an input may be.")] = 0.0,
    high: Annotated[float, typer.Option(help="The most.")] = 1.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a network as an ONNX file with a proved error, for all inputs with entries from --low to --high."""
    check_onnx(file)
    if file.exists() and not force:
        raise lben.InvalidInput(f"{str(file)!r} is there already: --force overwrites it, or give another name.")
    if read_columns(network) is not None:
        raise lben.InvalidInput(
            f"{network} takes the columns of a table, each in its own unit: export it from Python, by lben.export with "
            "domain=lben.InBox(low, high), a number for each column; it answers in standardised units."
        )
    exported = lben.export(lben.load(network).eval(), accuracy=accuracy, domain=lben.InBox(low, high))
    exported.to_onnx(file)
    say(f"{exported.promise} Written to {file}.")
