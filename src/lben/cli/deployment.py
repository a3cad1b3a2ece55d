"""Write networks in forms that run without lben: an ONNX file, a page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import lben
from lben.cli.common import NetworkFile, say
from lben.data import Columns, read_columns
from lben.export.onnx import check_onnx
from lben.export.pages import check_page


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
    _refuse_to_overwrite(file, force)
    if read_columns(network) is not None:
        raise lben.InvalidInput(
            f"{network} takes the columns of a table, each in its own unit: export it from Python, by lben.export with "
            "domain=lben.InBox(low, high), a number for each column; it answers in standardised units."
        )
    exported = lben.export(lben.load(network).eval(), accuracy=accuracy, domain=lben.InBox(low, high))
    exported.to_onnx(file)
    say(f"{exported.promise} Written to {file}.")


def page(
    networks: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Networks, side by side; if none is given, two that ship with lben, an LBEN with gamma = 1 and a MON.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write it, a name that ends in .html.")
    ] = Path("page.html"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a page that runs networks in a browser, one file that needs no server and no connection.

    Of networks of 784 pixels and 10 classes: draw a digit, see its certified radius, and attack it; 45 pairs of classes
    are proved for that, in seconds at 80 units and many minutes at 400. Of networks of 2 inputs and 1 output: their
    surface, with the proved cone of its slopes.
    """
    check_page(output)
    _refuse_to_overwrite(output, force)
    if networks:
        alike = len({file.stem for file in networks}) < len(networks)
        named = {str(file) if alike else file.stem: lben.load(file).eval() for file in networks}
        if len(named) < len(networks):
            raise lben.InvalidInput("Each network must be given once.")
    else:
        named = {"LBEN, γ = 1": lben.pretrained("mnist-gamma-1"), "MON": lben.pretrained("mnist-mon")}
    lben.write_page(output, named, columns=_common_columns(networks or []))
    say(f"Written to {output}: open it in a browser.")


def _common_columns(networks: list[Path]) -> Columns | None:
    """The columns that all of the networks take; None where they are not of a table."""
    found = {file: read_columns(file) for file in networks}
    first = next(iter(found.values()), None)
    other = next((file for file, columns in found.items() if columns != first), None)
    if other is not None:
        raise lben.InvalidInput(f"Networks side by side must take the same columns, but {other} takes others.")
    return first


def _refuse_to_overwrite(file: Path, force: bool) -> None:
    if file.exists() and not force:
        raise lben.InvalidInput(f"{str(file)!r} is there already: --force overwrites it, or give another name.")
