"""Networks that others trained, from the files of tensors that they publish.

A layout is known by the names of its tensors (`layouts.py`). What a file does not hold (gamma, m, how inputs were
normalised, the size of an image) is asked for or assumed, and said.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lben import checks
from lben.disk import WRONG, read_foreign_tensors
from lben.errors import InvalidFile, InvalidInput, LbenError
from lben.networks.base import BaseNetwork
from lben.networks.layouts import Source, recognise
from lben.normalize import Normalize
from lben.weights.convolutional import Geometry

_GAMMA = re.compile(r"(?:lip|_L)(\d+(?:\.\d+)?)", re.IGNORECASE)  # fc_lip0.2_w80, lben_conv_w40_L2.0


@dataclass(frozen=True, eq=False)
class Imported:
    """A network of others, as one of lben's: `import_checkpoint` returns it, and ``str`` says it in words.

    Attributes:
        net: an LBEN, MON, UnconstrainedEN, ConvLBEN or ConvMON, with their outputs, in evaluation mode.
        layout: what the file was recognised as.
        notes: what was assumed, or read from the file's name.

    Examples:
        >>> inside = {"U.weight": (3, 2), "U.bias": (3,), "A.weight": (3, 3), "B.weight": (3, 3)}
        >>> tensors = {f"mon.linear_module.{name}": torch.rand(size) for name, size in inside.items()}
        >>> torch.save({**tensors, "Wout.weight": torch.rand(1, 3), "Wout.bias": torch.rand(1)}, "mon.pt")
        >>> found = lben.import_checkpoint("mon.pt")
        >>> found.layout, type(found.net).__name__
        ('a dense MON, of monotone_op_net', 'MON')
    """

    net: BaseNetwork
    layout: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        sizes = (
            f"{self.net.in_features} inputs, {self.net.hidden_features} hidden units, {self.net.out_features} outputs"
        )
        return " ".join([f"Recognised: {self.layout}; {sizes}.", *self.notes])


def import_checkpoint(
    path: str | os.PathLike[str],
    *,
    gamma: float | None = None,
    m: float = 1.0,
    in_shape: tuple[int, int, int] | None = None,
    normalize: Normalize | Literal["published"] | None = "published",
) -> Imported:
    """Read a network of the paper's authors or of `monotone_op_net` from a state dict that they saved.

    Args:
        path: a file of tensors, in the format of torch or safetensors. No code in it is ever run.
        gamma: the bound that the network was trained with, which is not in the file: if not given, it is taken from the
            name of the file, as in fc_lip0.2_w80.params. Refused for layouts that have none.
        m: their strong monotonicity, which is not in the file either; 1 in their dense networks of MNIST.
        in_shape: (channels, height, width) of an image, for convolutions; if not given, the size that the metric in the
            file tells, else that of MNIST for one channel, and of SVHN and CIFAR-10 for three.
        normalize: the stage in front. "published": mean 0.1307 and std 0.3081 for images of MNIST, 784 numbers; for
            others none, so that the network takes what they normalised.

    Returns:
        An `Imported`: the network, what it was recognised as, and what was assumed.

    Raises:
        InvalidFile: for a file that is damaged or no such network.
        InvalidInput: for a missing or wrong argument.

    Examples:
        >>> torch.save({"weight": torch.rand(3, 2)}, "other.pt")
        >>> lben.import_checkpoint("other.pt")
        Traceback (most recent call last):
        ...
        lben.errors.InvalidFile: ...
    """
    checks.positive("m", m)
    if in_shape is not None:
        in_shape = Geometry(in_shape, 0, 1).in_shape
    if not (normalize is None or normalize == "published" or isinstance(normalize, Normalize)):
        raise InvalidInput(f'normalize must be an lben.Normalize(mean, std), None or "published", not {normalize!r}.')
    tensors = read_foreign_tensors(path)
    layout = recognise(path, tensors)
    source = Source(tensors, m, in_shape, normalize)
    if layout.bounded:
        source.gamma = _gamma(Path(path), gamma, source.notes)
    elif gamma is not None:
        raise InvalidInput(f"{path} is {layout.words}, which has no gamma: leave it out.")
    try:
        net = layout.build(source)
        net.validate()
    except WRONG as error:
        reason = str(error) if isinstance(error, LbenError) else f"{type(error).__name__}: {error}"
        raise InvalidFile(f"{path} looks like {layout.words}, but cannot be one of lben's: {reason}") from error
    return Imported(net.eval(), layout.words, tuple(source.notes))


def _gamma(path: Path, given: float | None, notes: list[str]) -> float:
    """The bound: what is given, else the one number in the file's name that is meant as such."""
    if given is not None:
        return checks.positive("gamma", given)
    found = _GAMMA.findall(path.name)
    if len(found) != 1:
        raise InvalidInput(f"The gamma of {path} is neither in the file nor in its name: give gamma=.")
    notes.append(f"gamma = {found[0]}, from the name of the file.")
    return checks.positive("gamma", float(found[0]))
