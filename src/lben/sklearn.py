"""Estimators for scikit-learn: a classifier and a regressor with a bound, which is proved in the units of X."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import ReLU
from lben.certify.enclose import enclose
from lben.certify.lipschitz import tightest_bound
from lben.certify.radius import certified_radius
from lben.checks import need
from lben.errors import InvalidInput
from lben.networks.dense import LBEN
from lben.normalize import Normalize
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train.losses import CrossEntropy, MeanSquare
from lben.train.recipe import TrainConfig
from lben.train.weighted import Learner, Losses, Pass, Rows

_base, _utils, _targets, _validation = (
    need(name, "lben.sklearn", extra="sklearn")
    for name in ("sklearn.base", "sklearn.utils", "sklearn.utils.multiclass", "sklearn.utils.validation")
)

__all__ = ["LBENClassifier", "LBENRegressor"]

_EVALUATION = PeacemanRachford(tolerance=1e-11)  # a prediction must not depend on what stands beside it
_EVALUATION_ROWS = 4096
_SQRT2 = math.nextafter(math.sqrt(2), 2)


class _Estimator(_base.BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    net_: LBEN
    history_: list[Pass]
    n_iter_: int
    n_features_in_: int

    def __init__(
        self,
        *,
        gamma: float | None = None,
        hidden: int = 32,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        scale: bool = True,
        epochs: int = 100,
        batch_size: int = 64,
        learning_rate: float = 1e-2,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        tolerance: float = 1e-4,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.gamma = gamma
        self.hidden = hidden
        self.activation = activation
        self.scale = scale
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.tolerance = tolerance
        self.random_state = random_state
        self.verbose = verbose

    # --- learning

    def _losses(self) -> Losses:
        raise NotImplementedError

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, first: bool, **how: Any) -> tuple[Any, Any, Any]:
        """X, y and weights as scikit-learn checks them, without the rows of weight 0."""
        X, y = _validation.validate_data(self, X, y, reset=first, dtype=np.float64, **how)
        weights = _validation._check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        used = weights > 0
        if not used.any():
            raise InvalidInput("sample_weight is zero for every sample: there is nothing to learn from.")
        return X[used], y[used], weights[used]

    def _fit(self, rows: Rows, outputs: int, gamma: float | None) -> None:
        """Learn from the beginning."""
        config = self._config("one-cycle")
        rest, aside = rows, None
        self._begin(rows, outputs, gamma)
        if checks.flag("early_stopping", self.early_stopping):
            share = checks.number("validation_fraction", self.validation_fraction)
            if not 0 < share < 1:
                raise InvalidInput(f"validation_fraction must lie between 0 and 1, not {share:g}.")
            if len(rows) < 2:
                raise InvalidInput("early_stopping needs 2 distinct samples or more, but there is 1 sample.")
            rest, aside = rows.split(share, self._learner.generator())
        self._learn(rest, config, aside)

    def _begin(self, rows: Rows, outputs: int, gamma: float | None) -> None:
        """A fresh network, with the random numbers of `random_state`; those of torch stay where they are."""
        seed = int(_utils.check_random_state(self.random_state).randint(2**31 - 1))
        normalize, constant = _standardised(rows) if checks.flag("scale", self.scale) else (None, None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = LBEN(
                rows.x.shape[1], self.hidden, outputs, gamma=gamma, activation=self.activation, normalize=normalize
            ).double()
        if constant is not None:
            with torch.no_grad():
                net.parameterization.U[:, constant] = 0  # where gradients leave them, while the column is constant
        self.net_ = net
        self._learner = Learner(net, self._losses(), self.learning_rate, seed)
        self.n_iter_, self.history_ = 0, []

    def _config(self, schedule: Any, epochs: int | None = None) -> TrainConfig:
        return TrainConfig(
            epochs=self.epochs if epochs is None else epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            schedule=schedule,
        )

    def _learn(self, rows: Rows, config: TrainConfig, aside: Rows | None = None) -> None:
        patience = checks.count("patience", self.patience)
        self.net_.solver = PeacemanRachford(tolerance=self.tolerance)
        self._bound: float | None = None
        with torch.random.fork_rng(devices=[]):
            self.history_ += self._learner.learn(
                rows, config, aside=aside, patience=patience, progress=bool(self.verbose)
            )
        self.n_iter_ = len(self.history_)
        self.net_.solver = _EVALUATION
        self.net_.eval()

    # --- use

    def _inputs(self, X: Any) -> Tensor:
        _validation.check_is_fitted(self)
        return torch.tensor(_validation.validate_data(self, X, reset=False, dtype=np.float64))

    def _outputs(self, X: Any) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.net_(rows) for rows in self._inputs(X).split(_EVALUATION_ROWS)])

    @property
    def _domain(self) -> Any:
        """Where the network's inputs are X itself."""
        return "input" if self.net_.normalize is None else "pixels"

    @property
    def lipschitz_bound_(self) -> float:
        _validation.check_is_fitted(self)
        if self._bound is None:
            self._bound = tightest_bound(self.net_, domain=self._domain).gamma
        return self._bound


class LBENClassifier(_base.ClassifierMixin, _Estimator):  # type: ignore[misc]
    classes_: Any

    def __init__(
        self,
        *,
        gamma: float | None = None,
        hidden: int = 32,
        activation: Activation = ReLU(),  # noqa: B008
        scale: bool = True,
        epochs: int = 100,
        batch_size: int = 64,
        learning_rate: float = 1e-2,
        margin: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        tolerance: float = 1e-4,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            gamma=gamma,
            hidden=hidden,
            activation=activation,
            scale=scale,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            tolerance=tolerance,
            random_state=random_state,
            verbose=verbose,
        )
        self.margin = margin

    def _losses(self) -> Losses:
        return CrossEntropy(self.margin).each

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LBENClassifier:
        X, y, weights = self._labelled(X, y, sample_weight, first=True)
        self.classes_ = _known(np.unique(y))
        self._fit(self._rows(X, y, weights), len(self.classes_), self._gamma())
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> LBENClassifier:
        first = not hasattr(self, "classes_")
        X, y, weights = self._labelled(X, y, sample_weight, first=first)
        if first:
            if classes is None:
                raise InvalidInput("The first call of partial_fit must be given all classes.")
            self.classes_ = _known(np.unique(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InvalidInput(f"classes are {np.unique(classes)}, but were {self.classes_} in the first call.")
        rows = self._rows(X, y, weights)
        if first:
            self._begin(rows, len(self.classes_), self._gamma())
        self._learn(rows, self._config("constant", epochs=1))
        return self

    def _labelled(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> tuple[Any, Any, Any]:
        X, y, weights = self._checked(X, y, sample_weight, first=first)
        _targets.check_classification_targets(y)
        return X, y, weights

    def _rows(self, X: Any, y: Any, weights: Any) -> Rows:
        known = np.isin(y, self.classes_)
        if not known.all():
            raise InvalidInput(f"y holds the class {y[~known][0]!r}, which is not among {self.classes_}.")
        return Rows.distinct(X, np.searchsorted(self.classes_, y), weights)

    def _gamma(self) -> float | None:
        """The network's own: of two logits, the difference counts, which moves by sqrt(2) as far as they do."""
        if self.gamma is None or len(self.classes_) > 2:
            return self.gamma
        return checks.positive("gamma", self.gamma) / _SQRT2

    def decision_function(self, X: Any) -> Any:
        logits = self._outputs(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Any:
        return self._outputs(X).softmax(dim=-1).numpy()

    def predict(self, X: Any) -> Any:
        best = self._outputs(X).argmax(dim=-1).numpy()
        return self.classes_[best]

    def certified_radius(self, X: Any) -> Any:
        return certified_radius(self.net_, self._inputs(X), domain=self._domain, progress=bool(self.verbose)).radius.numpy()


class LBENRegressor(_base.RegressorMixin, _Estimator):  # type: ignore[misc]
    def _losses(self) -> Losses:
        return MeanSquare().each

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LBENRegressor:
        X, y, weights = self._checked(X, y, sample_weight, first=True, multi_output=True, y_numeric=True)
        rows = self._rows(X, y, weights, first=True)
        self._fit(rows, rows.targets.shape[1], self.gamma)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> LBENRegressor:
        first = not hasattr(self, "net_")
        X, y, weights = self._checked(X, y, sample_weight, first=first, multi_output=True, y_numeric=True)
        rows = self._rows(X, y, weights, first=first)
        if first:
            self._begin(rows, rows.targets.shape[1], self.gamma)
        self._learn(rows, self._config("constant", epochs=1))
        return self

    def _rows(self, X: Any, y: Any, weights: Any, *, first: bool) -> Rows:
        columns = y.reshape(len(y), -1).astype(np.float64)
        rows = Rows.distinct(X, columns, weights)
        if first:
            mean, std, constant = _moments(rows.targets, rows.weights)
            self.target_mean_, self.target_scale_ = mean.numpy(), torch.where(constant, 1.0, std).numpy()
            self._flat = y.ndim == 1
        return Rows(rows.x, (rows.targets - torch.tensor(self.target_mean_)) / torch.tensor(self.target_scale_), rows.weights)

    def predict(self, X: Any) -> Any:
        y = self._outputs(X).numpy() * self.target_scale_ + self.target_mean_
        return y[:, 0] if self._flat else y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _known(classes: Any) -> Any:
    if len(classes) < 2:
        raise InvalidInput(f"A classifier needs 2 classes or more, but there is 1 class: {classes[0]!r}.")
    return classes


def _moments(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and standard deviation of each column, and whether it is constant, when its mean is its value."""
    share = (weights / weights.sum())[:, None]
    mean = (share * values).sum(dim=0)
    std = (share * (values - mean).square()).sum(dim=0).sqrt()
    constant = std <= 10 * torch.finfo(values.dtype).eps * values.abs().amax(dim=0)
    return torch.where(constant, values[0], mean), std, constant


def _standardised(rows: Rows) -> tuple[Normalize, Tensor]:
    """The stage that standardises, and which columns are constant.

    These are divided by the largest standard deviation of the others, so that no bound suffers from them.
    """
    mean, std, constant = _moments(rows.x, rows.weights)
    std = torch.where(constant, std.max() if not bool(constant.all()) else 1.0, std)
    normalize = Normalize(torch.zeros_like(mean), torch.ones_like(std)).double()
    normalize.mean.copy_(mean)
    normalize.std.copy_(std)
    return normalize.validate(), constant
