"""Stages one after another, with a bound for the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from lben import checks
from lben.certify.certificate import Domain
from lben.certify.lipschitz import product_bound
from lben.errors import InvalidInput
from lben.layers.reading import read
from lben.networks.base import BaseNetwork
from lben.networks.convolutional import ConvNetwork
from lben.networks.imported import Residual
from lben.normalize import Normalize
from lben.weights.stages import Shape, Stack, Stage, Sum


class Sequential(nn.Sequential):
    """An `nn.Sequential` whose Lipschitz bound is known: certificates, radii, attacks and files take it as a network.

    Inputs have shape ``(batch, *in_shape)``, or are rows of as many features.

    Args:
        *stages: layers of lben's (`LBEN`, `ImageLBEN`, `SLL`, `ConvSLL`, `Sandwich`, `ConvSandwich`, `MaxMin`, ..),
            plain ones (`nn.Linear`, `nn.Conv2d`, pools, `nn.ReLU` and its like, `nn.Flatten`, dropout and batch norm,
            which count as they are in evaluation), `Residual` and `Parallel` blocks of them, and stacks. A `Normalize`
            at the head makes its input pixels.
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

    def __init__(self, *stages: nn.Module, in_shape: Sequence[int] | int | None = None) -> None:
        for stage in stages:
            if not isinstance(stage, nn.Module):
                raise InvalidInput(f"Sequential takes modules, such as lben.LBEN(4, 8, 4, gamma=1), not {stage!r}.")
        if not stages:
            raise InvalidInput("Sequential takes at least one stage, and got none.")
        super().__init__(*stages)
        self.in_shape: Shape = _shape(list(stages), in_shape)
        self._read()  # refuses what does not fit

    @property
    def in_features(self) -> int:
        return math.prod(self.in_shape)

    @property
    def normalize(self) -> Normalize | None:
        """What stands between pixels and the input: a `Normalize` at the head, or that of a network there."""
        first = self[0]
        if type(first) is Normalize:
            times = self.in_features // self.in_shape[0]
            images = len(self.in_shape) > 1 and first.features == self.in_shape[0]
            return first.repeated(times) if images else first
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
        return self._read()

    def _read(self) -> Stack:
        stages = read(list(self), self.in_shape)
        own = stages[1:] if self.normalize is not None else stages
        if not own:
            raise InvalidInput("A Sequential needs a stage besides its Normalize.")
        return Stack(own)

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
        return Sum("Sequential", tuple(in_shape), (read(list(self), self.in_shape),))

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
        if tuple(x.shape[-len(self.in_shape) :]) != self.in_shape:
            raise InvalidInput(
                f"x has shape {tuple(x.shape)}, but this stack is made for samples of shape {self.in_shape}: its bound "
                "holds for them alone. Make one with another in_shape of the same stages."
            )
        for stage in self:
            x = stage(x)
        return x

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
        """A stage; or several, as a plain `nn.Sequential`, since they may begin with samples of another shape."""
        modules = list(self._modules.values())
        return nn.Sequential(*modules[place]) if isinstance(place, slice) else modules[place]


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
        if isinstance(stage, Residual | nn.Sequential) and len(inner := _inside(stage)):
            return _shape(inner, None)
        if not isinstance(stage, Normalize):
            break
    first = type(stages[0]).__name__
    raise InvalidInput(f"The first stage, {first}, fits many inputs: say in_shape=(..), the shape of one sample.")


def _inside(stage: nn.Module) -> list[nn.Module]:
    return list(stage.body) if isinstance(stage, Residual) else list(stage.children())
