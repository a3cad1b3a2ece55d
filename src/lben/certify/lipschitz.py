"""The verbs on Conditions `lipschitz` and `W`: check a bound, find the smallest, and ask for well-posedness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from torch import Tensor

from lben import checks
from lben.activations.base import Activation, check_activation
from lben.activations.scalar import ReLU
from lben.certify.certificate import BoundSolver, Certificate, Domain
from lben.certify.kinds import subject_of
from lben.certify.recurrent import Dissipation, Recurrent, recurrent_of
from lben.certify.subject import Examined, part_of
from lben.certify.wellposed import WellPosedness, best_metric, square
from lben.errors import InvalidInput
from lben.numerics.enclosed import EPS
from lben.numerics.rounding import undisturbed
from lben.weights.recurrent import RENWeights


@overload
def certify(  # type: ignore[overload-overlap]  # a RENWeights is a Record, too
    net: Recurrent | RENWeights,
    gamma: float | None = None,
    *,
    rigorous: bool = False,
    activation: Activation | None = None,
) -> Dissipation: ...


@overload
def certify(
    net: Examined,
    gamma: float | None = None,
    *,
    lam: Tensor | None = None,
    rigorous: bool = False,
    domain: Domain = "input",
    activation: Activation | None = None,
) -> Certificate: ...


@undisturbed
def certify(
    net: Examined,
    gamma: float | None = None,
    *,
    lam: Tensor | None = None,
    rigorous: bool = False,
    domain: Domain = "input",
    activation: Activation | None = None,
) -> Certificate | Dissipation:
    """Check Condition `lipschitz` from the explicit weights alone, in double precision.

    gamma: the bound to check, in `domain`; else the one the weights carry; else Condition `W` is checked instead.
    lam: the diagonal of the metric, shape (n,), as a certificate has it; else the one the weights carry, at its own
        scale; else the best that is found. `tightest_bound` searches all metrics.
    rigorous: account for every rounding error, by ball arithmetic (extra `sdp`); for a convolutional network by bounds
        on all of them, which needs no extra.
    domain: where distances between inputs are measured, the network's input or pixels before its `Normalize`.
    activation: for bare weights: ReLU if not given.

    Of a recurrent network, what its weights claim of any two trajectories, or the incremental gain gamma, with the P
    and lam that they carry, or with some that are found; the record is then a `Dissipation`.
    """
    if gamma is not None:
        gamma = checks.positive("gamma", gamma)
    checks.flag("rigorous", rigorous)
    recurrent = recurrent_of(net, activation)
    if recurrent is not None:
        if lam is not None or domain != "input":
            raise InvalidInput("A recurrent network is certified at its input, with a metric P and lam of its weights.")
        return recurrent.claimed(gamma, rigorous)
    if lam is not None:
        checks.there("lam", checks.floating("lam", lam))
    return subject_of(net, activation).check(gamma, lam, rigorous=rigorous, domain=domain)


@undisturbed
def tightest_bound(
    net: Examined,
    *,
    solver: BoundSolver = "barrier",
    rigorous: bool = False,
    domain: Domain = "input",
    outputs: Sequence[int] | None = None,
    features: Sequence[int] | None = None,
    activation: Activation | None = None,
) -> Certificate:
    """The certificate of the smallest gamma, to about six digits, that any diagonal metric proves for these weights.

    Linear units are eliminated first, since as slopes in [0, 1] they would cost. `solver`: "barrier", the method made
    for this problem, or "scs", the general one through cvxpy, as an independent check. Whatever they answer is made
    feasible and checked again from the weights. `activation` is for bare weights: ReLU if not given.
    For a convolutional network the metrics are those with one entry a channel, linear units stay, and the bound is
    within half a per cent of the smallest; `method` says so, or says that it may not be.
    outputs, features: numbers of those to look at, all if not given: how far these outputs move where these features
        move and others stay. For weights that are not dense the bound of the whole, which holds for them, too.
    Raises NotWellPosed where no metric proves an equilibrium.
    """
    checks.choice("solver", solver, ("barrier", "scs"))
    checks.flag("rigorous", rigorous)
    subject = part_of(subject_of(net, activation), outputs, features)
    return subject.tightest(solver=solver, rigorous=rigorous, domain=domain)


@undisturbed
def product_bound(net: Examined, *, domain: Domain = "input", activation: Activation | None = None) -> float:
    """|Wo Lam^(-1/2)| |Lam^(1/2) U| / m: the cheap bound, in the metric the weights carry or one that is found.

    To see what `tightest_bound` gains; rounded up until Condition `lipschitz` proves it.
    Raises NotWellPosed where m <= 0.
    """
    subject = subject_of(net, activation)
    scale = subject.scale_of(domain)
    bound = subject.product_bound()
    return bound / scale * (1 + 4 * EPS) if bound > 0 else 0.0


@undisturbed
def well_posed(net: Examined | Tensor, *, activation: Activation | None = None) -> WellPosedness:
    """Search all diagonal metrics for one that satisfies Condition `W`; takes W itself, dense weights or a network.

    `activation` is for W and bare weights; it matters only where units act in blocks, on which a metric is constant.
    """
    if isinstance(net, Tensor):
        W = square(net)
        sigma = ReLU() if activation is None else check_activation(activation, len(W))
        return best_metric(W, sigma.groups(len(W)))
    subject = subject_of(net, activation)
    W = subject.matrices.W
    return best_metric(W, subject.activation.groups(len(W)))
