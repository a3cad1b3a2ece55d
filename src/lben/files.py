"""Networks on disk: one safetensors file whose header holds their description. No pickle, so no code can run.

Some trained ones ship with the package, each with a card that says what made it and what was measured of it.

What a file says is checked field by field, and the sizes it claims against the tensors that it holds, before anything
is made of it. What comes out says of itself what the file says.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from importlib import resources
from typing import Any, overload

import torch
from torch import Tensor, nn

from lben import checks
from lben.data import Columns
from lben.described import stored_tensors
from lben.disk import WRONG, read_tensors, write_tensors
from lben.dynamics.contracting import ContractingODE
from lben.dynamics.description import build_ren
from lben.dynamics.ren import REN
from lben.errors import InvalidFile, InvalidInput, LbenError, MissingExtra
from lben.layers.description import build_stack, describe_stack, stack_tensors
from lben.layers.reading import read
from lben.layers.stack import Sequential
from lben.networks.base import BaseNetwork
from lben.networks.dense import EquilibriumNetwork
from lben.networks.description import NETWORKS, Kinds, build_network, check_own

KINDS: Kinds = {**NETWORKS, ContractingODE.__name__: ContractingODE}
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


Saved = BaseNetwork | REN | Sequential


def save(net: Saved, path: str | os.PathLike[str], *, columns: Columns | None = None) -> None:
    """Write a network, or a stack of stages, to a file: to a temporary one first, so that no half of it is ever left.

    It is one safetensors file, whose header describes the network; nothing is written that `load` would not read, and
    no pickle. A stage that stands in two places of a stack comes back as two, with the same numbers, which training
    then moves apart; a state dict leaves them one.

    Args:
        net: one of lben's networks, a `REN`, or a `Sequential`.
        path: of the file.
        columns: of the table that a dense network takes, which the file is to know; `lben.data.read_columns` reads
            them.

    Raises:
        InvalidInput: for another network, or one with a part of your own, such as an `Elementwise`.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0, activation=lben.Tanh())
        >>> lben.save(net, "net.safetensors")
        >>> lben.load("net.safetensors").activation
        Tanh()
    """
    if type(net) not in (Sequential, REN, *KINDS.values()):
        advice = ""
        if isinstance(net, nn.Module) and (hasattr(net, "stage") or type(net).__module__.startswith("torch.nn.")):
            advice = ": put it in a stack, by lben.Sequential(layer)"
        raise InvalidInput(
            f"lben.save writes {', '.join(KINDS)}, REN and lben.Sequential, not {type(net).__name__}{advice}."
        )
    if isinstance(net, BaseNetwork | REN):
        check_own(net.activation, net.solver)
    else:
        read(net, net.in_shape)  # refuses hooks, and what does not fit
    tensors = {name: checks.there(name, tensor) for name, tensor in _tensors(net).items()}
    description = _describe(net)
    if columns is not None:
        description["columns"] = _checked(columns, net).describe()
    try:
        _build(description, tensors)
    except WRONG as error:
        raise InvalidInput(f"This network cannot be saved as it is: {_reason(error)}") from error
    write_tensors(path, "lben", description, tensors)


def load(path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Any:
    """Read a network or a stack that `save` wrote, in training mode: call ``.eval()`` before predictions.

    Dropout and batch norm in a stack make random or shifted predictions in training mode, and an equilibrium that does
    not converge is a warning there and an error in evaluation. Nothing in a file can run code.

    Args:
        path: of the file.
        device: where it goes; the CPU if not given, wherever it was when it was saved.

    Returns:
        The network, with its bound, activation, solver and normalisation, in training mode.

    Raises:
        InvalidFile: for anything that is no such file, or was changed.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0).eval()
        >>> lben.save(net, "net.safetensors")
        >>> same = lben.load("net.safetensors").eval()
        >>> x = torch.tensor([[1.0, -1.0]])
        >>> same.gamma, torch.equal(same(x), net(x))
        (1.0, True)
    """
    checks.placement(device, None)
    description, tensors = read_tensors(path, "lben", "a network")
    try:
        return _build(description, tensors).to(device=device)
    except MissingExtra:
        raise
    except WRONG as error:
        raise InvalidFile(f"{path} does not describe a network: {_reason(error)}") from error


@dataclass(frozen=True)
class Card:
    """A trained network of the package: what made it, and what was measured of it. ``lben.pretrained()`` lists them.

    Attributes:
        name: by which `pretrained` finds it.
        kind: of network.
        hidden: its number of hidden units.
        gamma: the prescribed bound, or None.
        command: that trained it.
        recipe: how it was trained, in words.
        seed: of the training.
        versions: of the packages that trained it.
        images: how many test images it was measured on.
        error: the share of them with a wrong class.
        bound: the smallest Lipschitz bound that a diagonal metric proves, at the network's input.
        certified: the share of them proved to keep the right class within each radius, in pixels.
        sha256: of its file.

    Examples:
        >>> card = lben.pretrained()[0]
        >>> card.name, card.kind, card.hidden
        ('mnist-gamma-0.2', 'LBEN', 80)
    """

    name: str
    kind: str
    hidden: int
    gamma: float | None
    command: str
    recipe: str
    seed: int
    versions: dict[str, str]
    images: int
    error: float
    bound: float
    certified: dict[str, float]
    sha256: str

    def __str__(self) -> str:
        proved = ", ".join(f"{100 * share:.1f} % within {radius}" for radius, share in self.certified.items())
        return (
            f"{self.name}: {self.kind} of {self.hidden} units, {100 * self.error:.2f} % error, "
            f"Lipschitz bound {self.bound:.4g} at the input; certified {proved} pixels."
        )


class Cards(tuple[Card, ...]):
    """Cards, one a line."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


@overload
def pretrained() -> Cards: ...


@overload
def pretrained(name: str) -> BaseNetwork: ...


def pretrained(name: str | None = None) -> Cards | BaseNetwork:
    """A network that ships with the package, in evaluation mode; without a name, the cards of all of them.

    Args:
        name: such as "mnist-gamma-1", an LBEN trained on MNIST with gamma = 1, of 784 pixels in [0, 1] to 10 logits.

    Returns:
        The network; or, without a name, a tuple of `Card`, printed one a line.

    Raises:
        InvalidInput: for another name.
        InvalidFile: if the file is not the one that its card is about.

    Examples:
        >>> net, digits = lben.pretrained("mnist-gamma-1"), lben.data.embedded_mnist()
        >>> predicted = net(lben.data.pixels(digits.test_images[:5])).argmax(dim=1)
        >>> torch.equal(predicted, digits.test_labels[:5])
        True
        >>> [card.name for card in lben.pretrained()][:3]
        ['mnist-gamma-0.2', 'mnist-gamma-0.4', 'mnist-gamma-0.8']
    """
    folder = resources.files("lben.data")
    found = [file for file in folder.iterdir() if file.name.endswith(".json")]
    cards = {card.name: card for card in (Card(**json.loads(file.read_text("utf-8"))) for file in found)}
    if name is None:
        return Cards(cards[key] for key in sorted(cards))
    if not isinstance(name, str) or name not in cards:
        raise InvalidInput(f"There is no pretrained network {name!r}: there are {', '.join(sorted(cards))}.")
    with resources.as_file(folder.joinpath(f"{name}.safetensors")) as path:
        net: BaseNetwork = load(path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != cards[name].sha256:
            raise InvalidFile(f"{path} is not the file that its card is about: install lben again.")
    return net.eval()


def _checked(columns: Columns, net: Saved) -> Columns:
    """The columns, if they can be those of the network."""
    if not isinstance(columns, Columns):
        raise InvalidInput(f"columns must be lben.data.Columns, not {type(columns).__name__}.")
    if not isinstance(net, EquilibriumNetwork):
        raise InvalidInput(f"Columns are for dense equilibrium networks, not for a {type(net).__name__}.")
    columns.check_fits(net.in_features, net.out_features)
    return columns


def _tensors(net: Saved) -> dict[str, Tensor]:
    return stored_tensors(net) if isinstance(net, BaseNetwork | REN) else stack_tensors(net)


def _describe(net: Saved) -> dict[str, Any]:
    if isinstance(net, BaseNetwork):
        dtype, own = net.parameterization.U.dtype, net.describe()
    elif isinstance(net, REN):
        dtype, own = net.parameterization.by.dtype, net.describe()
    else:
        numbers = (tensor.dtype for tensor in stack_tensors(net).values() if tensor.is_floating_point())
        dtype, own = next(numbers, torch.float32), describe_stack(net, KINDS)
    return {"network": type(net).__name__, "dtype": str(dtype)[6:], **own}


def _build(description: dict[str, Any], tensors: dict[str, Tensor]) -> Saved:
    """The network, made only once all that is said of it agrees with its tensors; no random stream is moved."""
    described = dict(description)
    columns = described.pop("columns", None)
    known = None if columns is None else Columns.read(columns)
    net = _build_network(described, tensors)
    if known is not None:
        _checked(known, net)
    return net


def _build_network(described: dict[str, Any], tensors: dict[str, Tensor]) -> Saved:
    name, dtype = described.pop("network", None), described.pop("dtype", None)
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidFile(f"dtype must be float32 or float64, not {dtype!r}.")
    if name == "Sequential":
        return build_stack(described, tensors, _DTYPES[dtype], KINDS)
    cls = KINDS.get(name) if isinstance(name, str) else None
    if cls is None and name != REN.__name__:
        raise InvalidFile(f"there is no network {name!r}.")
    for path, tensor in tensors.items():
        if tensor.dtype not in _DTYPES.values() or tensor.dtype.itemsize > _DTYPES[dtype].itemsize:
            raise InvalidFile(f"{path} is {str(tensor.dtype)[6:]}, but the network is {dtype}.")
    if cls is None:
        return build_ren(described, tensors, _DTYPES[dtype])
    return build_network(cls, described, tensors, _DTYPES[dtype])


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LbenError) else f"{type(error).__name__}: {error}"
