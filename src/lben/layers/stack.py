"""Stages one after another, with a bound for the whole."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain
from lben.certify.lipschitz import product_bound
from lben.errors import InvalidInput
from lben.layers.names import check_names
from lben.layers.parallel import Parallel
from lben.layers.reading import read, refuse_unknown
from lben.networks.base import BaseNetwork
from lben.networks.convolutional import ConvNetwork
from lben.networks.foreign import SMOOTH
from lben.networks.imported import Residual
from lben.normalize import Normalize
from lben.weights.stages import Shape, Stack, Stage, Sum


class Sequential(nn.Sequential):
    """An `nn.Sequential` whose Lipschitz bound is known: certificates, radii, attacks and files take it as a network.

    Inputs have shape ``(batch, *in_shape)``, or are rows of as many features.

    Args:
        *stages: layers of lben's (`LBEN`, `ImageLBEN`, `SLL`, `ConvSLL`, `Sandwich`, `ConvSandwich`, `MaxMin`, ..),
            plain ones (`nn.Linear`, `nn.Conv2d`, `nn.AvgPool2d`, `nn.AdaptiveAvgPool2d` and `nn.MaxPool2d` whose
            squares do not overlap, `nn.ReLU` and its like, `nn.Flatten`, `nn.Unflatten`, dropout and batch norm, which
            count as they are in evaluation), `Residual` and `Parallel` blocks of them, and stacks; or one `OrderedDict`
            of stages by their names. A `Normalize` at the head makes its input pixels.
        in_shape: the shape of one sample, such as (3, 32, 32); not needed where the first stage takes features of a
            number that it knows.

    Raises:
        InvalidInput: if a stage cannot stand there, or does not fit.

    Examples:
        >>> stack = lben.Sequential(lben.SLL(4), lben.LBEN(4, 8, 4, gamma=1.0), torch.nn.Linear(4, 3))
        >>> stack(torch.randn(5, 4)).shape
        torch.Size([5, 3])
        >>> last = float(torch.linalg.matrix_norm(stack[2].weight.detach(), 2))
        >>> stack.bound() <= 1.001 * last
        True
    """

    def __init__(
        self, *stages: nn.Module | OrderedDict[str, nn.Module], in_shape: Sequence[int] | int | None = None
    ) -> None:
        first = stages[0] if len(stages) == 1 else None
        named = first if isinstance(first, dict) else {str(place): stage for place, stage in enumerate(stages)}
        if not named:
            raise InvalidInput("Sequential takes at least one stage, and got none.")
        checked = {name: _module(stage) for name, stage in named.items()}
        super().__init__(check_names(checked, Sequential))
        self.in_shape: Shape = _shape(list(self), in_shape)
        self._read()  # refuses what does not fit
        self._refuse_mixed()

    @property
    def in_features(self) -> int:
        return math.prod(self.in_shape)

    @property
    def normalize(self) -> Normalize | None:
        """What stands between pixels and the input: a `Normalize` at the head, or that of a network there."""
        first = self[0]
        if type(first) is Normalize:
            channels = len(self.in_shape) > 1 and first.features > 1
            return first.repeated(self.in_features // self.in_shape[0]) if channels else first
        return first.normalize if isinstance(first, BaseNetwork) else None

    def weights(self) -> Stack:
        """The stages as plain records, without the normalisation at the head.

        Returns:
            A stack of records, which certificates take in place of this.

        Raises:
            InvalidInput: if a batch norm is in training mode.
        """
        for name, part in self.named_modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.training:
                raise InvalidInput(f"Stage {name}, a batch norm, is linear in evaluation alone: call .eval() first.")
            if isinstance(part, nn.Softplus) and part.threshold < SMOOTH and self._is_double():
                raise InvalidInput(
                    f"Stage {name}, a Softplus, jumps at its threshold, {part.threshold}, by more than the rounding of "
                    f"double precision: make it with threshold={SMOOTH}."
                )
        for name, tensor in chain(self.named_parameters(), self.named_buffers()):
            if checks.there(name, tensor).layout is not torch.strided:
                raise InvalidInput(f"{name} must be a dense tensor, not of layout {str(tensor.layout)[6:]}.")
        return self._read()

    def _is_double(self) -> bool:
        """Whether its inputs may be of double precision."""
        return all(parameter.dtype == torch.float64 for parameter in self.parameters())

    def _read(self) -> Stack:
        stages = read(self, self.in_shape)
        own = stages[1:] if self.normalize is not None else stages
        if not own:
            idle = "its Normalize" if stages else "Identity and dropout, which do nothing in evaluation"
            raise InvalidInput(f"A Sequential needs a stage besides {idle}.")
        return Stack(own)

    def _refuse_mixed(self) -> None:
        """Name a stage whose numbers have another precision than those of others; a `Normalize` may have less."""
        layers: list[tuple[str, torch.dtype]] = []
        scales: list[tuple[str, torch.dtype]] = []
        for name, stage in self._modules.items():
            for part in stage.modules():
                for tensor in chain(part.parameters(recurse=False), part.buffers(recurse=False)):
                    if tensor.is_floating_point():
                        found = scales if type(part) is Normalize else layers
                        found.append((f"{name} {type(stage).__name__}", tensor.dtype))
        first, kept = layers[0] if layers else ("", torch.float64)
        wide = [(here, dtype) for here, dtype in scales if torch.promote_types(dtype, kept) != kept]
        for here, dtype in (*layers, *wide):
            if dtype != kept:
                own, others = str(dtype)[6:], str(kept)[6:]
                raise InvalidInput(f"Stage {here} is {own}, but stage {first} is {others}: convert one of them.")

    def stage(self, in_shape: Shape) -> Stage:
        """All of it as one stage of another stack.

        Args:
            in_shape: the shape of one sample in front of it.

        Returns:
            A record of its stages.

        Raises:
            InvalidInput: where such samples do not fit.
        """
        if tuple(in_shape) not in (self.in_shape, (self.in_features,)):
            raise InvalidInput(f"it takes inputs of shape {self.in_shape}, but gets {tuple(in_shape)}.")
        return Sum("Sequential", tuple(in_shape), (read(self, self.in_shape),))

    def forward(self, x: Tensor) -> Tensor:
        """The stages, one after another.

        Args:
            x: of shape ``(batch, *in_shape)``, or rows of as many features.

        Returns:
            What the last stage gives.

        Raises:
            InvalidInput: for samples of another shape, of which the bound says nothing.
        """
        if not isinstance(x, Tensor):
            raise InvalidInput(f"x must be a torch.Tensor, not {type(x).__name__}.")
        if len(self.in_shape) > 1 and x.dim() == 2 and x.shape[1] == self.in_features:
            x = x.reshape(-1, *self.in_shape)
        like = next(self.parameters(), x)
        if x.dtype != like.dtype and not torch.is_autocast_enabled(like.device.type):
            raise InvalidInput(
                f"x is {str(x.dtype)[6:]}, but this stack is {str(like.dtype)[6:]}: convert one of them."
            )
        leading = x.shape[: max(x.dim() - len(self.in_shape), 0)]
        if tuple(x.shape[len(leading) :]) != self.in_shape:
            raise InvalidInput(
                f"x has shape {tuple(x.shape)}, but this stack is made for samples of shape {self.in_shape}: its bound "
                "holds for them alone. Make one with another in_shape of the same stages."
            )
        if len(leading) != 1:  # some stages count dimensions from the batch
            x = x.reshape(math.prod(leading), *self.in_shape)
        for stage in self:
            x = stage(x)
        return x if len(leading) == 1 else x.reshape(*leading, *x.shape[1:])

    def bound(self, domain: Domain = "input") -> float:
        """A Lipschitz bound, checked now from the weights: the product of what bounds the stages.

        Args:
            domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
                before it. They are the same without one.

        Returns:
            The bound; `tightest_bound` finds a smaller one where stages are dense.

        Raises:
            NotWellPosed: if nothing proves an equilibrium in the stack.
        """
        return product_bound(self, domain=domain)

    def __getitem__(self, place: int | slice) -> nn.Module:
        """A stage; or several, with their names, as a stack, or as a plain `nn.Sequential` where they make none."""
        if not isinstance(place, slice):
            return super().__getitem__(place)
        names = list(self._modules)[place]
        plain = nn.Sequential(OrderedDict((name, self.get_submodule(name)) for name in names))
        before = list(self._modules).index(names[0]) if names else 0
        return self._stack(plain, list(self)[:before])

    def append(self, module: nn.Module) -> Sequential:
        """One more stage, behind the others.

        Args:
            module: the stage.

        Returns:
            The stack itself.

        Raises:
            InvalidInput: where stages have names of their own.
        """
        return self.insert(len(self), module)

    def insert(self, index: int, module: nn.Module) -> Sequential:
        """One more stage, in front of another.

        Args:
            index: the place of that one.
            module: the stage.

        Returns:
            The stack itself.

        Raises:
            InvalidInput: where stages have names of their own.
        """
        if list(self._modules) != [str(place) for place in range(len(self))]:
            raise InvalidInput("Stages with names of their own get no others: make lben.Sequential(*stack, module).")
        super().insert(index, _module(module))
        return self

    def __add__(self, other: nn.Sequential) -> nn.Sequential:
        """The stages of both, as a stack, or as a plain `nn.Sequential` where they make none."""
        return self._stack(super().__add__(other))

    def __mul__(self, other: int) -> nn.Sequential:
        """The stages so many times, as a stack, or as a plain `nn.Sequential` where they make none."""
        return self._stack(super().__mul__(other))

    @torch.no_grad()
    def _stack(self, plain: nn.Sequential, before: Sequence[nn.Module] = ()) -> nn.Sequential:
        """A plain sequence of stages as a stack, where it can be one; in front of it stand others of this one's."""
        try:
            passed = read(before, self.in_shape)
            shape = passed[-1].out_shape if passed else self.in_shape
            plain = Sequential(OrderedDict(plain._modules), in_shape=shape)
        except InvalidInput:
            pass
        plain.training = self.training
        return plain


def _module(stage: object) -> nn.Module:
    if isinstance(stage, nn.Module):
        return stage
    if isinstance(stage, Activation):
        raise InvalidInput(f"Sequential takes modules, and {stage!r} is for equilibria: use that of torch.nn here.")
    raise InvalidInput(f"Sequential takes modules, such as lben.LBEN(4, 8, 4, gamma=1), not {stage!r}.")


def _shape(stages: list[nn.Module], given: Sequence[int] | int | None) -> Shape:
    if given is not None:
        sizes = (given,) if isinstance(given, int) else given
        if not isinstance(sizes, Sequence) or not sizes:
            raise InvalidInput(f"in_shape must be a number or several, such as (3, 32, 32), not {given!r}.")
        return tuple(checks.count("in_shape", size) for size in sizes)
    for stage in stages:
        if isinstance(stage, ConvNetwork | Sequential):
            return stage.in_shape
        features = getattr(stage, "in_features", None)
        if isinstance(features, int):
            return (features,)
        if isinstance(stage, Residual | Parallel | nn.Sequential) and len(inner := _parts(stage)):
            return _shape(inner, None)
        if not isinstance(stage, Normalize):
            break
    first = type(stages[0]).__name__
    refuse_unknown(stages[0])
    raise InvalidInput(f"The first stage, {first}, fits many inputs: say in_shape=(..), the shape of one sample.")


def _parts(stage: Residual | Parallel | nn.Sequential) -> list[nn.Module]:
    if isinstance(stage, Parallel):
        return next((list(branch) for branch in stage.sequences() if len(branch)), [])
    return list(stage.body if isinstance(stage, Residual) else stage)
