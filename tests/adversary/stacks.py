"""Stacks: linear ones, whose Lipschitz constant is that of a rational matrix, and others, evaluated stage by stage."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import lben
from lben.parameterize.image import Padding
from tests.adversary import draws, exact
from tests.adversary.claims import judge_both, known
from tests.adversary.subjects import EPS, Equilibria, Evaluated, Prey, skipping
from tests.adversary.tally import Tally


def linear_stack(r: Random, tally: Tally, where: str) -> None:
    """Matrices, kernels, pools, sums and linear equilibria over many sizes: bounds against their rational product."""
    stages, shape = _linear_stages(r)
    net = tally.attempt("linear stack", where, lambda: lben.Sequential(*stages, in_shape=shape).eval())
    if net is None:
        return
    J = exact.identity(math.prod(shape))
    for stage in stages:
        J = _jacobian(stage, shape) * J
        shape = _after(stage, shape)
    shown = f"{where}: {[(type(s).__name__, {n: t.tolist() for n, t in s.named_parameters()}) for s in stages]}"
    true = lambda c: exact.norm_at_most(J, c.gamma)  # noqa: E731
    judge_both(tally, "linear stack", shown, lambda rigorous: lben.certify(net, rigorous=rigorous), true)
    tight = lambda rigorous: lben.tightest_bound(net, rigorous=rigorous)  # noqa: E731
    judge_both(tally, "linear stack, tightest bound", shown, tight, true)
    known(tally, "linear stack, product bound", shown, net.bound, lambda b: exact.norm_at_most(J, b))


def _linear_stages(r: Random) -> tuple[list[nn.Module], tuple[int, ...]]:
    torch.manual_seed(r.randrange(2**31))
    shape: tuple[int, ...] = (r.randint(1, 2), r.choice((1, 2, 3)), r.choice((2, 3)))
    first = shape
    stages: list[nn.Module] = []
    if r.random() < 0.5:
        channels, k = r.randint(1, 2), r.choice((1, 2))
        stages.append(nn.Conv2d(shape[0], channels, k, stride=r.choice((1, 2)), padding=1, bias=False))
        shape = _after(stages[-1], shape)
        if r.random() < 0.5:
            stages.append(_batch_norm(r, nn.BatchNorm2d(channels, eps=0.0)))
        if r.random() < 0.5:
            same = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            stages.append(lben.Residual(same) if r.random() < 0.5 else same)
        if min(shape[1:]) > 1 and r.random() < 0.5:
            stages.append(nn.AvgPool2d(2, stride=r.choice((1, 2))))
            shape = _after(stages[-1], shape)
    stages.append(nn.Flatten())
    width = math.prod(shape)
    for _ in range(r.randint(1, 2)):
        after = r.randint(1, 3)
        kind = r.choice(("linear", "equilibrium", "residual", "normalize"))
        if kind == "linear":
            stages.append(nn.Linear(width, after))
            width = after
            if r.random() < 0.5:
                stages.append(_batch_norm(r, nn.BatchNorm1d(width, eps=0.0)))
        elif kind == "residual":
            stages.append(lben.Residual(nn.Linear(width, width)))
        elif kind == "normalize":
            std = [10.0 ** r.uniform(-4, 4) for _ in range(width)]
            stages.append(lben.Normalize(0.0, r.choice((std, std[0])), dtype=torch.float64))
        else:
            gamma = r.choice((None, 0.3, 2.0))
            stages.append(lben.LBEN(width, r.randint(1, 3), after, gamma=gamma, activation=lben.Identity()))
            width = after
    matrices = [p for s in stages for p in s.double().parameters() if not isinstance(s, lben.LBEN) and p.dim() > 1]
    with torch.no_grad():
        for weight in matrices:
            rough = draws.rough(r, len(weight), weight[0].numel())
            weight.copy_(10.0 ** r.uniform(-4, 4) * rough.reshape(weight.shape))
    return stages, first


def _batch_norm(r: Random, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """One of variance 1, so that it multiplies by its weight, in rational numbers too."""
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([10.0 ** r.uniform(-4, 4) * r.choice((-1, 0, 1)) for _ in norm.weight]))
    return norm.double().eval()


def _jacobian(stage: nn.Module, shape: tuple[int, ...]) -> Any:
    """The matrix of a linear stage, in rational numbers."""
    if isinstance(stage, nn.Flatten):
        return exact.identity(math.prod(shape))
    if isinstance(stage, lben.Residual):
        return exact.identity(math.prod(shape)) + _jacobian(stage.body[0], shape)
    if isinstance(stage, nn.Linear):
        return exact.matrix(stage.weight)
    if isinstance(stage, lben.Normalize):
        size = math.prod(shape)
        return exact.diagonal([1 / exact.rational(float(std)) for std in stage.std.expand(size)])
    if isinstance(stage, nn.BatchNorm1d | nn.BatchNorm2d):
        pixels = math.prod(shape[1:])
        return exact.diagonal([exact.rational(scale) for scale in stage.weight.tolist() for _ in range(pixels)])
    if isinstance(stage, lben.LBEN):
        weights = stage.weights()
        found = exact.Exact.of(weights).jacobian([1] * weights.hidden_features)
        assert found is not None
        return found
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        if isinstance(stage, nn.AvgPool2d):  # four times the mean is a sum of ones
            return exact.matrix((4 * stage(units)).flatten(1).T) * exact.rational(0.25)
        return exact.matrix(stage(units).flatten(1).T)  # every entry is one of the kernel's


def _after(stage: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        probe = torch.zeros(1, *shape, dtype=next((p.dtype for p in stage.parameters()), torch.float64))
        return tuple(stage(probe).shape[1:])


EXPLICIT = (lben.SLL, lben.Sandwich, lben.ConvSLL, lben.ConvSandwich)


class Chain:
    """Stages one after another, equilibria without the library's solvers; errors grow as each stage lets them."""

    def __init__(self, net: lben.Sequential) -> None:
        self.in_shape = shape = net.in_shape
        self.stages: list[tuple[nn.Module, Equilibria | None, tuple[int, ...]]] = []
        for stage in net:
            equilibria, shape = _evaluator(stage, shape), _after(stage, shape)
            self.stages.append((stage, equilibria, shape))

    def __call__(self, x: Tensor) -> Evaluated:
        y, error = x, torch.zeros(len(x), dtype=x.dtype)
        last = torch.zeros_like(x)
        shape = self.in_shape
        with torch.no_grad():
            for stage, equilibria, after in self.stages:
                if equilibria is not None:
                    found = equilibria(y)
                    growth, y, last = _growth(equilibria), found.y, found.error
                else:
                    image = y.reshape(len(y), *shape)
                    sizes, unit = sum(float(p.abs().sum()) for p in stage.parameters()) + 1, 64 * EPS
                    if isinstance(stage, EXPLICIT):  # made of their parameters by inverses and quotients
                        sizes, unit = 100.0, 1e-12
                    growth, last = sizes, unit * sizes * (y.abs().amax(dim=1, keepdim=True) + 1)
                    y = stage(image).flatten(1)
                    last = last.expand_as(y)
                shape = after
                error = growth * error * (1 + 1e-12) + torch.linalg.vector_norm(last, dim=1)
        return Evaluated(y, error[:, None].expand_as(y))


def _growth(w: Equilibria) -> float:
    out, into = (torch.linalg.matrix_norm(part, 2) for part in (w.Wo / w.root, w.root[:, None] * w.U))
    return float(out * into) / max(w.m, 1e-300) + float(torch.linalg.matrix_norm(w.D, 2))


def _evaluator(stage: nn.Module, shape: tuple[int, ...]) -> Equilibria | None:
    with torch.no_grad():
        if isinstance(stage, lben.ImageLBEN):
            return Equilibria(stage.weights((shape[1], shape[2])).dense(), stage.activation)
        if isinstance(stage, lben.EquilibriumNetwork):
            return Equilibria(stage.weights(), stage.activation)
    return None


def _images(r: Random, into: int, out: int, side: int) -> lben.ImageLBEN:
    """An equilibrium of images of `side` pixels at least."""
    gamma = r.choice((None, 0.1, 1.0, 4.0))
    padding: Padding = r.choice(("zeros", "circular"))
    skip = skipping(r, into == out, gamma)
    kernel = 3 if side >= 3 else 1
    return lben.ImageLBEN(into, 2, out, gamma=gamma, kernel_size=kernel, padding=padding, skip=skip)


def stacked(r: Random) -> Prey:
    """Equilibria, matrices, convolutions, pools, sums and activations, in any order that fits."""
    torch.manual_seed(r.randrange(2**31))
    shape: tuple[int, ...] = (r.randint(1, 4),)
    parts: list[nn.Module] = []
    first = shape
    if r.random() < 0.5:
        first = (1, 4, 4)
        pool = r.choice((nn.MaxPool2d(2), nn.AvgPool2d(2)))
        block = lben.Residual(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 1))
        plain = nn.Conv2d(1, 2, 3, padding=1, stride=r.choice((1, 2)))
        front = r.choice((plain, lben.ConvSandwich(1, 2), _images(r, 1, 2, 4)))
        side = _after(front.double(), first)[1]
        middle = r.choice((nn.LeakyReLU(0.3), lben.ConvSLL(2, 3), lben.MaxMin(), _images(r, 2, 2, side)))
        parts = [front, middle, block, pool, nn.Flatten()]
        shape = _after(nn.Sequential(*parts).double(), first)
    width = shape[0]
    for _ in range(r.randint(1, 2)):
        after = r.randint(2, 4)
        gamma = r.choice((None, 0.5, 2.0))
        skip = skipping(r, width == after, gamma)
        dense: list[nn.Module] = [lben.LBEN(width, 5, after, gamma=gamma, skip=skip), nn.Linear(width, after)]
        parts.append(r.choice((*dense, lben.Sandwich(width, after))))
        parts.append(
            r.choice(
                (nn.Tanh(), nn.ReLU(), nn.ELU(), lben.SLL(after), lben.Residual(nn.Linear(after, after), nn.ReLU()))
            )
        )
        width = after
    parts.append(lben.LBEN(width, 6, 3, gamma=r.choice((None, 1.0))))
    net = lben.Sequential(*parts, in_shape=first).double().eval()
    return Prey(net, Chain(net), net.in_features, 10.0 ** r.uniform(-1, 1))
