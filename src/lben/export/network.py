"""`lben.export`: a network as a plain module with a proved error."""

from __future__ import annotations

import math
import os
from itertools import product

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import Activation
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.evaluator import Evaluator
from lben.certify.links import Link, links_of
from lben.certify.recurrent import recurrent_of
from lben.certify.stack import StackSubject
from lben.certify.subject import Examined
from lben.dynamics.ode import Dynamics
from lben.errors import InvalidInput
from lben.export.chain import Plan, end_error, share_of, start_error
from lben.export.domains import Inputs, Region, check_domain
from lben.export.equilibria import Facts
from lben.export.forms import Form
from lben.export.onnx import write_onnx
from lben.export.parts import Chain
from lben.numerics.rounding import at_most, undisturbed
from lben.weights.linear import Standardize
from lben.weights.record import Record
from lben.weights.stages import Equilibrium, Shape, Stage

_SHARES = (0.9, 0.1)  # of the accuracy, for what iterations leave; the rest is for rounding, which may need most of it
_ROOM = 1.2  # with the smaller share, what is above the error that was found by this much can be promised


class Exported(nn.Module):
    """A network in plain operations and constants: what `lben.export` makes.

    Calling it with x, of shape ``(batch, *in_shape)`` or rows (batch, features), returns y, of shape
    ``(batch, *out_shape)``, and a residual for every sample, of shape (batch,): ``|z - s|/|s|`` with
    s = sigma(W z + U x + bz) for the z that y was read from (the largest, where there are several equilibria; 0 where
    there is none to find). It is infinite where x lies outside the domain, by more than a millionth of its size, and
    NaN where x is not finite: nothing is promised there.

    Args:
        chain: the parts, one after another.
        equilibria: for each its name, iterations, step and the factor by which an iteration shrinks errors.
        in_shape: the shape of one sample.
        out_shape: that of one output.
        dtype: of inputs and outputs.
        inner: what it computes in.
        domain: the inputs it is for.

    Attributes:
        promise: what is proved, in one sentence.
        accuracy: the bound that it states.
        error: what is proved, which may be less than the accuracy.
        iterations: of all equilibria together.
        contraction: the largest factor by which an iteration of one of them is proved to shrink errors; 0 where none is
            needed.

    Raises:
        InvalidInput: if it is made by hand of anything else.

    Examples:
        >>> plain = lben.export(lben.LBEN(2, 4, 1, gamma=1.0), accuracy=1e-3)
        >>> y, residual = plain(torch.tensor([[0.5, 0.5], [7.0, 0.5]]))
        >>> y.shape, residual[0] < 1e-2, residual[1]
        (torch.Size([2, 1]), tensor(True), tensor(inf))
        >>> plain.error <= plain.accuracy
        True
    """

    def __init__(
        self,
        chain: Chain,
        *,
        equilibria: tuple[Facts, ...],
        in_shape: Shape,
        out_shape: Shape,
        dtype: torch.dtype,
        inner: torch.dtype,
        domain: Inputs,
    ) -> None:
        super().__init__()
        if not isinstance(chain, Chain):
            raise InvalidInput(
                f"An Exported is what lben.export(net) makes of a network, not of a {type(chain).__name__}."
            )
        self.chain, self.equilibria = chain, equilibria
        self.in_shape, self.out_shape = in_shape, out_shape
        self.dtype, self.inner = dtype, inner
        self.accuracy = self.error = math.inf
        self.domain, self.promise = domain, ""
        self.outside = _Outside(domain.region(math.prod(in_shape)), inner)

    @property
    def iterations(self) -> int:
        """Of all equilibria together."""
        return sum(fact.iterations for fact in self.equilibria)

    @property
    def contraction(self) -> float:
        """The factor by which an iteration is proved to shrink errors, the largest of all; 0 where none is needed."""
        return max((fact.contraction for fact in self.equilibria), default=0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and a residual for every sample.

        Args:
            x: of shape ``(batch, *in_shape)``, or rows (batch, features), in float32 or float64.

        Returns:
            y, of shape ``(batch, *out_shape)``, and the residuals, of shape (batch,).

        Raises:
            InvalidInput: if x holds no floating-point numbers.
        """
        if not x.is_floating_point():
            raise InvalidInput(f"x must be float32 or float64, not {str(x.dtype)[6:]}.")
        rows = x.reshape(-1, math.prod(self.in_shape)).to(self.inner)
        whole = (rows - rows).sum(dim=1)  # 0, or NaN where something is not finite
        y, residual = self.chain(rows, whole)
        residual = torch.where(self.outside(rows) & (whole == 0), math.inf, residual)
        y = y.to(self.dtype)
        return y.reshape(-1, *self.out_shape), residual.to(self.dtype)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write an ONNX file of it: an input "x", outputs "y" and "residual", a batch of any size, and the promise.

        It needs the extra `onnx`. The file is whole or not there: it is written beside and then renamed. What is
        promised and proved stands in its metadata, under "promise", "accuracy", "iterations" and "contraction".

        Args:
            path: of the file, whose name ends in .onnx.

        Raises:
            InvalidInput: for another name, or a folder that is not there.
            MissingExtra: without the package onnx.

        Examples:
            >>> lben.export(lben.LBEN(2, 4, 1, gamma=1.0)).to_onnx("net.onnx")
            >>> import onnx
            >>> [output.name for output in onnx.load("net.onnx").graph.output]
            ['y', 'residual']
        """
        metadata = {
            "promise": self.promise,
            "accuracy": repr(self.accuracy),
            "iterations": str(self.iterations),
            "contraction": repr(self.contraction),
        }
        write_onnx(self, torch.zeros(2, *self.in_shape, dtype=self.dtype), path, metadata)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, accuracy={self.accuracy:g}"


class _Outside(nn.Module):
    """Which rows lie outside a region by more than a millionth of its size: those at its edge may have been rounded."""

    center: Tensor
    most: Tensor

    def __init__(self, region: Region, dtype: torch.dtype) -> None:
        super().__init__()
        half = region.half
        self.box = half is not None
        size = region.center.abs() + half if half is not None else region.center.norm() + region.radius
        most = half if half is not None else torch.tensor(region.radius, dtype=torch.float64)
        self.register_buffer("center", region.center.to(dtype))
        self.register_buffer("most", (most + 1e-6 * size).to(dtype))

    def forward(self, rows: Tensor) -> Tensor:
        apart = (rows - self.center).abs()
        return (apart - self.most).amax(dim=1) > 0 if self.box else apart.square().sum(dim=1).sqrt() > self.most


@undisturbed
def export(
    net: Examined,
    *,
    accuracy: float = 1e-4,
    domain: Inputs | None = None,
    dtype: torch.dtype | None = None,
    activation: Activation | None = None,
) -> Exported:
    """A network as a plain `nn.Module`, without solver, branches or autograd functions, and with a proved error.

    Every equilibrium becomes a fixed number of Peaceman-Rachford iterations, so many that ``|y - y*| <= accuracy`` in
    the l2 norm, for every input of the domain and whatever order a runtime adds in, y* the output of the network in
    real numbers. Other stages are computed as they are.

    Args:
        net: a network, a stack or bare weights, well-posed in a metric that they carry or that is found; of a recurrent
            network, one step is exported, from rows (x, u) to rows (x+, y).
        accuracy: a number above 0.
        domain: the inputs that are promised, an `InBox` or an `InBall`, as the module takes them, before a `Normalize`;
            None: all entries in [0, 1], as those of pixels.
        dtype: what it computes in. None: in the network's own where its rounding leaves room for the accuracy, else in
            float64, with inputs and outputs in the network's own.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        An `Exported`.

    Raises:
        InvalidInput: where rounding does not leave room, which says what can be promised, where too many iterations
            would be needed, or where a part has no plain form.
        NotWellPosed: where nothing is proved.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0).eval()
        >>> plain = lben.export(net, accuracy=1e-3, domain=lben.InBall(0.0, radius=2.0))
        >>> x = torch.tensor([[1.0, -1.0]])
        >>> bool((plain(x)[0] - net(x)).abs().max() < 2e-3)
        True
    """
    checks.positive("accuracy", accuracy)
    chosen = check_domain(domain)
    if dtype is not None and dtype not in checks.FLOATS:
        raise InvalidInput(f"dtype must be torch.float32, torch.float64 or None, not {dtype!r}.")
    if isinstance(net, Dynamics):
        raise InvalidInput(
            f"{type(net).__name__} cannot be exported: trajectories need an integrator. Its weights(), with its "
            "activation, are those of a network that can."
        )
    own = _own_dtype(net)
    evaluator = Evaluator.of(*_one_step(net, activation))
    evaluator.require_proof()
    links, shapes = _links(evaluator.subject)
    tried = [dtype] if dtype is not None else list(dict.fromkeys([own, torch.float64]))
    error, forms, region = math.inf, dict[Link, Form](), chosen.region(math.prod(shapes[0]))
    for inner, share in product(tried, _SHARES):
        plan = Plan(inner, share_of(links, share * accuracy), forms)
        with torch.no_grad():
            built = plan.chain(links, region, start_error(region, own, inner))
        error = end_error(built, own)
        if error <= accuracy:
            made = Exported(
                built.part,
                equilibria=built.facts,
                in_shape=shapes[0],
                out_shape=shapes[1],
                dtype=own,
                inner=inner,
                domain=chosen,
            )
            return _finished(made, accuracy, error)
    raise InvalidInput(_refusal(accuracy, error, own, tried[-1]))


def _one_step(net: Examined, activation: Activation | None) -> tuple[Examined, Activation | None]:
    """What is exported: of a recurrent network, the weights of one step."""
    recurrent = recurrent_of(net, activation)
    return (net, activation) if recurrent is None else (recurrent.weights.step(), recurrent.activation)


def _refusal(accuracy: float, error: float, own: torch.dtype, inner: torch.dtype) -> str:
    least = "no accuracy" if math.isinf(error) else f"an accuracy of {at_most(_ROOM * error, 3)}"
    advice = ""
    if inner is not torch.float64:
        advice = " Computed with dtype=torch.float64 it rounds less."
    elif own is not torch.float64:
        advice = " Its outputs are float32: net.double() rounds less."
    where = str(inner)[6:] if inner is own else f"{str(inner)[6:]}, and of outputs in {str(own)[6:]}"
    return (
        f"accuracy = {accuracy:g} cannot be promised: rounding in {where}, bounded in advance, leaves room for {least} "
        f"for these inputs.{advice}"
    )


def _finished(module: Exported, accuracy: float, error: float) -> Exported:
    module.accuracy, module.error = accuracy, error
    taken = f" in {module.iterations} iterations" if module.equilibria else ""
    module.promise = (
        f"For {module.domain}, the output is within {at_most(accuracy)} of the network's in real numbers (l2){taken}: "
        "proved, rounding included."
    )
    return module.eval()


def _links(subject: object) -> tuple[tuple[Link, ...], tuple[Shape, Shape]]:
    """The links of a subject, its normalisation at the head, and the shapes of samples at both ends."""
    if isinstance(subject, StackSubject):
        return subject.chain, (subject.weights.in_shape, subject.weights.stages[-1].out_shape)
    assert isinstance(subject, EquilibriumSubject)
    weights = subject.weights
    geometry = getattr(weights, "geometry", weights)
    shape: Shape = getattr(geometry, "in_shape", (weights.in_features,))
    stages: list[Stage] = []
    if subject.normalize is not None:
        stages.append(Standardize("Normalize", shape, subject.normalize.mean, subject.normalize.std))
    stages.append(Equilibrium("The network", shape, weights, subject.activation))
    return links_of(stages), (shape, getattr(weights, "out_shape", (weights.out_features,)))


def _own_dtype(net: Examined) -> torch.dtype:
    """The dtype of a network's tensors, or of weights; the default one where there are several records of them."""
    if isinstance(net, nn.Module):
        tensors = [*net.parameters(), *net.buffers()]
    else:
        tensors = list(net.tensors().values()) if isinstance(net, Record) else []
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.get_default_dtype())
