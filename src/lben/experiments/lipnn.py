"""Lip-NN (Pauli et al. 2021): a feed-forward network trained under LipSDP by the alternating direction method.

The loss at (U, Wo) is minimised subject to [[L^2 I, -U'T, 0], [., 2 T, -Wo'], [., ., I]] >= 0 for a diagonal T: the
network's weights and a feasible copy of them, found by a semidefinite program, are drawn together by multipliers. For a
fixed T the inequality is linear in the weights; T is that of the tightest bound of the weights to project.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lben import checks
from lben.certify.certificate import Certificate
from lben.certify.lipschitz import tightest_bound
from lben.checks import need
from lben.data import ImageData
from lben.disk import make_folder, read_tensors, write_tensors
from lben.errors import InvalidInput, NotConverged
from lben.experiments.feedforward import FeedForward
from lben.progress import Show
from lben.train import CrossEntropy, Epoch, TrainConfig, error_rate, fit
from lben.train.checkpoint import CHECKPOINT, check_identity, identity, load_network, network_tensors


class Pair(NamedTuple):
    """The two weights of a network, or two tensors of their shapes."""

    U: Tensor
    Wo: Tensor

    @staticmethod
    def of(net: FeedForward) -> Pair:
        return Pair(net.hidden.weight, net.output.weight)

    def plus(self, other: Pair, factor: float = 1.0) -> Pair:
        return Pair(self.U + factor * other.U, self.Wo + factor * other.Wo)

    def to(self, like: Tensor) -> Pair:
        return Pair(self.U.to(like), self.Wo.to(like))

    def detach(self) -> Pair:
        return Pair(self.U.detach(), self.Wo.detach())

    def dot(self, other: Pair) -> Tensor:
        return (self.U * other.U).sum() + (self.Wo * other.Wo).sum()


def pool(data: ImageData, side: int = 28) -> ImageData:
    """The images at half their height and width, by the mean of four pixels, rounded if they are bytes.

    Args:
        data: of square images with one channel, or with several, one after another.
        side: that of an image, even: 28 for MNIST.

    Returns:
        An `lben.data.ImageData`, of 14 x 14 pixels for MNIST.

    Raises:
        InvalidInput: if the images do not have this side.

    Examples:
        >>> lben.baselines.pool(lben.data.embedded_mnist()).train_images.shape
        torch.Size([6000, 196])
    """
    _check_images(data)
    features = data.test_images[0].numel()
    if checks.count("side", side) % 2 or features % side**2:
        raise InvalidInput(f"Images of {features} features are no squares of side {side}, an even number of pixels.")

    def halve(images: Tensor) -> Tensor:
        squares = F.avg_pool2d(images.reshape(-1, 1, side, side).float(), 2).reshape(len(images), -1)
        return squares.round().to(torch.uint8) if images.dtype == torch.uint8 else squares.to(images.dtype)

    return replace(data, train_images=halve(data.train_images), test_images=halve(data.test_images))


def _check_images(data: ImageData) -> None:
    if not isinstance(data, ImageData):
        raise InvalidInput(f"An lben.data.ImageData is needed, not {type(data).__name__}.")


@dataclass(frozen=True)
class Drawn:
    """Cross-entropy, and what draws the weights w to a feasible copy: <Y, w - copy> + penalty/2 |w - copy|^2."""

    feasible: Pair
    multipliers: Pair
    penalty: float

    def __call__(self, net: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        assert isinstance(net, FeedForward)
        apart = Pair.of(net).plus(self.feasible, -1.0)
        drawn = self.multipliers.dot(apart) + 0.5 * self.penalty * apart.dot(apart)
        return CrossEntropy()(net, logits, labels) + drawn


@dataclass(frozen=True)
class Round:
    """One round of the method: the error, the proved bound of the feasible weights, and the seconds of its parts."""

    test_error: float
    bound: float
    apart: float
    training_seconds: float
    program_seconds: float


@dataclass(frozen=True)
class _State:
    """Where the method stands after its last round: enough, with the network's weights, to go on."""

    feasible: Pair
    multipliers: Pair
    history: list[Epoch]
    rounds: list[Round]


def train_lipnn(
    net: FeedForward,
    data: ImageData,
    bound: float,
    *,
    rounds: int = 5,
    epochs: int = 2,
    penalty: float = 1.0,
    config: TrainConfig | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Show = None,
    name: str = "Lip-NN",
) -> tuple[list[Epoch], list[Round]]:
    """Train a network under LipSDP (Lip-NN, Pauli et al. 2021), to at most this Lipschitz bound at its input.

    Each round trains for some epochs and solves one semidefinite program by cvxpy and SCS (extra `sdp`); the network
    ends with the feasible weights.

    Args:
        net: the network, trained in place.
        data: images, which may be pooled beforehand by `pool`.
        bound: the Lipschitz bound, above 0.
        rounds: how many there are.
        epochs: those of a round.
        penalty: how strongly the weights are drawn to the feasible ones, above 0.
        config: the recipe of a round but for its epochs; one with a constant rate if not given. Its loss is not used.
        folder: where every round leaves a checkpoint; None: nowhere.
        resume: go on from it, if there is one.
        progress: True for a bar and a line an epoch, "lines" for those alone, False for nothing; None: a bar on a
            terminal when it takes longer than some seconds.
        name: what the bar calls it.

    Returns:
        The history of all epochs, and that of the rounds.

    Raises:
        InvalidInput: if an argument does not fit.
        MissingExtra: without cvxpy.

    Examples:
        >>> x, y = torch.rand(32, 4), torch.randint(2, (32,))
        >>> net = lben.baselines.FeedForward(4, 3, 2)
        >>> data = lben.data.ImageData(x, y, x, y)
        >>> _ = lben.baselines.train_lipnn(net, data, bound=0.5, rounds=1, epochs=1, progress=False)
        >>> lben.tightest_bound(net).gamma <= 0.5
        True
    """
    if not isinstance(net, FeedForward):
        raise InvalidInput(f"Lip-NN trains an lben.baselines.FeedForward, not {type(net).__name__}.")
    _check_images(data)
    for word, number in (("bound", bound), ("penalty", penalty)):
        checks.positive(word, number)
    if config is not None and not isinstance(config, TrainConfig):
        raise InvalidInput(f"config must be an lben.train.TrainConfig, not {type(config).__name__}.")
    checks.flag("resume", resume)
    base = replace(TrainConfig(schedule="constant") if config is None else config, epochs=epochs)
    run = identity(net, data, {**base.description(), "bound": bound, "penalty": penalty})
    file = None if folder is None else make_folder(folder) / CHECKPOINT
    start = Pair.of(net).detach()
    state = _State(start, start.plus(start, -1.0), [], [])
    if resume and file is not None and file.is_file():
        state = _restore(file, net, run)
    for k in range(len(state.rounds), checks.count("rounds", rounds)):
        loss = Drawn(state.feasible, state.multipliers, penalty) if k else CrossEntropy()
        started = time.perf_counter()
        options = replace(base, loss=loss, seed=base.seed + k)
        history = fit(net, data, options, progress=progress, name=f"{name} {k + 1}/{rounds}")
        trained = time.perf_counter()
        weights = Pair.of(net).detach()
        feasible = project(weights.plus(state.multipliers, 1 / penalty), bound, net).to(weights.U)
        finished = time.perf_counter()
        apart = weights.plus(feasible, -1.0)
        distance = math.sqrt(float(apart.dot(apart)))
        judged = _judge(net, data, feasible, distance, trained - started, finished - trained)
        numbered = [replace(row, epoch=row.epoch + k * epochs) for row in history]
        multipliers = state.multipliers.plus(apart, penalty)
        state = _State(feasible, multipliers, [*state.history, *numbered], [*state.rounds, judged])
        if file is not None:
            _checkpoint(file, net, run, state)
    _assign(net, state.feasible)
    return state.history, state.rounds


def _checkpoint(file: Path, net: FeedForward, run: dict[str, Any], state: _State) -> None:
    tensors = network_tensors(net)
    for name in ("feasible", "multipliers"):
        tensors |= {f"{name}.{key}": tensor for key, tensor in getattr(state, name)._asdict().items()}
    rows = {"history": [asdict(row) for row in state.history], "rounds": [asdict(row) for row in state.rounds]}
    write_tensors(file, "lben-lipnn", {"run": run, **rows}, tensors)


def _restore(file: Path, net: FeedForward, run: dict[str, Any]) -> _State:
    found, tensors = read_tensors(file, "lben-lipnn", "a training of Lip-NN")
    check_identity(file, found.get("run"), run)
    load_network(net, tensors)
    feasible, multipliers = (Pair(tensors[f"{n}.U"], tensors[f"{n}.Wo"]) for n in ("feasible", "multipliers"))
    history, rounds = [Epoch(**row) for row in found["history"]], [Round(**row) for row in found["rounds"]]
    return _State(feasible, multipliers, history, rounds)


def project(weights: Pair, bound: float, net: FeedForward) -> Pair:
    """The nearest weights that satisfy the inequality, for the T of the tightest bound of the given ones.

    What SCS returns is feasible to its tolerance; both weights are then shrunk by what their tightest bound is above.
    """
    cp = need("cvxpy", "Lip-NN", extra="sdp")
    U, Wo = weights.U.double().numpy(), weights.Wo.double().numpy()
    (n, d), p = U.shape, len(Wo)
    certificate = _tightest(weights, net)
    assert certificate.gamma is not None
    T = (certificate.lam * certificate.gamma * min(1.0, bound / certificate.gamma)).numpy()
    new_U, new_Wo = cp.Variable((n, d)), cp.Variable((p, n))
    side: Any = -cp.multiply(T[:, None], new_U)
    matrix = cp.bmat(
        [
            [bound**2 * np.eye(d), side.T, np.zeros((d, p))],
            [side, 2 * np.diag(T), -new_Wo.T],
            [np.zeros((p, d)), -new_Wo, np.eye(p)],
        ]
    )
    distance = cp.sum_squares(new_U - U) + cp.sum_squares(new_Wo - Wo)
    program = cp.Problem(cp.Minimize(distance), [(matrix + matrix.T) / 2 >> 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the solution may be inaccurate": it is made feasible below
        program.solve(solver=cp.SCS, eps=1e-4, max_iters=2000)
    if new_U.value is None:
        raise NotConverged(f"SCS found no feasible weights: it says {program.status}.", math.inf)
    found = Pair(torch.as_tensor(new_U.value), torch.as_tensor(new_Wo.value))
    reached = _tightest(found, net).gamma
    assert reached is not None
    shrink = min(1.0, math.sqrt(bound / reached) * (1 - 1e-6))
    return Pair(found.U * shrink, found.Wo * shrink)


def _tightest(weights: Pair, net: FeedForward) -> Certificate:
    record = net.weights().detach().to(torch.float64)
    return tightest_bound(replace(record, U=weights.U.double(), Wo=weights.Wo.double()), activation=net.activation)


def _assign(net: FeedForward, weights: Pair) -> None:
    with torch.no_grad():
        net.hidden.weight.copy_(weights.U)
        net.output.weight.copy_(weights.Wo)


def _judge(net: FeedForward, data: ImageData, feasible: Pair, apart: float, training: float, program: float) -> Round:
    """The error and the bound that the network has with its feasible weights."""
    other = copy.deepcopy(net)
    _assign(other, feasible)
    gamma = tightest_bound(other).gamma
    assert gamma is not None
    return Round(error_rate(other, data.test_images, data.test_labels)[0], gamma, apart, training, program)
