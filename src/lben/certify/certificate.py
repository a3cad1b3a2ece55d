"""The records that say what is proved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from lben.errors import BoundNotMet, InvalidInput
from lben.numerics.enclosed import Verdict
from lben.numerics.rounding import at_least, at_most

Domain = Literal["input", "pixels"]
BoundSolver = Literal["barrier", "scs"]
NO_BOUND = 1e-30
"""What is reported, at most, where outputs do not depend on inputs at all: every gamma > 0 holds."""
_INFLATIONS = 28  # from a billionth, doubled each time, to a quarter


class Told:
    """A record that a notebook shows by its sentence, as `print` does, in place of all its tensors."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class Judged(Told):
    """What every record of a proof can say of itself."""

    verdict: Verdict
    rigorous: bool

    @property
    def holds(self) -> bool:
        return self.verdict == "holds"

    def __bool__(self) -> bool:
        return self.holds

    @property
    def status(self) -> str:
        """What it is if it holds."""
        return "proved, rounding included"


class NoVerdict(Told):
    """What a record says that has numbers and no verdict, where it is asked for a truth value."""

    def __bool__(self) -> bool:
        raise InvalidInput(f"{type(self).__name__} is neither true nor false: compare its numbers.")


def place(domain: Domain) -> str:
    """A domain in words."""
    return "the network's input" if domain == "input" else "pixels"


@dataclass(frozen=True, eq=False)
class LowerBound(NoVerdict):
    """Two inputs that show how large the Lipschitz constant is at least: `lipschitz_lower_bound` returns it.

    Attributes:
        value: ``|y1 - y2| / |x1 - x2|``, with the errors of the two outputs subtracted: a true lower bound if `proved`.
        inputs: x1 and x2, of shape (2, d), in `domain`; of a recurrent network two signals, of shape (2, times, d).
        trace: the best value known after each step of the search, before it is recomputed.
        domain: where distances are measured: "input" or "pixels".
        proved: whether a metric bounds the errors. If not, the two outputs are equilibria to machine precision, but
            nothing is proved of them.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> below = lben.lipschitz_lower_bound(net, restarts=4, steps=10)
        >>> below.proved, 0 < below.value <= lben.tightest_bound(net).gamma, below.inputs.shape
        (True, True, torch.Size([2, 2]))
    """

    value: float
    inputs: Tensor
    trace: Tensor
    domain: Domain
    proved: bool

    def __str__(self) -> str:
        truth = "proved" if self.proved else "observed; without a metric nothing is proved of these outputs"
        shown = "signals show a gain" if self.inputs.dim() == 3 else "inputs show a Lipschitz constant"
        return f"Two {shown} of at least {at_least(self.value)}, measured at {place(self.domain)} ({truth})."


@dataclass(frozen=True, eq=False)
class Certificate(Judged):
    """The verdict on a Lipschitz bound (Condition `lipschitz`), or on well-posedness (Condition `W`).

    `certify` and `tightest_bound` return it, it is true if it holds, and ``str`` says it in a sentence.

    Attributes:
        verdict: "holds", which makes the record true; "fails"; or "undecided", where rounding is larger than the
            margin.
        gamma: the bound; None where well-posedness alone is meant.
        margin: the smallest eigenvalue of the matrix that must be positive definite, as computed; no verdict rests on
            it.
        lam: the diagonal of the metric, of shape (n,); NaN for a linear unit that was eliminated and needs no entry.
        domain: where distances between inputs are measured: "input" or "pixels", before `Normalize`.
        method: how the verdict was reached.
        rigorous: whether it was asked for: in ball arithmetic, for dense weights.

    Examples:
        >>> certificate = lben.certify(lben.LBEN(2, 4, 1, gamma=1.0))
        >>> certificate.verdict, certificate.gamma, certificate.lam.shape
        ('holds', 1.0, torch.Size([4]))
        >>> print(certificate)
        Outputs move at most 1 times as far as inputs, measured at the network's input: proved, rounding included (...).
    """

    verdict: Verdict
    gamma: float | None
    margin: float
    lam: Tensor
    domain: Domain
    method: str
    rigorous: bool

    def __str__(self) -> str:
        if self.gamma is None:
            claim = "There is exactly one equilibrium for every input"
        else:
            claim = (
                f"Outputs move at most {at_most(self.gamma)} times as far as inputs, measured at {place(self.domain)}"
            )
        status = {
            "holds": self.status,
            "fails": "not proved by this metric",
            "undecided": "neither proved nor refuted by this check",
        }[self.verdict]
        return f"{claim}: {status} ({self._margin}{self.method})."

    @property
    def _margin(self) -> str:
        if math.isnan(self.margin):  # where no one matrix stands behind the verdict
            return ""
        lost = (self.margin > 0) != self.holds and self.verdict != "undecided"
        return "a margin that rounding hides, " if lost else f"margin {self.margin:.3g}, "


@dataclass(frozen=True)
class Factor:
    """What a stage, or several examined as one, multiply distances by at most; infinite where nothing is known."""

    name: str
    bound: float
    method: str


@dataclass(frozen=True, eq=False)
class StackCertificate(Certificate):
    """The verdict on a stack: gamma is at least the product of the bounds of its `factors`, each proved alone.

    lam: the metrics of its equilibria, one after another. margin: no number, since no one matrix stands behind it.
    """

    factors: tuple[Factor, ...] = ()

    def __str__(self) -> str:
        parts = [f"\n  {at_most(factor.bound)}: {factor.name} ({factor.method})" for factor in self.factors]
        return super().__str__() + "".join(parts)


def confirmed(gamma: float, method: str, prove: Callable[[float], Certificate]) -> Certificate:
    """The certificate of gamma, or of the first that holds a little above it: a search ends within rounding of it."""
    growth = 1e-9
    for _ in range(_INFLATIONS):
        certificate = prove(gamma)
        if certificate.holds:
            return replace(certificate, method=f"{method}, checked by {certificate.method}")
        gamma *= 1 + growth
        growth *= 2
    raise BoundNotMet(
        f"No bound near {gamma:.6g} could be confirmed: the digits of double precision are too few for these weights "
        f"(smallest eigenvalue {certificate.margin:.3g}, as computed). Scale them to similar sizes.",
        certificate.margin,
    )


def known(certificate: Certificate) -> float:
    """The gamma of a certificate that has one."""
    assert certificate.gamma is not None
    return certificate.gamma
