"""What the commands share: how they speak, and the options that several of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lben.certify.certificate import Domain

out = Console()
NetworkFile = Annotated[
    Path, typer.Argument(help="A network or a stack that `lben train` or lben.save wrote.", show_default=False)
]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="The folder with the data set; else LBEN_DATA, the cache, or a download.")
]
Embedded = Annotated[bool, typer.Option("--embedded", help="Use the 7,000 images that ship with lben.")]
UnitOption = Annotated[Domain, typer.Option(help="Where distances are measured: after normalisation, or in pixels.")]
Device = Annotated[
    str | None, typer.Option(help="Where the network is and computes, such as cuda; else the CPU. Proofs stay there.")
]
Seed = Annotated[int, typer.Option(help="Decides the start and the order of the data.")]


def say(words: str, console: Console = out) -> None:
    """A sentence, left as it is."""
    console.print(words, soft_wrap=True, highlight=False, markup=False)
