"""What multipliers prove of rectifiers in a ball: true for everything in it, and exact where nothing is left open."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lben.numerics.multipliers import searched
from lben.numerics.relaxation import Question, Rectifiers, begun, most, proved

N, D = 4, 3


def problem(seed: int, fixed: int = 0) -> tuple[Rectifiers, Question, Tensor]:
    """Three questions about one network of N units, of which the first are off; and a metric."""
    g = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    W = random(N, N)
    W = W - (torch.linalg.eigvalsh((W + W.T) / 2)[-1] - 0.5) * torch.eye(N, dtype=torch.float64)
    off = torch.arange(N) < fixed
    A = ((torch.eye(N, dtype=torch.float64) - W) * ~off).expand(3, N, N)
    U, p = random(N, D), random(N)
    low, high = -torch.rand(D, generator=g, dtype=torch.float64), torch.rand(D, generator=g, dtype=torch.float64)
    many = torch.full((3, N), 50.0, dtype=torch.float64)
    G = (U @ U.T).expand(3, N, N)
    none = torch.zeros(3, N, dtype=torch.float64)
    k = Rectifiers(A, U.expand(3, N, D), G, p.expand(3, N), none, off.expand(3, N), 0.8, low, high)
    ask = Question(random(3), random(3, N) * ~off, random(3, N), random(3, D), many * ~off, many)
    return k, ask, torch.ones(3, N, dtype=torch.float64)


def reached(k: Rectifiers, ask: Question, count: int = 4000) -> Tensor:
    """The most of the functions over random inputs of the ball for which units that are off have s >= 0."""
    g = torch.Generator().manual_seed(0)
    x = k.low + (k.high - k.low) * torch.rand(count, D, generator=g, dtype=torch.float64)
    x = x[x.norm(dim=1) <= k.r]
    free = (~k.fixed[0]).nonzero()[:, 0]
    z = torch.zeros(len(x), N, dtype=torch.float64)
    for _ in range(4000):  # z = max(z - step s, 0) has z s = 0 where it rests
        s = z @ k.A[0].T - x @ k.U[0].T - k.p[0]
        z[:, free] = (z - 0.05 * s)[:, free].clamp(min=0)
    s = z @ k.A[0].T - x @ k.U[0].T - k.p[0]
    assert float((z * s)[:, free].abs().max()) < 1e-9
    fits = (s >= -1e-12).all(dim=1)
    values = ask.const + z @ ask.c.T + s @ ask.e.T + x @ ask.h.T
    return values[fits].amax(dim=0) if bool(fits.any()) else torch.full((3,), -torch.inf, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_true_and_a_search_improves_them(seed: int) -> None:
    k, ask, lam = problem(seed, fixed=seed % 3)
    z, s = (torch.zeros(3, N, dtype=torch.float64) for _ in range(2))
    everywhere, inside, weight = begun(k, ask, lam, z, s)
    found = searched(k, ask, inside, weight, enough=-torch.inf)
    truth = reached(k, ask)
    for m in (everywhere, inside, found):
        bound = proved(k, ask, m)
        assert bool((bound >= truth).all())
        assert bool((bound >= most(k, ask, m).t).all())
    assert bool((proved(k, ask, found) < proved(k, ask, inside)).all())
    assert torch.allclose(proved(k, ask, found), most(k, ask, found).t, rtol=1e-6, atol=1e-6)


def test_where_all_units_are_off_it_is_the_most_over_a_part_of_a_ball_and_a_box() -> None:
    k, ask, lam = problem(1, fixed=N)
    nothing = torch.zeros(3, N, dtype=torch.float64)
    k = replace(k, p=k.p - 100.0)  # so that s >= 0 and s <= bottom say nothing
    ask = replace(ask, bottom=torch.full((3, N), 1e3, dtype=torch.float64))
    _, inside, weight = begun(k, ask, lam, nothing, nothing)
    found = proved(k, ask, searched(k, ask, inside, weight, enough=-torch.inf))
    slopes = ask.h - (ask.e[:, None] @ k.U)[:, 0]
    best = []
    for slope in slopes:  # the most is at x = t slope within the box, t as large as the ball allows
        few, many = 0.0, 1e3
        for _ in range(100):
            middle = (few + many) / 2
            fits = float((middle * slope).clamp(k.low, k.high).norm()) <= k.r
            few, many = (middle, many) if fits else (few, middle)
        best.append((few * slope).clamp(k.low, k.high) @ slope)
    truth = ask.const - (ask.e * k.p).sum(dim=1) + torch.stack(best)
    assert bool((found >= truth).all())
    assert torch.allclose(found, truth, rtol=0, atol=1e-4)


def test_nothing_is_proved_by_multipliers_that_prove_nothing() -> None:
    k, ask, lam = problem(3)
    nothing = torch.zeros(3, N, dtype=torch.float64)
    everywhere, inside, _ = begun(k, ask, lam, nothing, nothing)
    assert bool(proved(k, ask, everywhere).isfinite().all())
    assert bool(proved(k, ask, replace(inside, s=-inside.s)).isinf().all())
    assert bool(proved(k, ask, replace(inside, both=-inside.both)).isinf().all())
    assert bool(proved(k, ask, replace(inside, ball=0 * inside.ball)).isinf().all())
    loose = replace(k, lost=torch.full((3, N), 0.1, dtype=torch.float64))
    assert bool((proved(loose, ask, inside) > proved(k, ask, inside)).all())
