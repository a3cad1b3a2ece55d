"""The paper's study of MNIST, Table `MNIST_results`: one row a model, each trained, certified and attacked alone."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from lben.attacks import attack
from lben.baselines import LMT, FeedForward, LipschitzMargin
from lben.certify.lmi import certify
from lben.certify.lower import lipschitz_lower_bound
from lben.certify.radius import certified_accuracy
from lben.certify.sdp import tightest_bound
from lben.data import MNIST_MEAN, MNIST_STD, ImageData, pixels
from lben.errors import InvalidFile, InvalidInput, NotWellPosed
from lben.extras import need
from lben.files import save, write_bytes
from lben.networks import LBEN, MON, EquilibriumNetwork, UnconstrainedEN
from lben.normalize import Normalize
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train import TrainConfig, error_rate, fit

Kind = Literal["LBEN", "MON", "UNC", "plain", "LMT"]
RADII = (0.3, 0.5, 1.0, 1.58)
"""In pixels, at which certified accuracy is reported."""
SIZES = (0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0)
"""Of attacks, in normalised units, as in the paper."""
GREY_LEVELS = 255.0


@dataclass(frozen=True)
class Published:
    """A row of the paper's table: errors in per cent, bounds as the paper states them."""

    error: float
    attacked_5: float | None = None
    attacked_10: float | None = None
    upper: float | None = None
    lower: float | None = None


@dataclass(frozen=True)
class Row:
    """One model of the study: what it is, and what the paper reports of it."""

    name: str
    kind: Kind
    gamma: float | None = None
    c: float | None = None
    hidden: int = 80
    published: Published | None = None


ROWS = (
    Row("LBEN γ<∞", "LBEN", published=Published(2.03, 56.0, 82.0, None, 9.8)),
    Row("LBEN γ=5", "LBEN", gamma=5.0, published=Published(1.81, 46.4, 95.4, 5.0, 2.912)),
    Row("LBEN γ=1", "LBEN", gamma=1.0, published=Published(2.36, 19.4, 85.5, 1.0, 0.865)),
    Row("LBEN γ=0.8", "LBEN", gamma=0.8, published=Published(2.59, 17.4, 80.1, 0.8, 0.715)),
    Row("LBEN γ=0.4", "LBEN", gamma=0.4, published=Published(4.44, 16.1, 65.0, 0.4, 0.372)),
    Row("LBEN γ=0.2", "LBEN", gamma=0.2, published=Published(7.41, 14.4, 42.6, 0.2, 0.184)),
    Row("MON", "MON", published=Published(2.04, 55.8, 88.6, None, 7.75)),
    Row("UNC", "UNC", published=Published(2.08, 48.75, 77.9, None, 239.0)),
    Row("LMT c=1", "LMT", c=1.0, published=Published(2.3, 59.4, 88.1, None, 17.5)),
    Row("LMT c=100", "LMT", c=100.0, published=Published(3.4, 65.4, 92.0, None, 7.66)),
    Row("LMT c=250", "LMT", c=250.0, published=Published(6.92, 61.8, 98.4, None, 6.92)),
    Row("LMT c=1000", "LMT", c=1000.0, published=Published(12.23, 78.4, 98.9, None, 3.10)),
    Row("plain", "plain"),
)
"""Table `MNIST_results`, and a plain network for scale."""

PAPER = TrainConfig(epochs=40, batch_size=128, learning_rate=1e-3, schedule="step", step_epochs=10, step_factor=0.1)
"""The paper's recipe (its learning rate is misprinted as 1e3)."""
TOLERANCE = 1e-2
"""In training. The paper's 1e-2 bounds the relative change of an iterate; ours bounds the residual: stricter."""
EVALUATION_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Result:
    """What is measured of one row; shares between 0 and 1, bounds at the network's input, radii in pixels.

    upper: gamma where the row has one and it is certified. tight: the tightest bound, None where no metric proves one.
    lower_proved: whether the lower bound is proved. history: one entry an epoch.
    """

    row: dict[str, Any]
    config: dict[str, Any]
    error: float
    unanswered: int
    sizes: list[float]
    single_step: list[float]
    multi_step: list[float]
    paper_attacked: list[float]
    upper: float | None
    tight: float | None
    lower: float
    lower_proved: bool
    certified: list[float] | None
    seconds_per_epoch: float
    lost_batches: int
    history: list[dict[str, Any]]
    versions: dict[str, str]

    @property
    def share(self) -> float | None:
        """How much of the bound is reached: of the tightest, where there is one."""
        return None if self.tight is None else self.lower / self.tight


def network(row: Row, seed: int) -> EquilibriumNetwork | FeedForward:
    """The network of a row at its start: one and the same point for all equilibrium models, with Lambda = I."""
    torch.manual_seed(seed)
    sizes = (784, row.hidden, 10)
    normalize, solver = Normalize(MNIST_MEAN, MNIST_STD), PeacemanRachford(tolerance=TOLERANCE)
    if row.kind == "plain":
        return FeedForward(*sizes, normalize=normalize)
    if row.kind == "LMT":
        return LMT(*sizes, normalize=normalize)
    start = MON(*sizes, normalize=normalize, solver=solver)
    if row.kind == "MON":
        return start
    if row.kind == "UNC":
        return UnconstrainedEN.from_weights(start.weights(), normalize=normalize, solver=solver)
    net = LBEN(*sizes, gamma=row.gamma, normalize=normalize, solver=solver)
    net.load_state_dict({**net.state_dict(), **start.state_dict()})  # all but d, which is zero
    return net


def run_row(
    row: Row, data: ImageData, folder: str | Path, config: TrainConfig = PAPER, *, progress: bool = False
) -> Result:
    """Train, certify and attack one row; what is done already, in `folder`, is not done again."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if row.kind == "LMT" and row.c is not None:
        config = replace(config, loss=LipschitzMargin(row.c / GREY_LEVELS))
    file = path / "result.json"
    if file.is_file():
        return _read(file, row, config)
    net = network(row, config.seed)
    history = fit(net, data, config, folder=path, resume=True, progress=progress, name=row.name)
    if isinstance(net, EquilibriumNetwork):
        net.solver = PeacemanRachford(tolerance=EVALUATION_TOLERANCE)
        save(net, path / "network.safetensors")
    measured = _measure(row, net.eval(), data, config.seed)
    result = Result(
        row=asdict(row),
        config=config.description(),
        seconds_per_epoch=min(epoch.seconds for epoch in history),
        lost_batches=sum(epoch.lost for epoch in history),
        history=[asdict(epoch) for epoch in history],
        versions={"lben": version("lben"), "torch": torch.__version__, "Python": platform.python_version()},
        **measured,
    )
    write_bytes(file, (json.dumps(asdict(result), indent=1) + "\n").encode())
    return result


def _measure(row: Row, net: EquilibriumNetwork | FeedForward, data: ImageData, seed: int) -> dict[str, Any]:
    x, y = pixels(data.test_images), data.test_labels
    error, unanswered = error_rate(net, data.test_images, y)
    lower = lipschitz_lower_bound(net, x, seed=seed)
    try:
        tight = tightest_bound(net).gamma
    except NotWellPosed:
        tight = None
    certified = None if tight is None else certified_accuracy(net, x, y, RADII, domain="pixels").accuracy.tolist()
    upper = certify(net).gamma if row.gamma is not None and certify(net).holds else None
    return {
        "error": error,
        "unanswered": unanswered,
        "sizes": list(SIZES),
        "single_step": attack(net, x, y, SIZES, method="fgm", seed=seed).error.tolist(),
        "multi_step": attack(net, x, y, SIZES, method="pgd", steps=20, restarts=1, seed=seed).error.tolist(),
        "paper_attacked": attack(net, x, y, (5.0, 10.0), paper_protocol=True, seed=seed).error.tolist(),
        "upper": upper,
        "tight": tight,
        "lower": lower.value,
        "lower_proved": lower.proved,
        "certified": certified,
    }


def _read(file: Path, row: Row, config: TrainConfig) -> Result:
    try:
        result = Result(**json.loads(file.read_text()))
    except (TypeError, ValueError) as error:
        raise InvalidFile(f"{file} is not the result of a row: {error}") from error
    expected = json.loads(json.dumps({"row": asdict(row), "config": config.description()}))
    if {"row": result.row, "config": result.config} != expected:
        raise InvalidFile(f"{file} belongs to a run with other options: use another folder.")
    return result


def run(
    rows: Iterable[Row],
    data: ImageData,
    folder: str | Path,
    config: TrainConfig = PAPER,
    *,
    jobs: int = 1,
    progress: bool = False,
) -> list[Result]:
    """Run rows, `jobs` of them side by side; every row has a folder of its own and resumes by itself."""
    chosen = list(rows)
    names = [slug(row.name) for row in chosen]
    if len(set(names)) < len(names):
        raise InvalidInput(f"Two rows have the same name among {', '.join(row.name for row in chosen)}.")
    folders = [Path(folder) / name for name in names]
    if jobs == 1:
        return [run_row(r, data, f, config, progress=progress) for r, f in zip(chosen, folders, strict=True)]
    joblib = need("joblib", "jobs > 1", extra="experiments")
    tasks = (joblib.delayed(_alone)(r, data, f, config) for r, f in zip(chosen, folders, strict=True))
    results: list[Result] = joblib.Parallel(n_jobs=jobs)(tasks)
    return results


def _alone(row: Row, data: ImageData, folder: Path, config: TrainConfig) -> Result:
    """One row in a process of its own, on one core."""
    torch.set_num_threads(1)
    return run_row(row, data, folder, config)


def slug(name: str) -> str:
    """A row's name as a folder."""
    plain = {"γ": "gamma", "<": "-below-", "∞": "infinity", "=": "-", " ": "-"}
    return "".join(plain.get(letter, letter) for letter in name).lower()
