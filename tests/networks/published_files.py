"""Small files in the layouts of others, and their outputs, computed from raw tensors by matrices and loops alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

IN, OUT, WIDTH = 5, 3, 7
CHANNELS, COLOURS, POOL = 2, 3, 2
IMAGE = (COLOURS, 4, 6)  # 6 x 8 with the zeros around it
State = dict[str, Tensor]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) / math.sqrt(shape[-1])


def inside(**tensors: Tensor) -> State:
    """Names as they have them; a double underscore stands for a dot."""
    return {f"mon.linear_module.{name.replace('__', '.')}": tensor for name, tensor in tensors.items()}


def output(features: int) -> State:
    return {"Wout.weight": rand(OUT, features), "Wout.bias": rand(OUT)}


def dense_bounded(d: int = IN) -> State:
    square = {"V__weight": rand(WIDTH, WIDTH), "S__weight": rand(WIDTH, WIDTH), "psi": rand(WIDTH)}
    into = {"B__weight": rand(WIDTH, d), "B__bias": rand(WIDTH)}
    return inside(**square, **into, G__weight=rand(OUT, WIDTH), G__bias=rand(OUT))


def dense_free(d: int = IN) -> State:
    square = {"V__weight": rand(WIDTH, WIDTH), "S__weight": rand(WIDTH, WIDTH), "psi": rand(WIDTH)}
    return {**inside(**square, U__weight=rand(WIDTH, d), U__bias=rand(WIDTH)), **output(WIDTH)}


def dense_mon(d: int = IN) -> State:
    square = {"A__weight": rand(WIDTH, WIDTH), "B__weight": rand(WIDTH, WIDTH)}
    return {**inside(**square, U__weight=rand(WIDTH, d), U__bias=rand(WIDTH)), **output(WIDTH)}


def dense_unconstrained() -> State:
    into = {"U__weight": rand(WIDTH, IN), "U__bias": rand(WIDTH)}
    return {**inside(**into, Wp=rand(WIDTH, WIDTH) / 4), **output(WIDTH)}


def kernels(colours: int = COLOURS, **scales: float) -> State:
    parts = {name: torch.tensor(value, dtype=torch.float64) for name, value in scales.items()}
    square = {f"{name}__weight": rand(CHANNELS, CHANNELS, 3, 3) for name in "AB"}
    return inside(**square, U__weight=rand(CHANNELS, colours, 3, 3), U__bias=rand(CHANNELS), **parts)


def averages(pool: int = POOL, image: tuple[int, int, int] = IMAGE) -> int:
    return CHANNELS * ((image[1] + 2) // pool) * ((image[2] + 2) // pool)


def conv_mon(pool: int = POOL, image: tuple[int, int, int] = IMAGE) -> State:
    return {**kernels(image[0], g=0.7, h=1.3), **output(averages(pool, image))}


def conv_free(psi: Tensor) -> State:
    return {**kernels(g=0.7, h=1.3), **inside(psi=psi), **output(averages())}


def conv_bounded(psi: Tensor) -> State:
    out = {f"mon.linear_module.{name}": tensor for name, tensor in output(averages()).items()}
    return {**kernels(g=0.7, h=1.3), **inside(psi=psi), **out}


def conv_scaled(psi: Tensor) -> State:
    out = {f"mon.linear_module.{name}": tensor for name, tensor in output(averages()).items()}
    return {**kernels(a=0.7, b=1.3, g=2.0, u=0.4), **inside(psi=psi), **out}


def saved(folder: Path, state: object, name: str = "net.params") -> Path:
    """A file of torch, which is read from torch 2.6 on: before that a crafted one could run code."""
    if torch.__version__ < "2.6":
        pytest.skip("Before torch 2.6 import_checkpoint reads safetensors alone.")
    torch.save(state, folder / name)
    return folder / name


def equilibria(W: Tensor, U: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """z = relu(W z + U x + bias) for rows x, by guessing which units are on and solving for them."""
    rows = []
    for drive in x @ U.T + bias:
        z = torch.zeros_like(drive)
        for _ in range(200):
            on = (W @ z + drive > 0).to(W.dtype)
            new = torch.linalg.solve(torch.eye(len(W), dtype=W.dtype) - on[:, None] * W, on * drive)
            if torch.equal(new, z):
                break
            z = new
        assert float((z - torch.relu(W @ z + drive)).abs().max()) < 1e-10
        rows.append(z)
    return torch.stack(rows)


def dense_outputs(state: State, x: Tensor, gamma: float | None = None, m: float = 1.0) -> Tensor:
    """By the formulas of their classes."""
    s = {name.removeprefix("mon.linear_module."): tensor for name, tensor in state.items()}
    eye = torch.eye(WIDTH, dtype=torch.float64)
    into, out = ("B", "G") if gamma is not None else ("U", "Wout")
    U, Wo = s[f"{into}.weight"], s[f"{out}.weight"]
    if "Wp" in s:
        W = s["Wp"]
    elif "A.weight" in s:
        W = (1 - m) * eye - s["A.weight"].T @ s["A.weight"] + s["B.weight"] - s["B.weight"].T
    else:
        inner = s["V.weight"].T @ s["V.weight"] + m * eye + s["S.weight"].T - s["S.weight"]
        if gamma is not None:
            scaled = U / torch.exp(s["psi"])[:, None]
            inner = inner + (Wo.T @ Wo + scaled @ scaled.T) / (2 * gamma)
        W = eye - torch.exp(s["psi"])[:, None] * inner
    return equilibria(W, U, s[f"{into}.bias"], x) @ Wo.T + s[f"{out}.bias"]


def matrix(kernel: Tensor, high: int, wide: int, *, circular: bool) -> Tensor:
    """A convolution as a matrix, entry by entry; not circular: it reads an image with one more pixel on all sides."""
    C, c, taps, _ = kernel.shape
    rows, columns = (high, wide) if circular else (high + taps - 1, wide + taps - 1)
    result = torch.zeros(C, high, wide, c, rows, columns, dtype=kernel.dtype)
    shift = taps // 2 if circular else 0
    for i in range(high):
        for j in range(wide):
            for a in range(taps):
                for b in range(taps):
                    result[:, i, j, :, (i + a - shift) % rows, (j + b - shift) % columns] += kernel[:, :, a, b]
    return result.reshape(C * high * wide, c * rows * columns)


def pooled(high: int, wide: int, pool: int) -> Tensor:
    """Averages over squares; what is left over at the end is left out."""
    result = torch.zeros(CHANNELS, high // pool, wide // pool, CHANNELS, high, wide, dtype=torch.float64)
    for c in range(CHANNELS):
        for i in range(high // pool * pool):
            for j in range(wide // pool * pool):
                result[c, i // pool, j // pool, c, i, j] = 1 / pool**2
    return result.reshape(-1, CHANNELS * high * wide)


def conv_outputs(
    state: State,
    x: Tensor,
    gamma: float | None = None,
    m: float = 1.0,
    pool: int = POOL,
    metric: Tensor | None = None,
) -> Tensor:
    """By the formulas of their classes, with all convolutions as matrices; metric: psi, where it is used."""
    s = {name.removeprefix("mon.linear_module."): tensor for name, tensor in state.items()}
    high, wide = x.shape[-2] + 2, x.shape[-1] + 2
    unit = {name: s[f"{name}.weight"] / s[f"{name}.weight"].norm() for name in ("A", "B", "U", "Wout")}
    if "a" in s:
        a, b, Uk, G = s["a"], s["b"], s["u"].sqrt() * unit["U"], s["g"].sqrt() * unit["Wout"]
    else:
        a, b, Uk, G = s["g"], s["h"], s["U.weight"], s["Wout.weight"]
    A, B = matrix(unit["A"], high, wide, circular=True), matrix(b * unit["B"], high, wide, circular=True)
    n = len(A)
    psi = torch.zeros(1, 1, 1, dtype=torch.float64) if metric is None else metric.reshape(metric.shape[-3:])
    Psi = torch.exp(psi).expand(CHANNELS, high, wide).reshape(-1)
    Wo = G @ pooled(high, wide, pool)
    inner = m * torch.eye(n, dtype=torch.float64) + a * A.T @ A - B + B.T
    W = -Psi[:, None] * inner
    if gamma is not None:
        K = matrix(Uk, high, wide, circular=False)
        W = W - K @ K.T / Psi / (2 * gamma) - Psi[:, None] * (Wo.T @ Wo) / (2 * gamma)
    W = W + torch.eye(n, dtype=torch.float64)
    frame = torch.zeros(CHANNELS, high, wide, dtype=torch.bool)
    frame[:, 1:-1, 1:-1] = True
    keep = frame.reshape(-1)
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1)).flatten(1)
    U, bias = matrix(Uk, high, wide, circular=True), s["U.bias"].repeat_interleave(high * wide)
    z = torch.zeros(len(x), n, dtype=torch.float64)
    z[:, keep] = equilibria(W[keep][:, keep], U[keep], bias[keep], padded)
    return torch.addmm(s["Wout.bias"], z, Wo.T)
