"""What is certified, and the record that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations import Activation, ReLU, check_activation
from lben.certify.condition import Balanced
from lben.certify.enclosed import definite
from lben.certify.numerics import at_most
from lben.convweights import ConvWeights
from lben.errors import BoundNotMet, InvalidInput, NotWellPosed
from lben.normalize import Normalize
from lben.weights import Weights, check_constant

Domain = Literal["input", "pixels"]
Verdict = Literal["holds", "fails", "undecided"]
NO_BOUND = 1e-30
"""What is reported, at most, where outputs do not depend on inputs at all: every gamma > 0 holds."""
MOST_UNITS = 4096
_INFLATIONS = 28  # from a billionth, doubled each time, to a quarter


class Certifiable(Protocol):
    """What can be certified: a module that is an equilibrium network, whatever it is made of."""

    @property
    def activation(self) -> Activation: ...

    @property
    def normalize(self) -> Normalize | None: ...

    def weights(self) -> Weights | ConvWeights: ...


class Judged:
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


class NoVerdict:
    """What a record says that has numbers and no verdict, where it is asked for a truth value."""

    def __bool__(self) -> bool:
        raise InvalidInput(f"{type(self).__name__} is neither true nor false: compare its numbers.")


def place(domain: Domain) -> str:
    """A domain in words."""
    return "the network's input" if domain == "input" else "pixels"


@dataclass(frozen=True, eq=False)
class Certificate(Judged):
    """The verdict on Condition `lipschitz` for `gamma`, or on Condition `W` where gamma is None.

    verdict: "holds"; "fails"; or "undecided", where rounding is larger than the margin.
    margin: the smallest eigenvalue of the matrix that must be positive definite, as computed; no verdict rests on it.
    lam: the diagonal of the metric, shape (n,); NaN for a linear unit that was eliminated and needs no entry.
    domain: where distances between inputs are measured: at the network's input, or in pixels, before `Normalize`.
    method: how the verdict was reached.
    rigorous: whether the verdict accounts for every rounding error.
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
        lost = (self.margin > 0) != self.holds and self.verdict != "undecided"
        margin = "a margin that rounding hides" if lost else f"margin {self.margin:.3g}"
        return f"{claim}: {status} ({margin}, {self.method})."


@dataclass(frozen=True, eq=False)
class Subject:
    """The explicit weights under examination, in double precision on the CPU, and what else a bound depends on.

    linear: which units are the identity, shape (n,). scale: the smallest std of `Normalize`, None without one.
    groups: the number of each unit's block, on which the metric must be constant; None where units act alone.
    loose: what the entries of Wo may be off by; None where they are exact.
    """

    weights: Weights
    linear: Tensor
    scale: float | None
    groups: Tensor | None = None
    loose: Tensor | None = None

    @staticmethod
    def of(net: Certifiable | Weights | ConvWeights, activation: Activation | None = None) -> Subject:
        """A network's weights, activation and normalisation; or bare weights with an activation, ReLU if not given."""
        if isinstance(net, Weights):
            weights, scale = net, None
            activation = check_activation(ReLU() if activation is None else activation, weights.hidden_features)
        else:
            Subject.refuse(net, activation)
            assert not isinstance(net, ConvWeights)
            check_size(getattr(net, "hidden_features", 0))
            with torch.no_grad():
                given = net.weights()
            if not isinstance(given, Weights):
                raise InvalidInput(
                    "This is for dense weights: give it net.weights().dense() of a small convolutional network."
                )
            weights = given
            activation = net.activation
            scale = None if net.normalize is None else net.normalize.scale
        check_size(weights.hidden_features)
        weights = weights.detach().validate()
        own: dict[str, Any] = {  # a copy, for the tensors of a network change under its name
            name: tensor.to("cpu", torch.float64, copy=True) for name, tensor in weights.tensors().items()
        }
        weights = replace(weights, **own)
        linear = torch.tensor(activation.linear).expand(weights.hidden_features)
        groups = activation.groups(weights.hidden_features)
        if weights.lam is not None:
            check_constant(weights.lam, groups)
        return Subject(weights, linear, scale, groups)

    @staticmethod
    def refuse(net: object, activation: Activation | None) -> None:
        """Say what is wrong with what is no network, or with an activation for one."""
        if not (isinstance(net, nn.Module) and callable(getattr(net, "weights", None))):
            advice = ": lben.from_sequential(module) reads it" if isinstance(net, nn.Sequential) else ""
            raise InvalidInput(f"An equilibrium network or lben.Weights is needed, not {type(net).__name__}{advice}.")
        if activation is not None:
            raise InvalidInput("activation is for bare weights: a network has its own.")

    def scale_of(self, domain: Domain) -> float:
        return domain_scale(self.scale, domain)


def check_size(units: int) -> None:
    """Pass a number of units whose matrices fit into memory."""
    if units > MOST_UNITS:
        raise InvalidInput(
            f"{units:,} units are too many: a dense certificate works on some twenty matrices of {units:,} x "
            f"{units:,}, {8e-9 * units**2:.1f} GB each, and is for at most {MOST_UNITS:,} units. Certify parts of the "
            "network and multiply their bounds, or use a convolutional network, which is certified by frequencies."
        )


def domain_scale(scale: float | None, domain: Domain) -> float:
    """What a bound in `domain` is multiplied by to be one at the network's input; `scale` is that of pixels."""
    if checks.choice("domain", domain, ("input", "pixels")) == "input":
        return 1.0
    if scale is None:
        raise InvalidInput("A bound in pixels needs a network made with normalize=Normalize(mean, std).")
    return scale


@dataclass(frozen=True, eq=False)
class Reduced:
    """A network without its linear units: z = sigma(W z + U x + ..), y = Wo z + D x + ... `kept` are the others.

    Only a search works on it: whatever it finds is proved by `Balanced`.
    """

    W: Tensor
    U: Tensor
    Wo: Tensor
    D: Tensor | None
    kept: Tensor

    @staticmethod
    def of(weights: Weights, linear: Tensor) -> Reduced:
        """z_l = (I - W_ll)^-1 (W_lk z_k + U_l x), put into the equations of the other units and of the output."""
        kept, gone = (~linear).nonzero()[:, 0], linear.nonzero()[:, 0]
        W, U, Wo = weights.W, weights.U, weights.Wo
        if len(gone) == 0:
            return Reduced(W, U, Wo, None, kept)
        system = torch.eye(len(gone), dtype=W.dtype) - W[gone][:, gone]
        if not 16 * len(gone) * torch.finfo(W.dtype).eps * float(torch.linalg.cond(system)) < 0.1:
            raise NotWellPosed("The linear units alone are unsolvable: to rounding, I - W is singular on them.", 0.0)
        through = torch.linalg.solve(system, torch.cat([W[gone][:, kept], U[gone]], dim=1))
        W_through, U_through = through[:, : len(kept)], through[:, len(kept) :]
        back = W[kept][:, gone]
        return Reduced(
            W=W[kept][:, kept] + back @ W_through,
            U=U[kept] + back @ U_through,
            Wo=Wo[:, kept] + Wo[:, gone] @ W_through,
            D=Wo[:, gone] @ U_through,
            kept=kept,
        )

    def condition(self, lam: Tensor, gamma: float | None) -> Tensor:
        """The matrix that must be positive definite, as `Weights.condition` has it where there is no D.

        With D it is [[M - Lam U U' Lam/gamma, Wo' + Lam U D'/gamma], [., gamma I - D D'/gamma]], whose Schur
        complement at D = 0 is that of Condition `lipschitz`; M = 2 Lam - Lam W - W' Lam.
        """
        half = torch.diag(lam) - lam[:, None] * self.W
        M = half + half.T
        if gamma is None:
            return M
        scaled = lam[:, None] * self.U
        M = M - scaled @ scaled.T / gamma
        if self.D is None:
            return M - self.Wo.T @ self.Wo / gamma
        side = self.Wo.T + scaled @ self.D.T / gamma
        corner = gamma * torch.eye(len(self.D), dtype=M.dtype) - self.D @ self.D.T / gamma
        return torch.cat([torch.cat([M, side], 1), torch.cat([side.T, corner], 1)])


def check(subject: Subject, lam: Tensor, gamma: float | None, *, rigorous: bool, domain: Domain) -> Certificate:
    """The certificate for this metric and this gamma, which is meant in `domain`; linear units with NaN are eliminated.

    It is computed from the weights alone, in double precision, or in ball arithmetic where `rigorous`.
    """
    scale = subject.scale_of(domain)
    condition = Balanced.of(subject.weights, lam, gamma, scale, loose=subject.loose)
    margin = _margin(subject, lam, None if gamma is None else gamma * scale)
    if rigorous:
        from lben.certify.rigorous import decide

        verdict = decide(subject.weights, lam, gamma, scale, condition)
        return Certificate(verdict, gamma, margin, lam, domain, "ball arithmetic", True)
    verdict = "undecided" if condition.X is None else definite(condition.X)
    return Certificate(verdict, gamma, margin, lam, domain, "Cholesky in double precision", False)


def _margin(subject: Subject, lam: Tensor, gamma: float | None) -> float:
    """The smallest eigenvalue of the condition as double precision has it."""
    reduced = Reduced.of(subject.weights, torch.isnan(lam))
    matrix = reduced.condition(lam[reduced.kept], gamma) if gamma != 0 else torch.full((1, 1), torch.inf)
    if not bool(torch.isfinite(matrix).all()):
        raise InvalidInput("The matrix of the condition overflows: the weights or lam are too large.")
    return float(torch.linalg.eigvalsh(matrix)[0]) if len(matrix) else math.inf


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
