"""Attacks on a classifier through Foolbox, whose every claim is checked again: size, range and success."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain, NoVerdict, place
from lben.certify.evaluator import Evaluator, placed
from lben.certify.radius import check_labels, check_sizes
from lben.certify.subject import Examined
from lben.checks import need
from lben.errors import ConvergenceWarning, InvalidInput
from lben.numerics.rounding import undisturbed
from lben.progress import Show, track
from lben.solvers.base import Solver

AttackMethod = Literal["fgm", "pgd", "deepfool"]
"""Names of attacks: "fgm", one step along the gradient; "pgd", projected steps; "deepfool", the nearest wrong class."""
PAPER_IMAGES = 2000
"""At most so many are attacked by the paper's protocol."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """The same lengths in both units, as an `Attack` has them.

    They are equal without `Normalize`. A size has no one length at the input where features have different stds: NaN.

    Attributes:
        input: at the network's input, behind its `Normalize`; of the shape of what they are the lengths of.
        pixels: before it, of the same shape.

    Examples:
        >>> net = lben.LBEN(2, 4, 2, gamma=1.0, normalize=lben.Normalize(0.5, 0.25))
        >>> found = lben.attack(net, torch.rand(3, 2), torch.tensor([0, 1, 0]), [1.0], method="fgm")
        >>> found.epsilons.input.tolist(), found.epsilons.pixels.tolist()
        ([1.0], [0.25])
    """

    input: Tensor
    pixels: Tensor


@dataclass(frozen=True, eq=False)
class Attack(NoVerdict):
    """What an attack reached at each of K sizes, on a batch of B inputs with d features: `attack` returns it.

    Attributes:
        method: which attack it was.
        epsilons: the sizes allowed, in both units, each of shape (K,).
        clean_error: the share of inputs with a wrong class without attack.
        error: the share with a wrong class at each size, of shape (K,).
        inputs: the attacked inputs, in pixels and in their range, of shape (K, B, d).
        distances: how far they are from the originals, in both units, each of shape (K, B); never more than the size.
        success: where the class is wrong, of shape (K, B), with the equilibrium solved to machine precision.
        unsolved: where no equilibrium was found, which counts as wrong; there may be none if no metric proves one.

    Examples:
        >>> net = lben.LBEN(2, 4, 2, gamma=1.0)
        >>> found = lben.attack(net, torch.rand(3, 2), torch.tensor([0, 1, 0]), [0.1, 0.2], steps=5)
        >>> found.inputs.shape, bool((found.error >= found.clean_error).all())
        (torch.Size([2, 3, 2]), True)
    """

    method: str
    epsilons: Lengths
    clean_error: float
    error: Tensor
    inputs: Tensor
    distances: Lengths
    success: Tensor
    unsolved: Tensor

    def __str__(self) -> str:
        at_input = bool(torch.isfinite(self.epsilons.input).all())
        both = at_input and not torch.equal(self.epsilons.input, self.epsilons.pixels)
        reached = [
            f"{100 * error:.2f} % at size {at if at_input else before:.4g}" + f" ({before:.4g} in pixels)" * both
            for error, at, before in zip(
                self.error.tolist(), self.epsilons.input.tolist(), self.epsilons.pixels.tolist(), strict=True
            )
        ]
        lost = int(self.unsolved.sum())
        where = place("input" if at_input else "pixels")
        unfound = f"; {lost} attacked ones have no equilibrium that was found, and count as wrong" if lost else ""
        return (
            f"Attacked by {self.method}, {self.success.shape[1]:,} inputs have an error of {', '.join(reached)}, "
            f"measured at {where}, and of {100 * self.clean_error:.2f} % without attack{unfound}."
        )


@undisturbed
def attack(
    net: Examined,
    x: Tensor,
    y: Tensor,
    epsilons: Sequence[float] | Tensor,
    *,
    method: AttackMethod | None = None,
    domain: Domain = "input",
    bounds: tuple[float, float] = (0.0, 1.0),
    steps: int = 50,
    restarts: int = 3,
    batch_size: int = 500,
    seed: int = 0,
    progress: Show = None,
    paper_protocol: bool = False,
    activation: Activation | None = None,
) -> Attack:
    """Look for inputs near x, in the l2 norm, that get a class other than y; through Foolbox (extra `attacks`).

    What Foolbox answers is checked again: size, range and success.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: pixels, of shape (B, d), or images for a convolutional network, within `bounds`, to which attacked inputs are
            clipped; the network normalises them itself. They may be on any device, where the result lies, too:
            gradients are those of the network where it is, and what they lead to is judged on the CPU.
        y: labels, integers of shape (B,).
        epsilons: the sizes allowed, finite and not negative, in `domain`.
        method: "fgm", one step along the gradient; "pgd", the default, `steps` projected steps from each of `restarts`
            random starts; "deepfool", which looks for the nearest wrong class, and whose one answer serves every size.
        domain: what sizes measure: distances at the network's "input", after `Normalize`, or in "pixels".
        bounds: the least and the greatest value of a pixel.
        steps: of "pgd" and "deepfool".
        restarts: of "pgd".
        batch_size: how many inputs are attacked at once.
        seed: of the random starts; the same seed gives the same result.
        progress: True for a bar, False for none; None: one on a terminal when it takes longer than some seconds.
        paper_protocol: the protocol behind the paper's tables: "fgm", on the last 2,000 of x, sizes at the network's
            input, every input attacked even if its class is wrong already.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        An `Attack`.

    Raises:
        InvalidInput: if an argument does not fit, or the network has one output.
        MissingExtra: without Foolbox.

    Examples:
        No attack succeeds within a certified radius.

        >>> net = lben.LBEN(2, 4, 2, gamma=1.0)
        >>> x = torch.rand(8, 2)
        >>> safe = lben.certified_radius(net, x)
        >>> found = lben.attack(net, x, safe.predicted, [0.9 * float(safe.radius.min())], steps=5)
        >>> bool(found.success.any())
        False
    """
    evaluator = Evaluator.of(net, activation)
    evaluator.subject.scale_of(domain)
    method = _method(method, domain, paper_protocol)
    for name, value in (("steps", steps), ("restarts", restarts), ("batch_size", batch_size)):
        checks.count(name, value)
    x = evaluator.flat(x).clone()
    labels = _checked(evaluator, x, y, bounds)
    if paper_protocol:
        x, labels = x[-PAPER_IMAGES:], labels[-PAPER_IMAGES:]
    sizes = _sizes(evaluator, check_sizes("epsilons", epsilons), domain)
    tool = _tool(method, steps, restarts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checks.seed(seed))
        found = _run(tool, method, _target(net, evaluator), bounds, x, labels, sizes, batch_size, progress)
    attacked = _within(x.to("cpu", torch.float64), found, sizes.pixels, bounds, x.dtype)
    judged = _judged(evaluator, method, sizes, x, attacked, labels, batch_size, every=paper_protocol)
    return placed(judged, x.device)


def _method(method: AttackMethod | None, domain: Domain, paper_protocol: bool) -> AttackMethod:
    if method is not None:
        checks.choice("method", method, ("fgm", "pgd", "deepfool"))
    if checks.flag("paper_protocol", paper_protocol) and (method not in (None, "fgm") or domain != "input"):
        raise InvalidInput("The paper's protocol is \"fgm\" with sizes at the network's input: ask for nothing else.")
    return method or ("fgm" if paper_protocol else "pgd")


def _judged(
    evaluator: Evaluator,
    method: AttackMethod,
    sizes: Lengths,
    x: Tensor,
    attacked: Tensor,
    labels: Tensor,
    batch_size: int,
    *,
    every: bool,
) -> Attack:
    """What was reached, by the classes of the attacked inputs alone; where x is wrong already, x itself, or `every`."""
    original = x.to("cpu", torch.float64)
    clean_wrong = _predicted(evaluator, original, batch_size) != labels
    if not every:
        attacked = torch.where(clean_wrong[:, None], original, attacked)
    predicted = torch.stack([_predicted(evaluator, candidates, batch_size) for candidates in attacked])
    success = predicted != labels
    return Attack(
        method=method,
        epsilons=sizes,
        clean_error=float(clean_wrong.double().mean()),
        error=success.double().mean(dim=1),
        inputs=attacked.to(x.dtype),
        distances=_distances(evaluator, attacked - original),
        success=success,
        unsolved=predicted < 0,
    )


def _checked(evaluator: Evaluator, x: Tensor, y: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The labels, if inputs, labels and bounds fit each other."""
    evaluator.inputs(x)
    if x.dim() != 2 or len(x) == 0:
        raise InvalidInput(f"x must have shape (batch, features) and at least one row, not {tuple(x.shape)}.")
    if evaluator.weights.out_features < 2:
        raise InvalidInput("An attack needs at least two outputs to choose between, but the network has one.")
    checks.interval("bounds", bounds)
    lowest, highest = float(x.detach().min()), float(x.detach().max())
    if lowest < bounds[0] or highest > bounds[1]:
        raise InvalidInput(
            f"x must be pixels within {bounds}, but lies in ({lowest:.6g}, {highest:.6g}): give the network a "
            "Normalize and attack what comes before it, or give other bounds."
        )
    return check_labels(y, tuple(x.shape[:-1]), evaluator.weights.out_features)


def _sizes(evaluator: Evaluator, values: Tensor, domain: Domain) -> Lengths:
    normalize = evaluator.subject.normalize
    if normalize is None:
        return Lengths(values, values)
    if bool((normalize.std != normalize.std[0]).any()):
        if domain == "input":
            raise InvalidInput(
                'Features have different stds, so a size at the input is no one size in pixels: use domain="pixels".'
            )
        return Lengths(torch.full_like(values, torch.nan), values)
    std = float(normalize.std[0])
    return Lengths(values, values * std) if domain == "input" else Lengths(values / std, values)


def _target(net: Examined, evaluator: Evaluator) -> nn.Module:
    """What Foolbox sees: a copy in evaluation, since its gradients would reach the parameters too.

    Where no equilibrium is found the gradient may be no number; an attack then stays where it is.
    """
    target = copy.deepcopy(net) if isinstance(net, nn.Module) else evaluator
    for part in target.modules():
        if isinstance(solver := getattr(part, "solver", None), Solver):
            part.solver = replace(solver, on_failure="warn")  # type: ignore[assignment] # what the part takes
    target.register_forward_pre_hook(_with_finite_gradient)
    return target.eval().requires_grad_(False)


def _with_finite_gradient(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if inputs[0].requires_grad:
        inputs[0].register_hook(lambda gradient: torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0))


def _tool(method: AttackMethod, steps: int, restarts: int) -> Any:
    """The attack of Foolbox."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # Foolbox imports GitPython, which else asks for git itself
    attacks = need("foolbox", "An attack", extra="attacks").attacks
    if method == "fgm":
        return attacks.L2FastGradientAttack()
    if method == "pgd":
        step = 2.5 / steps  # together two and a half times the radius
        return attacks.L2ProjectedGradientDescentAttack(steps=steps, rel_stepsize=step).repeat(restarts)
    return attacks.L2DeepFoolAttack(steps=steps)


def _run(
    tool: Any,
    method: AttackMethod,
    target: nn.Module,
    bounds: tuple[float, float],
    x: Tensor,
    labels: Tensor,
    sizes: Lengths,
    batch_size: int,
    progress: Show,
) -> Tensor:
    """Attacked inputs for each size, in double precision, shape (K, B, d); x itself for a size of zero."""
    like = next(chain(target.parameters(), target.buffers()), torch.zeros((), dtype=torch.float64))
    model = need("foolbox", "An attack", extra="attacks").PyTorchModel(target, bounds=bounds, device=like.device)
    batches = list(zip(x.to(like).split(batch_size), labels.to(like.device).split(batch_size), strict=True))
    positive = [size for size in sizes.pixels.tolist() if size > 0]
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # gradients may be rough: the answer is checked
        for rows, classes in track(batches, f"Attacking by {method}", len(batches), show=progress):
            if method == "deepfool":
                nearest, _, _ = tool(model, rows, classes, epsilons=None)
                found.append(torch.stack([nearest] * len(sizes.pixels)))
                continue
            moved = iter(tool(model, rows, classes, epsilons=positive)[1] if positive else [])
            found.append(torch.stack([next(moved) if size > 0 else rows for size in sizes.pixels.tolist()]))
    return torch.cat(found, dim=1).to("cpu", torch.float64)


def _within(x: Tensor, attacked: Tensor, sizes: Tensor, bounds: tuple[float, float], dtype: torch.dtype) -> Tensor:
    """Attacked inputs as numbers of `dtype`, drawn back to the size and range they should have kept."""
    attacked = torch.nan_to_num(attacked, nan=bounds[0]).clamp(*bounds)
    distance = torch.linalg.vector_norm(attacked - x, dim=-1)
    share = (sizes[:, None] / distance.clamp(min=1e-300) * (1 - 1e-12 - 4 * torch.finfo(dtype).eps)).clamp(max=1.0)
    drawn = torch.lerp(x.expand_as(attacked), attacked, share[..., None]).to(dtype).to(torch.float64)
    too_far = torch.linalg.vector_norm(drawn - x, dim=-1) > sizes[:, None]
    return torch.where(too_far[..., None], x, drawn)


def _predicted(evaluator: Evaluator, x: Tensor, batch_size: int) -> Tensor:
    return torch.cat([evaluator.classify(rows) for rows in x.split(batch_size)])


def _distances(evaluator: Evaluator, moved: Tensor) -> Lengths:
    pixels = torch.linalg.vector_norm(moved, dim=-1)
    normalize = evaluator.subject.normalize
    scaled = moved if normalize is None else moved / normalize.std
    return Lengths(torch.linalg.vector_norm(scaled, dim=-1), pixels)
