"""What is no tensor, network, data, flag or finite weight is refused where it comes in, by its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import lben
from lben import baselines, data, train
from lben.activations.scalar import TABLE

ACTIVATIONS: list[lben.Activation] = [
    *(kind() for kind in TABLE if kind is not lben.Identity),
    lben.Elementwise(torch.tanh),
    lben.PerUnit([lben.ReLU(), lben.Tanh()]),
    lben.Softmax(2),
    lben.GroupSoftThreshold(2),
    lben.Projection(lben.Ball(2)),
    lben.Blocks([(lben.Softmax(2), 2)]),
]
NO_TENSORS = [None, "nonsense", object(), [1.0, 2.0], torch.ones(2, 2, dtype=torch.complex64)]


def net() -> lben.LBEN:
    return lben.LBEN(3, 4, 2, gamma=1.0)


def images(labels: int = 2) -> data.ImageData:
    rows, classes = torch.rand(6, 3), torch.arange(6) % labels
    return data.ImageData(rows, classes, rows, classes)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: type(activation).__name__)
@pytest.mark.parametrize("value", NO_TENSORS, ids=lambda value: type(value).__name__)
def test_activations_take_real_tensors_alone(activation: lben.Activation, value: torch.Tensor) -> None:
    calls: list[Callable[[], object]] = [
        lambda: activation(value),
        lambda: activation.derivative(value),
        lambda: activation.potential(value),
        lambda: activation.prox(alpha=0.5, u=value),
    ]
    for call in calls:
        try:
            result = call()
        except lben.InvalidInput:
            continue
        assert isinstance(value, torch.Tensor)  # torch knows tanh of 1j
        assert isinstance(result, torch.Tensor)


def test_an_error_in_a_function_of_the_user_stays_what_it_is() -> None:
    def broken(v: torch.Tensor) -> torch.Tensor:
        if v.shape == (7,):
            raise RuntimeError("seven")
        return torch.tanh(v)

    with pytest.raises(RuntimeError, match="seven"):
        lben.Elementwise(broken)(torch.zeros(7))


W = net().weights().detach()
X, Y = torch.rand(2, 3), torch.tensor([0, 1])
MANY = torch.tensor([True, False])
CALLS: list[tuple[str, Callable[[], object], str]] = [
    ("rigorous", lambda: lben.certify(W, rigorous=MANY), "rigorous must be True or False"),  # type: ignore[call-overload]
    ("rigorous bound", lambda: lben.tightest_bound(W, rigorous=MANY), "rigorous must be"),  # type: ignore[arg-type]
    ("rigorous rate", lambda: lben.contraction(W, rigorous=MANY), "rigorous must be"),  # type: ignore[call-overload]
    ("rigorous gain", lambda: lben.incremental_gain(W, rigorous=MANY), "rigorous must be"),  # type: ignore[call-overload]
    ("pairwise", lambda: lben.certified_radius(W, X, pairwise=MANY), "pairwise must be"),  # type: ignore[arg-type]
    ("domain", lambda: lben.product_bound(W, domain=MANY), 'domain must be "input" or'),  # type: ignore[arg-type]
    ("lam on meta", lambda: lben.frequency_test(W, lam=torch.ones(4, 4, device="meta")), "lam is on the meta device"),
    ("device", lambda: W.to("nonsense"), "cannot go to 'nonsense'"),
    ("dtype", lambda: W.to(object), "go to a torch.dtype or a device"),  # type: ignore[arg-type]
    ("gamma", lambda: W.condition(MANY), "gamma must be a number"),  # type: ignore[arg-type]
    ("sparse box", lambda: lben.Box(torch.eye(2).to_sparse(), 1.0), "low must hold numbers"),
    ("normalize", lambda: lben.Normalize(0.5, 0.5)([1.0]), "x must be a torch.Tensor"),
    ("repeated", lambda: lben.Normalize(0.5, 0.5).repeated("no"), "times must be an integer"),  # type: ignore[arg-type]
    (
        "form",
        lambda: lben.EquilibriumNetwork(nn.ReLU(), lben.ReLU(), None, None),  # type: ignore[arg-type]
        "parameterization must be one of",
    ),
    (
        "dense form",
        lambda: lben.ConvNetwork(net().parameterization, lben.ReLU(), None, None),  # type: ignore[arg-type]
        "parameterization must be one of",
    ),
    ("x", lambda: lben.ODE(net()).half_space(torch.rand(2, 4), object()), "x must be a t"),  # type: ignore[arg-type]
    ("no network", lambda: train.fit(W, images(), train.TrainConfig()), "A network is needed"),  # type: ignore[arg-type]
    ("no data", lambda: train.fit(net(), X, train.TrainConfig()), "data must be \\(X, y\\) as tensors"),  # type: ignore[arg-type]
    ("no config", lambda: train.fit(net(), images(), 3), "config must be"),  # type: ignore[arg-type]
    ("labels in fit", lambda: train.fit(net(), images(5), train.TrainConfig(epochs=1)), "label 4, but .* 2 outputs"),
    ("labels in error_rate", lambda: train.error_rate(net(), X, torch.tensor([0, 2])), "label 2, but .* 2 outputs"),
    ("no images", lambda: train.error_rate(net(), [], Y), "images must be a torch.Tensor"),  # type: ignore[arg-type]
    ("labels in radius", lambda: lben.certified_accuracy(net(), X, Y + 1, [0.1]), "Labels must lie between 0 and 1"),
    ("labels in attack", lambda: lben.attack(net(), X, Y + 1, [0.1]), "Labels must lie between 0 and 1"),
    ("labels in the loss", lambda: train.CrossEntropy()(net(), torch.rand(2, 2), Y + 1), "label 2, but .* 2 outputs"),
    ("and its margin", lambda: train.CrossEntropy(0.1)(net(), torch.rand(2, 2), Y + 1), "label 2, but .* 2 outputs"),
    ("shapes", lambda: train.MeanSquare()(net(), torch.rand(2, 2), torch.rand(2, 1)), r"\(2, 2\), but the targets"),
    ("rate", lambda: train.TrainConfig().rate(object(), 3), "step must be an integer"),  # type: ignore[arg-type]
    ("dtype of pixels", lambda: data.pixels(X, torch.int64), "dtype must be a floating-point"),
    ("search", lambda: baselines.halving_search(W, X), "An equilibrium network is needed"),  # type: ignore[arg-type]
    ("pool", lambda: baselines.pool(X), "ImageData is needed"),  # type: ignore[arg-type]
    ("side", lambda: baselines.pool(images(), side=4), "no squares of side 4"),
    ("Lip-NN", lambda: baselines.train_lipnn(net(), images(), 1.0), "trains an lben"),  # type: ignore[arg-type]
    ("size", lambda: baselines.LMT(3, 4, 10**30), "Wo would have"),
    ("sigma", lambda: baselines.FeedForward(3, 4, 2, activation=nn.ReLU()), "use lben.ReLU"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_it_is_refused_by_name(call: Callable[[], object], words: str) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        call()


def test_a_network_without_numbers_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(lben.InvalidInput, match=r"parameterization\.\w+ is on the meta device"):
        lben.save(net().to("meta"), tmp_path / "network.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_network_without_parameters_can_be_judged() -> None:
    layered = lben.from_sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double())
    classes = layered(X.double()).argmax(dim=-1)
    assert train.error_rate(layered, X.double(), classes) == (0.0, 0)
    assert train.error_rate(layered, X.double(), 1 - classes) == (1.0, 0)


def test_a_judgement_that_fails_leaves_the_network_in_training() -> None:
    network = net().train()
    with pytest.raises(lben.InvalidInput):
        train.error_rate(network, X, Y + 7)
    assert network.training


def test_pooled_floats_stay_floats() -> None:
    rows = torch.rand(2, 16)
    pooled = baselines.pool(data.ImageData(rows, Y, rows, Y), side=4)
    squares = rows.reshape(2, 2, 2, 2, 2).mean(dim=(2, 4))
    torch.testing.assert_close(pooled.test_images, squares.reshape(2, 4))


_DEADLY = """
import math, torch, lben
for metric, solver in (("channel", None), ("pixel", lben.ForwardBackward())):
    for name in ("Wo", "d", "V"):
        for value in (math.nan, math.inf, 1e30, 1e37):
            for training in (False, True):
                net = lben.ConvLBEN((1, 3, 3), 2, 2, gamma=1.0, pool=1, metric=metric, solver=solver).train(training)
                getattr(net.parameterization, name).data.fill_(value)
                try:
                    y = net(torch.rand(2, 9))
                    assert bool(torch.isfinite(y).all())
                except lben.LbenError:
                    pass
print("alive")
"""


def test_weights_that_are_not_finite_do_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _DEADLY], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr[-500:]


@pytest.mark.parametrize("entry", [float("nan"), float("inf")])
def test_eigenvalues_of_what_is_not_finite_are_refused(entry: float) -> None:
    bad = torch.full((2, 2), entry, dtype=torch.float64)
    with pytest.raises(lben.InvalidInput):
        lben.well_posed(bad)
    from lben.certify.wellposed import best_metric

    with pytest.raises(lben.InvalidInput, match="nothing can be computed"):
        best_metric(bad, None)
