"""Recurrent networks of torch as recurrent equilibrium networks, to be examined."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lben.activations.base import Activation
from lben.activations.scalar import ReLU, Tanh
from lben.dynamics.ren import REN
from lben.errors import InvalidInput
from lben.weights.recurrent import RENWeights


def from_rnn(rnn: nn.RNN, head: nn.Linear | None = None) -> REN:
    """The same function as an `nn.RNN` of tanh or relu, with any number of layers, as a REN without a promise.

    ``h_k+ = sigma(W_ih h_k-1+ + b_ih + W_hh h_k + b_hh)``, h_0 the input; the output is the last h+. Its states are the
    h of all layers. Dropout is left out, as in evaluation. `lben.contraction`, `incremental_gain` and `dissipation`
    examine it.

    Args:
        rnn: that runs forward in time.
        head: a linear layer behind the output, which then is a part of the network; None: none.

    Returns:
        A `REN` in evaluation mode. What it takes and gives has shape (times, batch, features), whatever `batch_first`
        says.

    Raises:
        InvalidInput: for another module, a bidirectional one, or a head that does not fit.

    Examples:
        >>> rnn = torch.nn.RNN(2, 3)
        >>> ren = lben.from_rnn(rnn)
        >>> u = torch.randn(5, 4, 2)
        >>> torch.allclose(ren(u), rnn(u)[0], atol=1e-5)
        True
    """
    if not isinstance(rnn, nn.RNN):
        raise InvalidInput(f"from_rnn takes an nn.RNN with tanh or relu, not {type(rnn).__name__}.")
    if rnn.bidirectional:
        raise InvalidInput("from_rnn takes an nn.RNN that runs forward in time, and this one is bidirectional.")
    if head is not None and (not isinstance(head, nn.Linear) or head.in_features != rnn.hidden_size):
        raise InvalidInput(f"head must be an nn.Linear of {rnn.hidden_size} inputs, not {head!r}.")
    sigma: Activation = Tanh() if rnn.nonlinearity == "tanh" else ReLU()
    net = REN.from_weights(_weights(rnn, head), behaviour=None, acyclic=True, activation=sigma)
    return net.eval()


def _weights(rnn: nn.RNN, head: nn.Linear | None) -> RENWeights:
    h, layers = rnn.hidden_size, rnn.num_layers
    like: Tensor = rnn.weight_hh_l0.detach()  # type: ignore[operator]  # a parameter, set by its name

    def part(name: str, layer: int) -> Tensor:
        found: Any = getattr(rnn, f"{name}_l{layer}", None)
        return like.new_zeros(h) if found is None else found.detach()

    q = h * layers
    D11, D12 = like.new_zeros(q, q), like.new_zeros(q, rnn.input_size)
    D12[:h] = part("weight_ih", 0)
    for layer in range(1, layers):
        D11[layer * h : (layer + 1) * h, (layer - 1) * h : layer * h] = part("weight_ih", layer)
    C1 = torch.block_diag(*(part("weight_hh", layer) for layer in range(layers)))
    bv = torch.cat([part("bias_ih", layer) + part("bias_hh", layer) for layer in range(layers)])
    last = like.new_zeros(h, q)
    last[:, q - h :] = torch.eye(h).to(like)
    D21 = last if head is None else head.weight.detach() @ last
    by = like.new_zeros(len(D21)) if head is None or head.bias is None else head.bias.detach()
    into = (like.new_zeros(q, q), torch.eye(q).to(like), like.new_zeros(q, rnn.input_size), like.new_zeros(q))
    return RENWeights(*into, C1, D11, D12, bv, like.new_zeros(len(D21), q), D21, None, by)
