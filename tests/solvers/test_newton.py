"""Newton's method: its step takes the whole Jacobian."""

from __future__ import annotations

import torch

import lben
from lben.solvers.base import Problem
from lben.solvers.newton import newton_step
from tests.blocks import HEXAGON
from tests.problems import biases, operator


def test_newton_takes_the_whole_jacobian() -> None:
    """From close by, one semismooth step lands on the equilibrium of a piecewise linear network."""
    W, activation = operator(6, spread=0.0), lben.Projection(HEXAGON)
    problem = Problem(W, activation, biases(8, 6))
    z = problem.b
    for _ in range(20):
        z = z + newton_step(problem, z)
    assert torch.allclose(z, activation(W.affine(z, problem.b)), atol=1e-10)
