"""Thousands of recurrent networks of every behaviour, batched: their promises hold along trajectories.

Weights come from the library, by `vmap` over free variables; trajectories are computed here, without its solvers.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lben
from lben.parameterize.recurrent import Promised

D = torch.float64
d, n, q, p = 2, 3, 4, 2
NAMES = ("A", "B1", "B2", "C1", "D11", "D12", "C2", "D21", "D22", "P", "lam")
GENERAL = lben.Dissipative([[-1.0, 0.2], [0.2, -0.5]], [[0.3, 0.1], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.5]], rate=0.95)
SINGULAR = lben.Dissipative([[-1.0, 0.0], [0.0, 0.0]], [[0.3, 0.1], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.5]])
BEHAVIOURS: list[lben.Behaviour] = [
    lben.Contracting(0.8),
    lben.Contracting(),
    lben.Lipschitz(0.3),
    lben.Lipschitz(2.0, rate=0.9),
    lben.Passive(),
    lben.Passive(input=0.1, output=0.5),
    lben.Passive(input=0.2),
    GENERAL,
    SINGULAR,
]


class Many:
    """Networks by the hundred: explicit weights with one more dimension, the first."""

    def __init__(self, behaviour: lben.Behaviour, acyclic: bool, count: int) -> None:
        form = Promised((d, n, q, p), behaviour, True, acyclic, D)
        size = 2 * torch.rand(count, 1, dtype=D)
        free = {
            name: one + size.reshape(-1, *(1,) * one.dim()) * torch.randn(count, *one.shape, dtype=D)
            for name, one in form.named_parameters()
        }

        def explicit(values: dict[str, Tensor]) -> tuple[Tensor, ...]:
            weights = torch.func.functional_call(form, values, ())
            return tuple(getattr(weights, name) for name in NAMES)

        with torch.no_grad():
            found = torch.func.vmap(explicit)(free)
        self.w = {name: part.detach() for name, part in zip(NAMES, found, strict=True)}
        self.supply, self.rate = behaviour.supply(d, p), behaviour.rate
        self.slopes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=D)] * q)
        system = torch.eye(q, dtype=D) - self.w["D11"][:, None] * self.slopes[:, None]
        self.through = torch.linalg.inv(system)  # (networks, patterns, q, q)

    def hidden(self, b: Tensor) -> Tensor:
        """w = relu(D11 w + b), of shape (networks, batch, q): of all patterns of active units, the one that is so."""
        v = self.through[:, None] @ b[:, :, None, :, None]
        v = v[..., 0]
        wrong = torch.where(self.slopes > 0, -v, v).clamp(min=0).amax(dim=-1) / (1e-30 + v.abs().amax(dim=-1))
        best = wrong.argmin(dim=-1)
        assert float(wrong.amin(dim=-1).max()) < 1e-9
        found: Tensor = v.gather(2, best[..., None, None].expand(-1, -1, 1, q))[:, :, 0]
        return found.relu()

    def step(self, x: Tensor, u: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        w = self.w
        z = self.hidden(x @ w["C1"].mT + u @ w["D12"].mT + bias)
        y = x @ w["C2"].mT + z @ w["D21"].mT + u @ w["D22"].mT
        return x @ w["A"].mT + z @ w["B1"].mT + u @ w["B2"].mT, y

    def storage(self, x: Tensor) -> Tensor:
        return ((x @ self.w["P"]) * x).sum(-1)


@pytest.mark.parametrize("acyclic", [False, True])
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=repr)
def test_thousands_of_networks_keep_their_promise_at_every_step(behaviour: lben.Behaviour, acyclic: bool) -> None:
    """Pairs of states and inputs at random: V(x+) - rate^2 V(x) <= s; without a supply, under equal inputs."""
    torch.manual_seed(0)
    many = Many(behaviour, acyclic, 250)
    x = 3 * torch.randn(2, 250, 6, n, dtype=D)
    bias = torch.randn(250, 1, q, dtype=D)
    for size in (3.0, 0.1, 0.0):
        u = 3 * torch.randn(250, 6, d, dtype=D)
        other = u if many.supply is None else u + size * torch.randn(250, 6, d, dtype=D)
        (x1, y1), (x2, y2) = many.step(x[0], u, bias), many.step(x[1], other, bias)
        before, after = many.storage(x[0] - x[1]), many.storage(x1 - x2)
        allowed = many.rate**2 * before
        if many.supply is not None:
            allowed = allowed + many.supply.rate(u - other, y1 - y2)
        scale = before + after + (u - other).square().sum(-1) + (y1 - y2).square().sum(-1)
        assert bool((after <= allowed + 1e-8 * scale).all())
        assert bool((many.storage(x[0] - x[1]) > 0).all())
        x = torch.stack([x1, x2])


@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_no_pair_of_signals_exceeds_the_gain_even_after_climbing(gamma: float) -> None:
    """Forty networks at once, each with signals that climb along the gradient of their own ratio."""
    torch.manual_seed(1)
    many = Many(lben.Lipschitz(gamma), True, 40)
    pair = torch.randn(2, 15, 40, 4, d, dtype=D).requires_grad_()
    bias = torch.randn(40, 1, q, dtype=D)
    optimizer = torch.optim.Adam([pair], lr=0.1)
    best = torch.zeros(())
    for _ in range(15):
        outputs = []
        for signal in pair:
            x, rows = torch.zeros(40, 4, n, dtype=D), []
            for u in signal:
                x, y = _swept(many, x, u, bias)
                rows.append(y)
            outputs.append(torch.stack(rows))
        moved = (outputs[0] - outputs[1]).square().sum(dim=(0, -1)).sqrt()
        distance = (pair[0] - pair[1]).square().sum(dim=(0, -1)).sqrt()
        best = torch.maximum(best, (moved / distance).max().detach())
        assert bool((moved <= gamma * distance * (1 + 1e-9)).all())
        optimizer.zero_grad()
        (distance.log() - moved.clamp(min=1e-30).log()).sum().backward()
        optimizer.step()
    assert float(best) > 0.3 * gamma


def _swept(many: Many, x: Tensor, u: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A step of acyclic networks that autograd can follow: q rounds reach the fixed point of a nilpotent D11."""
    w = many.w
    b = x @ w["C1"].mT + u @ w["D12"].mT + bias
    z = torch.zeros_like(b)
    for _ in range(q):
        z = torch.relu(z @ w["D11"].mT + b)
    y = x @ w["C2"].mT + z @ w["D21"].mT + u @ w["D22"].mT
    return x @ w["A"].mT + z @ w["B1"].mT + u @ w["B2"].mT, y


def test_passivity_along_whole_trajectories() -> None:
    """The sum of du'dy is at least input |du|^2 + output |dy|^2, from equal states, at every time."""
    torch.manual_seed(2)
    many = Many(lben.Passive(input=0.1, output=0.5), False, 200)
    bias = torch.randn(200, 1, q, dtype=D)
    x = torch.randn(200, 2, n, dtype=D)
    x1 = x2 = x
    total = torch.zeros(200, 2, dtype=D)
    for _ in range(12):
        u1, u2 = 2 * torch.randn(2, 200, 2, d, dtype=D)
        (x1, y1), (x2, y2) = many.step(x1, u1, bias), many.step(x2, u2, bias)
        du, dy = u1 - u2, y1 - y2
        total = total + (du * dy).sum(-1) - 0.1 * du.square().sum(-1) - 0.5 * dy.square().sum(-1)
        assert bool((total >= -1e-8).all())


@pytest.mark.parametrize("acyclic", [False, True])
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=repr)
def test_every_proved_network_is_made_by_some_free_variables(behaviour: lben.Behaviour, acyclic: bool) -> None:
    torch.manual_seed(3)
    for _ in range(3):
        ren = lben.REN(d, n, q, p, behaviour=behaviour, acyclic=acyclic, dtype=D)
        with torch.no_grad():
            for parameter in ren.parameters():
                parameter.add_(torch.randn_like(parameter))
        weights = ren.weights().detach()
        again = lben.REN.from_weights(weights, behaviour=behaviour, acyclic=acyclic).weights()
        for name, part in weights.tensors().items():
            assert torch.allclose(getattr(again, name), part, rtol=1e-8, atol=1e-9 * float(part.abs().max()))
