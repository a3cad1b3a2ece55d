"""A plain network with one hidden layer, as certificates and attacks see it: an equilibrium network with W = 0."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import Activation, check_activation
from lben.activations.scalar import ReLU
from lben.normalize import Normalize
from lben.weights.dense import Weights


class FeedForward(nn.Module):
    """A plain network with one hidden layer: ``y = Wo sigma(U x + bz) + by``, started as `torch.nn.Linear` starts.

    Certificates and attacks see it as an equilibrium network with W = 0.

    Args:
        in_features: the number of inputs d.
        hidden_features: the number of hidden units n.
        out_features: the number of outputs p.
        activation: sigma, one of lben's, of single units.
        normalize: a `Normalize` in front, which bounds in pixels account for; None: inputs are taken as they are.
        device: where the parameters are made; None: torch's default.
        dtype: their floating-point type; None: torch's default.

    Raises:
        InvalidInput: if an argument is none of these.

    Examples:
        >>> net = lben.baselines.FeedForward(2, 8, 1)
        >>> lben.tightest_bound(net).gamma <= lben.product_bound(net)
        True
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        normalize: Normalize | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.placement(device, dtype)
        for name, size in (("in", in_features), ("hidden", hidden_features), ("out", out_features)):
            checks.count(f"{name}_features", size)
        checks.affordable("U", hidden_features, in_features)
        checks.affordable("Wo", out_features, hidden_features)
        self.hidden = nn.Linear(in_features, hidden_features, dtype=dtype)
        self.output = nn.Linear(hidden_features, out_features, dtype=dtype)
        self.activation = check_activation(activation, hidden_features)
        moved = normalize is not None and (device is not None or dtype is not None)
        self.normalize = copy.deepcopy(normalize) if moved else normalize  # the caller's stays where it is
        self._prepare()
        self.to(device=device, dtype=dtype)

    def _prepare(self) -> None:
        """What a kind of it adds."""

    def forward(self, x: Tensor) -> Tensor:
        """y.

        Args:
            x: of shape (..., in_features).

        Returns:
            Of shape (..., out_features).

        Raises:
            InvalidInput: if x does not fit.
        """
        checks.features("x", x, self.hidden.in_features, self.hidden.weight)
        x = x if self.normalize is None else self.normalize(x)
        logits: Tensor = self.output(self.activation(self.hidden(x)))
        return logits

    def weights(self) -> Weights:
        """The explicit weights of the equilibrium network with W = 0 that this is; any metric proves it well-posed.

        Returns:
            A `Weights`.
        """
        bz = self.hidden.bias
        W = torch.zeros(len(bz), len(bz), dtype=bz.dtype, device=bz.device)
        return Weights(W, self.hidden.weight, bz, self.output.weight, self.output.bias, torch.ones_like(bz))
