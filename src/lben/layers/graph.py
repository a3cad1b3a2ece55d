"""Plain modules, read through `torch.fx` as chains of stages with sums of branches."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from lben import checks
from lben.certify.kinds import subject_of
from lben.errors import InvalidInput
from lben.layers.base import Layer
from lben.layers.calls import Call, call_of, passes_input, place_of, reads_size, works_in_place
from lben.layers.parallel import Parallel
from lben.layers.reading import stages_of
from lben.layers.stack import Sequential
from lben.networks.base import BaseNetwork
from lben.networks.comparison import called, compare
from lben.networks.foreign import check_there
from lben.networks.imported import Residual
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.weights.stages import Shape


def read(module: nn.Module, in_shape: Sequence[int] | int) -> Sequential:
    """The stack that a plain module is in evaluation, found by tracing its code: ResNets, and all that is like them.

    Its forward may call submodules that can stand in a stack, their functions (`torch.relu`, `F.max_pool2d`,
    `torch.flatten`, ``x.view(x.size(0), -1)``, ..), and add: what is used more than once must meet again in one sum, as
    in x + f(x) and shortcut(x) + f(x). The result is compared with the module on inputs of its own, in the module's
    precision and in double, and refused if it differs by more than rounding. What forward decides by numbers that are
    not tensors, it has decided when it was traced.

    Args:
        module: in evaluation (call .eval() first), without hooks.
        in_shape: the shape of one sample, such as (3, 32, 32).

    Returns:
        A `Sequential` in evaluation mode. It shares its submodules, and so all weights, with the module: train either,
        and both are trained; ``copy.deepcopy(stack)`` has its own.

    Raises:
        InvalidInput: naming what cannot be read.

    Examples:
        >>> class Block(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(4, 4)
        ...     def forward(self, x):
        ...         return x + torch.relu(self.layer(x))
        >>> block = Block().eval()
        >>> stack = lben.read(block, 4)
        >>> bool(lben.tightest_bound(stack))
        True
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"lben.read takes an nn.Module, not {type(module).__name__}.")
    dtype = check_there(module).dtype
    if any(part.training for part in module.modules()):
        raise InvalidInput(
            "The module is in training mode, and a stack is what it is in evaluation: call .eval() first."
        )
    sizes = (in_shape,) if isinstance(in_shape, int) else in_shape
    if not isinstance(sizes, Sequence) or not sizes:
        raise InvalidInput(f"in_shape must be a number or several, such as (3, 32, 32), not {in_shape!r}.")
    shape = tuple(checks.count("in_shape", size) for size in sizes)
    walk = _Walk(module, _graph(module))
    stages = walk.chain(walk.input, walk.output, shape)[0]
    stack = Sequential(*(stages or [nn.Identity()]), in_shape=shape).eval()
    _check_same(module, stack, shape, dtype)
    return stack


class _Value(fx.Proxy):
    """What stands for a tensor while code is traced; it knows y += x from y + x."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Goes into all modules but those of torch and of lben."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = type(m).__module__.startswith("lben.") or isinstance(m, BaseNetwork | Layer)  # and classes made of them
        return own or super().is_leaf_module(m, module_qualified_name)


class _Root(nn.Module):
    """Calls the module with one input, so that its other arguments have the values that they have by themselves."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


def _graph(module: nn.Module) -> fx.Graph:
    for name, part in module.named_modules():
        checks.untouched(f"Module {name or 'itself'}, {type(part).__name__},", part)
    try:
        return _Tracer().trace(_Root(module).eval())
    except Exception as error:  # whatever code may raise that is given something other than a tensor
        raise InvalidInput(
            f"The code of {type(module).__name__} cannot be traced: what it does may not depend on the values or the "
            f"shape of its input ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no words'})."
        ) from error


@dataclass(eq=False)
class _Walk:
    """The nodes between input and output, backwards; each becomes one stage, once."""

    module: nn.Module
    graph: fx.Graph
    done: set[fx.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        nodes = list(self.graph.nodes)
        self.input, last = nodes[0], nodes[-1]
        if not isinstance(last.args[0], fx.Node):
            raise InvalidInput(f"The module returns {last.args[0]!r}, and not one tensor.")
        self.output = last.args[0]
        self.order = {node: place for place, node in enumerate(nodes)}
        self.calls = self._reachable()
        self._refuse_unused()
        self.forks: dict[fx.Node, fx.Node] = {}
        for node in sorted(self.calls, key=self.order.__getitem__):
            before, *others = self.calls[node].inputs
            for other in others:
                before = self._common(before, other)
            self.forks[node] = before
        self._refuse_in_place()

    def _reachable(self) -> dict[fx.Node, Call]:
        """All that the output is made of, as calls."""
        found: dict[fx.Node, Call] = {}
        waiting = [self.output]
        while waiting:
            node = waiting.pop()
            if node is not self.input and node not in found:
                found[node] = call_of(node, self.module)
                waiting += found[node].inputs
        return found

    def _refuse_unused(self) -> None:
        """Refuse what is computed beside the output, and may change a tensor that the output is made of."""
        sizes: set[fx.Node] = set()
        unused: fx.Node | None = None
        for node in self.order:
            if reads_size(node) or (node.all_input_nodes and sizes.issuperset(node.all_input_nodes)):
                sizes.add(node)
            elif node not in self.calls and node.op.startswith("call"):
                unused = node
        if unused is not None:
            raise InvalidInput(
                f"{place_of(unused)} is no part of what forward returns, and may change it: use what it gives, or "
                "leave it out."
            )

    def _common(self, one: fx.Node, other: fx.Node) -> fx.Node:
        """The last node that all ways to both go through."""
        while one is not other:
            if self.order[one] < self.order[other]:
                one, other = other, one
            one = self.forks[one]
        return one

    def _refuse_in_place(self) -> None:
        """Refuse a node that changes a tensor which is used again, or a view of it."""
        sources: dict[fx.Node, fx.Node] = {}  # where the memory of a node is from
        readers: dict[fx.Node, list[fx.Node]] = {}
        for node in sorted(self.calls, key=self.order.__getitem__):
            for value in self.calls[node].inputs:
                readers.setdefault(sources.get(value, value), []).append(node)
            value = self.calls[node].inputs[0]
            if passes_input(node, self.module) and not works_in_place(node, self.module):
                sources[node] = sources.get(value, value)
        for node in self.calls:
            value = self.calls[node].inputs[0]
            if works_in_place(node, self.module):
                for reader in readers[sources.get(value, value)]:
                    if self.order[reader] > self.order[node]:
                        raise InvalidInput(
                            f"{place_of(node)} works in place on what {place_of(reader)} uses afterwards: make it with "
                            "inplace=False, or write y = y + x for y += x."
                        )

    def chain(self, start: fx.Node, end: fx.Node, shape: Shape) -> tuple[list[nn.Module], Shape]:
        """The stages that lead from one node to another, all of which depends on the first alone, and their shape."""
        nodes: list[fx.Node] = []
        while end is not start:
            if end in self.done:
                raise InvalidInput(
                    f"{place_of(end)} is used in sums that overlap, and so is no sum of branches: let what is used "
                    "more than once meet again in one addition, as in x + f(x)."
                )
            self.done.add(end)
            nodes.append(end)
            end = self.forks[end]
        stages: list[nn.Module] = []
        for node in reversed(nodes):
            added = len(self.calls[node].inputs) > 1
            made, shape = self._sum(node, shape) if added else self._one(node, shape)
            stages += made
        return stages, shape

    def _one(self, node: fx.Node, shape: Shape) -> tuple[list[nn.Module], Shape]:
        stage = self.calls[node].stage(shape)
        if stage is None:
            return [], shape
        stages = stages_of(stage, shape, place_of(node))
        return [stage], stages[-1].out_shape if stages else shape

    def _sum(self, node: fx.Node, shape: Shape) -> tuple[list[nn.Module], Shape]:
        branches: list[list[nn.Module]] = []
        ends = set()
        for value in self.calls[node].inputs:
            stages, end = self.chain(self.forks[node], value, shape)
            ends.add(end)
            inner = stages[0] if len(stages) == 1 else None
            if type(inner) is Residual:
                branches += [[], list(inner.body)]
            elif type(inner) is Parallel:
                branches += map(list, inner.sequences())
            else:
                branches.append(stages)
        if len(ends) > 1:
            raise InvalidInput(f"{place_of(node)} adds tensors of different shapes, {' and '.join(map(str, ends))}.")
        if len(branches) == 2 and [] in branches and branches != [[], []]:
            return [Residual(*branches[0], *branches[1])], ends.pop()
        return [Parallel(*(nn.Sequential(*branch) for branch in branches))], ends.pop()


def _check_same(module: nn.Module, stack: Sequential, shape: Shape, dtype: torch.dtype) -> None:
    """Refuse a stack that does not compute what the module computes; by its plain records where no solver is needed."""
    solved = any(isinstance(part, BaseNetwork | Layer) for part in stack.modules())
    subject = None if solved else subject_of(stack)

    def found(x: Tensor, precision: torch.dtype) -> Tensor:
        if subject is not None and precision == torch.float64:
            return subject.outputs(x.flatten(1), PeacemanRachford())
        return called(stack, x, precision)

    compare(module, found, shape, dtype)
