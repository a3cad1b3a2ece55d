"""The one way in which files are written: whole, to what the path means, and over nothing but a file."""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from lben.errors import InvalidInput


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file: to a temporary one beside it first, so that no half of it is ever left."""
    target = check_target(path)
    temporary = target.parent / f".lben-{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """The file that would be written, behind all symbolic links; a device, pipe, socket or folder is refused."""
    mode = None
    try:
        target = Path(os.path.realpath(Path(path)))
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = target.lstat().st_mode
        fits = target.parent.is_dir()
    except (OSError, TypeError, ValueError) as error:  # a name too long, no name at all, a name with a zero in it
        raise InvalidInput(f"{path!r} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    if not fits or (mode is not None and stat.S_ISDIR(mode)):
        raise InvalidInput(f"{str(path)!r} cannot be written: it must name a file in a directory that exists.")
    if mode is not None and not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link to itself"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise InvalidInput(f"{str(path)!r} cannot be written: it is {kind}, not a file.")
    if mode is not None and not os.access(target, os.W_OK):
        raise InvalidInput(f"{str(path)!r} cannot be written: it is read-only.")
    return target


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if it is not there."""
    try:
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"The folder {str(path)!r} cannot be made: {reason}.") from error
    return folder
