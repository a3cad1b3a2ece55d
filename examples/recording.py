"""The numbers behind a picture, with what made them."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch


def record(path: Path, command: str, seed: int, **content: Any) -> None:
    """Write them as JSON."""
    made_by = {"command": command, "seed": seed, "torch": torch.__version__, "Python": platform.python_version()}
    path.write_text(json.dumps({**made_by, **content}, indent=1) + "\n")
