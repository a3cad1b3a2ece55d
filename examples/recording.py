"""Where an example writes, and the numbers behind a picture, with what made them."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch


def folder(description: str | None) -> Path:
    """`build`; with --docs `docs`, where the pictures that the README shows are kept."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--docs", action="store_true", help="write to docs/, over what is kept there, and not to build/"
    )
    chosen = Path(__file__).parent.parent / ("docs" if parser.parse_args().docs else "build")
    chosen.mkdir(exist_ok=True)
    return chosen


def record(path: Path, command: str, seed: int, **content: Any) -> None:
    """Write them as JSON."""
    made_by = {"command": command, "seed": seed, "torch": torch.__version__, "Python": platform.python_version()}
    path.write_text(json.dumps({**made_by, **content}, indent=1) + "\n")
