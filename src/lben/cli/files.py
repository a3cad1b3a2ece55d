"""Networks from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import lben
from lben.cli.common import say
from lben.disk import check_target


def import_(
    checkpoint: Annotated[
        Path, typer.Argument(help="A file of the paper's authors or of monotone_op_net.", show_default=False)
    ],
    file: Annotated[Path, typer.Argument(help="Where to write the network.", show_default=False)],
    gamma: Annotated[
        float | None, typer.Option(help="The bound it was trained with; else the one in the file's name.")
    ] = None,
    m: Annotated[float, typer.Option(help="Its strong monotonicity, which is not in the file.")] = 1.0,
    image: Annotated[
        tuple[int, int, int] | None, typer.Option(help="Channels, height and width, for convolutions.")
    ] = None,
    mean: Annotated[list[float] | None, typer.Option(help="Subtracted from pixels; once, or once a channel.")] = None,
    std: Annotated[list[float] | None, typer.Option(help="Pixels are divided by it; likewise.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a network that is there.")] = False,
) -> None:
    """Turn a network that others trained into one that evaluate, certify and attack take.

    Pixels of MNIST are normalised as theirs were; give --mean and --std for others.
    """
    if (mean is None) != (std is None):
        raise lben.InvalidInput("--mean and --std belong together: give both or none.")
    if check_target(file).exists() and not force:
        raise lben.InvalidInput(f"{str(file)!r} is there already: --force overwrites it, or give another name.")
    stage: lben.Normalize | Literal["published"] = "published"
    if mean is not None and std is not None:
        stage = lben.Normalize(mean, std)
    found = lben.import_checkpoint(checkpoint, gamma=gamma, m=m, in_shape=image, normalize=stage)
    lben.save(found.net, file)
    say(f"{found} Written to {file}.")
