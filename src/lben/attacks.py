"""Attacks on a classifier through Foolbox, whose every claim is checked again: size, range and success."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations import Activation
from lben.certify.certificate import Certifiable, Domain, NoVerdict, place
from lben.certify.explicit import ExplicitNetwork
from lben.certify.numerics import undisturbed
from lben.certify.radius import check_labels, check_sizes
from lben.convweights import ConvWeights
from lben.equilibrium import BaseNetwork
from lben.errors import ConvergenceWarning, InvalidInput
from lben.extras import need
from lben.progress import Show, track
from lben.weights import Weights

AttackMethod = Literal["fgm", "pgd", "deepfool"]
PAPER_IMAGES = 2000
"""At most so many are attacked by the paper's protocol."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """The same lengths in both units: at the network's input, and in pixels.

    They are equal without `Normalize`. A size has no one length at the input where features have different stds: NaN.
    """

    input: Tensor
    pixels: Tensor


@dataclass(frozen=True, eq=False)
class Attack(NoVerdict):
    """What an attack reached at each of K sizes, on a batch of B inputs with d features.

    epsilons: the sizes allowed, shape (K,). error: the share of inputs with a wrong class at each, shape (K,).
    clean_error: the share without attack.
    inputs: the attacked inputs, in pixels and in their range, shape (K, B, d); distances: how far they are from the
        originals, shape (K, B), never more than the size.
    success: where the class is wrong, shape (K, B), with the equilibrium solved to machine precision.
    unsolved: where no equilibrium was found, which counts as wrong; there may be none if no metric proves one.
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
        sizes = (self.epsilons.input if at_input else self.epsilons.pixels).tolist()
        reached = [
            f"{100 * error:.2f} % at size {size:.4g}" for size, error in zip(sizes, self.error.tolist(), strict=True)
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
    net: Certifiable | Weights | ConvWeights,
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
    """Look for inputs near x, in the l2 norm, that get a class other than y.

    x: pixels, shape (B, d), or images for a convolutional network, within `bounds`, to which attacked inputs are
        clipped; the network normalises them itself.
    epsilons: the sizes allowed, in `domain`: distances at the network's input (after `Normalize`), or in pixels.
    method: "fgm", one step along the gradient; "pgd", the default, `steps` projected steps from each of `restarts`
        random starts; "deepfool", which looks for the nearest wrong class, and whose one answer serves every size.
    paper_protocol: the protocol behind the paper's tables: "fgm", on the last 2,000 of x, sizes at the network's
        input, every input attacked even if its class is wrong already.
    progress: True for a bar, False for none; if not given, one on a terminal when it takes longer than some seconds.
    """
    explicit = ExplicitNetwork(net, activation)
    explicit.subject.scale_of(domain)
    if method is not None:
        checks.choice("method", method, ("fgm", "pgd", "deepfool"))
    checks.flag("paper_protocol", paper_protocol)
    if paper_protocol and (method not in (None, "fgm") or domain != "input"):
        raise InvalidInput("The paper's protocol is \"fgm\" with sizes at the network's input: ask for nothing else.")
    method = method or ("fgm" if paper_protocol else "pgd")
    steps, restarts, batch_size = (
        checks.count(name, value)
        for name, value in (("steps", steps), ("restarts", restarts), ("batch_size", batch_size))
    )
    x = explicit.flat(x).clone()
    labels = _checked(explicit, x, y, bounds)
    if paper_protocol:
        x, labels = x[-PAPER_IMAGES:], labels[-PAPER_IMAGES:]
    sizes = _sizes(explicit, check_sizes("epsilons", epsilons), domain)
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # Foolbox imports GitPython, which else asks for git itself
    foolbox = need("foolbox", "An attack", extra="attacks")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", ConvergenceWarning)  # gradients may be rough: the answer is checked below
        torch.manual_seed(checks.seed(seed))
        target = _target(net, explicit)
        like = target.parameterization.U
        model = foolbox.PyTorchModel(target, bounds=bounds, device=like.device)
        tool = _tool(foolbox, method, steps, restarts)
        images, classes = x.to(like), labels.to(like.device)
        batches = list(zip(images.split(batch_size), classes.split(batch_size), strict=True))
        found = [
            _run(tool, model, method, rows, row_classes, sizes.pixels.tolist())
            for rows, row_classes in track(batches, f"Attacking by {method}", len(batches), show=progress)
        ]
    original = x.to("cpu", torch.float64)
    clean_wrong = _predicted(explicit, original, batch_size) != labels
    attacked = torch.cat(found, dim=1).to("cpu", torch.float64)
    attacked = _within(original, attacked, sizes.pixels, bounds, x.dtype)
    if not paper_protocol:
        attacked = torch.where(clean_wrong[:, None], original, attacked)
    predicted = torch.stack([_predicted(explicit, candidates, batch_size) for candidates in attacked])
    success = predicted != labels
    return Attack(
        method=method,
        epsilons=sizes,
        clean_error=float(clean_wrong.double().mean()),
        error=success.double().mean(dim=1),
        inputs=attacked.to(x.dtype),
        distances=_distances(explicit, attacked - original),
        success=success,
        unsolved=predicted < 0,
    )


def _checked(explicit: ExplicitNetwork, x: Tensor, y: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The labels, if inputs, labels and bounds fit each other."""
    explicit.inputs(x)
    if x.dim() != 2 or len(x) == 0:
        raise InvalidInput(f"x must have shape (batch, features) and at least one row, not {tuple(x.shape)}.")
    if explicit.weights.out_features < 2:
        raise InvalidInput("An attack needs at least two outputs to choose between, but the network has one.")
    pair = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(isinstance(end, Real) for end in bounds)
    if not pair or not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise InvalidInput(f"bounds must be two numbers, the smaller first, not {bounds!r}.")
    lowest, highest = float(x.detach().min()), float(x.detach().max())
    if lowest < bounds[0] or highest > bounds[1]:
        raise InvalidInput(
            f"x must be pixels within {bounds}, but lies in ({lowest:.6g}, {highest:.6g}): give the network a "
            "Normalize and attack what comes before it, or give other bounds."
        )
    return check_labels(y, tuple(x.shape[:-1]), explicit.weights.out_features)


def _sizes(explicit: ExplicitNetwork, values: Tensor, domain: Domain) -> Lengths:
    normalize = explicit.network.normalize
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


def _target(net: Certifiable | Weights | ConvWeights, explicit: ExplicitNetwork) -> BaseNetwork:
    """What Foolbox sees: a copy in evaluation, since its gradients would reach the parameters too.

    Where no equilibrium is found the gradient may be no number; an attack then stays where it is.
    """
    target = copy.deepcopy(net) if isinstance(net, BaseNetwork) else explicit.network
    target.solver = replace(explicit.suitable(target.solver), on_failure="warn")
    target.register_forward_pre_hook(_with_finite_gradient)
    return target.eval().requires_grad_(False)


def _with_finite_gradient(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if inputs[0].requires_grad:
        inputs[0].register_hook(lambda gradient: torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0))


def _tool(foolbox: Any, method: AttackMethod, steps: int, restarts: int) -> Any:
    if method == "fgm":
        return foolbox.attacks.L2FastGradientAttack()
    if method == "pgd":
        step = 2.5 / steps  # together two and a half times the radius
        return foolbox.attacks.L2ProjectedGradientDescentAttack(steps=steps, rel_stepsize=step).repeat(restarts)
    return foolbox.attacks.L2DeepFoolAttack(steps=steps)


def _run(tool: Any, model: Any, method: AttackMethod, x: Tensor, y: Tensor, sizes: list[float]) -> Tensor:
    """Attacked inputs for each size, shape (K, B, d); x itself for a size of zero."""
    if method == "deepfool":
        nearest, _, _ = tool(model, x, y, epsilons=None)
        return torch.stack([nearest] * len(sizes))
    positive = [size for size in sizes if size > 0]
    found = iter(tool(model, x, y, epsilons=positive)[1] if positive else [])
    return torch.stack([next(found) if size > 0 else x for size in sizes])


def _within(x: Tensor, attacked: Tensor, sizes: Tensor, bounds: tuple[float, float], dtype: torch.dtype) -> Tensor:
    """Attacked inputs as numbers of `dtype`, drawn back to the size and range they should have kept."""
    attacked = torch.nan_to_num(attacked, nan=bounds[0]).clamp(*bounds)
    distance = torch.linalg.vector_norm(attacked - x, dim=-1)
    share = (sizes[:, None] / distance.clamp(min=1e-300) * (1 - 1e-12 - 4 * torch.finfo(dtype).eps)).clamp(max=1.0)
    drawn = torch.lerp(x.expand_as(attacked), attacked, share[..., None]).to(dtype).to(torch.float64)
    too_far = torch.linalg.vector_norm(drawn - x, dim=-1) > sizes[:, None]
    return torch.where(too_far[..., None], x, drawn)


def _predicted(explicit: ExplicitNetwork, x: Tensor, batch_size: int) -> Tensor:
    return torch.cat([explicit.classify(rows) for rows in x.split(batch_size)])


def _distances(explicit: ExplicitNetwork, moved: Tensor) -> Lengths:
    pixels = torch.linalg.vector_norm(moved, dim=-1)
    normalize = explicit.network.normalize
    scaled = moved if normalize is None else moved / normalize.std
    return Lengths(torch.linalg.vector_norm(scaled, dim=-1), pixels)
