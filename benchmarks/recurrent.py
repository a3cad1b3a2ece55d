"""Recurrent networks: a training step through 100 time steps, batch 64, 20 states, 40 hidden units."""

from __future__ import annotations

import torch
from measuring import Row, Step, compare, interleave
from torch import Tensor, nn

import lben

SEED, TIMES, BATCH, INPUTS, STATES, HIDDEN = 0, 100, 64, 3, 20, 40
STEPPED, WHOLE = "nn.RNN, step by step", "nn.LSTM"


class Stepped(nn.Module):
    """nn.RNN called once a time step, as a policy or a simulation must."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(INPUTS, STATES), nn.Linear(STATES, 1)

    def forward(self, u: Tensor) -> Tensor:
        state, rows = torch.zeros(1, BATCH, STATES), []
        for now in u.split(1):
            y, state = self.rnn(now, state)
            rows.append(y)
        seen: Tensor = self.head(torch.cat(rows))
        return seen


class Whole(nn.Module):
    """nn.LSTM or nn.RNN, called once for the whole signal."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(STATES, 1)

    def forward(self, u: Tensor) -> Tensor:
        seen: Tensor = self.head(self.inner(u)[0])
        return seen


def signals() -> tuple[Tensor, Tensor]:
    u = torch.randn(TIMES, BATCH, INPUTS, generator=torch.Generator().manual_seed(SEED))
    return u, u.sum(dim=-1, keepdim=True).cumsum(dim=0).tanh()


def training_step(net: nn.Module) -> Step:
    u, y = signals()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def step() -> None:
        loss = (net(u) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def recurrent_rows() -> list[Row]:
    """The full and the acyclic form against each other and against torch's networks, fresh and after 40 steps."""
    rows = []
    for trained in (False, True):
        torch.manual_seed(SEED)
        when = "trained" if trained else "fresh"
        nets: dict[str, nn.Module] = {STEPPED: Stepped(), WHOLE: Whole(nn.LSTM(INPUTS, STATES))}
        nets["nn.RNN, at once"] = Whole(nn.RNN(INPUTS, STATES))
        for name, behaviour in (("contracting", lben.Contracting()), ("gain 2", lben.Lipschitz(2.0))):
            for acyclic in (True, False):
                form = f"REN, {name}, {'acyclic' if acyclic else 'full'}, {when}"
                nets[form] = lben.REN(INPUTS, STATES, HIDDEN, 1, behaviour=behaviour, acyclic=acyclic)
        steps = {name: training_step(net) for name, net in nets.items()}
        for name, step in steps.items():
            for _ in range(40 if trained and name.startswith("REN") else 0):
                step()
        times = interleave(steps, repeats=10, block=1)
        for name in ("contracting", "gain 2"):
            swept, full = (f"REN, {name}, {form}, {when}" for form in ("acyclic", "full"))
            rows += [compare(times, full, swept, 2.0), compare(times, swept, STEPPED, 6.0)]
            rows.append(compare(times, swept, WHOLE))
        rows.append(compare(times, STEPPED, "nn.RNN, at once"))
    return rows
