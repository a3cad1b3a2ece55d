"""`lben` and `python -m lben`: the command line, with one sentence instead of a traceback for what lben foresees."""

from __future__ import annotations

import os
import sys

from lben.checks import need
from lben.errors import LbenError


def main() -> None:
    try:
        try:
            _run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk or a closed pipe can be told, and not when Python ends
    except LbenError as error:
        sys.exit(f"Error: {error}")
    except BrokenPipeError:  # whoever read has read enough
        _forget_output()
        sys.exit(1)
    except OSError as error:
        _forget_output()
        sys.exit(f"Error: {error.strerror or error}{'' if error.filename is None else f': {error.filename}'}.")


def _run() -> None:
    need("typer", "The command lben", extra="experiments")
    need("rich", "The command lben", extra="experiments")
    from lben.cli.main import app

    app()


def _forget_output() -> None:
    """Send what is still to be written nowhere: Python would try once more at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
