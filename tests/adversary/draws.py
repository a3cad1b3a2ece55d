"""Weights to be certified: random, structured and extreme, each from a seed of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import torch
from torch import Tensor, nn

import lben

_EXTREMES = (1e-170, 1e-163, 1e-150, 1e-80, 1e-30, 1e-8, 1e8, 1e16, 1e60, 1e127, 1e150)


def gaussian(r: Random, *shape: int) -> Tensor:
    return torch.tensor([r.gauss(0, 1) for _ in range(math.prod(shape))], dtype=torch.float64).reshape(shape)


def decades(r: Random, *shape: int, spread: float) -> Tensor:
    """Positive numbers over so many powers of ten to both sides of one."""
    exponents = [r.uniform(-spread, spread) for _ in range(math.prod(shape))]
    return torch.tensor([10.0**e for e in exponents], dtype=torch.float64).reshape(shape)


def rough(r: Random, *shape: int) -> Tensor:
    """A matrix of one of many looks: gaussian, sparse, small integers, spread entry by entry, or with a zero row."""
    found = gaussian(r, *shape)
    look = r.choice(("plain", "plain", "sparse", "integers", "spread", "zero row", "equal rows"))
    if look == "sparse":
        found = torch.where(torch.tensor([r.random() < 0.5 for _ in range(found.numel())]).reshape(shape), found, 0.0)
    elif look == "integers":
        found = found.round()
    elif look == "spread":
        found = found * decades(r, *shape, spread=r.choice((1.0, 4.0, 9.0)))
    elif look == "zero row":
        found[r.randrange(shape[0])] = 0.0
    elif look == "equal rows":
        found[:] = found[:1].clone()
    return found


def scale(r: Random) -> float:
    """A factor: mostly near one, now and then at the end of what doubles can hold."""
    return r.choice(_EXTREMES) if r.random() < 0.15 else 10.0 ** r.uniform(-4, 4)


def hidden(r: Random, lam: Tensor, right: Tensor) -> Tensor:
    """W with Lam (I - W) = right + V'V + epsilon I + S: well-posed if nothing is lost to rounding."""
    n = len(lam)
    size = 10.0 ** r.uniform(-3, 3)
    V, S = size * rough(r, n, n), 10.0 ** r.uniform(-3, 3) * rough(r, n, n)
    room = 10.0 ** r.uniform(-18, 1) * torch.eye(n, dtype=lam.dtype) * lam.max()
    W: Tensor = torch.eye(n, dtype=lam.dtype) - (right + V.T @ V + room + S - S.T) / lam[:, None]
    return W


def weights(r: Random, *, groups: Tensor | None = None, largest: int = 6, inputs: int | None = None) -> lben.Weights:
    """Weights with a metric: by the construction of the paper, of which rounding may leave little; or W at random."""
    n = len(groups) if groups is not None else r.randint(1, largest)
    d, p = inputs or r.randint(1, 3), r.randint(1, 3)
    lam = decades(r, n, spread=r.choice((0.0, 0.5, 3.0, 10.0))) * scale(r)
    if groups is not None:
        lam = lam[groups]
    U, Wo = scale(r) * rough(r, n, d), scale(r) * rough(r, p, n)
    gamma = scale(r)
    if r.random() < 0.2:
        W = 10.0 ** r.uniform(-2, 1) * rough(r, n, n)
    else:
        side = lam[:, None] * U
        right = (Wo.T @ Wo + side @ side.T) / (2 * gamma)
        W = hidden(r, lam, right if bool(right.isfinite().all()) and r.random() < 0.7 else torch.zeros_like(right))
    W = torch.nan_to_num(W, nan=0.5, posinf=-1.0, neginf=-1.0).clamp(-1e140, 1e140)
    return lben.Weights(W, U, gaussian(r, n), Wo, gaussian(r, p), lam, None)


def passing(r: Random) -> lben.Weights:
    """Weights with a feed-through, which is now and then all that matters, or as large as the rest together."""
    w = weights(r)
    D = rough(r, w.out_features, w.in_features)
    size = float(torch.linalg.matrix_norm(w.Wo) * torch.linalg.matrix_norm(w.U))
    return replace(w, D=D * (scale(r) if r.random() < 0.5 or not 1e-140 < size < 1e140 else size))


def extreme(r: Random) -> lben.Weights:
    """One or two units with numbers from end to end of what doubles can hold: squares and products leave it."""
    n = r.randint(1, 2)
    W = r.choice((0.0, -1.0, 0.5, 1e-200)) * torch.eye(n, dtype=torch.float64)
    U, Wo = (10.0 ** r.uniform(-200, 200) * gaussian(r, *shape) for shape in ((n, 1), (1, n)))
    lam = 10.0 ** r.uniform(-300, 300) * decades(r, n, spread=1.0)
    return lben.Weights(W, U, gaussian(r, n), Wo, gaussian(r, 1), lam)


def linear_units(r: Random) -> tuple[lben.Weights, lben.PerUnit]:
    """Linear units before others: what passes them nearly cancels, and what follows makes the rest large."""
    count, others = r.randint(1, 3), r.randint(0, 2)
    n, d, p = count + others, r.randint(1, 2), r.randint(1, 2)
    eye = torch.eye(count, dtype=torch.float64)
    system = eye - 0.5 * gaussian(r, count, count) if r.random() < 0.6 else rough(r, count, count)
    if r.random() < 0.2:
        system[-1] = system[0] * (1 + 10.0 ** r.uniform(-16, -2))  # nearly singular
    W, U = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, d, dtype=torch.float64)
    W[:count, :count] = eye - system
    U[:count] = (eye - W[:count, :count])[:, :1]  # so that x comes out of the first unit alone, but for some last bits
    U[:count] *= 1 + 2.0**-52 * torch.tensor([[float(r.randint(-2, 2))] for _ in range(count)], dtype=torch.float64)
    if others:
        W[count:, :count] = 10.0 ** r.uniform(-2, 18) * rough(r, others, count)
        if r.random() < 0.7:
            W[count:, 0] = 0.0
    if r.random() < 0.3:
        W[:count, count:] = 10.0 ** r.uniform(-18, 0) * gaussian(r, count, others)
        W[count:, count:] = -(10.0 ** r.uniform(-2, 2)) * torch.eye(others, dtype=torch.float64)
    Wo = rough(r, p, n)
    if others and r.random() < 0.5:
        Wo[:, :count] = 0.0
    order = r.sample(range(n), n)
    sigma = [lben.Identity() if i < count else lben.ReLU() for i in order]
    found = lben.Weights(W[order][:, order], U[order], gaussian(r, n), Wo[:, order], gaussian(r, p))
    return found, lben.PerUnit(sigma)


def grouped(r: Random) -> tuple[lben.Weights, lben.Activation]:
    """Weights whose metric is constant on blocks, and an activation that acts on them."""
    kind = r.choice(("softmax", "threshold", "ball", "blocks"))
    if kind == "blocks":
        parts: list[tuple[lben.Activation, int]] = [(lben.Softmax(2), 2), (lben.ReLU(), r.randint(1, 2))]
        sigma: lben.Activation = lben.Blocks(parts)
        groups = [0, 0, *range(1, 1 + parts[1][1])]
    else:
        size, count = r.randint(1, 3), r.randint(1, 2)
        ball = lben.Projection(lben.Ball(size))
        sigma = {"softmax": lben.Softmax(size), "threshold": lben.GroupSoftThreshold(size, 0.5), "ball": ball}[kind]
        groups = [i // size for i in range(size * count)]
    return weights(r, groups=torch.tensor(groups)), sigma


def module(r: Random, *, inplace: bool = False) -> nn.Sequential:
    """A feed-forward network of plain layers and residual blocks, over many sizes of weights."""
    torch.manual_seed(r.randrange(2**31))

    def sigma() -> nn.Module:
        return r.choice((nn.ReLU(inplace), nn.LeakyReLU(r.choice((0.1, 0.5)), inplace), nn.Tanh(), nn.Identity()))

    d = r.randint(1, 3)
    parts: list[nn.Module] = []
    width = d
    for _ in range(r.randint(1, 3)):
        if r.random() < 0.3:
            parts.append(lben.Residual(sigma(), nn.Linear(width, width)))
        else:
            after = r.randint(1, 3)
            parts += [nn.Linear(width, after), sigma()]
            width = after
    parts.append(nn.Linear(width, r.randint(1, 2)))
    if r.random() < 0.5:
        parts.insert(0, nn.Linear(d, d))
    found = nn.Sequential(*parts).double().eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(10.0 ** r.uniform(-3, 3))
    return found


def convolution(r: Random, metric: lben.Metric) -> lben.ConvWeights:
    """Kernels of small images, with T by the paper's construction or at random."""
    channels, C, p = r.randint(1, 2), r.randint(1, 2), r.randint(1, 2)
    high, wide = r.choice(((1, 1), (2, 2), (1, 3), (2, 1), (3, 3), (2, 3)))
    if high * wide > 4:
        channels = C = 1
    padding = r.choice((0, 0, 0, 1)) if high * wide == 1 else 0
    full = (high + 2 * padding, wide + 2 * padding)
    pool = r.choice([k for k in (1, 2, 3) if full[0] % k == 0 and full[1] % k == 0])
    size, into = r.choice((1, 3)), r.choice((1, 3))
    shape = full if metric == "pixel" else (C,)
    entries = decades(r, *shape, spread=r.choice((0.0, 0.5, 3.0))) * 10.0 ** r.uniform(-12, 6)
    entries = torch.ones(C, dtype=torch.float64) if metric == "identity" else entries
    T = 10.0 ** r.uniform(-3, 1) * gaussian(r, C, C, size, size)
    middle, flipped = size // 2, T.flip(2, 3).transpose(0, 1)
    if r.random() < 0.5:
        T = T - flipped  # its symmetric part is zero
    room = 10.0 ** r.uniform(-14, 0) if r.random() < 0.5 else float(T.abs().sum())
    T[:, :, middle, middle] += room * torch.eye(C, dtype=torch.float64)
    U = 10.0 ** r.uniform(-6, 6) * gaussian(r, C, channels, into, into)
    Wo = 10.0 ** r.uniform(-6, 6) * gaussian(r, p, C, full[0] // pool, full[1] // pool)
    gamma = None if r.random() < 0.2 else 10.0 ** r.uniform(-4, 4)
    geometry = lben.Geometry((channels, high, wide), padding, pool)
    return lben.ConvWeights(T, U, gaussian(r, C), Wo, gaussian(r, p), entries, metric, geometry, gamma)


def images(r: Random) -> lben.ImageWeights:
    """Kernels of a layer of small images, some as large as the image, with I - W near a multiple of I or at random."""
    c, C, p = r.randint(1, 2), r.randint(1, 2), r.randint(1, 2)
    high, wide = r.choice(((1, 1), (2, 2), (1, 3), (2, 1), (3, 3), (2, 3)))
    if high * wide > 4:
        c = C = p = 1
    padding = r.choice((0, 0, 1)) if high * wide == 1 else 0
    full = (high + 2 * padding, wide + 2 * padding)

    def kernel(out: int, into: int) -> Tensor:
        sides = [r.choice([k for k in (1, 3, size) if k <= size]) for size in full]
        return gaussian(r, out, into, *sides)

    W = 10.0 ** r.uniform(-3, 0.3) * kernel(C, C) if r.random() < 0.7 else None
    D = 10.0 ** r.uniform(-6, 3) * kernel(p, c) if r.random() < 0.6 else None
    U, Wo = 10.0 ** r.uniform(-6, 6) * kernel(C, c), 10.0 ** r.uniform(-6, 6) * kernel(p, C)
    lam = decades(r, C, spread=r.choice((0.0, 0.5, 3.0))) * 10.0 ** r.uniform(-12, 6)
    gamma = None if r.random() < 0.2 else 10.0 ** r.uniform(-4, 4)
    return lben.ImageWeights(W, U, gaussian(r, C), Wo, gaussian(r, p), (c, high, wide), padding, D, lam, gamma)
