"""Whether some diagonal metric proves that every input has exactly one equilibrium (Condition `W`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lben import checks
from lben.certify.condition import highest_monotonicity, monotone, sure_monotonicity
from lben.errors import InvalidInput
from lben.numerics.centres import Effort, search_metric
from lben.numerics.enclosed import EPS, TINY, Enclosed

_EFFORT = Effort(share=0.5, gap=0.0, stages=200)  # half of the best possible m is good enough to stop at
_LARGEST = 1e100
_POWER_STEPS = 100
MOST_UNITS = 4096


@dataclass(frozen=True, eq=False)
class WellPosedness:
    """What is known of z = sigma(W z + b), for every b and every admissible sigma: `well_posed` returns it.

    Attributes:
        holds: whether a diagonal metric satisfies Condition `W`. If not, `witness` proves that none does; rarely, where
            m is within rounding of zero, neither is found.
        lam: the best metric found, of shape (n,).
        monotonicity: m in that metric, rounded down; it is positive if and only if it is proved to satisfy the
            condition.
        best_monotonicity: no diagonal metric has a larger m than this.
        witness: a positive semidefinite Y with every entry of diag((I - W) Y) <= 0, or None: for every diagonal Lam > 0
            the trace of (2 Lam - Lam W - W' Lam) Y is then <= 0, which a positive definite matrix forbids. Where units
            act in blocks, on which Lam is constant, the entries are summed over each block.
        monotone: whether Lam = I satisfies it (Winston & Kolter 2020).
        norm: whether the largest absolute row sum of W is below 1 (El Ghaoui et al. 2021).
        perron_frobenius: whether the spectral radius of the absolute W is below 1 (El Ghaoui et al. 2021). This and
            `norm` prove something only where units act alone. What rounding leaves open is False, here and in
            `monotone`.

    Examples:
        >>> found = lben.well_posed(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]))
        >>> found.holds, found.monotone, found.norm
        (True, True, False)
    """

    holds: bool
    lam: Tensor
    monotonicity: float
    best_monotonicity: float
    witness: Tensor | None
    monotone: bool
    norm: bool
    perron_frobenius: bool

    def __bool__(self) -> bool:
        return self.holds

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


def best_metric(W: Tensor, groups: Tensor | None) -> WellPosedness:
    """The best metric for W in double precision among those that are constant on every block of `groups`."""
    if not float(W.abs().max()) <= _LARGEST:  # nor NaN, which would reach `eigvals` and end the process
        raise InvalidInput(
            f"W has an entry of {float(W.abs().max()):.3g}: beyond {_LARGEST:g} nothing can be computed."
        )
    A = torch.eye(len(W), dtype=W.dtype) - W
    size = W.abs()
    radius = _spectral_radius(size)
    lam, m, _, Y = search_metric(A[None], _averaged(_perron(size, radius), groups), _EFFORT, groups)
    m = sure_monotonicity(W, lam, m)
    identity = Enclosed.exact(torch.eye(len(W), dtype=W.dtype))
    best = max(highest_monotonicity([identity - Enclosed.exact(W)], [Y[0]], groups), m)
    return WellPosedness(
        holds=m > 0,
        lam=lam / lam.max(),
        monotonicity=m,
        best_monotonicity=best,
        witness=Y[0] / Y[0].diagonal().max() if best <= 0 else None,
        monotone=monotone(W, torch.ones_like(lam)) == "holds",
        norm=_contracts(size, torch.ones_like(lam)),
        perron_frobenius=_contracts(size, _positive_vector(size, radius)),
    )


def _contracts(size: Tensor, v: Tensor) -> bool:
    """Whether |W| v < v in every entry, beyond rounding: with ones the row sums are below 1, with any v > 0 the radius.

    Rows that rounding leaves open are summed again, exactly.
    """
    products = size * v
    sums = products.sum(dim=1)
    rounding = (len(v) + 8) * EPS * sums + len(v) * TINY
    if not bool((v > 0).all()) or bool((sums - rounding >= v).any()):
        return False
    unsure = (~(sums + rounding < v)).nonzero()[:, 0].tolist()
    if not bool((v == 1).all()):
        return not unsure
    return all(math.fsum([*products[i].tolist(), -1.0]) < 0 for i in unsure)


def _spectral_radius(size: Tensor) -> float:
    """About that of a matrix without negative entries: only guesses rest on it.

    LAPACK does not always find the eigenvalues of a matrix of equal entries; power iteration then does.
    """
    try:
        return float(torch.linalg.eigvals(size).abs().max())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        v = torch.ones(len(size), dtype=size.dtype)
        for _ in range(_POWER_STEPS):
            v = size @ v + torch.finfo(v.dtype).tiny
            radius = float(v.max())
            v = v / radius
        return radius


def _positive_vector(size: Tensor, radius: float) -> Tensor:
    """(I - |W|)^-1 1, which is positive where the radius is below one."""
    if not radius < 1:
        return torch.zeros(len(size), dtype=size.dtype)
    ones = torch.ones(len(size), 1, dtype=size.dtype)
    v = torch.linalg.solve_ex(torch.eye(len(size), dtype=size.dtype) - size, ones).result[:, 0]
    return torch.where(v.isfinite(), v, 0.0)


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
    check_size(len(W))
    return checks.finite("W", W.detach()).to("cpu", torch.float64, copy=True)


def check_size(units: int) -> None:
    """Pass a number of units whose matrices fit into memory."""
    if units > MOST_UNITS:
        raise InvalidInput(
            f"{units:,} units are too many: a dense certificate works on some twenty matrices of {units:,} x "
            f"{units:,}, {8e-9 * units**2:.1f} GB each, and is for at most {MOST_UNITS:,} units. Certify parts of the "
            "network and multiply their bounds, or use a convolutional network, which is certified by frequencies."
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
