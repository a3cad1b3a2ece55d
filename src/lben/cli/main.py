"""The command and its parts."""

from __future__ import annotations

from typing import Annotated

import typer

import lben
from lben.cli import deployment, files, networks, predict, studies
from lben.cli.common import say

app = typer.Typer(
    help="Lipschitz-bounded equilibrium networks: train, certify and attack them, and reproduce the paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
reproduce = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
for command in (networks.train, networks.evaluate, networks.certify, networks.attack, predict.predict, studies.report):
    app.command()(command)
app.command("import")(files.import_)
app.command()(deployment.export)
app.command()(deployment.page)
for command in (studies.mnist, studies.svhn, studies.layers, studies.regions):
    reproduce.command()(command)


def _version(asked: bool) -> None:
    if asked:
        say(f"lben {lben.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
