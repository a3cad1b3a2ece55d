"""How far each input may move before its class can change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import Activation
from lben.certify.certificate import Domain, NoVerdict, place
from lben.certify.evaluator import PRECISE, Evaluator, placed
from lben.certify.locality import Locality, Norm, named
from lben.certify.subject import Examined, Subject
from lben.certify.widening import Known, Told, Widening
from lben.certify.witness import BallProof
from lben.errors import InvalidInput
from lben.numerics.rounding import at_least, undisturbed
from lben.progress import track
from lben.solvers.base import Solver, check_solver
from lben.weights.record import Record, same
from lben.weights.stages import Stack

_SMALLEST = 1e-290  # below it underflow takes digits from a radius
_SQRT2 = math.nextafter(math.sqrt(2), 2)
_ENTRIES = 2**27  # on the way of a batch through the network


@dataclass(frozen=True, eq=False)
class CertifiedRadius(NoVerdict):
    """A radius for each input, below which its class cannot change: `certified_radius` returns it.

    Attributes:
        radius: of the shape of the batch; 0 where nothing is proved, or where the class is not the given label.
        predicted: the class, of the shape of the batch.
        domain: what the radii measure: distances at the network's "input", or in "pixels".
        bounds: Lipschitz bounds of the differences of two outputs, in `domain` and `norm`, of shape (p, p).
        norm: "2", or "inf" where each feature may move by the radius.

    Examples:
        >>> found = lben.certified_radius(lben.LBEN(2, 4, 3, gamma=1.0), torch.randn(5, 2))
        >>> found.radius.shape, found.bounds.shape, bool((found.radius >= 0).all())
        (torch.Size([5]), torch.Size([3, 3]), True)
    """

    radius: Tensor
    predicted: Tensor
    domain: Domain
    bounds: Tensor
    norm: Norm = "2"

    def __str__(self) -> str:
        sizes = self.radius.reshape(-1)
        if len(sizes) == 0:
            return "No radii: there was no input."
        low, middle, high = (at_least(float(value)) for value in (sizes.min(), sizes.median(), sizes.max()))
        return (
            f"{len(sizes)} certified {named(self.norm)} radii from {low} to {high}, the median {middle}, measured at "
            f"{place(self.domain)}; zero for {int((sizes == 0).sum())}."
        )


@dataclass(frozen=True, eq=False)
class CertifiedAccuracy(NoVerdict):
    """The share of inputs that keep the right class under every perturbation up to each radius.

    `certified_accuracy` returns it.

    Attributes:
        radii: the radii asked for, of shape (K,).
        accuracy: the share at each of them, of shape (K,).
        domain: what the radii measure: distances at the network's "input", or in "pixels".

    Examples:
        >>> net = lben.LBEN(2, 4, 3, gamma=1.0)
        >>> x, y = torch.randn(8, 2), torch.zeros(8, dtype=torch.int64)
        >>> found = lben.certified_accuracy(net, x, y, [0.0, 0.5, 1000.0])
        >>> bool((found.accuracy.diff() <= 0).all()), float(found.accuracy[-1])
        (True, 0.0)
    """

    radii: Tensor
    accuracy: Tensor
    domain: Domain

    def __str__(self) -> str:
        parts = [
            f"{at_least(100 * share, 4)} % within {at_least(size)}"
            for size, share in zip(self.radii.tolist(), self.accuracy.tolist(), strict=True)
        ]
        return f"Right, and proved to stay so: {', '.join(parts)}, measured at {place(self.domain)}."


class Pairs(NamedTuple):
    """Bounds of the differences of two outputs, shape (p, p), and the metrics behind them, (p, p, n), where known."""

    gamma: Tensor
    lam: Tensor | None


@undisturbed
def certified_radius(
    net: Examined,
    x: Tensor,
    y: Tensor | None = None,
    *,
    pairwise: bool = True,
    local: bool = False,
    rigorous: bool = False,
    norm: Norm | float = "2",
    domain: Domain = "input",
    solver: Solver | None = None,
    progress: bool | None = None,
    found: Told | None = None,
    activation: Activation | None = None,
) -> CertifiedRadius:
    """For each x, a distance within which the class cannot change: min over j of (y_i - y_j - error) / gamma_ij.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: as the network takes it, of shape (..., d), on any device, where the result lies, too; all is computed in
            double precision on the CPU.
        y: labels, integers of the shape of the batch, if a wrong class is to count as radius 0.
        pairwise: gamma_ij is the tightest bound of y_i - y_j alone (for a convolution, that among the multiples of the
            metric that is best for the network); else sqrt(2) times that of the network, its gamma where it has one.
            Pairwise bounds are computed once for a network and kept until a weight changes.
        local: also look at each x: within a radius most units cannot leave their branch, and the others see narrower
            slopes (`local_bound`), so that more is true than everywhere. Never less than without it, and slower: for
            dense networks and dense stacks with activations of the table.
        rigorous: with `local`, prove every radius again in ball arithmetic (python-flint, extra `sdp`): for ReLU,
            LeakyReLU and Identity. Where that fails: 1 % less, what global bounds prove, or 0. Some 2 s an image at 80
            units.
        norm: "2", or "inf", where each feature may move by the radius: that of "2" over sqrt(d), and more where
            `local`; 2 and `math.inf` mean the same.
        domain: what the radii measure: "input", or "pixels", before the network's `Normalize`.
        solver: how equilibria are found; None: to a tolerance of 1e-12. What it leaves open is bounded and counted: a
            loose one costs precision, never truth.
        progress: whether to show a bar; None: on a terminal, where pairwise bounds take longer than some seconds.
        found: is called with numbers of inputs, in the flattened batch, and their radii, both of shape (k,), as soon as
            they are known: each input once, and a batch of inputs together where they are found together.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `CertifiedRadius`.

    Raises:
        InvalidInput: if x, y or an option does not fit, or the network has one output.
        NotWellPosed: where no metric proves an equilibrium.

    Examples:
        No attack within the radius can change the class.

        >>> net = lben.LBEN(2, 4, 3, gamma=1.0).eval()
        >>> x = torch.randn(5, 2)
        >>> found = lben.certified_radius(net, x)
        >>> step = torch.nn.functional.normalize(torch.randn(5, 2)) * 0.99 * found.radius[:, None].float()
        >>> torch.equal(net(x + step).argmax(dim=1), found.predicted)
        True
    """
    _check(pairwise, local, rigorous)
    norm = checks.norm(norm)
    evaluator = Evaluator.of(net, activation)
    evaluator.require_proof()
    subject = evaluator.subject
    classes = evaluator.weights.out_features
    check_classes(classes)
    rows, scale = evaluator.inputs(x), subject.scale_of(domain)
    method = PRECISE if solver is None else check_solver(solver)
    batch = evaluator.flat(x).shape[:-1]
    labels = None if y is None else check_labels(y, tuple(batch), classes)
    pairs = kept_bounds(net, subject, progress) if pairwise else Pairs(_joint_bounds(subject), None)
    known = _known(evaluator, rows, method, pairs, progress)
    predicted, told = known.predicted, _teller(found, scale, x.device)
    asked = known.radius > 0 if labels is None else (known.radius > 0) & (predicted == labels)
    root = 1.0 if norm == "2" else math.sqrt(rows.shape[1])
    if local:
        radius = _widening(subject, rows, method, known, norm, rigorous).run(asked, told, progress)
    else:
        radius = torch.where(asked, known.radius / root, 0.0)
        told(torch.arange(len(rows)), radius)
    radius = _in_domain(radius, scale)
    bounds = pairs.gamma / scale * (1 + 1e-15) * (1.0 if norm == "2" else root * (1 + 1e-15))
    return placed(CertifiedRadius(radius.reshape(batch), predicted.reshape(batch), domain, bounds, norm), x.device)


def _check(pairwise: bool, local: bool, rigorous: bool) -> None:
    checks.flag("pairwise", pairwise)
    checks.flag("local", local)
    if checks.flag("rigorous", rigorous) and not local:
        raise InvalidInput("rigorous=True proves local radii: ask for local=True as well.")


def _widening(subject: Subject, rows: Tensor, solver: Solver, known: Known, norm: Norm, rigorous: bool) -> Widening:
    locality = Locality.of(subject)
    return Widening(locality, rows, solver, known, norm, BallProof(locality) if rigorous else None)


def _in_domain(radius: Tensor, scale: float) -> Tensor:
    """Radii at the network's input in units of what is `scale` times as long, rounded down."""
    radius = radius * (scale * (1 - 1e-12))
    return torch.where(radius > _SMALLEST, radius, 0.0)


def _teller(found: Told | None, scale: float, device: torch.device) -> Told:
    """Hands radii at the network's input on, as the user reads them."""

    def told(index: Tensor, radius: Tensor) -> None:
        if found is not None and len(index):
            found(index.to(device), _in_domain(radius, scale).to(device))

    return told


def certified_accuracy(
    net: Examined,
    x: Tensor,
    y: Tensor,
    radii: Sequence[float] | Tensor,
    *,
    pairwise: bool = True,
    local: bool = False,
    rigorous: bool = False,
    norm: Norm | float = "2",
    domain: Domain = "input",
    solver: Solver | None = None,
    progress: bool | None = None,
    activation: Activation | None = None,
) -> CertifiedAccuracy:
    """The share of x whose class is y and is proved to stay so under every perturbation up to each of some radii.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: as the network takes it, of shape (..., d), on any device, where the result lies, too; all is computed in
            double precision on the CPU.
        y: labels, integers of the shape of the batch.
        radii: sizes of perturbations, finite and not negative, in `domain` and `norm`.
        pairwise: whether to use the bound of each difference of two outputs, as `certified_radius` does.
        local: whether to look around each x, as `certified_radius` does: larger radii, slower.
        rigorous: with `local`, whether to prove every radius again in ball arithmetic, as `certified_radius` does.
        norm: "2", or "inf", where each feature may move by the radius; 2 and `math.inf` mean the same.
        domain: what the radii measure: "input", or "pixels", before the network's `Normalize`.
        solver: how equilibria are found; None: to a tolerance of 1e-12. What it leaves open is bounded and counted: a
            loose one costs precision, never truth.
        progress: whether to show a bar; None: on a terminal, where pairwise bounds take longer than some seconds.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `CertifiedAccuracy`.

    Raises:
        InvalidInput: if an argument does not fit, or x is empty.
        NotWellPosed: where no metric proves an equilibrium.

    Examples:
        A trained network of the package, on four digits.

        >>> net, digits = lben.pretrained("mnist-gamma-1"), lben.data.embedded_mnist()
        >>> x, y = lben.data.pixels(digits.test_images[:4]), digits.test_labels[:4]
        >>> found = lben.certified_accuracy(net, x, y, [0.1, 0.5], pairwise=False, domain="pixels")
        >>> found.accuracy.tolist()
        [1.0, 1.0]
    """
    sizes = check_sizes("radii", radii)
    if y is None:
        raise InvalidInput("An accuracy needs labels: y is None.")
    found = certified_radius(
        net,
        x,
        y,
        pairwise=pairwise,
        local=local,
        rigorous=rigorous,
        norm=norm,
        domain=domain,
        solver=solver,
        progress=progress,
        activation=activation,
    )
    if found.radius.numel() == 0:
        raise InvalidInput("An accuracy needs at least one input, but x is empty.")
    accuracy = (found.radius.cpu().reshape(-1, 1) > sizes).double().mean(dim=0)
    return placed(CertifiedAccuracy(sizes, accuracy, domain), x.device)


def check_classes(outputs: int) -> None:
    """Refuse a network that has no two outputs to choose between."""
    if outputs < 2:
        raise InvalidInput(
            "A class needs at least two outputs to choose between, but the network has one: give it two, or ask "
            "lben.certified_interval how far the one can move."
        )


def check_labels(y: Tensor, batch: tuple[int, ...], classes: int) -> Tensor:
    """Labels as a flat tensor of integers, if they fit the inputs and the classes."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        kind = str(y.dtype)[6:] if isinstance(y, Tensor) else type(y).__name__
        raise InvalidInput(f"Labels must be a tensor of integers, not {kind}.")
    if tuple(y.shape) != batch:
        raise InvalidInput(f"There must be a label for each input: labels have shape {tuple(y.shape)}, inputs {batch}.")
    flat = checks.there("y", y).detach().to("cpu", torch.int64, copy=True).reshape(-1)
    outside = flat[(flat < 0) | (flat >= classes)]
    if outside.numel():
        raise InvalidInput(f"Labels must lie between 0 and {classes - 1}, but there is {int(outside[0])}.")
    return flat


def check_sizes(name: str, sizes: Sequence[float] | Tensor) -> Tensor:
    """Sizes of perturbations: finite and not negative."""
    try:
        given = torch.as_tensor(sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must be a list of numbers, not {sizes!r}.") from error
    if given.dim() != 1 or given.is_complex() or given.dtype == torch.bool:
        kind = repr(sizes) if given.dim() == 0 else f"{str(given.dtype)[6:]} of shape {tuple(given.shape)}"
        raise InvalidInput(f"{name} must be a list of numbers, not {kind}.")
    values = checks.finite(name, given.detach().to("cpu", torch.float64))
    if values.numel() == 0:
        raise InvalidInput(f"{name} is empty: give at least one size.")
    if bool((values < 0).any()):
        raise InvalidInput(f"{name} must not be negative, but there is {float(values.min()):g}.")
    return values


def _known(evaluator: Evaluator, rows: Tensor, solver: Solver, pairs: Pairs, progress: bool | None) -> Known:
    """Classes, how far they are above the others, and the radii that global bounds of pairs prove."""
    parts = rows.split(max(1, _ENTRIES // evaluator.subject.labour))  # of a deep stack all at once would take 20 GB
    found = [_gaps(evaluator, part, solver) for part in track(parts, "Outputs", len(parts), show=progress)]
    predicted, gap = (torch.cat(tensors) for tensors in zip(*found, strict=True))
    at = torch.arange(len(rows))
    radius = gap / pairs.gamma[predicted]
    radius[at, predicted] = math.inf
    radius = torch.nan_to_num(radius.amin(dim=-1), nan=0.0).clamp(min=0)
    return Known(predicted, gap, radius, pairs.gamma, pairs.lam)


def _gaps(evaluator: Evaluator, rows: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
    """Classes, and by how much at least their outputs are above the others, shape (batch, p)."""
    result = evaluator.evaluate(rows, solver)
    predicted = result.y.argmax(dim=-1)
    gap = result.y.gather(1, predicted[:, None]) - result.y
    return predicted, gap - result.pair_error(predicted)


def _joint_bounds(subject: Subject) -> Tensor:
    """sqrt(2) times a bound of the whole network, for every pair: gamma where it holds, else the tightest."""
    gamma = subject.weights.gamma
    if gamma is None or not subject.check(gamma, None, rigorous=False, domain="input"):
        gamma = subject.bound().gamma
    return torch.full(
        (subject.weights.out_features,) * 2, math.nextafter(_SQRT2 * gamma, math.inf), dtype=torch.float64
    )


def kept_bounds(net: Examined, subject: Subject, progress: bool | None) -> Pairs:
    """The pairwise bounds of a network, from where they are kept if nothing that decides them has changed."""
    if not isinstance(net, nn.Module):
        return _pairwise_bounds(subject, progress)
    decisive = (subject.weights, subject.activation)
    kept: tuple[tuple[Record | Stack, Activation], Pairs] | None = getattr(net, "_kept_bounds", None)
    if kept is None or not same(kept[0], decisive):
        kept = decisive, _pairwise_bounds(subject, progress)
        setattr(net, "_kept_bounds", kept)  # noqa: B010 (a note on the network, which need not know of it)
    return kept[1]


def _pairwise_bounds(subject: Subject, progress: bool | None) -> Pairs:
    """A bound of y_i - y_j for every pair."""
    joint, classes = subject.bound(), subject.weights.out_features
    most = math.nextafter(_SQRT2 * joint.gamma, math.inf)
    bounds = torch.zeros(classes, classes, dtype=torch.float64)
    metrics: dict[tuple[int, int], Tensor | None] = {}
    pairs = list(combinations(range(classes), 2))
    for i, j in track(pairs, "Bounds of pairs of outputs", len(pairs), show=progress):
        found = subject.difference(i, j).bound(joint)
        bounds[i, j] = bounds[j, i] = min(found.gamma, most)
        metrics[i, j] = metrics[j, i] = found.lam
    shapes = {None if lam is None else lam.shape for lam in metrics.values()}
    if None in shapes or len(shapes) != 1:
        return Pairs(bounds, None)
    lam = torch.ones(classes, classes, *shapes.pop(), dtype=torch.float64)  # type: ignore[misc] # no None is left
    for (i, j), one in metrics.items():
        assert one is not None
        lam[i, j] = one
    return Pairs(bounds, lam)
