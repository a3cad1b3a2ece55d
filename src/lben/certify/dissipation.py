"""The verb `dissipation`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.certify.recurrent import Dissipation, Recurrent, recurrent_of
from lben.errors import InvalidInput
from lben.numerics.rounding import undisturbed
from lben.weights.recurrent import RENWeights, Supply


@undisturbed
def dissipation(
    net: Recurrent | RENWeights,
    Q: Tensor | None = None,
    S: Tensor | None = None,
    R: Tensor | None = None,
    *,
    rate: float | None = None,
    rigorous: bool = False,
    activation: Activation | None = None,
) -> Dissipation:
    """Whether ``V(x+) - rate^2 V(x) <= dy'Q dy + 2 du'S dy + du'R du`` for any two trajectories and some V = dx'P dx.

    P and the multiplier of the hidden units are looked for, from those that the weights carry, and the inequality is
    checked again from the weights; "fails" means that constant slopes in [0, 1] are known which break it.

    Args:
        net: a `REN`, or bare `RENWeights`.
        Q: of shape (p, p), symmetric and negative semidefinite. All of Q, S and R are given, or none of them, for the
            supply that the weights claim.
        S: of shape (d, p).
        R: of shape (d, d), symmetric.
        rate: in (0, 1]; that of the weights if not given, and 1 if they have none.
        rigorous: whether to check by ball arithmetic, which needs the extra `sdp`.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        A `Dissipation`, true if it holds.

    Raises:
        InvalidInput: if the network has no state, a matrix does not fit, or no supply is given or claimed.

    Examples:
        A gain of 3, written as a supply, of a network that promises one of 2.

        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(2.0))
        >>> eye = torch.eye(1, dtype=torch.float64)
        >>> bool(lben.dissipation(ren, Q=-eye / 3, S=0 * eye, R=3 * eye))
        True
    """
    checks.flag("rigorous", rigorous)
    subject = recurrent_of(net, activation)
    if subject is None:
        raise InvalidInput(f"dissipation takes an lben.REN or lben.RENWeights, not {type(net).__name__}.")
    weights = subject.weights
    own = weights.rate if weights.rate is not None else 1.0
    chosen = own if rate is None else checks.step_rate(rate)
    given = [part for part in (Q, S, R) if part is not None]
    if len(given) == 0:
        if weights.supply is None:
            raise InvalidInput("These weights claim no supply: give Q, S and R.")
        return subject.claimed(None, rigorous) if rate is None else subject.search(chosen, weights.supply, rigorous)
    if len(given) < 3:
        raise InvalidInput("Give Q, S and R together.")
    supply = Supply(*(_matrix(name, part) for name, part in zip("QSR", given, strict=True)))
    if supply.S.shape != (weights.in_features, weights.out_features):
        raise InvalidInput(
            f"S must have shape ({weights.in_features}, {weights.out_features}), one row an input and one column an "
            f"output, not {tuple(supply.S.shape)}."
        )
    return subject.search(chosen, supply, rigorous)


def _matrix(name: str, given: Any) -> Tensor:
    """A matrix in double precision, symmetric where it must be."""
    matrix = checks.finite(name, checks.floating(name, given)).detach().to("cpu", torch.float64)
    if name != "S" and (matrix.dim() != 2 or not torch.equal(matrix, matrix.mT)):
        raise InvalidInput(f"{name} must be a symmetric matrix.")
    if name == "Q" and len(matrix):
        top = float(torch.linalg.eigvalsh(matrix)[-1])
        if top > 1e-12 * float(matrix.abs().max()):
            raise InvalidInput(f"Q must be negative semidefinite, but has the eigenvalue {top:.6g}.")
    return matrix
