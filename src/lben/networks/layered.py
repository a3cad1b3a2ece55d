"""A feed-forward network as the equilibrium network that it is: W is strictly block lower triangular."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.errors import InvalidInput
from lben.networks.dense import EquilibriumNetwork
from lben.normalize import Normalize
from lben.operators.dense import DenseOperator
from lben.parameterize.dense import Explicit
from lben.solvers.back_substitution import BackSubstitution
from lben.weights.dense import Weights

_LEAST = 1e-140  # an entry of a metric whose square is still a number
_TOO_LARGE = (
    "The weights of the layers are so large together that no metric of this precision can prove anything: use float64, "
    "or scale them down."
)


class LayeredNetwork(EquilibriumNetwork):
    """A feed-forward network as the equilibrium network that it is, found by one sweep; `from_sequential` makes it.

    ``z_k = sigma(W_k1 z_1 + .. + W_k,k-1 z_k-1 + U_k x + b_k)``, ``y = Wo z + by``. Its weights are fixed: it is there
    to be examined. Where they carry no metric they get one, for every W of this form has one that proves it well-posed.

    Args:
        weights: with a strictly block lower triangular W, without a D.
        activation: sigma, such as a `PerUnit` where layers differ.
        normalize: a `Normalize` in front, or None.

    Raises:
        InvalidInput: if W has another form, or weights are so large that no metric of this precision proves anything.

    Examples:
        Two hidden layers of one unit each.

        >>> W = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
        >>> U, bz = torch.tensor([[2.0], [0.0]]), torch.zeros(2)
        >>> Wo, by = torch.tensor([[0.0, 1.0]]), torch.zeros(1)
        >>> net = lben.LayeredNetwork(lben.Weights(W, U, bz, Wo, by), lben.ReLU())
        >>> net(torch.tensor([[1.0]])).item()
        6.0
        >>> round(lben.tightest_bound(net).gamma, 3)
        6.0
    """

    def __init__(self, weights: Weights, activation: Activation, normalize: Normalize | None = None) -> None:
        if not isinstance(weights, Weights):
            raise InvalidInput(f"A LayeredNetwork is made of an lben.Weights, not {weights!r}.")
        weights = weights.detach().validate()
        if DenseOperator(weights.W).layers is None:
            raise InvalidInput("W is not strictly block lower triangular, as a feed-forward network has it.")
        lam = layered_metric(weights.W) if weights.lam is None else weights.lam
        own = Weights(weights.W, weights.U, weights.bz, weights.Wo, weights.by, lam, weights.gamma)
        super().__init__(Explicit(own), activation, BackSubstitution(), normalize)

    @classmethod
    def _restore(cls, options: dict[str, Any], tensors: dict[str, Tensor]) -> LayeredNetwork:
        """From the tensors themselves, of which its weights are made."""
        names = {f"parameterization.{name}": name for name in ("W", "U", "bz", "Wo", "by", "lam")}
        if not names.keys() <= tensors.keys():
            raise InvalidInput(f"a LayeredNetwork has {', '.join(names)}.")
        stored = {name: tensors[path].clone() for path, name in names.items()}
        net = cls(Weights(**stored, gamma=options["gamma"]), options["activation"], options["normalize"])
        net.solver = options["solver"]
        return net


def layered_metric(W: Tensor) -> Tensor:
    """A diagonal metric, one entry a layer, with 2 Lam - Lam W - W' Lam > 0.

    With the matrix M of the layers before, the next one, of rows W_k, may have any l < 2/|W_k M^-1 W_k'|: it gets half
    of that, or 1 if that is less. So every Schur complement is at least l I, and the metric spreads no more than the
    norms of layers make it; where it spreads beyond what W's dtype can hold, W is refused.
    """
    layers = DenseOperator(W).layers
    if layers is None:
        raise InvalidInput("W is not strictly block lower triangular, as a feed-forward network has it.")
    W64 = W.to("cpu", torch.float64)
    lam = torch.ones(len(W), dtype=torch.float64)
    factor = torch.zeros_like(W64)  # the Cholesky factor of M, as far as it is known
    for first, end in layers:
        side = torch.linalg.solve_triangular(factor[:first, :first], W64[first:end, :first].T, upper=False)
        checks.bounded("The product of layers", side)
        reach = float(torch.linalg.matrix_norm(side, 2)) ** 2 if first else 0.0
        weight = 1.0 if reach < 1 else 1 / reach
        if not weight > _LEAST:
            raise InvalidInput(_TOO_LARGE)
        lam[first:end] = weight
        corner = 2 * weight * torch.eye(end - first, dtype=torch.float64) - weight**2 * side.T @ side
        factor[first:end, :first] = -weight * side.T
        factor[first:end, first:end] = torch.linalg.cholesky(corner)
    lam = (lam / lam.log().mean().exp()).to(W)
    if not bool((lam > torch.finfo(W.dtype).tiny).all() and lam.isfinite().all()):
        raise InvalidInput(_TOO_LARGE)
    return lam
