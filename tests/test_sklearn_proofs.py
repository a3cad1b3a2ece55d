"""What the estimators for scikit-learn prove, against searches in the units of X."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

import lben
from lben.sklearn import LBENClassifier, LBENRegressor
from tests.tables import SMALL, iris, two_classes, two_targets


@pytest.fixture(scope="module")
def multi() -> Any:
    return LBENClassifier(**SMALL).fit(*iris())


@pytest.fixture(scope="module")
def binary() -> Any:
    return LBENClassifier(**SMALL, margin=0.5).fit(*two_classes())


@pytest.fixture(scope="module")
def regressor() -> Any:
    return LBENRegressor(**SMALL).fit(*two_targets())


def steepest(estimator: Any, x: torch.Tensor) -> torch.Tensor:
    """Directions of unit length, in the units of X, in which the outputs of each row move fastest."""
    jacobian = torch.stack([torch.autograd.functional.jacobian(estimator.net_, row) for row in x])
    directions: torch.Tensor = torch.linalg.svd(jacobian, full_matrices=False)[2]
    return directions[:, 0]


@pytest.mark.parametrize("name", ["multi", "binary", "regressor"])
def test_no_two_predictions_show_a_slope_above_the_bound(name: str, request: pytest.FixtureRequest) -> None:
    estimator = request.getfixturevalue(name)
    X = {"multi": iris, "binary": two_classes, "regressor": two_targets}[name]()[0]
    predict = estimator.predict if name == "regressor" else estimator.decision_function
    rng = np.random.default_rng(0)
    slopes = []
    moves = [steepest(estimator, torch.tensor(X[:40])).numpy() * size for size in (1e-3, 1.0)]
    moves += [X[rng.permutation(len(X))[:40]] - X[:40], rng.normal(size=(40, X.shape[1])) * X.std(axis=0)]
    for move in moves:
        moved = (predict(X[:40] + move) - predict(X[:40])).reshape(40, -1)
        slopes.append((np.linalg.norm(moved, axis=1) / np.maximum(np.linalg.norm(move, axis=1), 1e-9)).max())
    bound = estimator.lipschitz_bound_
    assert max(slopes) <= bound * (1 + 1e-6)
    assert max(slopes) > 0.15 * bound, "the bound says little, or nothing steep was tried"
    coarse = estimator.net_.bound("pixels") * (np.sqrt(2) if name == "binary" else 1.0)
    assert bound <= coarse * (1 + 1e-9) * (estimator.target_scale_.max() if name == "regressor" else 1.0)
    assert estimator.standardised_bound_ <= estimator.gamma * (1 + 1e-9)


def climb(estimator: Any, X: Any, wanted: Any, radius: Any, steps: int = 30) -> torch.Tensor:
    """Inputs within `radius` of the rows, one each, for which the sum of `wanted` of the outputs is large."""
    x, limit = torch.tensor(X), torch.as_tensor(radius)[:, None]
    move = torch.zeros_like(x)
    for step in range(steps):
        move.requires_grad_(True)
        (gradient,) = torch.autograd.grad(wanted(estimator.net_(x + move)).sum(), move)
        ahead = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-300)
        move = move.detach() + ahead * limit * (0.3 if step else 1.0)
        move = move * (limit / move.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)
    return (x + move).detach()


@pytest.mark.parametrize("name", ["multi", "binary"])
@pytest.mark.parametrize("standardised", [False, True])
def test_no_class_changes_within_its_radius(name: str, standardised: bool, request: pytest.FixtureRequest) -> None:
    estimator = request.getfixturevalue(name)
    X = (iris if name == "multi" else two_classes)()[0][::3]
    radius = estimator.certified_radius(X, standardised=standardised)
    assert radius.shape == (len(X),)
    assert np.median(radius) > 0
    std = estimator.net_.normalize.std.numpy() if standardised else np.ones(X.shape[1])
    best = estimator.net_(torch.tensor(X)).argmax(dim=-1, keepdim=True)

    def lost(scores: torch.Tensor) -> torch.Tensor:
        others = scores.scatter(1, best, -torch.inf).amax(dim=1)
        return others - scores.gather(1, best)[:, 0]

    view = _InUnits(estimator.net_, torch.tensor(std))
    inside = climb(view, X / std, lost, radius * (1 - 1e-9)).numpy() * std
    assert (estimator.predict(inside) == estimator.predict(X)).all()
    outside = climb(view, X / std, lost, 12 * radius).numpy() * std
    assert (estimator.predict(outside) != estimator.predict(X)).mean() > 0.3, "the search finds nothing"


class _InUnits:
    """A network in units in which columns were divided by `std`."""

    def __init__(self, net: Any, std: torch.Tensor) -> None:
        self.net_ = lambda x: net(x * std)


def test_no_prediction_leaves_its_interval(regressor: Any) -> None:
    X, _ = two_targets()
    low, high = regressor.certified_interval(X[:30], 2.0)
    assert low.shape == high.shape == (30, 2)
    for target in (0, 1):
        for sign in (-1.0, 1.0):
            seen = regressor.predict(
                climb(regressor, X[:30], lambda y, s=sign, t=target: s * y[:, t], [2.0] * 30).numpy()
            )
            assert (seen >= low).all()
            assert (seen <= high).all()
    narrow, wide = regressor.certified_interval(X[:30], 0.0)
    np.testing.assert_allclose(narrow, wide, rtol=1e-8)
    np.testing.assert_allclose(narrow, regressor.predict(X[:30]), rtol=1e-8)


def test_bounds_and_radii_have_the_units_of_the_rows(multi: Any) -> None:
    """Powers of two are exact, so that everything is the same but for them."""
    X, y = iris()
    other = clone(multi).fit(8 * X, y)
    np.testing.assert_array_equal(other.decision_function(8 * X), multi.decision_function(X))
    assert other.lipschitz_bound_ * 8 == pytest.approx(multi.lipschitz_bound_, rel=1e-9)
    assert other.standardised_bound_ == pytest.approx(multi.standardised_bound_, rel=1e-9)
    np.testing.assert_allclose(other.certified_radius(8 * X), 8 * multi.certified_radius(X), rtol=1e-6)


def test_a_bound_follows_the_network_that_is_there(multi: Any) -> None:
    other = pickle.loads(pickle.dumps(multi))
    before = other.lipschitz_bound_
    with torch.no_grad():
        other.net_.parameterization.U.mul_(0.5)
    assert other.lipschitz_bound_ < 0.8 * before
    assert multi.lipschitz_bound_ == before


def test_without_scale_the_units_are_those_of_the_rows_already() -> None:
    X, y = iris()
    estimator = LBENClassifier(**SMALL, scale=False, gamma=None).fit(X, y)
    assert estimator.net_.normalize is None
    assert estimator.lipschitz_bound_ == estimator.standardised_bound_
    assert estimator.lipschitz_bound_ <= estimator.net_.bound() * (1 + 1e-9)
    expected = lben.certified_radius(estimator.net_, torch.tensor(X)).radius.numpy()
    np.testing.assert_allclose(estimator.certified_radius(X), expected, rtol=1e-6)


def test_a_constant_column_has_no_influence_and_costs_no_bound() -> None:
    X, y = iris()
    X = np.column_stack([X[:, :2], np.full(len(X), 0.1), X[:, 2:]])
    estimator = LBENClassifier(**SMALL).fit(X, y)
    other = X.copy()
    other[:, 2] = np.linspace(-50, 50, len(X))
    np.testing.assert_array_equal(estimator.decision_function(other), estimator.decision_function(X))
    assert estimator.net_.normalize is not None
    assert float(estimator.net_.normalize.std[2]) == float(estimator.net_.normalize.std.max())
    assert LBENRegressor(**SMALL).fit(np.ones((5, 2)), np.arange(5.0)).predict(np.zeros((1, 2)))[0] == pytest.approx(
        2, abs=0.2
    )
    assert LBENRegressor(**SMALL).fit(X, np.full(len(X), 7.0)).predict(X[:3]) == pytest.approx(7.0, abs=0.5)


def test_an_interval_needs_a_radius(regressor: Any) -> None:
    for radius in (-1.0, np.inf, np.nan):
        with pytest.raises(lben.InvalidInput, match="radius must be a finite number of at least 0"):
            regressor.certified_interval(two_targets()[0], radius)
