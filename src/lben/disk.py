"""The one way in which files are written, whole and over nothing but a file, and tensors read: never by pickle."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from lben.errors import InvalidFile, InvalidInput, LbenError

FORMAT = 1
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a crafted file may lead to."""


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


def write_tensors(
    path: str | os.PathLike[str], key: str, description: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write tensors with a description, under a key of the header, and a checksum of both."""
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, **description}, sort_keys=True)
    write_bytes(path, serialize(plain, metadata={key: text, "sha256": _digest(text, plain)}))


def read_tensors(path: str | os.PathLike[str], key: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors that `write_tensors` wrote; raises InvalidFile for anything else."""
    try:
        if not Path(path).is_file():
            raise InvalidFile(f"{path} is not a file.")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except LbenError:
        raise
    except (SafetensorError, OSError, *WRONG) as error:
        raise InvalidFile(f"{path} is not a whole safetensors file: {error}.") from error
    text = metadata.get(key)
    if text is None:
        raise InvalidFile(f"{path} was not written by lben: its header has no description of {what}.")
    if metadata.get("sha256") != _digest(text, tensors):
        raise InvalidFile(f"{path} was changed after it was written: its checksum does not match its content.")
    try:
        description: dict[str, Any] = json.loads(text)
        found = description.pop("format")
    except WRONG as error:
        raise InvalidFile(f"{path} does not describe {what}: {type(error).__name__}: {error}") from error
    if type(found) is not int or found != FORMAT:
        raise InvalidFile(f"{path} has format {found}, but this version of lben reads {FORMAT}.")
    return description, tensors


def read_foreign_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The floating-point tensors of a state dict that others wrote, by torch or as safetensors, on the CPU.

    A state dict within a checkpoint, under "state_dict", is read alone, and without the "module." of parallel training.
    Of a pickle nothing is read but tensors and plain containers: no code in it can run. Raises InvalidFile.
    """
    try:
        if not Path(path).is_file():
            raise InvalidFile(f"{path} is not a file.")
        with open(path, "rb") as file:
            head = file.read(9)
        if head[8:] == b"{":  # safetensors: the length of the header, and the header
            with safe_open(path, framework="pt") as opened:
                if "lben" in (opened.metadata() or {}):
                    raise InvalidFile(f"{path} was written by lben.save: lben.load reads it.")
                content: Any = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        else:
            if torch.__version__ < "2.6":  # CVE-2025-32434
                raise InvalidInput(
                    f"Before torch 2.6 a crafted file could run code in its reader, and this is {torch.__version__}: "
                    f"read {path} with a later one, or as safetensors."
                )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's words on old formats
                content = torch.load(path, map_location="cpu", weights_only=True)
    except LbenError:
        raise
    except Exception as error:  # whatever the damage leads to
        raise InvalidFile(
            f"{path} cannot be read as a file of tensors alone: it is damaged, no file of torch or safetensors, or "
            f"holds more than tensors, of which the state dict would do ({type(error).__name__})."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):  # beside epochs and optimizers
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InvalidFile(f"{path} holds a {type(content).__name__}, and not tensors by their names.")
    outer = "module." if all(name.startswith("module.") for name in content) else ""  # of torch's DataParallel
    return {name.removeprefix(outer): _solid(path, name, tensor) for name, tensor in content.items()}


def _solid(path: str | os.PathLike[str], name: str, tensor: object) -> Tensor:
    """A tensor of which the file holds every number."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.float32, torch.float64):
        kind = str(tensor.dtype)[6:] if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InvalidFile(f"{path} holds {name[:60]}, which is {kind}, and not a tensor of float32 or float64.")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise InvalidFile(f"{path} holds {name[:60]}, which is not a dense tensor.")
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.itemsize:
        raise InvalidFile(f"{path} holds {name[:60]} of shape {tuple(tensor.shape)}, but fewer numbers than that.")
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidFile(f"{path} holds {name[:60]}, in which some entries are not finite.")
    return tensor.detach().contiguous()


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
