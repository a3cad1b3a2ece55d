"""The layouts of others: by which names their tensors go, and which free variables of ours they are.

The paper's authors: LBEN with gamma and without, dense and with one convolution; an unconstrained W, dense.
monotone_op_net (Winston & Kolter 2020): MON, dense and with one convolution.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor

from lben import checks
from lben.activations.framed import Framed
from lben.errors import InvalidFile
from lben.networks.base import BaseNetwork
from lben.networks.convolutional import ConvLBEN, ConvMON
from lben.networks.dense import LBEN, MON, UnconstrainedEN
from lben.normalize import Normalize
from lben.parameterize.starts import copy_into
from lben.weights.convolutional import Metric

N = TypeVar("N", bound=BaseNetwork)
_MNIST = (0.1307, 0.3081)  # by which both normalise its pixels
_INSIDE = "mon.linear_module."
_IMAGES = {1: (1, 28, 28), 3: (3, 32, 32)}  # MNIST; SVHN and CIFAR-10
_USUAL_POOL = 4


@dataclass(eq=False)
class Source:
    """The tensors of a file and what is said beside them; `notes` grow as a network is made of it."""

    tensors: dict[str, Tensor]
    m: float
    in_shape: tuple[int, int, int] | None
    given: Normalize | Literal["published"] | None
    gamma: float | None = None
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name] if name in self.tensors else self.tensors[_INSIDE + name]

    def epsilon(self) -> Tensor:
        """m, in double precision: a network that is made with it has it in single."""
        self.notes.append(f"m = {self.m:g}, which is not in the file.")
        return torch.tensor(self.m, dtype=torch.float64)

    def normalize(self, features: int) -> Normalize | None:
        if not isinstance(self.given, str):
            return self.given
        if features != 784:
            self.notes.append("Inputs are taken as they are: how they were normalised is not in the file.")
            return None
        self.notes.append("Pixels are normalised by 0.1307 and 0.3081, as those of MNIST were.")
        return Normalize(*_MNIST)


def _filled(make: Callable[[], N], **values: Tensor) -> N:
    """A network with these free variables, each of its very shape; no random stream is moved."""
    with torch.device("meta"):
        like = make().parameterization
    checks.shapes(values, {name: tuple(getattr(like, name).shape) for name in values})
    with torch.random.fork_rng(devices=[]):
        net = make().to(values["U"].dtype)
    for name, value in values.items():
        copy_into(getattr(net.parameterization, name), value)
    return net


def _sizes(U: Tensor, Wo: Tensor) -> tuple[int, int, int]:
    if U.dim() != 2 or Wo.dim() != 2:
        raise InvalidFile(f"matrices are needed, not shapes {tuple(U.shape)} and {tuple(Wo.shape)}")
    return U.shape[1], U.shape[0], Wo.shape[0]


def _lben(s: Source) -> LBEN:
    """W = I - Psi (V'V + m I + S' - S + (G'G + Lam B B' Lam)/2gamma), Psi = diag(e^psi); or without the last term."""
    into, out = ("B", "G") if s.gamma is not None else ("U", "Wout")
    U, Wo = s[f"{into}.weight"], s[f"{out}.weight"]
    sizes = _sizes(U, Wo)
    normalize = s.normalize(sizes[0])
    return _filled(
        lambda: LBEN(*sizes, gamma=s.gamma, normalize=normalize),
        epsilon=s.epsilon(),
        U=U,
        bz=s[f"{into}.bias"],
        Wo=Wo,
        by=s[f"{out}.bias"],
        V=s["V.weight"],
        N=s["S.weight"].T,
        d=s["psi"],
    )


def _mon(s: Source) -> MON:
    """W = (1 - m) I - A'A + B - B'."""
    U, Wo = s["U.weight"], s["Wout.weight"]
    sizes = _sizes(U, Wo)
    normalize = s.normalize(sizes[0])
    return _filled(
        lambda: MON(*sizes, normalize=normalize),
        epsilon=s.epsilon(),
        U=U,
        bz=s["U.bias"],
        Wo=Wo,
        by=s["Wout.bias"],
        V=s["A.weight"],
        N=-s["B.weight"],
    )


def _free(s: Source) -> UnconstrainedEN:
    """W is a tensor of its own."""
    U, Wo = s["U.weight"], s["Wout.weight"]
    sizes = _sizes(U, Wo)
    normalize = s.normalize(sizes[0])
    return _filled(
        lambda: UnconstrainedEN(*sizes, normalize=normalize), U=U, bz=s["U.bias"], Wo=Wo, by=s["Wout.bias"], W=s["Wp"]
    )


def _conv(s: Source) -> ConvLBEN | ConvMON:
    """I - W = Psi (A'A + m I - B + B' + (Wo'Wo + Lam U U' Lam)/2gamma), or without the last term; A, B, U are kernels.

    Their hidden units on the outermost pixels are held at zero, which a `Framed` activation says. So their convolutions
    are circular ones: where some are not, the difference lies in those pixels alone.
    """
    second = f"{_INSIDE}a" in s.tensors  # a later layout, in which U and Wo have norms of their own, too
    A = _root(s["a" if second else "g"]) * _unit(s["A.weight"])
    B = s["b" if second else "h"] * _unit(s["B.weight"])
    U = _root(s["u"]) * _unit(s["U.weight"]) if second else s["U.weight"]
    G = _root(s["g"]) * _unit(s["Wout.weight"]) if second else s["Wout.weight"]
    if U.dim() != 4 or U.shape[-1] < 3 or G.dim() != 2:
        raise InvalidFile(f"a 3 x 3 kernel and a matrix are needed, not shapes {tuple(U.shape)} and {tuple(G.shape)}")
    C, colours, taps, _ = U.shape
    d, metric, size = _metric(s.tensors.get(f"{_INSIDE}psi"), C)
    shape = _shape(s.in_shape, colours, size)
    high, wide = shape[1] + 2, shape[2] + 2
    Wo, pool = _readout(G, C, high, wide, s)
    sizes, normalize = (shape, C, len(G)), s.normalize(math.prod(shape))
    frame = Framed(high, wide, C, taps // 2)

    def make() -> ConvLBEN | ConvMON:
        if metric == "identity" and s.gamma is None:
            return ConvMON(*sizes, kernel_size=taps, pool=pool, padding=1, activation=frame, normalize=normalize)
        return ConvLBEN(
            *sizes,
            gamma=s.gamma,
            kernel_size=taps,
            pool=pool,
            padding=1,
            metric=metric,
            activation=frame,
            normalize=normalize,
        )

    values = {"U": U, "bz": s["U.bias"], "Wo": Wo, "by": s["Wout.bias"], "V": A, "N": -2 * B, "epsilon": s.epsilon()}
    return _filled(make, **values, **({} if d is None else {"d": d}))


def _unit(kernel: Tensor) -> Tensor:
    unit: Tensor = kernel / kernel.norm()
    return unit


def _root(weight: Tensor) -> Tensor:
    if not float(weight) >= 0:
        raise InvalidFile(f"a weight of A'A, of U or of the output is {float(weight):g}, and must not be negative")
    return weight.sqrt()


def _metric(psi: Tensor | None, channels: int) -> tuple[Tensor | None, Metric, tuple[int, int] | None]:
    """Their exponents as ours, one a channel or one a pixel, and the height and width that they tell."""
    if psi is None or psi.shape == (1, 1, 1, 1):  # they never use that one
        return None, "identity", None
    every = psi[0] if psi.dim() == 4 else psi
    if every.dim() != 3 or every.shape[0] not in (1, channels):
        raise InvalidFile(f"psi has shape {tuple(psi.shape)}")
    size = None if every.shape[1:] == (1, 1) else (every.shape[1], every.shape[2])
    if size is None or bool((every == every[:, :1, :1]).all()):
        return every[:, 0, 0].expand(channels), "channel", size
    if bool((every == every[:1]).all()):
        return every[0], "pixel", size
    raise InvalidFile(
        "its metric has one entry for every channel of every pixel, and a convolution of lben has one a channel or "
        "one a pixel"
    )


def _shape(given: tuple[int, int, int] | None, colours: int, size: tuple[int, int] | None) -> tuple[int, int, int]:
    """The image: what is given, else what the metric tells, else the usual one of so many channels."""
    if given is not None:
        return given
    if size is not None:
        return colours, size[0] - 2, size[1] - 2
    if colours not in _IMAGES:
        raise InvalidFile(f"an image of {colours} channels has no size that is known: give in_shape=")
    return _IMAGES[colours]


def _readout(G: Tensor, channels: int, high: int, wide: int, s: Source) -> tuple[Tensor, int]:
    """Wo of averages of pixels, and the side of the squares that are averaged.

    Where squares do not divide the image, they leave its last pixels out; Wo then reads single pixels.
    """
    pool = _pool(high, wide, channels, G.shape[1])
    s.notes.append(f"Images are {high - 2} x {wide - 2} pixels, and {pool} x {pool} hidden ones are averaged.")
    Wo = G.reshape(len(G), channels, high // pool, wide // pool)
    if high % pool == wide % pool == 0:
        return Wo, pool
    if s.gamma is not None:
        raise InvalidFile(f"its pool of {pool} does not divide the hidden image, {high} x {wide}, as its gamma needs")
    single = (Wo / pool**2).repeat_interleave(pool, 2).repeat_interleave(pool, 3)
    return torch.nn.functional.pad(single, (0, wide - single.shape[3], 0, high - single.shape[2])), 1


def _pool(high: int, wide: int, channels: int, inputs: int) -> int:
    """The side of the squares that are averaged: 4, as usual, if that fits the output, else the one that does."""
    fitting = [k for k in range(1, min(high, wide) + 1) if channels * (high // k) * (wide // k) == inputs]
    if _USUAL_POOL in fitting:
        return _USUAL_POOL
    if len(fitting) != 1:
        raise InvalidFile(
            f"the output reads {inputs} averages, and {len(fitting)} sizes of pools give so many from {channels} "
            f"channels of {high} x {wide} hidden pixels: give the right in_shape="
        )
    return fitting[0]


@dataclass(frozen=True)
class Layout:
    """What it is, the names of its tensors, and what makes a network of them."""

    words: str
    names: frozenset[str]
    build: Callable[[Source], BaseNetwork]
    bounded: bool = False


def _named(inside: str, outside: bool = True) -> frozenset[str]:
    """Full names: of the module inside, and of the output where it is outside."""
    return frozenset(_INSIDE + name for name in inside.split()) | ({"Wout.weight", "Wout.bias"} if outside else set())


_IN = "U.weight U.bias "
_KERNELS = _IN + "A.weight B.weight g h"
_OUT = " Wout.weight Wout.bias"
LAYOUTS = (
    Layout(
        "a dense LBEN with gamma, of the paper's authors",
        _named("psi B.weight B.bias V.weight S.weight G.weight G.bias", outside=False),
        _lben,
        bounded=True,
    ),
    Layout("a dense LBEN without gamma, of the paper's authors", _named(_IN + "psi V.weight S.weight"), _lben),
    Layout("a dense unconstrained network, of the paper's authors", _named(_IN + "Wp"), _free),
    Layout("a convolutional LBEN without gamma, of the paper's authors", _named(_KERNELS + " psi"), _conv),
    Layout(
        "a convolutional LBEN with gamma, of the paper's authors",
        _named(_KERNELS + " psi" + _OUT, outside=False),
        _conv,
        bounded=True,
    ),
    Layout(
        "a convolutional LBEN with gamma and scaled kernels, of the paper's authors",
        _named(_IN + "A.weight B.weight a b g u psi" + _OUT, outside=False),
        _conv,
        bounded=True,
    ),
    Layout("a dense MON, of monotone_op_net", _named(_IN + "A.weight B.weight"), _mon),
    Layout("a MON with a single convolution, of monotone_op_net", _named(_KERNELS), _conv),
)


def recognise(path: str | os.PathLike[str], tensors: dict[str, Tensor]) -> Layout:
    for layout in LAYOUTS:
        if layout.names == tensors.keys():
            return layout
    if any(name.startswith(f"{_INSIDE}A_n0.") for name in tensors):
        raise InvalidFile(
            f"{path} is a MON of several convolutions, of monotone_op_net: its W goes between images of different "
            "sizes, and lben has no such network."
        )
    found = ", ".join(sorted(tensors)[:8]) + (", ..." if len(tensors) > 8 else "")
    known = "; ".join(layout.words for layout in LAYOUTS)
    raise InvalidFile(f"{path} holds {found or 'nothing'}, which is none of the networks that are understood: {known}.")
