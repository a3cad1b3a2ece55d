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

    Nothing of how the weights were made is trusted, and the verdict accounts for rounding. Of a recurrent network, what
    its weights claim of any two trajectories is checked, or the incremental gain gamma, with the P and lam that they
    carry, or with some that are found.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        gamma: the bound to check, in `domain`; else the one the weights carry; else Condition `W` is checked instead.
        lam: the diagonal of the metric, shape (n,), as a certificate has it; else the one the weights carry, at its own
            scale; else the best that is found. `tightest_bound` searches all metrics.
        rigorous: prove it a second way, by ball arithmetic (extra `sdp`), which decides closer cases. Every verdict
            accounts for rounding; that on a convolutional network is reached in the same way with or without this.
        domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
            before it. They are the same without one.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `Certificate`, true if it holds; of a recurrent network a `Dissipation`.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> if lben.certify(net):
        ...     print("1-Lipschitz")
        1-Lipschitz
        >>> bool(lben.certify(net, gamma=1e-4))
        False
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
    """The smallest Lipschitz bound, to about six digits, that any diagonal metric proves for these weights.

    Linear units are eliminated first, since as slopes in [0, 1] they would cost. Whatever the search answers is made
    feasible and checked again from the weights. For a convolutional network the metrics are those with one entry a
    channel, linear units stay, and the bound is within half a per cent of the smallest; `method` says so, or says that
    it may not be.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        solver: "barrier", the method made for this problem, or "scs", the general one through cvxpy (extra `sdp`), as
            an independent check.
        rigorous: whether to check by ball arithmetic, which needs the extra `sdp`.
        domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
            before it. They are the same without one.
        outputs: numbers of those to look at, all if not given.
        features: numbers of those that move while others stay, all if not given. For weights that are not dense, and
            stacks that cannot be joined as one, the bound of the whole is returned, which holds for parts, too.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        The `Certificate` of that gamma.

    Raises:
        NotWellPosed: where no metric proves an equilibrium.
        BoundNotMet: where the digits of double precision are too few to confirm any bound.

    Examples:
        What is proved after training is often below what was prescribed.

        >>> net = lben.LBEN(2, 4, 2, gamma=1.0)
        >>> whole = lben.tightest_bound(net)
        >>> bool(whole), whole.gamma <= 1.0
        (True, True)
        >>> lben.tightest_bound(net, outputs=[0], features=[1]).gamma <= whole.gamma
        True
    """
    checks.choice("solver", solver, ("barrier", "scs"))
    checks.flag("rigorous", rigorous)
    subject = part_of(subject_of(net, activation), outputs, features)
    return subject.tightest(solver=solver, rigorous=rigorous, domain=domain)


@undisturbed
def product_bound(net: Examined, *, domain: Domain = "input", activation: Activation | None = None) -> float:
    """The cheap bound ``|Wo Lam^(-1/2)| |Lam^(1/2) U| / m``, in the metric the weights carry or one that is found.

    To see what `tightest_bound` gains; rounded up until Condition `lipschitz` proves it.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        domain: where distances between inputs are measured: "input", after the network's `Normalize`, or "pixels",
            before it. They are the same without one.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        The bound.

    Raises:
        NotWellPosed: where m <= 0.

    Examples:
        >>> net = lben.MON(2, 4, 1)
        >>> lben.tightest_bound(net).gamma <= lben.product_bound(net)
        True
    """
    subject = subject_of(net, activation)
    scale = subject.scale_of(domain)
    bound = subject.product_bound()
    return bound / scale * (1 + 4 * EPS) if bound > 0 else 0.0


@undisturbed
def well_posed(net: Examined | Tensor, *, activation: Activation | None = None) -> WellPosedness:
    """Search all diagonal metrics for one that proves exactly one equilibrium for every input (Condition `W`).

    Args:
        net: W itself, of shape (n, n); dense weights; or a dense network.
        activation: for W and bare weights; it matters only where units act in blocks, on which a metric is constant.
            ReLU if not given.

    Returns:
        A `WellPosedness`, true if there is such a metric.

    Raises:
        InvalidInput: if W is no finite square matrix, or has more than 4,096 rows.

    Examples:
        A W whose norm is far above 1 can be well-posed all the same.

        >>> bool(lben.well_posed(torch.tensor([[0.5, 100.0], [0.0, 0.5]])))
        True
        >>> found = lben.well_posed(torch.tensor([[1.5]]))
        >>> bool(found), found.witness is not None
        (False, True)
    """
    if isinstance(net, Tensor):
        W = square(net)
        sigma = ReLU() if activation is None else check_activation(activation, len(W))
        return best_metric(W, sigma.groups(len(W)))
    subject = subject_of(net, activation)
    W = subject.matrices.W
    return best_metric(W, subject.activation.groups(len(W)))
