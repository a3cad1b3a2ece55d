"""Estimators for scikit-learn: a classifier and a regressor, with bounds that are proved in the units of X."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lben import checks
from lben.activations.base import Activation
from lben.activations.scalar import ReLU
from lben.certify.enclose import enclose
from lben.certify.units import OwnUnits
from lben.errors import InvalidInput
from lben.networks.dense import LBEN
from lben.solvers.peaceman_rachford import PeacemanRachford
from lben.train.losses import CrossEntropy, MeanSquare
from lben.train.recipe import Schedule, TrainConfig
from lben.train.weighted import Learner, Losses, Pass, Rows
from lben.weights.record import same

_base, _utils, _multiclass, _validation = (
    checks.need(name, "lben.sklearn", extra="sklearn")
    for name in ("sklearn.base", "sklearn.utils", "sklearn.utils.multiclass", "sklearn.utils.validation")
)
_Base: Any = _base.BaseEstimator
_Classifier: Any = _base.ClassifierMixin
_Regressor: Any = _base.RegressorMixin

__all__ = ["LBENClassifier", "LBENRegressor"]

_EVALUATION = PeacemanRachford(tolerance=1e-11)  # a prediction must not depend on the rows beside it
_EVALUATION_ROWS = 4096
_SQRT2 = math.nextafter(math.sqrt(2), 2)
_LESS, _MORE = 1 - 1e-12, 1 + 1e-12  # for the roundings of a few sums and quotients


class _Estimator(_Base):  # type: ignore[misc]
    """What classifier and regressor share."""

    net_: LBEN
    history_: list[Pass]
    n_iter_: int
    _proved: dict[tuple[str, bool], Any]

    def __init__(
        self,
        *,
        gamma: float | None = 2.0,
        hidden: int = 32,
        activation: Activation = ReLU(),  # noqa: B008 (frozen)
        scale: bool = True,
        epochs: int = 50,
        batch_size: int | None = None,
        learning_rate: float = 1e-2,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        tolerance: float = 1e-4,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.gamma, self.hidden, self.activation, self.scale = gamma, hidden, activation, scale
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.early_stopping, self.validation_fraction, self.patience = early_stopping, validation_fraction, patience
        self.tolerance, self.random_state, self.verbose = tolerance, random_state, verbose

    def _checked(self, X: Any, y: Any, weights: Any, *, first: bool, numeric: bool) -> tuple[Any, Any, Any]:
        """X, y and weights as scikit-learn checks them, without the rows of weight 0."""
        how = {"reset": first, "dtype": np.float64, "multi_output": numeric, "y_numeric": numeric}
        X, y = _validation.validate_data(self, X, y, **how)
        if not numeric:
            _multiclass.check_classification_targets(y)
        weights = _validation._check_sample_weight(weights, X, dtype=np.float64, ensure_non_negative=True)
        used = weights > 0
        if not used.any():
            raise InvalidInput("sample_weight is zero for every sample: there is nothing to learn from.")
        return X[used], y[used], weights[used]

    def _fit(self, rows: Rows, outputs: int, gamma: float | None, losses: Losses) -> None:
        """Learn from the beginning."""
        aside = None
        self._begin(rows, outputs, gamma, losses)
        if checks.flag("early_stopping", self.early_stopping):
            rows, aside = rows.split(self.validation_fraction, self._learner.generator())
        self._learn(rows, "one-cycle", self.epochs, aside)

    def _begin(self, rows: Rows, outputs: int, gamma: float | None, losses: Losses) -> None:
        """A fresh network, with random numbers of `random_state`; those of torch stay where they are."""
        seed = int(_utils.check_random_state(self.random_state).randint(2**31 - 1))
        normalize, constant = rows.standardised() if checks.flag("scale", self.scale) else (None, None)
        sizes = rows.x.shape[1], self.hidden, outputs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = LBEN(*sizes, gamma=gamma, activation=self.activation, normalize=normalize).double()
        if constant is not None:
            with torch.no_grad():
                net.parameterization.U[:, constant] = 0  # and so it stays: inputs of 0 have no gradient there
        learner = Learner(net, losses, checks.positive("learning_rate", self.learning_rate), seed)
        self.net_, self._learner, self.history_, self._proved = net, learner, [], {}

    def _learn(self, rows: Rows, schedule: Schedule, epochs: int, aside: Rows | None = None) -> None:
        size = min(max(len(rows) // 8, 16), 256) if self.batch_size is None else self.batch_size
        config = TrainConfig(epochs=epochs, batch_size=size, learning_rate=self.learning_rate, schedule=schedule)
        self.net_.solver = PeacemanRachford(tolerance=self.tolerance)
        name, patience, show = type(self).__name__, checks.count("patience", self.patience), bool(self.verbose)
        self.history_ += self._learner.learn(rows, config, aside=aside, patience=patience, name=name, show=show)
        self.n_iter_ = len(self.history_)
        self.net_.solver = _EVALUATION

    def _inputs(self, X: Any) -> Tensor:
        _validation.check_is_fitted(self)
        return torch.tensor(_validation.validate_data(self, X, reset=False, dtype=np.float64))

    def _outputs(self, X: Any) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.net_(rows) for rows in self._inputs(X).split(_EVALUATION_ROWS)])

    def _bounds(self, what: Literal["all", "pairs"], standardised: bool) -> Any:
        """A bound of the network's outputs, of all together or of every pair; kept until something changes."""
        key, net = (what, checks.flag("standardised", standardised)), self.net_
        units = OwnUnits.of(net.weights(), net.activation, None if standardised else net.normalize)
        decisive = (units.weights, units.activation)
        if key not in self._proved or not same(self._proved[key][0], decisive):
            self._proved[key] = decisive, units.pairs() if what == "pairs" else units.bound()
        return self._proved[key][1]

    def _bound(self, standardised: bool) -> float:
        _validation.check_is_fitted(self)
        return float(self._bounds("all", standardised))

    @property
    def lipschitz_bound_(self) -> float:
        """A proved bound: how far predictions move at most, for each unit that a row of X does, in the l2 norm."""
        return self._bound(standardised=False)

    @property
    def standardised_bound_(self) -> float:
        """The same in the units of `gamma`, which it is at most."""
        return self._bound(standardised=True)


class LBENClassifier(_Classifier, _Estimator):  # type: ignore[misc]
    """A classifier whose `decision_function` is Lipschitz, with a bound that can be prescribed, and is proved.

    Equal rows count as one with the sum of their weights, and the order of rows does not matter: a `sample_weight` of 2
    is a row twice, and of 0 a row left out, to the last bit. Bounds are about `decision_function`, the scores, or of
    two classes the second less the first; they are the smallest that are found, are searched for when first asked for,
    and hold for the function of real numbers: predictions add rounding.

    Args:
        gamma: the bound of `decision_function` for each standardised unit of X, or each unit of X with scale=False;
            None for some finite one.
        hidden: the number of hidden units.
        activation: an activation of lben, such as ``lben.Tanh()``.
        scale: whether columns are standardised, inside the network, so that bounds account for it: by mean and standard
            deviation of the rows of `fit`, or of the first `partial_fit`. A column that is constant there has no
            influence.
        epochs: how often the rows are gone through.
        batch_size: rows a step; None: an eighth of them, from 16 to 256.
        learning_rate: that of Adam, at its peak; it rises for 30 % of the steps of `fit` and falls for the rest.
        margin: by how much the score of the right class should exceed the others, as the loss asks: more radius.
        early_stopping: whether a share of the distinct rows is set aside, training ends when `patience` epochs have not
            lowered the loss there, and the best network of all is kept.
        validation_fraction: that share.
        patience: how many epochs to wait.
        tolerance: of the equilibria in training; predictions are made to 1e-11.
        random_state: a seed, for the same result every time, or a RandomState.
        verbose: whether to show a bar (rich).

    Attributes:
        classes_: the classes, sorted, after `fit`.
        n_features_in_: the number of columns.
        feature_names_in_: their names, where X has any.
        net_: the `lben.LBEN`, in double precision, whose outputs are scores, one a class.
        history_: the loss of every epoch.
        n_iter_: how many epochs there were.
        lipschitz_bound_: the proved bound for each unit of X, in the l2 norm.
        standardised_bound_: the same in the units of `gamma`, which it is at most.

    Raises:
        InvalidInput: when it learns, for an argument that is none of these.

    Examples:
        >>> import numpy as np
        >>> from lben.sklearn import LBENClassifier
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> y = np.where(X[:, 0] > 0, "right", "left")
        >>> model = LBENClassifier(gamma=5.0, hidden=4, epochs=20, random_state=0).fit(X, y)
        >>> model.score(X, y) > 0.9, model.standardised_bound_ <= 5.0
        (True, True)
        >>> model.certified_radius(X).shape
        (60,)
    """

    def __init__(
        self,
        *,
        gamma: float | None = 5.0,
        hidden: int = 32,
        activation: Activation = ReLU(),  # noqa: B008
        scale: bool = True,
        epochs: int = 50,
        batch_size: int | None = None,
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LBENClassifier:
        """Learn from the beginning.

        Args:
            X: rows, of shape (count, features).
            y: their classes, numbers or words, of shape (count,).
            sample_weight: one number a row, not negative: 2 is a row twice, 0 a row left out. None: all alike.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: if there is one class alone, or all weights are zero.
        """
        X, y, weights = self._checked(X, y, sample_weight, first=True, numeric=False)
        self._distinguish(np.unique(y))
        self._fit(self._rows(X, y, weights), *self._task())
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> LBENClassifier:
        """Go through these rows once, at a constant rate.

        Args:
            X: rows, of shape (count, features).
            y: their classes, of shape (count,).
            classes: all that there will be, which the first call must be given.
            sample_weight: one number a row, not negative: 2 is a row twice, 0 a row left out. None: all alike.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: without classes in the first call, or for others than before.
        """
        first = not hasattr(self, "net_")
        X, y, weights = self._checked(X, y, sample_weight, first=first, numeric=False)
        if first and classes is None:
            raise InvalidInput("The first call of partial_fit must be given all classes that there will be.")
        if first:
            self._distinguish(np.unique(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InvalidInput(f"classes are {np.unique(classes)}, but were {self.classes_} so far.")
        rows = self._rows(X, y, weights)
        if first:
            self._begin(rows, *self._task())
        self._learn(rows, "constant", 1)
        return self

    def _distinguish(self, classes: Any) -> None:
        if len(classes) < 2:
            raise InvalidInput(f"A classifier needs 2 classes or more, but there is 1 class: {classes[0]!r}.")
        self.classes_ = classes

    def _rows(self, X: Any, y: Any, weights: Any) -> Rows:
        known = np.isin(y, self.classes_)
        if not known.all():
            raise InvalidInput(f"y holds the class {y[~known][0]!r}, which is not among {self.classes_}.")
        return Rows.distinct(X, np.searchsorted(self.classes_, y), weights)

    def _task(self) -> tuple[int, float | None, Losses]:
        """Outputs, their bound and what is minimised. The difference of two scores moves sqrt(2) times as far."""
        count, gamma = len(self.classes_), self.gamma
        if gamma is not None and count == 2:
            gamma = checks.positive("gamma", gamma) / _SQRT2
        return count, gamma, CrossEntropy(self.margin).each

    def decision_function(self, X: Any) -> Any:
        """Scores.

        Args:
            X: rows, of shape (count, features).

        Returns:
            Of shape (count, classes); of two classes the second less the first, of shape (count,).
        """
        scores = self._outputs(X).numpy()
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Any:
        """The softmax of the scores.

        Args:
            X: rows, of shape (count, features).

        Returns:
            Of shape (count, classes).
        """
        return self._outputs(X).softmax(dim=-1).numpy()

    def predict(self, X: Any) -> Any:
        """The class of each row.

        Args:
            X: rows, of shape (count, features).

        Returns:
            Of shape (count,).
        """
        best = self._outputs(X).argmax(dim=-1).numpy()
        return self.classes_[best]

    def certified_radius(self, X: Any, *, standardised: bool = False) -> Any:
        """How far each row may move, in the l2 norm, before its class can change: proved.

        The bounds of all pairs of classes are searched for when first asked for.

        Args:
            X: rows, of shape (count, features).
            standardised: whether distances are measured in standardised units, where every column counts alike, instead
                of those of X.

        Returns:
            Of shape (count,).
        """
        x = self._inputs(X)
        found = enclose(self.net_, x)
        best = found.y.argmax(dim=-1, keepdim=True)
        ahead = (found.y - found.error).gather(1, best) - (found.y + found.error)
        radius = torch.nan_to_num(ahead / self._bounds("pairs", standardised)[best[:, 0]], nan=0.0)
        return radius.scatter(1, best, math.inf).amin(dim=-1).clamp(min=0).numpy() * _LESS

    def _bound(self, standardised: bool) -> float:
        _validation.check_is_fitted(self)
        two = len(self.classes_) == 2
        return float(self._bounds("pairs", standardised)[0, 1]) if two else super()._bound(standardised)


class LBENRegressor(_Regressor, _Estimator):  # type: ignore[misc]
    """A regressor, of one target or several, that is Lipschitz, with a bound that can be prescribed, and is proved.

    Equal rows count as one with the sum of their weights, and the order of rows does not matter. Targets are
    standardised by mean and standard deviation of `fit` or the first `partial_fit`; one that is constant there is not
    divided.

    Args:
        gamma: the bound from standardised units of X to standardised units of y, in the l2 norm; with scale=False from
            those of X. None for some finite one.
        hidden: the number of hidden units.
        activation: an activation of lben, such as ``lben.Tanh()``.
        scale: whether columns are standardised, inside the network, so that bounds account for it: by mean and standard
            deviation of the rows of `fit`, or of the first `partial_fit`. A column that is constant there has no
            influence.
        epochs: how often the rows are gone through.
        batch_size: rows a step; None: an eighth of them, from 16 to 256.
        learning_rate: that of Adam, at its peak; it rises for 30 % of the steps of `fit` and falls for the rest.
        early_stopping: whether a share of the distinct rows is set aside, training ends when `patience` epochs have not
            lowered the loss there, and the best network of all is kept.
        validation_fraction: that share.
        patience: how many epochs to wait.
        tolerance: of the equilibria in training; predictions are made to 1e-11.
        random_state: a seed, for the same result every time, or a RandomState.
        verbose: whether to show a bar (rich).

    Attributes:
        n_features_in_: the number of columns, after `fit`.
        feature_names_in_: their names, where X has any.
        net_: the `lben.LBEN`, in double precision, which gives standardised targets.
        history_: the loss of every epoch.
        n_iter_: how many epochs there were.
        target_mean_: of the targets.
        target_scale_: their standard deviations.
        lipschitz_bound_: the proved bound from X to y in their own units: that of the network times the largest scale.
        standardised_bound_: that of the network, in the units of `gamma`, which it is at most.

    Raises:
        InvalidInput: when it learns, for an argument that is none of these.

    Examples:
        >>> import numpy as np
        >>> from lben.sklearn import LBENRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> y = np.abs(X[:, 0])
        >>> model = LBENRegressor(gamma=5.0, hidden=8, epochs=50, random_state=0).fit(X, y)
        >>> model.score(X, y) > 0.8
        True
        >>> low, high = model.certified_interval(X, radius=0.1)
        >>> bool(((low < model.predict(X)) & (model.predict(X) < high)).all())
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LBENRegressor:
        """Learn from the beginning.

        Args:
            X: rows, of shape (count, features).
            y: of shape (count,) or (count, targets).
            sample_weight: one number a row, not negative: 2 is a row twice, 0 a row left out. None: all alike.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: if all weights are zero.
        """
        rows = self._rows(X, y, sample_weight, first=True)
        self._fit(rows, rows.targets.shape[1], self.gamma, MeanSquare().each)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> LBENRegressor:
        """Go through these rows once, at a constant rate.

        Args:
            X: rows, of shape (count, features).
            y: of the shape of the first call.
            sample_weight: one number a row, not negative: 2 is a row twice, 0 a row left out. None: all alike.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: if y has another shape than before.
        """
        first = not hasattr(self, "net_")
        rows = self._rows(X, y, sample_weight, first=first)
        if first:
            self._begin(rows, rows.targets.shape[1], self.gamma, MeanSquare().each)
        self._learn(rows, "constant", 1)
        return self

    def _rows(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Rows:
        X, y, weights = self._checked(X, y, sample_weight, first=first, numeric=True)
        rows = Rows.distinct(X, y.reshape(len(y), -1).astype(np.float64), weights)
        if first:
            mean, std, constant = rows.moments(rows.targets)
            self.target_mean_, self.target_scale_ = mean.numpy(), torch.where(constant, 1.0, std).numpy()
            self._shape = y.shape[1:]
        elif y.shape[1:] != self._shape:
            raise InvalidInput(f"y must have shape {('count', *self._shape)} as before, not {y.shape}.")
        mean, std = torch.tensor(self.target_mean_), torch.tensor(self.target_scale_)
        return Rows(rows.x, (rows.targets - mean) / std, rows.weights)

    def _in_own_units(self, outputs: Any) -> Any:
        return (outputs * self.target_scale_ + self.target_mean_).reshape(-1, *self._shape)

    def predict(self, X: Any) -> Any:
        """The target of each row.

        Args:
            X: rows, of shape (count, features).

        Returns:
            In the shape that y had.
        """
        return self._in_own_units(self._outputs(X).numpy())

    def certified_interval(self, X: Any, radius: float, *, standardised: bool = False) -> tuple[Any, Any]:
        """Below and above which the prediction cannot get while a row stays within a radius: proved.

        Args:
            X: rows, of shape (count, features).
            radius: in the l2 norm, finite and not negative.
            standardised: whether the radius is one of standardised units instead of those of X.

        Returns:
            Two arrays, each as `predict` gives it.

        Raises:
            InvalidInput: for another radius.
        """
        x, size = self._inputs(X), checks.number("radius", radius)
        if not 0 <= size < math.inf:
            raise InvalidInput(f"radius must be a finite number of at least 0, not {radius}.")
        found = enclose(self.net_, x)
        y, reach = found.y.numpy(), (found.error + self._bounds("all", standardised) * size).numpy() * _MORE
        room = 1e-15 * (np.abs(y) * self.target_scale_ + np.abs(self.target_mean_)).reshape(-1, *self._shape)
        return self._in_own_units(y - reach) - room, self._in_own_units(y + reach) + room

    def _bound(self, standardised: bool) -> float:
        bound = super()._bound(standardised)
        return bound if standardised else bound * float(self.target_scale_.max()) * _MORE

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
