"""`lben` and `python -m lben`: the command line, with one sentence instead of a traceback for what lben foresees."""

from __future__ import annotations

import sys

from lben.errors import LbenError
from lben.extras import need


def main() -> None:
    try:
        need("typer", "The command lben", extra="experiments")
        need("rich", "The command lben", extra="experiments")
        from lben.cli import app

        app()
    except LbenError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
