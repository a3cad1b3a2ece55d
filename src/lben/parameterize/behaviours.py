"""What a recurrent equilibrium network can promise of itself, as plain records, and the feed-through that allows it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lben import checks
from lben.described import describe_record, make_record, named
from lben.errors import BoundNotMet, InvalidFile, InvalidInput
from lben.parameterize.ball import inside_ball, out_of_ball
from lben.weights.recurrent import Supply

_DOUBLE: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}  # also where another default device is set
_ROOM = 1e-3  # by which a Q that is singular is lowered, of one or of its size
Matrix = Tensor | Sequence[Sequence[float]]


class Behaviour:
    """A promise about any two trajectories of a `REN`: ``V(x+) - rate^2 V(x) <= s(du, dy)``, V a quadratic form of dx.

    `Contracting`, `Lipschitz`, `Passive` and `Dissipative` are such promises.

    Attributes:
        rate: the factor of V.

    Examples:
        >>> isinstance(lben.Lipschitz(1.0), lben.Behaviour)
        True
    """

    rate: float

    @abstractmethod
    def supply(self, d: int, p: int) -> Supply | None:
        """s of the promise, in double precision.

        Args:
            d: the number of inputs.
            p: the number of outputs.

        Returns:
            A `Supply`; None where only equal inputs are promised something.

        Raises:
            InvalidInput: if it is not for so many inputs and outputs.
        """

    def describe(self) -> dict[str, Any]:
        """Its name and its options.

        Returns:
            Plain values, as a file keeps them.
        """
        return describe_record(self)


@dataclass(frozen=True)
class Contracting(Behaviour):
    """Under equal inputs states approach each other, by the factor `rate` a step at least.

    Args:
        rate: in (0, 1], the factor a step by which states approach each other, in the norm of some P, under equal
            inputs; at 1 they approach all the same, at no promised speed.

    Raises:
        InvalidInput: for another rate.

    Examples:
        Whatever state it begins in is forgotten.

        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Contracting(0.5))
        >>> u = torch.randn(30, 1, 1)
        >>> one, other = ren.simulate(u, torch.zeros(2)), ren.simulate(u, 10 * torch.ones(2))
        >>> torch.allclose(one.states[-1], other.states[-1], atol=1e-3)
        True
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.step_rate(self.rate))

    def supply(self, d: int, p: int) -> Supply | None:
        return None


@dataclass(frozen=True)
class Lipschitz(Behaviour):
    """Output signals move at most gamma times as far as input signals, in l2, from equal states; contracting besides.

    Args:
        gamma: the incremental gain, above 0.
        rate: in (0, 1], the factor a step by which states approach each other, in the norm of some P, under equal
            inputs; at 1 they approach all the same, at no promised speed.

    Raises:
        InvalidInput: for values outside these ranges.

    Examples:
        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(0.5, rate=0.9))
        >>> lben.incremental_gain(ren).gain <= 0.5
        True
    """

    gamma: float
    rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", checks.positive("gamma", self.gamma))
        object.__setattr__(self, "rate", checks.step_rate(self.rate))

    def supply(self, d: int, p: int) -> Supply | None:
        return Supply.of_gain(self.gamma, d, p)


@dataclass(frozen=True)
class Passive(Behaviour):
    """The sum over time of du'dy is at least that of ``input |du|^2 + output |dy|^2``, from equal states.

    It is contracting besides. There must be as many outputs as inputs.

    Args:
        input: the index of the input, not negative.
        output: the index of the output, not negative; input * output < 1/4, beyond which nothing is so passive.
        rate: in (0, 1], the factor a step by which states approach each other, in the norm of some P, under equal
            inputs; at 1 they approach all the same, at no promised speed.

    Raises:
        InvalidInput: for values outside these ranges.

    Examples:
        >>> ren = lben.REN(1, 2, 3, 1, behaviour=lben.Passive())
        >>> u = torch.randn(2, 10, 1, 1)
        >>> bool(((u[0] - u[1]) * (ren(u[0]) - ren(u[1]))).sum() >= 0)
        True
    """

    input: float = 0.0
    output: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            value = checks.number(name, getattr(self, name))
            if not 0 <= value < float("inf"):
                raise InvalidInput(f"{name} must be a finite number of at least 0, not {value:g}.")
            object.__setattr__(self, name, value)
        if not self.input * self.output < 0.25:
            raise InvalidInput(
                f"input * output must be below 1/4, beyond which no network is passive, not {self.input:g} times "
                f"{self.output:g}."
            )
        object.__setattr__(self, "rate", checks.step_rate(self.rate))

    def supply(self, d: int, p: int) -> Supply | None:
        if checks.count("d", d) != checks.count("p", p):
            raise InvalidInput(f"Passive needs as many outputs as inputs, not {p} and {d}.")
        eye = torch.eye(d, **_DOUBLE)
        return Supply(-2 * self.output * eye, eye, -2 * self.input * eye)


@dataclass(frozen=True)
class Dissipative(Behaviour):
    """A promise of your own: ``s(du, dy) = dy'Q dy + 2 du'S dy + du'R du``; contracting besides.

    ``R - S Q^-1 S'`` must be positive definite, or no network can keep the promise.

    Args:
        Q: of shape (p, p), symmetric and negative semidefinite: a tensor, or rows of numbers.
        S: of shape (d, p).
        R: of shape (d, d), symmetric.
        rate: in (0, 1], the factor a step by which states approach each other, in the norm of some P, under equal
            inputs; at 1 they approach all the same, at no promised speed.

    Raises:
        InvalidInput: if the matrices are none of these, or no network can keep the promise.

    Examples:
        A gain of 1 from the first input, and of 0.1 from the second.

        >>> supply = lben.Dissipative(Q=[[-1.0]], S=[[0.0], [0.0]], R=[[1.0, 0.0], [0.0, 0.01]])
        >>> bool(lben.certify(lben.REN(2, 2, 3, 1, behaviour=supply)))
        True
    """

    Q: Any
    S: Any
    R: Any
    rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("Q", "S", "R"):
            object.__setattr__(self, name, _rows(name, getattr(self, name)))
        object.__setattr__(self, "rate", checks.step_rate(self.rate))
        Feedthrough.of(self._made(), True)

    def _made(self) -> Supply:
        return Supply(*(torch.tensor(rows, **_DOUBLE) for rows in (self.Q, self.S, self.R)))

    def supply(self, d: int, p: int) -> Supply | None:
        made = self._made()
        if made.S.shape != (checks.count("d", d), checks.count("p", p)):
            raise InvalidInput(f"S must have one row for each of {d} inputs and one column for each of {p} outputs.")
        return made


def build_behaviour(description: object) -> Behaviour | None:
    """A behaviour from its description."""
    if description is None:
        return None
    name, options = named("behaviour", description, 0)
    kinds = {kind.__name__: kind for kind in (Contracting, Lipschitz, Passive, Dissipative)}
    if name not in kinds:
        raise InvalidFile(f"there is no behaviour {name!r}.")
    made: Behaviour = make_record(kinds[name], options)
    return made


def check_behaviour(behaviour: Behaviour | None) -> Behaviour | None:
    """`behaviour` if it is one."""
    if behaviour is not None and not isinstance(behaviour, Behaviour):
        raise InvalidInput(
            "behaviour must be one of lben's, such as lben.Contracting(0.9) or lben.Lipschitz(1.0), or None for no "
            f"promise, not {behaviour!r}."
        )
    return behaviour


def _rows(name: str, matrix: Matrix) -> tuple[tuple[float, ...], ...]:
    if isinstance(matrix, Tensor):
        checks.there(name, checks.floating(name, matrix))
    try:
        table = torch.as_tensor(matrix, **_DOUBLE).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must be a matrix of numbers, not {matrix!r}.") from error
    if table.dim() != 2:
        raise InvalidInput(f"{name} must be a matrix of numbers, but its shape is {tuple(table.shape)}.")
    checks.finite(name, table)
    if name != "S" and (table.shape[0] != table.shape[1] or not torch.equal(table, table.T)):
        raise InvalidInput(f"{name} must be symmetric.")
    return tuple(tuple(row) for row in table.tolist())


class Feedthrough:
    """The D22 for which R + S D + D'S' + D'Q D, the corner of the inequality, is positive definite, from a free X.

    Where Q < 0: D = -Q^-1 S' + K^-1 N G with K'K = -Q, G'G = R - S Q^-1 S' and N of norm below one (`ball.py`); the
    corner is G'(I - N'N)G. Where Q = 0 and S has an inverse: D = S^-1 ((X'X + room I - R)/2 + N - N') with
    N free, too, and the corner is X'X + room I. A Q that is singular otherwise is lowered a little, which promises a
    little more.
    All tensors are in double precision on the CPU; `lowered` is the supply that the network then keeps.
    """

    def __init__(self, supply: Supply, shift: Tensor, left: Tensor, right: Tensor | None) -> None:
        self.lowered, self._shift, self._left, self._right = supply, shift, left, right

    @staticmethod
    def of(supply: Supply, wanted: bool) -> Feedthrough | None:
        """The map of a supply; None where D22 = 0 is wanted, and allowed. Raises InvalidInput where nothing is."""
        Q, S, R = supply.Q, supply.S, supply.R
        top = float(torch.linalg.eigvalsh(Q)[-1]) if len(Q) else 0.0
        if top > 1e-12 * float(Q.abs().max()):
            raise InvalidInput(f"Q must be negative semidefinite, but has the eigenvalue {top:.6g}.")
        if not wanted:
            least = float(torch.linalg.eigvalsh(R)[0])
            if not least > 0:
                raise InvalidInput(
                    f"Without a feed-through R must be positive definite, but has the eigenvalue {least:.6g}: this "
                    "behaviour needs feedthrough=True."
                )
            return None
        flat = not bool((Q != 0).any())
        if flat and S.shape[0] == S.shape[1] and float(torch.linalg.cond(S)) < 1e8:
            room = _ROOM * torch.eye(len(R), **_DOUBLE)
            inverse = torch.linalg.inv(S)
            return Feedthrough(supply, inverse @ (room - R) / 2, inverse, None)
        if not top < -1e-8 * max(float(Q.abs().max()), 1e-30):
            supply = Supply(Q - _ROOM * max(1.0, float(Q.abs().max())) * torch.eye(len(Q), **_DOUBLE), S, R)
        return Feedthrough._in_ball(supply)

    @staticmethod
    def _in_ball(supply: Supply) -> Feedthrough:
        Q, S, R = supply.Q, supply.S, supply.R
        centre = -torch.linalg.solve(Q, S.T)
        corner = R + S @ centre
        least = float(torch.linalg.eigvalsh(corner)[0])
        if not least > 0:
            raise InvalidInput(
                f"No network satisfies these Q, S and R: R - S Q^-1 S' must be positive definite, but has the "
                f"eigenvalue {least:.6g}."
            )
        K = torch.linalg.cholesky(-Q).T
        left = torch.linalg.solve_triangular(K, torch.eye(len(K), **_DOUBLE), upper=True)
        return Feedthrough(supply, centre, left, torch.linalg.cholesky((corner + corner.T) / 2).T)

    def start(self, dtype: torch.dtype | None) -> Tensor:
        """The X to start from: the middle of the ball, or a corner of I."""
        if self._right is not None:
            return torch.zeros(*self._shift.shape, dtype=dtype)
        eye = torch.eye(len(self._shift), dtype=dtype)
        return torch.stack([eye, torch.zeros_like(eye)])

    def matrix(self, X: Tensor) -> Tensor:
        """D22, of shape (p, d)."""
        shift, left = self._shift.to(X), self._left.to(X)
        if self._right is None:
            return shift + left @ (X[0].T @ X[0] / 2 + X[1] - X[1].T)
        return shift + left @ inside_ball(X)[1] @ self._right.to(X)

    def free(self, D: Tensor) -> Tensor:
        """The X of a D22 in double precision; raises BoundNotMet where there is none."""
        inner = torch.linalg.solve(self._left, D - self._shift)
        if self._right is not None:
            return out_of_ball(torch.linalg.solve(self._right.T, inner.T).T)
        values, vectors = torch.linalg.eigh(inner + inner.T)
        if not bool((values >= 0).all()):
            raise BoundNotMet("D22 leaves no room in the corner of the inequality.", float(values[0]))
        return torch.stack([(vectors * values.sqrt()) @ vectors.T, (inner - inner.T) / 4])
