"""The Riccati equation: its solution, and what lies between its solutions."""

from __future__ import annotations

import torch

from lben.numerics.riccati import between_solutions, solve_riccati

D = torch.float64


def test_the_riccati_equation_is_solved() -> None:
    torch.manual_seed(0)
    for n in (1, 5, 30):
        F = torch.randn(n, n, dtype=D) / n**0.5 - 2.5 * torch.eye(n, dtype=D)
        B = 0.3 * torch.randn(n, n, dtype=D) / n**0.5
        P = solve_riccati(F, B @ B.T, torch.eye(n, dtype=D))
        assert torch.allclose(P @ B @ B.T @ P + P @ F + F.T @ P, -torch.eye(n, dtype=D), atol=1e-9)
        assert float(torch.linalg.eigvals(F + B @ B.T @ P).real.max()) < 0


def test_between_the_solutions_of_a_riccati_equation_the_inequality_is_strict() -> None:
    torch.manual_seed(0)
    for n, rank in ((1, 1), (5, 2), (30, 0)):  # also where S is singular, and P has no largest solution
        F = torch.randn(n, n, dtype=D) / n**0.5 - 2.5 * torch.eye(n, dtype=D)
        B = 0.3 * torch.randn(n, rank, dtype=D) / n**0.5
        P = between_solutions(F, B @ B.T, torch.eye(n, dtype=D))
        left = P @ B @ B.T @ P + P @ F + F.T @ P + torch.eye(n, dtype=D)
        assert float(torch.linalg.eigvalsh(left)[-1]) < 0
        assert float(torch.linalg.eigvalsh(P)[0]) > 0
