"""Solvers and their calls refuse nonsense by an error of our own, whatever it is and wherever it is put."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import lben
from tests.problems import SOLVERS, name

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
KINDS = sorted({type(solver) for solver in SOLVERS} | {lben.BackSubstitution}, key=lambda kind: kind.__name__)


def nonsense() -> list[Any]:
    """Values of every type that a caller might hand over by mistake."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that some of these are prototypes
        odd = [
            torch.nested.nested_tensor([torch.zeros(4), torch.zeros(4)]),
            torch.zeros(2, 4).to_sparse(),
            torch.zeros(2, 6).to_sparse(),
            torch.zeros(2, 4).to_mkldnn(),
        ]
    shapes: list[tuple[int, ...]] = [(), (3,), (2, 4), (2, 6), (3, 6), (0, 4), (2, 6, 1)]
    tensors = [torch.zeros(shape) for shape in shapes]
    tensors += [torch.zeros(2, 4, device="meta"), torch.zeros(2, 6, device="meta"), torch.full((2, 6), torch.nan)]
    kinds = (torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
    tensors += [torch.zeros(2, size, dtype=kind) for size in (4, 6) for kind in kinds]
    numbers = [True, 0, -1, 1, 2.5, 10**30, 10**400, -(10**400), float("nan"), float("inf"), 1e-320, 1j]
    others = ["abc", "auto", b"x", [], [1, 2], (), {}, object(), int, len, lben.Newton, lben.Newton(), lben.ReLU()]
    arrays = [np.zeros(3), np.float32(0.1), np.int64(3), np.bool_(True), Fraction(1, 3), Decimal("0.1")]
    return [None, *numbers, *others, *arrays, *tensors, *odd, torch.nn.ReLU()]


def attempt(call: Callable[[Any], object]) -> int:
    """How many values were refused; any exception but ours fails."""
    refused = 0
    for value in nonsense():
        with warnings.catch_warnings(), contextlib.suppress(lben.NotConverged):
            warnings.simplefilter("ignore", lben.ConvergenceWarning)
            try:
                call(value)
            except lben.InvalidInput:
                refused += 1
    return refused


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_option_of_a_solver_is_checked(kind: type[lben.Solver]) -> None:
    """What is not refused when the solver is made works when it is used."""
    net = lben.LBEN(4, 6, 3, gamma=1.0).eval()
    if kind is lben.BackSubstitution:
        layers = torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)
        net = lben.from_sequential(torch.nn.Sequential(*layers))  # type: ignore[assignment]
    for field in fields(kind):

        def make(value: Any, option: str = field.name) -> None:
            net.solver = kind(**{option: value})
            net.solve(X)

        assert attempt(make) > 30


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_every_argument_of_solve_is_checked(solver: lben.Solver) -> None:
    net = lben.LBEN(4, 6, 3, gamma=1.0, solver=solver).eval()
    assert attempt(lambda value: net.solve(value)) > 30
    assert attempt(lambda value: net.solve(X, start=value)) > 30
    assert attempt(lambda value: net.solve(X, bias=value)) > 30
    assert attempt(lambda value: net.solve(X, keep_history=value)) > 30


def test_every_argument_of_an_enclosure_is_checked() -> None:
    net = lben.LBEN(4, 6, 3, gamma=1.0).eval()
    solution = net.solve(X)
    assert attempt(lambda value: solution.error_bound(value, X)) > 30
    assert attempt(lambda value: solution.error_bound(net, value)) > 30
    assert attempt(lambda value: solution.error_bound(net, X, bias=value)) > 30
    assert attempt(lambda value: solution.error_bound(net.weights(), X, activation=value)) > 30
    assert attempt(lambda value: lben.enclose(value, X)) > 30
    assert attempt(lambda value: lben.enclose(net, value)) > 30
    assert attempt(lambda value: lben.enclose(net, X, solver=value)) > 30


@pytest.mark.parametrize("training", [False, True])
def test_a_network_without_values_says_so(training: bool) -> None:
    with torch.device("meta"):
        net = lben.LBEN(4, 6, 3, gamma=1.0).train(training)
    for call in (net, net.solve):
        with pytest.raises(lben.InvalidInput, match="meta device"):
            call(torch.zeros(2, 4, device="meta"))
    with pytest.raises(lben.InvalidInput, match="meta device"):
        lben.enclose(net, X)


def test_a_start_of_another_problem_is_refused() -> None:
    net = lben.LBEN(4, 6, 3, gamma=1.0).eval()
    for other, x in (
        (lben.LBEN(4, 7, 3).eval(), X),
        (lben.LBEN(4, 6, 3).double().eval(), X.double()),
        (net, X[:1]),
    ):
        with pytest.raises(lben.InvalidInput):
            net.solve(X, start=other.solve(x))


def test_a_solution_is_true_if_it_converged() -> None:
    net, x = lben.LBEN(4, 8, 2, gamma=1.0).eval(), torch.rand(3, 4)
    assert net.solve(x)
    net.solver = lben.PeacemanRachford(tolerance=1e-14, max_iterations=1, on_failure="warn")
    with pytest.warns(lben.ConvergenceWarning):
        assert not net.solve(x)
    found = lben.attack(lben.LBEN(4, 8, 2, gamma=1.0), x, torch.tensor([0, 1, 0]), [0.1], steps=2)
    with pytest.raises(lben.InvalidInput, match="neither true nor false"):
        bool(found)
