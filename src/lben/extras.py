"""Packages beyond the core requirements, imported when they are needed."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from lben.errors import MissingExtra


def need(package: str, purpose: str, *, extra: str) -> Any:
    """The package, or one sentence that says what to install."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # theirs: Foolbox uses a name that SciPy is to drop
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{purpose} needs {package}: pip install 'lben[{extra}]'.") from error
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingExtra(f"{purpose} needs {package}, which is there but cannot be imported: {reason}") from error
