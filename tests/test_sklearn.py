"""The estimators for scikit-learn: its own checks, searches in the units of X, and repetition as weight."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import StringIO
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn import datasets
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import lben
from lben.sklearn import LBENClassifier, LBENRegressor
from tests.tables import SMALL, iris, two_classes, two_targets

QUICK: dict[str, Any] = {"epochs": 8, "batch_size": 32, "learning_rate": 5e-2, "hidden": 6}


@parametrize_with_checks([LBENClassifier(**QUICK), LBENRegressor(**QUICK)])  # type: ignore[untyped-decorator]
def test_what_scikit_learn_asks_of_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LBENClassifier, LBENRegressor])
def test_what_scikit_learn_asks_holds_by_default(kind: Any) -> None:
    results = check_estimator(kind(), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert len([result for result in results if result["status"] == "passed"]) > 50


# --- how good


@pytest.mark.parametrize(
    "load",
    [
        datasets.load_iris,
        pytest.param(datasets.load_wine, marks=pytest.mark.slow),
        pytest.param(datasets.load_breast_cancer, marks=pytest.mark.slow),
        pytest.param(datasets.load_digits, marks=pytest.mark.slow),
    ],
)
def test_by_default_as_accurate_as_a_perceptron(load: Any) -> None:
    X, y = load(return_X_y=True)
    train_X, test_X, train_y, test_y = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    plain = make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=0)).fit(train_X, train_y)
    ours = LBENClassifier(random_state=0).fit(train_X, train_y)
    assert ours.score(test_X, test_y) > plain.score(test_X, test_y) - 0.03
    assert ours.standardised_bound_ <= 5.0


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(
    "rows",
    [
        lambda: datasets.load_diabetes(return_X_y=True),
        pytest.param(lambda: datasets.make_friedman1(500, noise=1.0, random_state=0), marks=pytest.mark.slow),
    ],
)
def test_by_default_as_good_as_a_perceptron_in_regression(rows: Any) -> None:
    train_X, test_X, train_y, test_y = train_test_split(*rows(), test_size=0.3, random_state=0)
    plain = make_pipeline(StandardScaler(), MLPRegressor(max_iter=300, random_state=0)).fit(train_X, train_y)
    ours = LBENRegressor(random_state=0).fit(train_X, train_y)
    assert ours.score(test_X, test_y) > max(plain.score(test_X, test_y) - 0.05, 0.25)


# --- weights, order and chance


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_weight_is_a_repetition_to_the_last_bit(early_stopping: bool) -> None:
    """In batches that do not hold all rows, too, and in any order."""
    X, y = iris()
    X = X - X.mean(axis=0).round(1)  # zeros, of both signs
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 4, len(X))
    order = rng.permutation(int(weights.sum()))
    for estimator in (LBENClassifier(**SMALL), LBENRegressor(**SMALL)):
        estimator.set_params(early_stopping=early_stopping, batch_size=16)
        weighted = clone(estimator).fit(X, y, sample_weight=weights)
        repeated = clone(estimator).fit(X.repeat(weights, axis=0)[order], y.repeat(weights)[order])
        given, same, other = (e.net_(torch.tensor(X)) for e in (weighted, repeated, clone(estimator).fit(X, y)))
        assert torch.equal(given, same)
        assert float((given - other).detach().abs().max()) > 1e-3


def test_a_seed_decides_all_and_torch_keeps_its_random_numbers() -> None:
    X, y = iris()
    state = torch.get_rng_state()
    first, again = (LBENClassifier(**SMALL, early_stopping=True).fit(X, y) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.decision_function(X), again.decision_function(X))
    other = LBENClassifier(**{**SMALL, "random_state": 1}).fit(X, y)
    assert np.abs(other.decision_function(X) - first.decision_function(X)).max() > 1e-3


def test_early_stopping_keeps_the_best_of_what_it_saw() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 20)), rng.normal(size=60)  # nothing to learn, much to learn by heart
    estimator = LBENRegressor(**{**SMALL, "epochs": 60}, gamma=None, early_stopping=True, patience=3)
    estimator.set_params(validation_fraction=0.3).fit(X, y)
    losses = [row.validation_loss or 0.0 for row in estimator.history_]
    assert estimator.n_iter_ == len(losses) < 60
    assert int(np.argmin(losses)) == len(losses) - 4
    rows = estimator._rows(X, y, None, first=True)
    _, aside = rows.split(0.3, torch.Generator().manual_seed(estimator._learner.seed * 1_000_003))
    assert len(aside) == 18
    assert estimator._learner.loss(aside) == pytest.approx(min(losses), rel=1e-3)


# --- as others use it


def test_a_pickle_gives_the_same_outputs_and_bounds_and_goes_on_alike() -> None:
    X, y = two_classes()
    binary = LBENClassifier(**SMALL).fit(X, y)
    binary.certified_radius(X[:5])
    copy = pickle.loads(pickle.dumps(binary))
    np.testing.assert_array_equal(copy.predict_proba(X), binary.predict_proba(X))
    np.testing.assert_array_equal(copy.certified_radius(X[:5]), binary.certified_radius(X[:5]))
    assert copy.lipschitz_bound_ == binary.lipschitz_bound_
    assert lben.certify(copy.net_)
    other = pickle.loads(pickle.dumps(copy))
    np.testing.assert_array_equal(
        copy.partial_fit(X, y).decision_function(X), other.partial_fit(X, y).decision_function(X)
    )
    assert copy.lipschitz_bound_ != binary.lipschitz_bound_


def test_searches_and_pipelines() -> None:
    X, y = iris()
    words = np.array(["a", "b", "c"])[y]
    pipeline = make_pipeline(StandardScaler(), LBENClassifier(**SMALL, scale=False))
    grid = {"lbenclassifier__gamma": [0.01, 5.0], "lbenclassifier__activation": [lben.ReLU(), lben.Tanh()]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, words)
    assert search.best_params_["lbenclassifier__gamma"] == 5.0
    assert search.best_score_ > 0.8
    assert set(search.predict(X)) <= {"a", "b", "c"}
    scores = cross_val_score(LBENRegressor(**SMALL), *two_targets(), cv=2)
    assert scores.shape == (2,)


def test_names_of_columns_are_known_and_kept() -> None:
    X, y = iris()
    table = pyarrow.table({name: X[:, i] for i, name in enumerate(("a", "b", "c", "d"))})
    estimator = LBENClassifier(**SMALL).fit(table, y)
    assert list(estimator.feature_names_in_) == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(estimator.predict(table), LBENClassifier(**SMALL).fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(table.rename_columns(["a", "b", "c", "e"]))


def test_rows_in_parts() -> None:
    X, y = iris()
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    estimator = LBENClassifier(**SMALL)
    for part in np.array_split(np.arange(len(X)), 10) * 4:
        estimator.partial_fit(X[part], y[part], classes=[0, 1, 2])
    assert estimator.score(X, y) > 0.9
    assert estimator.n_iter_ == len(estimator.history_) == 40
    regressor = LBENRegressor(**SMALL)
    for _ in range(20):
        regressor.partial_fit(X[:, :3], X[:, 3:])
    assert regressor.predict(X[:5, :3]).shape == (5, 1)
    assert regressor.score(X[:, :3], X[:, 3:]) > 0.8
    with pytest.raises(lben.InvalidInput, match=r"y must have shape \('count', 1\) as before, not \(150, 2\)"):
        regressor.partial_fit(X[:, :3], X[:, 2:])
    with pytest.raises(lben.InvalidInput, match=r"classes are \[0 1\], but were \[0 1 2\] so far"):
        estimator.partial_fit(X[:3], y[:3], classes=[0, 1])
    with pytest.raises(lben.InvalidInput, match=r"y holds the class .*7.*, which is not among \[0 1 2\]"):
        estimator.partial_fit(X[:2], [0, 7])
    with pytest.raises(lben.InvalidInput, match="must be given all classes"):
        LBENClassifier().partial_fit(X, y)


def test_a_bar_is_shown_where_it_is_wanted(terminal: StringIO) -> None:
    X, y = iris()
    LBENClassifier(**SMALL).fit(X, y)
    assert terminal.getvalue() == ""
    LBENClassifier(**SMALL, verbose=True, early_stopping=True).fit(X, y)
    assert "LBENClassifier" in terminal.getvalue()
    assert "6 epochs, loss" in terminal.getvalue()


# --- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma": -1.0}, "gamma must be a finite number above 0, not -1.0"),
        ({"gamma": 1e-9}, "too small to train with"),
        ({"hidden": 0}, "hidden_features must be an integer of at least 1, not 0"),
        ({"activation": "relu"}, "relu"),
        ({"scale": "yes"}, "scale must be True or False, not 'yes'"),
        ({"epochs": 0}, "epochs must be an integer of at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0, not 0.0"),
        ({"margin": np.inf}, "margin must be a finite number, not inf"),
        ({"early_stopping": 1}, "early_stopping must be True or False, not 1"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "must lie between 0 and 1, not 1.0"),
        ({"patience": 0}, "patience must be an integer of at least 1, not 0"),
        ({"tolerance": -1.0}, "tolerance"),
    ],
)
def test_a_bad_parameter_is_named_when_it_is_used(options: dict[str, Any], words: str) -> None:
    estimator = LBENClassifier(**{**SMALL, **options})
    with pytest.raises(lben.InvalidInput, match=words):
        estimator.fit(*iris())


def test_bad_rows_are_refused_as_scikit_learn_does() -> None:
    X, y = iris()
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        LBENClassifier().fit(bad, y)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        LBENClassifier().fit(csr_matrix(X), y)
    with pytest.raises(lben.InvalidInput, match=r"2 classes or more, but there is 1 class"):
        LBENClassifier().fit(X[:5], y[:5])
    with pytest.raises(lben.InvalidInput, match="but there is 1 sample"):
        LBENRegressor(early_stopping=True).fit(X[:1], y[:1])
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        LBENClassifier().fit(X, y, sample_weight=-np.ones(len(X)))
    with pytest.raises(lben.Diverged, match="lower the learning rate, which is 1e"):
        LBENRegressor(**{**SMALL, "learning_rate": 1e30}).fit(X, y)


@pytest.mark.parametrize("kind", [LBENClassifier, LBENRegressor])
def test_before_fit_there_is_nothing(kind: Any) -> None:
    X, _ = iris()
    estimator = kind()
    assert not hasattr(estimator, "lipschitz_bound_")
    used: list[Callable[[], Any]] = [lambda: estimator.predict(X), lambda: estimator.lipschitz_bound_]
    used += [lambda: estimator.standardised_bound_]
    if kind is LBENClassifier:
        used += [lambda: estimator.certified_radius(X), lambda: estimator.predict_proba(X)]
    else:
        used += [lambda: estimator.certified_interval(X, 1.0)]
    for use in used:
        with pytest.raises(NotFittedError, match="not fitted yet"):
            use()
