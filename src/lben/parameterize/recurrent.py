"""Free variables to the weights of a recurrent equilibrium network, and back.

With H = X'X + eps I + G in blocks of n, q and n (states, hidden units, states again) and any Y1, Y2 and g,

    F = H31, B1 = H32, P = H33, C1 = -H21, E = (H11 + P/rate^2 + Y1 - Y1')/2,
    Lam = diag(e^g), D11 = Lam - (H22 + Y2 - Y2')/2,

are the weights times E, or times Lam: A = E^-1 F, and so on. With D11 strictly lower triangular, H22 alone decides:
Lam is half its diagonal, and D11 minus what stands below it. G is zero where a contraction is all that is promised. For
a supply s = y'Qy + 2u'Sy + u'Ru, with K = R + S D22 + D22'S' + D22'Q D22 > 0 (`behaviours.py`) and T = D22'Q + S,

    G = Z'K^-1 Z - [C2 D21 0]'Q [C2 D21 0],   Z = [T C2, T D21 - D12', B2'],

B2 and D12 the free ones, times E and Lam. Then X'X + eps I is the Schur complement of the inequality that V = dx'E'P^-1
E dx proves, since rate^2 E'P^-1 E >= E + E' - P/rate^2. With E = rate^2 V and P = rate^4 V, this holds with equality:
so every network that a V and a Lam prove is made by some free variables.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn

from lben import checks
from lben.errors import BoundNotMet, InvalidInput
from lben.parameterize.behaviours import Behaviour, Contracting, Feedthrough, Lipschitz
from lben.parameterize.starts import copy_into, uniform
from lben.weights.record import Sized
from lben.weights.recurrent import RENWeights, Supply

_EPSILON = 1e-3
_SLOW, _FAST = 0.02, 0.5  # how far from the promised rate the states start, spread evenly on a scale of decades
Sizes = tuple[int, int, int, int]


class RecurrentForm(Sized, nn.Module):
    """Free variables of a network of d inputs, n states, q hidden units and p outputs."""

    def __init__(self, sizes: Sizes, feedthrough: bool, acyclic: bool, dtype: torch.dtype | None) -> None:
        super().__init__()
        names = ("in_features", "hidden_features", "out_features")
        d, q, p = (checks.count(name, size) for name, size in zip(names, (sizes[0], *sizes[2:]), strict=True))
        n = 0 if type(sizes[1]) is int and sizes[1] == 0 else checks.count("state_features", sizes[1])
        checks.affordable("H", 2 * n + q, 2 * n + q)
        self.sizes = (d, n, q, p)
        self.acyclic, self.feedthrough = checks.flag("acyclic", acyclic), checks.flag("feedthrough", feedthrough)
        self.bx = nn.Parameter(torch.zeros(n, dtype=dtype))
        self.bv = uniform(q, fan_in=q, dtype=dtype)
        self.by = nn.Parameter(torch.zeros(p, dtype=dtype))

    @property
    def in_features(self) -> int:
        return self.sizes[0]

    @property
    def state_features(self) -> int:
        return self.sizes[1]

    @property
    def hidden_features(self) -> int:
        return self.sizes[2]

    @property
    def out_features(self) -> int:
        return self.sizes[3]

    @abstractmethod
    def forward(self) -> RENWeights:
        """The explicit weights, with their history and what proves them."""

    @abstractmethod
    def explicit(self) -> RENWeights:
        """The explicit weights without a P, which nobody needs who only runs them."""

    @abstractmethod
    def assign(self, weights: RENWeights) -> None:
        """Choose the free variables so that they stand for these weights, or say why they cannot."""

    def constants(self) -> dict[str, float]:
        """Numbers that are tensors and no free variables, as single precision has them; none on the meta device."""
        epsilon = getattr(self, "epsilon", None)
        return {} if epsilon is None or epsilon.is_meta else {"epsilon": epsilon.float().item()}

    def validate(self) -> None:
        """Pass finite free variables, and an epsilon above 0."""
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            checks.finite(name, tensor)
        epsilon = getattr(self, "epsilon", None)
        if epsilon is not None and not float(epsilon) > 0:
            raise InvalidInput(f"epsilon must be above 0, not {float(epsilon):.6g}.")

    def _check_sweep(self, weights: RENWeights) -> None:
        if self.acyclic and bool(weights.D11.triu().any()):
            raise InvalidInput("acyclic=True needs a D11 that is strictly lower triangular, and this one is not.")
        if not self.feedthrough and weights.D22 is not None and bool(weights.D22.any()):
            raise InvalidInput("feedthrough=False needs a D22 of zero, and these weights have another.")


class Promised(RecurrentForm):
    """The equations at the head of this file. epsilon is a buffer: the room that is left in the inequality."""

    epsilon: Tensor

    def __init__(
        self, sizes: Sizes, behaviour: Behaviour, feedthrough: bool, acyclic: bool, dtype: torch.dtype | None
    ) -> None:
        super().__init__(sizes, feedthrough, acyclic, dtype)
        d, n, q, p = self.sizes
        self.behaviour, self.rate = behaviour, behaviour.rate
        self.claim = behaviour.supply(d, p)
        self.through = None if self.claim is None else Feedthrough.of(self.claim, feedthrough)
        self.register_buffer("epsilon", torch.tensor(_EPSILON, dtype=dtype))
        size = 1.0 if self.claim is None else min(1.0, _size(self.claim)) ** 0.5
        self.X = nn.Parameter(_start(n, q, self.rate, dtype))
        self.Y1 = nn.Parameter(torch.zeros(n, n, dtype=dtype))
        self.Y2 = None if acyclic else nn.Parameter(torch.zeros(q, q, dtype=dtype))
        self.g = None if acyclic else nn.Parameter(torch.zeros(q, dtype=dtype))
        self.B2, self.D12 = (_scaled(uniform(rows, d, dtype=dtype), size) for rows in (n, q))
        self.C2, self.D21 = (_scaled(uniform(p, max(columns, 1), dtype=dtype), size, columns) for columns in (n, q))
        start = torch.zeros(p, d, dtype=dtype) if self.through is None else self.through.start(dtype)
        self.D22 = nn.Parameter(start) if feedthrough else None

    def forward(self) -> RENWeights:
        weights, E, P = self._made()
        return _with_metric(weights, E.T @ torch.linalg.solve(P, E))

    def explicit(self) -> RENWeights:
        return self._made()[0]

    def _made(self) -> tuple[RENWeights, Tensor, Tensor]:
        """The weights without a P, and E and P."""
        _, n, q, _ = self.sizes
        D22: Tensor | None = self.D22
        if D22 is not None and self.through is not None:
            D22 = self.through.matrix(D22)
        X = self.X
        H = X.T @ X + self.epsilon * torch.eye(len(X), dtype=X.dtype, device=X.device) + self._bounding(D22)
        (H11, _, _), (H21, H22, _), (F, B1, P) = (row.split([n, q, n], dim=1) for row in H.split([n, q, n]))
        E = (H11 + P / self.rate**2 + self.Y1 - self.Y1.T) / 2
        if self.Y2 is None or self.g is None:
            lam = H22.diagonal() / 2
            D11 = -H22.tril(-1)
        else:
            lam = torch.exp(self.g)
            D11 = torch.diag(lam) - (H22 + self.Y2 - self.Y2.T) / 2
        A, B1, B2 = torch.linalg.solve(E, torch.cat([F, B1, self.B2], dim=1)).split([n, q, self.in_features], dim=1)
        C1, D11, D12 = (part / lam[:, None] for part in (-H21, D11, self.D12))
        own = (A, B1, B2, self.bx, C1, D11, D12, self.bv, self.C2, self.D21, D22, self.by)
        return RENWeights(*own, None, lam, self.rate, self.claim), E, P

    def _bounding(self, D22: Tensor | None) -> Tensor | float:
        """G, without a supply zero."""
        if self.claim is None:
            return 0.0
        return bounding(self._kept().to(self.C2), self.B2, self.D12, self.C2, self.D21, D22)

    def _kept(self) -> Supply:
        """The supply that is kept: the promised one, or one that is lowered a little."""
        assert self.claim is not None
        return self.claim if self.through is None else self.through.lowered

    def assign(self, weights: RENWeights) -> None:
        """E and P from the metric of the weights, X from what the inequality leaves; epsilon shrinks where it must."""
        self._check_sweep(weights)
        if weights.P is None or weights.lam is None:
            raise InvalidInput("These weights carry no P and lam: lben.dissipation or lben.contraction finds them.")
        given = weights.precise()
        assert given.P is not None
        assert given.lam is not None
        least = self._assign(given)
        if not least > 0 and isinstance(self.behaviour, Lipschitz):  # P and lam may be as incremental_gain finds them
            gamma = self.behaviour.gamma
            least = self._assign(replace(given, P=given.P / gamma, lam=given.lam / gamma))
        if least > 0:
            return
        raise BoundNotMet(
            f"The metric of these weights does not prove {self.behaviour}: the smallest eigenvalue of the "
            f"inequality is {least:.6g}.",
            least,
        )

    def _assign(self, w: RENWeights) -> float:
        """The smallest eigenvalue of the inequality; where it is above 0, the free variables are those of w."""
        assert w.P is not None
        assert w.lam is not None
        n, q = w.state_features, w.hidden_features
        V, M = (w.P + w.P.T) / 2, torch.diag(w.lam) - w.lam[:, None] * w.D11
        E, P = self.rate**2 * V, self.rate**4 * V
        B2, D12, EA, EB, H21 = E @ w.B2, w.lam[:, None] * w.D12, E @ w.A, E @ w.B1, -w.lam[:, None] * w.C1
        H = torch.cat([torch.cat([E, H21, EA]), torch.cat([H21.T, M + M.T, EB]), torch.cat([EA.T, EB.T, P])], dim=1)
        if self.claim is not None:
            H = H - bounding(self._kept().to(H), B2, D12, w.C2, w.D21, w.D22 if self.feedthrough else None)
        least = float(torch.linalg.eigvalsh(H)[0]) if len(H) else 1.0
        if not least > 0:
            return least
        epsilon = min(float(self.epsilon), 0.5 * least)
        copy_into(self.epsilon, torch.tensor(epsilon))
        copy_into(self.X, torch.linalg.cholesky(H - float(self.epsilon) * torch.eye(2 * n + q).to(H)).T)
        copy_into(self.Y1, torch.zeros(n, n))
        if self.Y2 is not None and self.g is not None:
            copy_into(self.Y2, (M - M.T) / 2)
            copy_into(self.g, torch.log(w.lam))
        for name, value in (("B2", B2), ("D12", D12), ("C2", w.C2), ("D21", w.D21)):
            copy_into(getattr(self, name), value)
        _assign_biases(self, w)
        if self.D22 is not None:
            copy_into(self.D22, w.feedthrough() if self.through is None else self.through.free(w.feedthrough()))
        return least


class Free(RecurrentForm):
    """The weights themselves, with no promise; D11 is kept strictly lower triangular where it is to be acyclic."""

    A: Tensor
    B1: Tensor
    B2: Tensor
    C1: Tensor
    D11: Tensor
    D12: Tensor
    C2: Tensor
    D21: Tensor

    def __init__(self, sizes: Sizes, feedthrough: bool, acyclic: bool, dtype: torch.dtype | None) -> None:
        super().__init__(sizes, feedthrough, acyclic, dtype)
        start = Promised(sizes, Contracting(), feedthrough, acyclic, dtype).explicit()
        for name in ("A", "B1", "B2", "C1", "D11", "D12", "C2", "D21"):
            setattr(self, name, nn.Parameter(getattr(start, name).detach().clone()))
        self.D22 = None if start.D22 is None else nn.Parameter(start.D22.detach().clone())

    def forward(self) -> RENWeights:
        D11 = self.D11.tril(-1) if self.acyclic else self.D11
        into = (self.A, self.B1, self.B2, self.bx, self.C1, D11, self.D12, self.bv)
        return RENWeights(*into, self.C2, self.D21, self.D22, self.by)

    explicit = forward

    def assign(self, weights: RENWeights) -> None:
        """Their metric is forgotten: training would void it."""
        self._check_sweep(weights)
        for name in ("A", "B1", "B2", "C1", "D11", "D12", "C2", "D21"):
            copy_into(getattr(self, name), getattr(weights, name))
        _assign_biases(self, weights)
        if self.D22 is not None:
            copy_into(self.D22, weights.feedthrough())


def bounding(supply: Supply, B2: Tensor, D12: Tensor, C2: Tensor, D21: Tensor, D22: Tensor | None) -> Tensor:
    """G of the equation at the head of this file, with B2 times E and D12 times Lam."""
    T, K = supply.S, supply.R
    if D22 is not None:
        side = supply.S @ D22
        T, K = supply.S + D22.T @ supply.Q, supply.R + side + side.T + D22.T @ supply.Q @ D22
    out = torch.cat([C2, D21, C2.new_zeros(len(C2), len(B2))], dim=1)
    Z = torch.cat([T @ C2, T @ D21 - D12.T, B2.T], dim=1)
    found: Tensor = Z.T @ torch.linalg.solve(K, Z) - out.T @ supply.Q @ out
    return found


def _with_metric(weights: RENWeights, P: Tensor) -> RENWeights:
    w = weights
    own = (w.A, w.B1, w.B2, w.bx, w.C1, w.D11, w.D12, w.bv, w.C2, w.D21, w.D22, w.by)
    return RENWeights(*own, (P + P.T) / 2, w.lam, w.rate, w.supply)


def _assign_biases(form: RecurrentForm, weights: RENWeights) -> None:
    for name in ("bx", "bv", "by"):
        copy_into(getattr(form, name), getattr(weights, name))


def _size(supply: Supply) -> float:
    """About the gain that a supply allows, for the size of what starts at random."""
    into, out = float(supply.R.abs().max()), float(supply.Q.abs().max())
    return 0.25 * (into / out) ** 0.5 if into > 0 and out > 0 else 0.25


def _scaled(parameter: nn.Parameter, size: float, columns: int | None = None) -> nn.Parameter:
    return nn.Parameter(size * parameter.detach()[:, :columns])


def _start(n: int, q: int, rate: float, dtype: torch.dtype | None) -> Tensor:
    """The X of E = I/rate^2 and P = I, where A is diagonal and slow, and hidden units see the states and move them.

    A state that is slow leaves little room in the inequality, and so little weight for what leads to it and from it.
    """
    here = torch.empty(0, dtype=dtype)
    if here.is_meta:  # made for its shapes alone, whatever they are
        return here.new_empty(2 * n + q, 2 * n + q)
    room = _SLOW * (_FAST / _SLOW) ** torch.linspace(0, 1, n, dtype=torch.float64, device="cpu")
    A = rate * (1 - room)
    side = (1 - (A / rate).square()).sqrt()
    C1, B1 = (0.5 * side * torch.randn(q, n, dtype=torch.float64, device="cpu") / max(n, q, 1) ** 0.5 for _ in range(2))
    H = torch.eye(2 * n + q, dtype=torch.float64, device="cpu")
    H[:n] /= rate**2
    H[n : n + q, n : n + q] *= 2
    H[n + q :, :n] = torch.diag(A) / rate**2
    H[n : n + q, :n], H[n + q :, n : n + q] = -C1 / rate, B1.T
    H = H.tril() + H.tril(-1).T
    for _ in range(60):
        factor, info = torch.linalg.cholesky_ex(H - _EPSILON * torch.eye(len(H), dtype=H.dtype, device="cpu"))
        if int(info) == 0:
            break
        H[n : n + q, :n] *= 0.8
        H[:n, n : n + q] *= 0.8
        H[n + q :, n : n + q] *= 0.8
        H[n : n + q, n + q :] *= 0.8
    X: Tensor = factor.T.to(here)
    return X
