"""Outputs with a proved error: what a network computes in real numbers, enclosed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lben.activations.base import Activation
from lben.certify.evaluator import PRECISE, Evaluator, placed
from lben.certify.subject import Examined
from lben.numerics.rounding import at_most, undisturbed
from lben.solvers.base import Solver, check_solver


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Outputs in double precision, and how far each may be from the network's in real numbers: `enclose` returns it.

    It is true if every error is finite.

    Attributes:
        y: of shape (..., p); NaN where no equilibrium was found, which happens only where nothing is proved.
        error: a bound on ``|y - y*|``, entry by entry, with solver and rounding in it; infinite where nothing is
            proved.

    Examples:
        >>> found = lben.enclose(lben.LBEN(2, 4, 1, gamma=1.0), torch.zeros(3, 2))
        >>> found.proved, found.y.shape, bool((found.error < 1e-9).all())
        (True, torch.Size([3, 1]), True)
    """

    y: Tensor
    error: Tensor

    @property
    def proved(self) -> bool:
        """Whether every output has a finite error; without a metric none has."""
        return bool(torch.isfinite(self.error).all())

    def __bool__(self) -> bool:
        return self.proved

    def __str__(self) -> str:
        count = self.y.numel()
        if not self.proved:
            unknown = count - int(torch.isfinite(self.error).sum())
            return f"{count} outputs, of which {unknown} have no proved error: no metric proves the network well-posed."
        worst = float(self.error.max()) if count else 0.0
        return f"{count} outputs, each within {at_most(worst, 3)} of the network's: proved, rounding included."


@undisturbed
def enclose(
    net: Examined,
    x: Tensor,
    *,
    solver: Solver | None = None,
    activation: Activation | None = None,
) -> Enclosure:
    """The outputs at x, computed in double precision, each with a proved bound on its error.

    ``|y_i - y*_i| <= |(Wo)_i Lam^(-1/2)| |z - z*|_Lam + rounding``, where y* is the output in real numbers of the
    weights as they are stored, and the error of z is that of `Solution.error_bound`.

    Args:
        net: a network, a stack (`Sequential`), or bare weights.
        x: as the network takes it, of shape (..., d), on any device, where the result lies, too; all is computed in
            double precision on the CPU.
        solver: how equilibria are found; None: to a tolerance of 1e-12. What it leaves open is bounded and counted: a
            loose one costs precision, never truth.
        activation: sigma of bare weights; ReLU if not given. A network has its own.

    Returns:
        An `Enclosure`.

    Raises:
        InvalidInput: if x does not fit.

    Examples:
        The float32 output of a network differs from its true one by what is proved here.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0).eval()
        >>> x = torch.tensor([[1.0, -1.0]])
        >>> found = lben.enclose(net, x)
        >>> bool((net(x) - found.y).abs().max() < 1e-3)
        True
    """
    evaluator = Evaluator.of(net, activation)
    method = PRECISE if solver is None else check_solver(solver)
    rows, shape = evaluator.inputs(x), (*evaluator.flat(x).shape[:-1], evaluator.weights.out_features)
    found = evaluator.evaluate(rows, method)
    error = found.entry_error()
    y = torch.where(found.converged[:, None] | torch.isfinite(error), found.y, torch.nan)
    error = torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf)
    return placed(Enclosure(y.reshape(shape), error.reshape(shape)), x.device)
