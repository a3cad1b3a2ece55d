"""Branches side by side, whose outputs are added."""

from __future__ import annotations

from torch import Tensor, nn

from lben.errors import InvalidInput


class Parallel(nn.Module):
    """f(x) + g(x) + ..: the sum of branches that all take x, such as a block and its shortcut with a projection.

    Args:
        *branches: at least two, an `nn.Sequential` each, or one module; an empty ``nn.Sequential()`` is x itself. All
            give outputs of one shape. ``Residual(f)`` is ``Parallel(nn.Sequential(), f)``.

    Raises:
        InvalidInput: if there are fewer, or one is no module.

    Examples:
        Its bound is at most the sum of those of its branches.

        >>> block = lben.Parallel(lben.SLL(4), lben.LBEN(4, 8, 4, gamma=0.5))
        >>> lben.Sequential(block, in_shape=4).bound() <= 1.501
        True
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        for branch in branches:
            if not isinstance(branch, nn.Module):
                raise InvalidInput(
                    f"Parallel takes modules, such as Parallel(nn.Sequential(), nn.Linear(4, 4)), not {branch!r}."
                )
        if len(branches) < 2:
            raise InvalidInput(f"Parallel takes at least two branches, and got {len(branches)}.")
        self.branches = nn.ModuleList(
            branch if type(branch) is nn.Sequential else nn.Sequential(branch) for branch in branches
        )

    def sequences(self) -> list[nn.Sequential]:
        """The branches.

        Returns:
            Those given, a module alone as a sequence of one.
        """
        return [branch for branch in self.branches if isinstance(branch, nn.Sequential)]

    def forward(self, x: Tensor) -> Tensor:
        """The sum over the branches.

        Args:
            x: what every branch takes.

        Returns:
            A tensor of the shape that every branch gives.
        """
        first, *others = self.branches
        y: Tensor = first(x)
        for branch in others:
            y = y + branch(x)
        return y
