"""Whether some diagonal metric proves that every input has exactly one equilibrium (Condition `W`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.activations import Activation, ReLU, check_activation
from lben.certify.centres import Effort, monotonicity, search_metric
from lben.certify.certificate import Certifiable, Subject
from lben.certify.convolution import refuse_convolution
from lben.certify.numerics import undisturbed
from lben.convweights import ConvWeights
from lben.errors import InvalidInput
from lben.weights import Weights

_EFFORT = Effort(share=0.5, gap=0.0, stages=200)  # half of the best possible m is good enough to stop at
_LARGEST = 1e100


@dataclass(frozen=True, eq=False)
class WellPosedness:
    """What is known of the equation z = sigma(W z + b), for every b and every admissible sigma.

    holds: whether a diagonal metric satisfies Condition `W`. If not, `witness` proves that none does; rarely, where
        m is within rounding of zero, neither is found.
    lam: the best metric found, shape (n,).
    monotonicity: m in that metric, positive if and only if it satisfies the condition.
    best_monotonicity: no diagonal metric has a larger m than this.
    witness: a positive semidefinite Y with every entry of diag((I - W) Y) <= 0, or None: for every diagonal Lam > 0
        the trace of (2 Lam - Lam W - W' Lam) Y is then <= 0, which a positive definite matrix forbids. Where units act
        in blocks, on which Lam is constant, the entries are summed over each block.
    monotone: whether Lam = I satisfies it (Winston & Kolter 2020).
    norm: whether the largest absolute row sum of W is below 1 (El Ghaoui et al. 2021).
    perron_frobenius: whether the spectral radius of |W| is below 1 (El Ghaoui et al. 2021). This and `norm` prove
        something only where units act alone.
    """

    holds: bool
    lam: Tensor
    monotonicity: float
    best_monotonicity: float
    witness: Tensor | None
    monotone: bool
    norm: bool
    perron_frobenius: bool

    def __str__(self) -> str:
        if self.holds:
            first = f"Well-posed: a diagonal metric gives I - W a strong monotonicity of {self.monotonicity:.3g}."
        elif self.witness is not None:
            first = (
                "No diagonal metric satisfies Condition W, so nothing is proved of these weights: over all metrics the "
                f"strong monotonicity of I - W is at most {self.best_monotonicity:.3g}, and it must be positive."
            )
        else:
            first = (
                "No diagonal metric was found that satisfies Condition W, nor a proof that there is none: the best "
                f"strong monotonicity of I - W is between {self.monotonicity:.3g} and {self.best_monotonicity:.3g}."
            )
        older = {
            "monotone in the Euclidean metric": self.monotone,
            "largest row sum of |W| below 1": self.norm,
            "spectral radius of |W| below 1": self.perron_frobenius,
        }
        return f"{first} Older tests: {', '.join(f'{name}: {_yes(value)}' for name, value in older.items())}."


@undisturbed
def well_posed(
    net: Certifiable | Weights | ConvWeights | Tensor, *, activation: Activation | None = None
) -> WellPosedness:
    """Search all diagonal metrics for one that satisfies Condition `W`; takes W itself, weights or a network.

    `activation` is for W and bare weights; it matters only where units act in blocks, on which a metric is constant.
    """
    refuse_convolution(net, "well_posed")
    if isinstance(net, Tensor):
        W = square(net)
        sigma = ReLU() if activation is None else check_activation(activation, len(W))
        return best_metric(W, sigma.groups(len(W)))
    subject = Subject.of(net, activation)
    return best_metric(subject.weights.W, subject.groups)


def best_metric(W: Tensor, groups: Tensor | None) -> WellPosedness:
    """The best metric for W in double precision among those that are constant on every block of `groups`."""
    if float(W.abs().max()) > _LARGEST:
        raise InvalidInput(
            f"W has an entry of {float(W.abs().max()):.3g}: beyond {_LARGEST:g} nothing can be computed."
        )
    A = torch.eye(len(W), dtype=W.dtype) - W
    radius = float(torch.linalg.eigvals(W.abs()).abs().max())
    lam, m, best, Y = search_metric(A[None], _averaged(_perron(W.abs(), radius), groups), _EFFORT, groups)
    holds = m > 0
    return WellPosedness(
        holds=holds,
        lam=lam / lam.max(),
        monotonicity=m,
        best_monotonicity=max(best, m),
        witness=Y[0] / Y[0].diagonal().max() if best <= 0 else None,
        monotone=monotonicity(A[None], torch.ones_like(lam)) > 0,
        norm=float(W.abs().sum(dim=1).max()) < 1,
        perron_frobenius=radius < 1,
    )


def _averaged(lam: Tensor, groups: Tensor | None) -> Tensor:
    """The geometric mean of a metric on every block."""
    if groups is None:
        return lam
    means = lam.new_zeros(int(groups.max()) + 1).scatter_reduce(0, groups, lam.log(), "mean", include_self=False)
    return means.exp()[groups]


def _perron(B: Tensor, radius: float) -> Tensor:
    """The metric u / v with u = (I - B')^-1 1 and v = (I - B)^-1 1, where B = |W|, made smaller if it must be.

    It satisfies Condition `W` wherever `radius`, the spectral radius of |W|, is below one, and balances W where not.
    """
    system = torch.eye(len(B), dtype=B.dtype) - B * min(1.0, 0.9 / max(radius, 1e-300))
    ones = torch.ones(len(B), 1, dtype=B.dtype)
    u, v = torch.linalg.solve_ex(system.T, ones).result, torch.linalg.solve_ex(system, ones).result
    lam = (u / v)[:, 0]
    return lam if bool((torch.isfinite(lam) & (lam > 0)).all()) else ones[:, 0]


def square(W: Tensor) -> Tensor:
    """W in double precision, if it is a finite square matrix."""
    checks.floating("W", W)
    if W.layout != torch.strided:
        raise InvalidInput("W is sparse: make it dense first.")
    if W.dim() != 2 or W.shape[0] != W.shape[1] or W.numel() == 0:
        raise InvalidInput(f"W must be a square matrix, but its shape is {tuple(W.shape)}.")
    return checks.finite("W", W.detach().to("cpu", torch.float64, copy=True))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
