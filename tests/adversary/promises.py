"""What an exported network promises, against the equilibrium in rational numbers, at the corners of its domain."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from flint import fmpq
from torch import Tensor

import lben
from lben.export import forms
from tests.adversary import draws, exact
from tests.adversary.exact import Exact
from tests.adversary.tally import Tally, show

_INPUTS = 6


@dataclass(frozen=True)
class Network:
    """Weights as they are, in rational numbers, and the biases of all units and outputs."""

    weights: Any
    sigma: lben.Activation
    exact: Exact
    bz: Tensor
    by: Tensor

    def output(self, x: Tensor) -> Any | None:
        """y* of ReLU in rational numbers: the units that a solver finds active, confirmed; None where they are not."""
        if not isinstance(self.sigma, lben.ReLU):
            return None
        column = exact.matrix(x)
        b = self.exact.U * column + exact.matrix(self.bz)
        n = self.exact.W.nrows()
        z = Tensor(lben.enclose(unit_outputs(self), x[None]).y[0].double()) if n else x
        on = [i for i in range(n) if float(z[i]) > 0]
        found = exact.zeros(n, 1)
        if on:
            system = exact.identity(len(on)) - exact.pick(self.exact.W, on, on)
            if system.det() == 0:
                return None
            solved = system.solve(exact.pick(b, on, [0]))
            for place, i in enumerate(on):
                found[i, 0] = solved[place, 0]
        v = self.exact.W * found + b
        if any(found[i, 0] != max(v[i, 0], fmpq(0)) for i in range(n)):
            return None
        return self.exact.Wo * found + self.exact.D * column + exact.matrix(self.by)


def unit_outputs(network: Network) -> lben.Weights:
    """Weights whose outputs are the hidden units."""
    W, U = (_doubles(part) for part in (network.exact.W, network.exact.U))
    eye = torch.eye(len(W), dtype=torch.float64)
    lam = network.weights.lam
    if isinstance(network.weights, lben.ImageWeights):
        lam = network.weights.metric_diagonal()
    return lben.Weights(W, U, network.bz.double(), eye, torch.zeros(len(W), dtype=torch.float64), lam)


def _doubles(matrix: Any) -> Tensor:
    rows = [[float(int(x.p) / int(x.q)) for x in row] for row in matrix.tolist()]
    return torch.tensor(rows, dtype=torch.float64).reshape(matrix.nrows(), matrix.ncols())


def scale_of(network: Network, x: Tensor) -> float:
    """About how large outputs are."""
    size = float((_doubles(network.exact.Wo).abs() @ _doubles(network.exact.U).abs() @ x.abs()).max())
    return min(size, 1e6)


def gentle(r: Random) -> lben.Weights:
    """Weights that are neither huge nor nearly ill-posed, with a feed-through now and then, or of one sweep."""
    n, d, p = r.randint(1, 6), r.randint(1, 3), r.randint(1, 3)
    eye = torch.eye(n, dtype=torch.float64)
    lam: Tensor | None = draws.decades(r, n, spread=1.0)
    assert lam is not None
    V, S = (10.0 ** r.uniform(-1, 0.5) * draws.rough(r, n, n).clamp(-3, 3) for _ in range(2))
    W = eye - (V.T @ V + S - S.T + 10.0 ** r.uniform(-1, 1) * eye) / lam[:, None]
    if r.random() < 0.2:
        W, lam = W.tril(-1).clamp(-2, 2), None
    U, Wo = draws.gaussian(r, n, d), draws.gaussian(r, p, n)
    D = draws.gaussian(r, p, d) if r.random() < 0.3 else None
    return lben.Weights(W, U, draws.gaussian(r, n), Wo, draws.gaussian(r, p), lam, None, D)


def drawn(r: Random) -> Network:
    kind = r.choice((*("gentle",) * 6, "dense", "passing", "grouped", "extreme", "images", "images", "convolution"))
    if kind == "images":
        images = draws.images(r)
        by = images.by.repeat_interleave(images.out_features // len(images.by))
        return Network(images, lben.ReLU(), exact.images(images), images.bz.repeat(images.pixels), by)
    if kind == "convolution":
        conv = draws.convolution(r, r.choice(("channel", "identity")))
        return Network(conv, lben.ReLU(), exact.convolution(conv), conv.bz.repeat(conv.geometry.pixels), conv.by)
    sigma: lben.Activation = r.choice((lben.ReLU(), lben.ReLU(), lben.Tanh(), lben.LeakyReLU(0.1), lben.Softplus()))
    if kind == "grouped":
        weights, sigma = draws.grouped(r)
    else:
        weights = {"gentle": gentle, "dense": draws.weights, "passing": draws.passing, "extreme": draws.extreme}[kind](
            r
        )
    return Network(weights, sigma, Exact.of(weights), weights.bz, weights.by)


def promised(r: Random, tally: Tally, where: str) -> None:
    """An export of drawn weights, over a drawn box or ball, and inputs at its edges."""
    network = drawn(r)
    d, size = network.exact.U.ncols(), 10.0 ** r.uniform(-3, 3)
    center, half = size * draws.gaussian(r, d), size * draws.decades(r, d, spread=1.0) * 10.0 ** r.uniform(-6, 0)
    box = r.random() < 0.6
    radius = float(half.min())
    domain = lben.InBox(center - half, center + half) if box else lben.InBall(center, radius)
    accuracy = 10.0 ** r.uniform(-9, 1) * (1 + scale_of(network, center))
    dtype = r.choice((None, torch.float32, torch.float64))
    shown = f"{where}: export({show(network.weights)}, {network.sigma}, {domain!r}, accuracy={accuracy}, dtype={dtype})"
    tally.count("asked")
    options = {"accuracy": accuracy, "domain": domain, "dtype": dtype, "activation": network.sigma}
    with patch.object(forms, "MOST_UNITS", r.choice((0, 500))):  # 0: images by transforms, however small they are
        made = tally.attempt("export", shown, lambda: lben.export(network.weights, **options))
    if made is None:
        return
    tally.count("holds")
    for _ in range(_INPUTS):
        signs = torch.tensor([r.choice((-1.0, 1.0, 1.0, -1.0, 0.0, r.uniform(-1, 1))) for _ in range(d)]).double()
        if isinstance(domain, lben.InBox):
            low, high = (torch.tensor(end, dtype=torch.float64) for end in (domain.low, domain.high))
            x = torch.minimum(torch.maximum(center + half * signs, low), high)
        else:
            x = center + (1 - 1e-12) * radius * signs / signs.norm().clamp(min=1)
        judge(tally, network, made, x, accuracy, shown)


def judge(tally: Tally, network: Network, made: lben.Exported, x: Tensor, accuracy: float, shown: str) -> None:
    y = made(x.reshape(1, *made.in_shape))[0].flatten()
    true = network.output(x)
    if true is not None:
        tally.count("in rational numbers")
        off = exact.matrix(y) - true
        square = sum((off[i, 0] ** 2 for i in range(off.nrows())), fmpq(0))
        within = square <= exact.rational(accuracy) ** 2
    else:
        enclosed = lben.enclose(network.weights, x.reshape(1, -1), activation=network.sigma)
        within = float((y - enclosed.y[0]).norm()) <= accuracy * (1 + 1e-9) + float(enclosed.error.norm())
    if not within:
        tally.fail("a promise that is not kept", f"{shown} at {x.tolist()}: {y.tolist()}")
