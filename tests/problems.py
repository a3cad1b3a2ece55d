"""Networks and equilibria with known answers, shared by the tests."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lben
from lben.activations.scalar import TABLE
from lben.data import ImageData, embedded_mnist
from lben.operators.dense import DenseOperator
from lben.parameterize.dense import LipschitzBounded, Monotone, WellPosed
from lben.solvers.base import Problem

ROOT = Path(__file__).resolve().parent.parent  # of the repository

ACTIVATIONS: list[lben.Activation] = [
    *(kind() for kind in TABLE if kind is not lben.LeakyReLU),
    lben.LeakyReLU(0.1),
    lben.Elementwise(lambda v: torch.nn.functional.softplus(v) / 2 + torch.tanh(v) / 2),
    lben.PerUnit([lben.ReLU(), lben.Tanh(), lben.Identity(), lben.ELU(0.5), lben.ReLU()]),
]

SOLVERS: list[lben.Solver] = [
    lben.PeacemanRachford(),
    lben.DouglasRachford(),
    lben.ForwardBackward(max_iterations=50_000),
    lben.FISTA(max_iterations=50_000),
    lben.Extragradient(max_iterations=50_000),
    lben.Newton(),
    lben.Anderson(),
    lben.Anderson(method=lben.DouglasRachford()),
    lben.Anderson(method=lben.ForwardBackward(), max_iterations=50_000),
]

# Powers of two by which problems are multiplied, and a test for each precision
POWERS = {torch.float32: (-110, -80, -60, 0, 60, 100), torch.float64: (-950, -600, -500, 0, 500, 900)}
DTYPES = pytest.mark.parametrize("dtype", POWERS, ids=["single", "double"])

# W = 0.5 I - 5 [[0, 1], [-1, 0]] of NOTES: Condition W holds, and the ODE does not contract
COUNTEREXAMPLE = torch.tensor([[0.5, -5.0], [5.0, 0.5]], dtype=torch.float64)


def name(case: object) -> str:
    """A short id for a parametrized test."""
    if isinstance(case, lben.Anderson):
        return f"Anderson-{type(case.method).__name__}"
    return type(case).__name__


def operator(
    n: int, *, gamma: float | None = 1.0, size: float = 1.0, spread: float = 0.5, seed: int = 0
) -> DenseOperator:
    """A well-posed W in double precision, whose free variables are scaled by `size` and whose metric spreads."""
    torch.manual_seed(seed)
    parameterization = WellPosed(7, n, 3) if gamma is None else LipschitzBounded(7, n, 3, gamma)
    parameterization.double()
    with torch.no_grad():
        parameterization.V.mul_(size)
        parameterization.N.mul_(size)
        parameterization.d.normal_(0, spread)
        weights = parameterization().detach()
    return DenseOperator(weights.W, weights.lam)


def bare(operator: DenseOperator) -> lben.Weights:
    """Weights of this W and metric whose input is the bias itself: U = I, and no bias of their own."""
    eye, none = torch.eye(operator.size, dtype=operator.W.dtype), torch.zeros(operator.size, dtype=operator.W.dtype)
    return lben.Weights(operator.W.detach(), eye, none, eye, none, operator.lam)


def plain(W: Any, U: Any = None, Wo: Any = None, lam: Any = None, gamma: float | None = None) -> lben.Weights:
    """Weights in double precision without biases; U and Wo are the identity where they are not given."""
    W, U, Wo, lam = (None if part is None else torch.as_tensor(part, dtype=torch.float64) for part in (W, U, Wo, lam))
    eye, none = torch.eye(len(W), dtype=torch.float64), torch.zeros(len(W), dtype=torch.float64)
    U, Wo = eye if U is None else U, eye if Wo is None else Wo
    return lben.Weights(W, U, none, Wo, torch.zeros(len(Wo), dtype=torch.float64), lam, gamma)


def hard_operator(n: int, seed: int = 0) -> DenseOperator:
    """gamma = 0.05 and L above 500, with a metric of spread e^1."""
    found = operator(n, gamma=0.05, size=25.0, spread=1.0, seed=seed)
    assert found.norm > 500
    return found


def symmetric_operator(n: int, seed: int = 0) -> DenseOperator:
    """S = 0: Lambda W is symmetric, and the equilibrium is a minimiser."""
    torch.manual_seed(seed)
    parameterization = WellPosed(7, n, 3).double()
    with torch.no_grad():
        parameterization.N.zero_()
        parameterization.d.normal_(0, 0.5)
        weights = parameterization().detach()
    return DenseOperator(weights.W, weights.lam)


def monotone_operator(n: int, seed: int = 0) -> DenseOperator:
    torch.manual_seed(seed)
    weights = Monotone(7, n, 3).double()().detach()
    return DenseOperator(weights.W, weights.lam)


def biases(batch: int, n: int, seed: int = 1) -> Tensor:
    return 3 * torch.randn(batch, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def closed_form_linear(batch: int = 6) -> tuple[Problem, Tensor]:
    """Identity activation: z = (I - W)^-1 b."""
    W = operator(5)
    b = biases(batch, 5)
    identity = torch.eye(5, dtype=b.dtype)
    return Problem(W, lben.Identity(), b), torch.linalg.solve(identity - W.W, b.T).T


def closed_form_scalar() -> tuple[Problem, Tensor]:
    """One ReLU unit with W = -3: z = max(b, 0)/4."""
    b = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    W = DenseOperator(torch.tensor([[-3.0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    return Problem(W, lben.ReLU(), b), b.clamp(min=0) / 4


def closed_form_triangular() -> tuple[Problem, Tensor]:
    """A strictly lower triangular W is a feed-forward network: one sweep solves it."""
    W = torch.tensor([[0, 0, 0], [2, 0, 0], [-1, 3, 0]], dtype=torch.float64)
    lam = torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64)
    b = biases(8, 3)
    z = torch.zeros_like(b)
    for i in range(3):
        z[:, i] = torch.tanh(b[:, i] + z @ W[i])
    return Problem(DenseOperator(W, lam), lben.Tanh(), b), z


def scatter(net: torch.nn.Module, size: float, spread: float, of: tuple[str, ...] = ("",)) -> None:
    """Scale the free variables, or those whose names end like `of`, and draw the metric anew."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(of):
                parameter.mul_(size)
            if name.endswith(".d"):
                parameter.normal_(0, spread)


def random_network(
    kind: str,
    sizes: tuple[int, int, int],
    activation: lben.Activation,
    *,
    gamma: float | None,
    size: float,
    spread: float,
    trained: int,
    seed: int,
) -> lben.EquilibriumNetwork:
    """An LBEN or MON with free variables scaled by `size`, a metric that spreads, and some steps of Adam behind it."""
    torch.manual_seed(seed)
    if kind == "LBEN":
        net: lben.EquilibriumNetwork = lben.LBEN(*sizes, gamma=gamma, activation=activation)
    else:
        net = lben.MON(*sizes, activation=activation)
    scatter(net.double(), size, spread)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    x, y = torch.randn(16, sizes[0]).double(), torch.randn(16, sizes[2]).double()
    for _ in range(trained):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), 3 * y).backward()
        optimizer.step()
    return net.eval()


def contracting(
    n: int, *, rate: float, gamma: float | None = None, size: float = 1.0, spread: float = 0.5, seed: int = 0
) -> lben.ContractingODE:
    """A ContractingODE in double precision whose free variables are scaled by `size` and whose metric spreads."""
    torch.manual_seed(seed)
    ode = lben.ContractingODE(3, n, 2, rate=rate, gamma=gamma).double()
    scatter(ode, size, spread, of=(".C", ".Wo"))
    return ode.eval()


def conv_network(
    in_shape: tuple[int, int, int],
    metric: lben.Metric,
    *,
    gamma: float | None = 0.7,
    channels: int = 3,
    size: float = 1.0,
    spread: float = 0.5,
    seed: int = 0,
    **options: Any,
) -> lben.ConvLBEN:
    """A convolutional LBEN in double precision, in evaluation, whose metric spreads; it pools only where told to."""
    torch.manual_seed(seed)
    net = lben.ConvLBEN(in_shape, channels, 3, gamma=gamma, metric=metric, **{"pool": 1, **options})
    scatter(net, size, spread)
    return net.double().eval()


@cache
def mnist_network(gamma: float | None) -> lben.EquilibriumNetwork:
    """The LBEN (the MON for gamma None) of 80 units that ships inside, trained on MNIST."""
    net = lben.pretrained("mnist-mon" if gamma is None else f"mnist-gamma-{gamma:g}")
    assert isinstance(net, lben.EquilibriumNetwork)
    net.solver = lben.PeacemanRachford(tolerance=1e-3)
    return net


def lipsdp(matrices: list[Tensor], slope: float = 0.0) -> float:
    """The bound of LipSDP as Fazlyab et al. (2019) write it, for slopes in [slope, 1], by Clarabel."""
    cp = pytest.importorskip("cvxpy")
    hidden = [len(m) for m in matrices[:-1]]
    d, n = matrices[0].shape[1], sum(hidden)
    reads = torch.block_diag(*matrices[:-1]).numpy()  # from (x, all layers but the last) to every pre-activation
    A = np.hstack([reads, np.zeros((n, d + n - reads.shape[1]))])
    B = np.hstack([np.zeros((n, d)), np.eye(n)])
    last = np.hstack([np.zeros((len(matrices[-1]), d + n - hidden[-1])), matrices[-1].numpy()])
    t, rho = cp.Variable(n, nonneg=True), cp.Variable()
    T = cp.diag(t)
    multiplier = (1 + slope) * (A.T @ T @ B + B.T @ T @ A) - 2 * slope * A.T @ T @ A - 2 * B.T @ T @ B
    inputs = np.diag([1.0] * d + [0.0] * n)
    X = rho * inputs - multiplier - last.T @ last
    program = cp.Problem(cp.Minimize(rho), [(X + X.T) / 2 >> 0])
    program.solve(solver=cp.CLARABEL)
    return math.sqrt(float(rho.value))


def few_images(train: int = 1000, test: int = 100) -> ImageData:
    """The first of the embedded images."""
    data = embedded_mnist()
    return ImageData(
        data.train_images[:train], data.train_labels[:train], data.test_images[:test], data.test_labels[:test]
    )


def label(value: object) -> str:
    """A value as the name of a test: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
