"""Claims about recurrent networks: rate, gain and supply, against the inequality in rational numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import torch

import lben
from tests.adversary import draws, exact
from tests.adversary.claims import judge_both
from tests.adversary.tally import Tally, show

_STEPS = (0.0, 2.0**-52, -(2.0**-52), 1e-14, -1e-14, 1e-11, -1e-11, 1e-7, -1e-7, 1e-3, -1e-2)


def dissipates(w: lben.RENWeights, proof: lben.Dissipation) -> bool:
    """Whether P and lam prove what is said, by the matrix with P^-1 for the next state and the sector condition M."""
    if proof.P is None or proof.lam is None or proof.rate is None or not bool(proof.lam.isfinite().all()):
        return False
    m = {name: exact.matrix(part) for name, part in w.tensors().items() if part.dim() == 2}
    n, q, d = w.state_features, w.hidden_features, w.in_features
    stored = exact.matrix(proof.P)
    P, L = (stored + stored.transpose()) / 2, exact.diagonal([exact.rational(x) for x in proof.lam.tolist()])
    half = L * (exact.identity(q) - m["D11"])
    M, rho = half + half.transpose(), exact.rational(proof.rate) ** 2
    move = [P * m[name] for name in ("A", "B1", "B2")]
    side = -1 * (L * m["C1"])
    zero = [[rho * P, side.transpose()], [side, M]]
    if proof.gain is None and proof.supply is None:
        rows = [[*zero[0], move[0].transpose()], [*zero[1], move[1].transpose()], [*move[:2], P]]
        return exact.definite(exact.blocks(rows)) and exact.definite(M)
    Y = exact.blocks([[m["C2"], m["D21"], m["D22"] if "D22" in m else exact.zeros(w.out_features, d)]])
    if proof.gain is not None:
        Q, S = -1 * exact.identity(w.out_features), exact.zeros(d, w.out_features)
        R = exact.rational(proof.gain) ** 2 * exact.identity(d)
    else:
        assert proof.supply is not None
        Q, S, R = (exact.matrix(part) for part in (proof.supply.Q, proof.supply.S, proof.supply.R))
    into = -1 * (L * m["D12"])
    base = exact.blocks(
        [
            [*zero[0], exact.zeros(n, d)],
            [*zero[1], into],
            [exact.zeros(d, n), into.transpose(), R],
        ]
    )
    lift = exact.blocks([[exact.zeros(d, n + q), exact.identity(d)]])
    cross = lift.transpose() * S * Y
    inner = base + Y.transpose() * Q * Y + cross + cross.transpose()
    next_state = exact.blocks([move])
    whole = exact.blocks([[inner, next_state.transpose()], [next_state, P]])
    return exact.definite(whole) and exact.definite(M)


def drawn(r: Random) -> lben.RENWeights:
    """Weights that keep a promise, by its construction, in states of other units, and maybe a little beside it."""
    torch.manual_seed(r.randrange(2**31))
    d = r.randint(1, 2)
    n, q = r.randint(1, 3), r.randint(1, 3)
    behaviour: lben.Behaviour = r.choice(
        (
            lben.Contracting(r.choice((0.5, 0.99, 1.0))),
            lben.Lipschitz(10.0 ** r.uniform(-2, 2), rate=r.choice((1.0, 0.9))),
            lben.Passive(r.choice((0.0, 0.1)), r.choice((0.0, 0.3))),
        )
    )
    ren = lben.REN(d, n, q, d, behaviour=behaviour, acyclic=r.random() < 0.3, dtype=torch.float64)
    with torch.no_grad():
        for parameter in ren.parameters():
            parameter.add_(10.0 ** r.uniform(-2, 0.7) * torch.randn_like(parameter))
        w = ren.weights().detach()
    assert w.P is not None
    units = draws.decades(r, n, spread=r.choice((0.0, 0.0, 6.0)))
    w = replace(
        w,
        A=units[:, None] * w.A / units,
        B1=units[:, None] * w.B1,
        B2=units[:, None] * w.B2,
        C1=w.C1 / units,
        C2=w.C2 / units,
        P=w.P / units / units[:, None],
    )
    return replace(w, A=w.A * (1 + r.choice((0.0, 0.0, 0.0, 0.0, 0.3, 3.0))))


def edge(w: lben.RENWeights) -> float | None:
    """About the smallest gain that P and lam prove, in double precision; None if there is none."""
    assert w.P is not None
    assert w.lam is not None
    n, q, d = w.state_features, w.hidden_features, w.in_features
    K, Y = torch.cat([w.A, w.B1, w.B2], dim=1), torch.cat([w.C2, w.D21, w.feedthrough()], dim=1)
    half = torch.zeros(n + q + d, n + q + d, dtype=torch.float64)
    half[n : n + q] = w.lam[:, None] * torch.cat([-w.C1, torch.eye(q).double() - w.D11, -w.D12], dim=1)
    X = half + half.T - K.T @ w.P @ K - Y.T @ Y
    X[:n, :n] += w.P
    factor, info = torch.linalg.cholesky_ex(X[: n + q, : n + q])
    if int(info):
        return None
    side = torch.linalg.solve_triangular(factor, X[: n + q, n + q :], upper=False)
    tau = float(torch.linalg.eigvalsh(side.T @ side - X[n + q :, n + q :])[-1])
    return math.sqrt(tau) if tau > 0 else None


def recurrent(r: Random, tally: Tally, where: str) -> None:
    """What weights claim, gains to the last bit, and what is found where they carry nothing."""
    w = drawn(r)
    shown = f"{where}: {show(w)}"
    kept = lben.certify(w)
    known = kept.holds and dissipates(w, kept)
    bare = replace(w, P=None, lam=None)

    def true(proof: Any) -> bool | None:
        if proof.verdict == "fails" and proof.P is None:
            return known and _same(proof, kept)
        return dissipates(w, proof)

    judge_both(tally, "recurrent, its own claim", shown, lambda s: lben.certify(w, rigorous=s), true)
    if r.random() < 0.25:  # searches take a hundred times as long as checks
        judge_both(tally, "recurrent, a claim without P", shown, lambda s: lben.certify(bare, rigorous=s), true)
    near = edge(w)
    if near is not None and 1e-15 < near < 1e15:
        for step in r.sample(_STEPS, 2):
            g = near * (1 + step)
            at = replace(w, P=w.P / g, lam=w.lam / g, supply=None)  # type: ignore[arg-type,operator] # certify scales by g
            judge_both(
                tally,
                "recurrent, a gain at its edge",
                f"{shown}, gain {g!r}",
                lambda s, at=at, g=g: lben.certify(at, g, rigorous=s),  # type: ignore[misc]
                lambda proof: dissipates(w, proof) if proof.P is not None else None,
            )
    for name, verb in (("contraction", lben.contraction), ("gain", lben.incremental_gain)):
        if r.random() < 0.15:
            ask = lambda s, verb=verb: verb(bare, rigorous=s)  # noqa: E731
            judge_both(tally, f"recurrent, {name}", shown, ask, _alone(w, known))


def _same(proof: lben.Dissipation, kept: lben.Dissipation) -> bool:
    """Whether two claims are one."""
    alike = proof.gain == kept.gain or (proof.gain is None and kept.gain is None)
    return alike and (proof.supply is None) == (kept.supply is None)


def _alone(w: lben.RENWeights, known: bool) -> Any:
    """Every promise that is kept contracts: "fails" is false then; what holds must be so for its own P and lam."""

    def true(proof: lben.Dissipation) -> bool | None:
        if proof.verdict == "fails":
            return known
        return dissipates(w, proof) and (proof.gain is None or math.isfinite(proof.gain))

    return true
