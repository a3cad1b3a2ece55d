"""Arguments for the fuzzer: good ones by the name of a parameter, and bad ones for any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

import lben
from lben import baselines, data, train
from tests.networks.published_files import dense_mon

Make = Callable[[], Any]


X6 = np.random.default_rng(0).random((6, 3))


def images() -> data.ImageData:
    pixels, labels = torch.randint(0, 256, (6, 3), dtype=torch.uint8), torch.tensor([0, 1] * 3)
    return data.ImageData(pixels, labels, pixels[:2], labels[:2])


def regression() -> data.RegressionData:
    return data.RegressionData(torch.rand(6, 3), torch.rand(6, 2), torch.rand(2, 3), torch.rand(2, 2))


def table() -> data.Table:
    return data.Table({"a": np.arange(6.0), "b": ("x", "y") * 3, "t": np.arange(6.0) ** 2, "u": ("1", "2", "3") * 2})


def columns() -> data.Columns:
    return data.columns_of(table(), ["u"])


def lben_net() -> lben.LBEN:
    return lben.LBEN(3, 4, 2, gamma=1.0).eval()


def ren() -> lben.REN:
    return lben.REN(3, 2, 4, 2, behaviour=lben.Lipschitz(1.0))


def layered() -> lben.LayeredNetwork:
    return lben.from_sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))


def conv() -> lben.ConvLBEN:
    return lben.ConvLBEN((1, 3, 3), 2, 2, gamma=1.0, pool=1).eval()


def conv_weights() -> lben.ConvWeights:
    return conv().weights().detach()


def weights() -> lben.Weights:
    return lben_net().weights().detach()


def rows(*shape: int) -> Make:
    return lambda: torch.rand(*shape)


NETWORKS: list[Make] = [
    lben_net,
    lambda: lben.LBEN(3, 4, 2).double(),
    lambda: lben.MON(3, 4, 2, normalize=lben.Normalize(0.5, 0.5)),
    lambda: lben.UnconstrainedEN(3, 4, 2),
    lambda: lben.ContractingODE(3, 4, 2, rate=0.3),
    lambda: lben.ODE(lben_net()),
    layered,
    conv,
    lambda: lben.ConvLBEN((1, 3, 3), 2, 2, gamma=1.0, pool=1, metric="pixel", solver=lben.ForwardBackward()).eval(),
    lambda: lben.ConvMON((1, 3, 3), 2, 2, pool=1, activation=lben.Framed(3, 3, 2)).eval(),
]
ACTIVATIONS: list[Make] = [
    lben.ReLU,
    lben.Tanh,
    lben.Identity,
    lambda: lben.LeakyReLU(0.1),
    lambda: lben.PerUnit([lben.ReLU(), lben.Tanh(), lben.Identity(), lben.ELU()]),
    lambda: lben.Softmax(2),
    lambda: lben.GroupSoftThreshold(2),
    lambda: lben.Projection(lben.Ball(2)),
    lambda: lben.Blocks([(lben.Softmax(2), 2), (lben.ReLU(), 2)]),
    lambda: lben.Elementwise(torch.tanh),
    lambda: lben.Framed(3, 3, 2),
]
SETS: list[Make] = [
    lambda: lben.Box(0.0, 1.0),
    lambda: lben.Ball(2),
    lambda: lben.Simplex(2),
    lambda: lben.Polyhedron([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]),
]
SOLVERS: list[Make] = [
    lben.PeacemanRachford,
    lben.DouglasRachford,
    lben.ForwardBackward,
    lben.FISTA,
    lben.Extragradient,
    lben.Newton,
    lben.Anderson,
    lben.BackSubstitution,
]
_CONFIG: list[Make] = [lambda: train.TrainConfig(epochs=1, batch_size=3)]
_SIZES: list[Make] = [lambda: 3, lambda: 4, lambda: 1]
_NUMBERS: list[Make] = [lambda: 0.5, lambda: 1.0, lambda: 2]

GOOD: dict[str, list[Make]] = {
    "net": [*NETWORKS, weights, conv_weights],
    "weights": [weights, lben_net],
    "module": [lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))],
    "body": [nn.ReLU, lambda: nn.Linear(3, 3)],
    "x": [rows(2, 3), rows(3), rows(2, 9), rows(2, 1, 3, 3), lambda: torch.rand(2, 3).double()],
    "y": [lambda: torch.tensor([0, 1])],
    "labels": [lambda: torch.tensor([0, 1])],
    "images": [rows(2, 3)],
    "activation": [*ACTIVATIONS, lambda: None],
    "activations": [lambda: [lben.ReLU(), lben.Tanh()]],
    "parts": [lambda: [(lben.Softmax(2), 2), (lben.ReLU(), 2)]],
    "fn": [lambda: torch.tanh, lambda: torch.relu],
    "set": SETS,
    "solver": [*SOLVERS, lambda: None, lambda: "barrier", lambda: "scs"],
    "backward": [lambda: None, lben.Newton],
    "method": [lambda: None, lambda: "fgm", lambda: "pgd", lben.PeacemanRachford],
    "normalize": [lambda: None, lambda: lben.Normalize(0.5, 0.5)],
    "loss": [train.CrossEntropy, train.MeanSquare],
    "config": _CONFIG,
    "data": [images, regression, lambda: (torch.rand(6, 3), torch.tensor([0, 1] * 3)), lambda: (X6, X6[:, :2])],
    "domain": [lambda: "input", lambda: "pixels", lambda: lben.InBox(0.0, 1.0)],
    "skip": [lambda: "linear", lambda: "identity"],
    "metric": [lambda: "channel", lambda: "pixel", lambda: "identity"],
    "geometry": [lambda: lben.Geometry((1, 3, 3), 0, 1)],
    "in_shape": [lambda: (1, 3, 3), lambda: (1, 4, 4)],
    "input_shape": [lambda: None, lambda: 3, lambda: (1, 3, 3)],
    "parameterization": [lambda: lben_net().parameterization],
    "bounds": [lambda: (0.0, 1.0)],
    "epsilons": [lambda: [0.1, 1.0]],
    "radii": [lambda: [0.1, 1.0]],
    "lam": [lambda: None, lambda: torch.ones(4), lambda: torch.ones(4, 4), lambda: torch.ones(18).double()],
    "W": [rows(4, 4)],
    "U": [rows(4, 3), rows(2, 1, 3, 3)],
    "bz": [rows(4), rows(2)],
    "Wo": [rows(2, 4), rows(2, 2, 3, 3)],
    "by": [rows(2)],
    "T": [rows(2, 2, 3, 3)],
    "entries": [rows(2), lambda: None],
    "C": [lambda: [[1.0, 0.0], [0.0, 1.0]]],
    "d": [lambda: [1.0, 1.0]],
    "accuracy": [lambda: 1e-2, lambda: 1e-4],
    "center": [lambda: 0.5, lambda: [0.0, 0.5, 1.0]],
    "low": [lambda: 0.0, lambda: [0.0, 0.0]],
    "high": [lambda: 1.0, lambda: [1.0, 2.0]],
    "mean": [lambda: 0.5, lambda: [0.5] * 3],
    "std": [lambda: 0.5, lambda: [0.5] * 3],
    "on_failure": [lambda: None, lambda: "warn", lambda: "raise", lambda: "fallback"],
    "alpha": [lambda: 0.5, lambda: "auto"],
    "rate": [lambda: 0.3],
    "padding": [lambda: 0, lambda: 1],
    "pool": [lambda: 1],
    "kernel_size": [lambda: 3, lambda: 1],
    "restarts": [lambda: 1, lambda: 2],
    "steps": [lambda: 1, lambda: 2],
    "rounds": [lambda: 1],
    "epochs": [lambda: 1],
    "schedule": [lambda: "constant", lambda: "one-cycle"],
    "optimizer": [lambda: "adam", lambda: "sgd"],
    "on_lost": [lambda: "skip", lambda: "stop"],
    "bias": [lambda: None, rows(2, 4)],
    "start": [lambda: None, rows(2, 4)],
    "v": [rows(2, 4)],
    "z": [rows(2, 4)],
    "u": [rows(2, 4)],
    "v0": [rows(2, 4)],
    "z0": [rows(2, 4)],
    "t": [lambda: torch.linspace(0, 1, 3)],
    "target": [lambda: torch.float64],
    "dtype": [lambda: torch.float64, lambda: None],
    "name": [lambda: "mnist-mon", lambda: None, lambda: "a", lambda: "b"],
    "border": [lambda: 1],
    "m": [lambda: 1.0, lambda: 0.1],
    "device": [lambda: None, lambda: "cpu", lambda: torch.device("cpu")],
    "test": [lambda: None, lambda: 0.5, lambda: (torch.rand(2, 3), torch.tensor([0, 1])), table],
    "train_images": [lambda: images().train_images],
    "train_labels": [lambda: images().train_labels],
    "test_images": [lambda: images().test_images],
    "test_labels": [lambda: images().test_labels],
    "table": [table],
    "targets": [lambda: ["t"], lambda: ["u"], lambda: ["t", "u"], lambda: (data.Target("t"),)],
    "task": [lambda: None, lambda: "classification", lambda: "regression"],
    "holdout": [lambda: 0.3],
    "columns": [columns, lambda: None, lambda: {"a": np.arange(3.0), "b": ("x", "y", "z")}],
    "inputs": [lambda: (data.Column("a"), data.Column("b", ("x", "y")))],
    "texts": [lambda: None, lambda: ("x", "y")],
    "classes": [lambda: None, lambda: ("x", "y")],
    "description": [lambda: columns().describe()],
    "names": [lambda: ["a"]],
    "index": [lambda: 0],
    "features": [lambda: None, lambda: [0], lambda: [2, 1]],
    "outputs": [lambda: None, lambda: [0], lambda: [1]],
    "train_inputs": [rows(6, 3)],
    "train_targets": [rows(6, 2)],
    "test_inputs": [rows(2, 3)],
    "test_targets": [rows(2, 2)],
}
BY_TYPE: dict[str, list[Make]] = {
    "bool": [lambda: True, lambda: False],
    "int": _SIZES,
    "float": _NUMBERS,
    "str": [lambda: "a word"],
    "Tensor": [rows(4), rows(2, 4), rows(2, 3)],
}
BAD: list[Make] = [
    lambda: None,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: -1,
    lambda: 0,
    lambda: -0.5,
    lambda: 1e-300,
    lambda: 1e300,
    lambda: True,
    lambda: "nonsense",
    lambda: "",
    lambda: b"bytes",
    lambda: 1j,
    lambda: [],
    lambda: [1.0, 2.0],
    lambda: [None],
    lambda: (1, 2, 3),
    lambda: {},
    object,
    lambda: object,
    lambda: lben.LBEN,
    lambda: lben.ReLU,
    nn.ReLU,
    lambda: nn.Linear(3, 2),
    lambda: nn.Sequential(),
    lambda: torch.relu,
    lambda: np.ones((2, 3)),
    lambda: np.float64(1.0),
    lambda: torch.zeros(0),
    lambda: torch.zeros(0, 3),
    lambda: torch.zeros(()),
    lambda: torch.ones(2, 3, dtype=torch.int64),
    lambda: torch.ones(2, 3, dtype=torch.bool),
    lambda: torch.ones(2, 3, dtype=torch.complex64),
    lambda: torch.ones(2, 3, dtype=torch.bfloat16),
    lambda: torch.ones(2, 3, dtype=torch.float16),
    lambda: torch.ones(2, 3, device="meta"),
    lambda: torch.ones(4, 4, device="meta"),
    lambda: torch.ones(2, 5, 7),
    lambda: torch.full((2, 3), float("nan")),
    lambda: torch.full((2, 3), float("inf")),
    lambda: torch.full((2, 3), -1.0),
    lambda: torch.full((2, 3), 1e-40),
    lambda: torch.rand(3, 2).T,
    lambda: torch.rand(4, 4).to_sparse(),
    lambda: torch.rand(2, 3, requires_grad=True),
    lambda: nn.Parameter(torch.rand(2, 3)),
    lben_net,
    weights,
    conv_weights,
    images,
    lben.Newton,
    lambda: lben.Softmax(3),
    lambda: lben.Ball(3),
    lambda: lben.Normalize(0.0, 1.0),
    lambda: baselines.FeedForward(3, 4, 2),
    lambda: 10**6,
    lambda: 10**30,
]
_WORK = {"steps", "restarts", "epochs", "rounds", "max_iterations", "batch_size", "memory", "step_epochs"}
"""How much work to do: a large number there is a wish, not an error."""


def paths(r: Random, folder: Path) -> Any:
    """Somewhere to write or read: inside the folder, or no path at all."""
    saved = folder / "work" / "network.safetensors"
    if not saved.exists():
        lben.save(lben_net(), saved)
    foreign = folder / "work" / "foreign.params"
    if not foreign.exists():
        torch.save(dense_mon(3), foreign)
    broken = folder / "work" / "broken.safetensors"
    broken.write_bytes(b"not a network")
    rows = folder / "work" / "rows.csv"
    rows.write_text("a,b,t\n1,x,2\n2,y,3\n")
    inside = [
        saved,
        str(saved),
        broken,
        rows,
        str(rows),
        folder / "work" / "new.safetensors",
        folder / "work",
        folder / "no" / "where",
        *[foreign] * 4,
    ]
    return r.choice([*inside, "relative", "", None, 0.5, b"bytes", [], object(), Path("relative")])


def bad(r: Random, name: str) -> Any:
    while True:
        value = r.choice(BAD)()
        if not (name in _WORK and isinstance(value, int | float) and value > 1000):
            return value


def good(r: Random, name: str, annotation: str) -> Any:
    if name in GOOD:
        return r.choice(GOOD[name])()
    kind = next((k for k in ("bool", "int", "float", "Tensor", "str") if annotation.startswith(k)), None)
    return None if kind is None else r.choice(BY_TYPE[kind])()
