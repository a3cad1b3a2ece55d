"""Networks to find pairs of inputs for, and their outputs in double precision with a bound on the error of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn

import lben
from lben.parameterize.skip import Skip
from tests.adversary import draws

Domain = Literal["input", "pixels"]
EPS = 2.0**-52
_ITERATIONS = 400


@dataclass(frozen=True)
class Evaluated:
    """Outputs, shape (count, p), and for each a bound on its error."""

    y: Tensor
    error: Tensor


@dataclass(frozen=True)
class Prey:
    """A network, how it is evaluated without the library's solvers, and the spread of inputs worth looking at.

    aim: inputs whose pre-activations are those given, as nearly as U allows. narrow: an angle, of units in pairs, in
    which to look for edges.
    """

    net: Any
    evaluate: Callable[[Tensor], Evaluated]
    inputs: int
    spread: float
    domain: Domain = "input"
    aim: Callable[[Tensor], Tensor] | None = None
    narrow: float | None = None


class Equilibria:
    """Dense weights solved by Peaceman-Rachford in the metric lam; errors from the residual, and rounding.

    z' = sigma(W z + U x + b) is the equilibrium for the bias b + W (z - z'), so that |z' - z*| <= |W (z - z')|/m in the
    norm of Lam. Roundings count as more bias, each sum with its length.
    """

    def __init__(self, weights: lben.Weights, sigma: lben.Activation, normalize: lben.Normalize | None = None) -> None:
        w = weights.detach().to(torch.float64)
        self.W, self.U, self.bz, self.Wo, self.by = w.W, w.U, w.bz, w.Wo, w.by
        self.D = torch.zeros(len(w.by), w.in_features, dtype=torch.float64) if w.D is None else w.D
        self.sigma = sigma
        self.mean, self.std = (torch.zeros(1).double(), torch.ones(1).double())
        if normalize is not None:
            self.mean, self.std = normalize.mean.detach().double(), normalize.std.detach().double()
        self.root = torch.ones_like(w.bz) if w.lam is None else w.lam.sqrt()
        n = len(w.bz)
        A = self.root[:, None] * (torch.eye(n, dtype=torch.float64) - w.W) / self.root
        self.norm = float(torch.linalg.matrix_norm(A, 2))
        self.m = float(torch.linalg.eigvalsh((A + A.T) / 2)[0]) - 100 * n * EPS * self.norm
        self.reach = torch.linalg.vector_norm(w.Wo / self.root, dim=1)
        self.alpha = 1 / math.sqrt(max(self.m, 1e-3 * self.norm) * self.norm) if sigma.own_prox else 1.0
        eye = torch.eye(n, dtype=torch.float64)
        self.R = torch.linalg.inv(eye + self.alpha * (eye - w.W))

    def __call__(self, x: Tensor) -> Evaluated:
        inputs = (x - self.mean) / self.std
        b = inputs @ self.U.T + self.bz
        u = torch.zeros_like(b)
        for _ in range(_ITERATIONS):
            z = self.sigma.prox(u, self.alpha) if self.alpha != 1 else self.sigma(u)
            half = (2 * z - u + self.alpha * b) @ self.R.T
            step = half - z
            u = u + 2 * step
            if float(step.abs().max()) <= 4 * EPS * float(z.abs().max()):
                break
        answer = self.sigma(half @ self.W.T + b)
        size = half.abs() @ self.W.abs().T + inputs.abs() @ self.U.abs().T + self.bz.abs()
        moved = (half - answer) @ self.W.T
        rounding = (len(self.bz) + x.shape[1] + 16) * EPS * size + 64 * EPS * answer.abs()
        hidden = torch.linalg.vector_norm(self.root * (moved.abs() + rounding), dim=1) / max(self.m, 1e-300)
        past, size_past = inputs @ self.D.T, inputs.abs() @ self.D.abs().T
        sums = answer.abs() @ self.Wo.abs().T + self.by.abs() + size_past
        error = self.reach * (hidden + torch.linalg.vector_norm(self.root * rounding, dim=1))[:, None]
        error = error + (len(self.bz) + 4) * EPS * sums + (x.shape[1] + 16) * EPS * size_past
        return Evaluated(answer @ self.Wo.T + past + self.by, error)

    def aim(self, v: Tensor) -> Tensor:
        """x with U x = v - W sigma(v) - b, or close to it."""
        goal = v - self.sigma(v) @ self.W.T - self.bz
        found: Tensor = goal @ torch.linalg.pinv(self.U).T * self.std + self.mean
        return found


def modular(module: nn.Module) -> Callable[[Tensor], Evaluated]:
    """What a module itself computes, whatever it does to its input, with the sizes of all sums as its error."""
    layers = sum(1 for _ in module.modules())
    width = max(max(p.shape) for p in module.parameters())

    def evaluate(x: Tensor) -> Evaluated:
        with torch.no_grad():
            y = module(x.clone())
            return Evaluated(y, 4 * layers * (width + 4) * EPS * _sizes(module, x.abs()))

    return evaluate


def _sizes(module: nn.Module, size: Tensor) -> Tensor:
    """A bound on every number inside, from a bound on the input."""
    if isinstance(module, nn.Linear):
        inside: Tensor = size @ module.weight.abs().T + module.bias.abs()
        return inside
    if isinstance(module, lben.Residual):
        return 2 * (size + _sizes(module.body, size))
    if isinstance(module, nn.Sequential):
        for part in module:
            size = _sizes(part, size)
        return size
    slope: float = getattr(module, "negative_slope", 1.0)
    return size * max(1.0, abs(slope))


def _spread(net: nn.Module, r: Random) -> None:
    """Free variables of other sizes, and a metric that spreads."""
    size, spread = 10.0 ** r.uniform(-0.7, 0.7), r.choice((0.0, 0.5, 1.5))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.mul_(size)
            if name.endswith(".d"):
                parameter.copy_(spread * draws.gaussian(r, *parameter.shape))


def _prey(net: Any, spread: float = 1.0, domain: Domain = "input", narrow: float | None = None) -> Prey:
    with torch.no_grad():
        weights = net.weights()
    explicit = weights.dense() if isinstance(weights, lben.ConvWeights) else weights
    equilibria = Equilibria(explicit, net.activation, net.normalize)
    return Prey(net, equilibria, weights.in_features, spread, domain, equilibria.aim, narrow)


def _sizes_of(r: Random) -> tuple[int, int, int]:
    return r.randint(1, 5), r.randint(1, 8), r.randint(2, 3)


def skipping(r: Random, same: bool, gamma: float | None) -> Skip | None:
    """What may pass hidden units by, where inputs are as many as outputs, or not."""
    kinds: list[Skip | None] = [None, "linear"]
    if same and (gamma is None or gamma >= 1):
        kinds.append("identity")
    return r.choice(kinds)


def dense(r: Random) -> Prey:
    """LBEN with or without gamma and a feed-through, in either precision, behind a normalisation now and then."""
    torch.manual_seed(r.randrange(2**31))
    sigma = r.choice((lben.ReLU(), lben.ReLU(), lben.LeakyReLU(0.2), lben.Tanh(), lben.HardTanh(), lben.ELU()))
    domain: Domain = r.choice(("input", "pixels"))
    normalize = lben.Normalize(0.3, 0.25) if domain == "pixels" else None
    gamma = r.choice((None, 0.1, 1.0, 10.0))
    d, n, p = _sizes_of(r)
    skip = skipping(r, d == p, gamma)
    epsilon = 10.0 ** r.uniform(-3, 0)
    net = lben.LBEN(d, n, p, gamma=gamma, skip=skip, epsilon=epsilon, activation=sigma, normalize=normalize)
    _spread(net, r)
    return _prey((net.double() if r.random() < 0.5 else net).eval(), 10.0 ** r.uniform(-1, 2), domain)


def monotone(r: Random) -> Prey:
    torch.manual_seed(r.randrange(2**31))
    net = lben.MON(*_sizes_of(r), activation=r.choice((lben.ReLU(), lben.Arctan(), lben.Softplus()))).double()
    _spread(net, r)
    return _prey(net.eval())


def mixed(r: Random) -> Prey:
    """Linear units among others: certificates eliminate them."""
    torch.manual_seed(r.randrange(2**31))
    d, n, p = _sizes_of(r)
    sigma = lben.PerUnit([r.choice((lben.ReLU(), lben.Identity(), lben.Sigmoid())) for _ in range(n)])
    net = lben.LBEN(d, n, p, gamma=r.choice((None, 1.0)), activation=sigma).double()
    _spread(net, r)
    return _prey(net.eval())


def convolutional(r: Random) -> Prey:
    torch.manual_seed(r.randrange(2**31))
    metric: lben.Metric = r.choice(("channel", "identity", "pixel"))
    gamma = r.choice((None, 0.3, 3.0))
    solver = lben.ForwardBackward(max_iterations=100_000) if metric == "pixel" else None
    padding, pool, C = r.choice((0, 0, 1)), r.choice((1, 3)), r.randint(1, 2)
    net = lben.ConvLBEN(
        (1, 3, 3), C, 3, gamma=gamma, metric=metric, solver=solver, padding=padding, pool=1 if padding else pool
    ).double()
    _spread(net, r)
    return _prey(net.eval())


def imported(r: Random) -> Prey:
    """A feed-forward module, evaluated by itself; some of its activations write over their inputs."""
    module = draws.module(r, inplace=r.random() < 0.5)
    if r.random() < 0.3:
        width = module[0].in_features if isinstance(module[0], nn.Linear) else r.randint(1, 3)
        module = nn.Sequential(lben.Residual(nn.LeakyReLU(5.0, inplace=True), nn.Linear(width, width)), *module)
        module = module.double().eval()
    net = lben.from_sequential(module, input_shape=_width(module))
    return Prey(net, modular(module), net.in_features, 10.0 ** r.uniform(-1, 1))


def _width(module: nn.Sequential) -> int:
    return next(part.in_features for part in module.modules() if isinstance(part, nn.Linear))


def grouped(r: Random) -> Prey:
    """Projections, softmax and thresholds of blocks; constraints of a polyhedron may be nearly parallel."""
    torch.manual_seed(r.randrange(2**31))
    angle = 10.0 ** r.uniform(-7, -2)
    wedge = [[0.0, 1.0], [math.sin(angle), math.cos(angle)]]
    kinds: list[Callable[[], lben.Activation]] = [
        lambda: lben.Projection(lben.Ball(2)),
        lambda: lben.Projection(lben.Simplex(2)),
        lambda: lben.Projection(lben.Box([-1.0, 0.0], [1.0, 2.0])),
        lambda: lben.Projection(lben.Polyhedron(wedge, [0.0, 0.0])),
        lambda: lben.Projection(lben.Polyhedron(wedge, [0.0, 0.0])),
        lambda: lben.Softmax(2),
        lambda: lben.GroupSoftThreshold(2, 0.5),
    ]
    n, sigma = r.choice((2, 2, 4)), r.choice(kinds)()
    narrow = isinstance(sigma, lben.Projection) and isinstance(sigma.set, lben.Polyhedron)
    net = lben.LBEN(r.randint(1, 4) if r.random() < 0.3 else n, n, 2, gamma=1.0, activation=sigma).double()
    _spread(net, r)
    return _prey(net.eval(), 10.0 ** r.uniform(-1, 1), "input", angle if narrow else None)


def changed(r: Random) -> Prey:
    """Networks whose bound, or normalisation, changes after their bounds were asked for once."""
    torch.manual_seed(r.randrange(2**31))
    normalize = lben.Normalize(0.0, 0.5)
    if r.random() < 0.6:
        metric: lben.Metric = r.choice(("channel", "identity"))
        net: Any = lben.ConvLBEN((1, 3, 3), 2, 3, gamma=1.0, metric=metric, pool=3, normalize=normalize).double().eval()
    else:
        net = lben.LBEN(3, 5, 3, gamma=1.0, normalize=normalize).double().eval()
    x = draws.gaussian(r, 2, net.in_features)
    net(x), net.bound(), lben.certified_radius(net, x), lben.tightest_bound(net)
    change = r.choice(("gamma", "std", "Wo"))
    with torch.no_grad():
        if change == "gamma":
            net.parameterization.gamma = r.choice((0.03, 30.0))
        elif change == "Wo":
            net.parameterization.Wo.mul_(10.0)
        else:
            state = net.state_dict()
            state["normalize.std"] = torch.full_like(state["normalize.std"], r.choice((-0.5, 0.05, 0.0)))
            net.load_state_dict(state)
    return _prey(net, 1.0, "pixels")


HERDS: dict[Callable[[Random], Prey], int] = {  # and how many networks of each the short run looks at
    dense: 2,
    monotone: 2,
    mixed: 2,
    convolutional: 1,
    imported: 6,
    grouped: 4,
    changed: 2,
}
