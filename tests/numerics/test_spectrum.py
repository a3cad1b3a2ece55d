"""The lowest eigenvalue of many blocks and a matrix of low rank."""

from __future__ import annotations

import math

import torch

from lben.numerics.spectrum import lowest_eigenvalue
from lben.operators.grid import Grid, complex_form, transposed


def test_the_lowest_eigenvalue_is_found_whatever_is_added() -> None:
    """Blocks and columns of random numbers, against the matrix of all of them."""
    generator = torch.Generator().manual_seed(0)
    for signs in ([], [1.0], [-1.0], [1.0, -1.0, -1.0], [1.0, 1.0]):
        D = torch.randn(4, 3, 3, generator=generator, dtype=torch.complex128)
        D = D + D.mH
        R = torch.randn(4, 3, len(signs), generator=generator, dtype=torch.complex128).real.to(torch.complex128)
        J = torch.tensor(signs, dtype=torch.float64)
        blocks = [torch.cat([torch.cat([d.real, -d.imag], 1), torch.cat([d.imag, d.real], 1)]) for d in D]
        columns = torch.cat([torch.cat([r.real, r.imag]) for r in R])
        whole = torch.block_diag(*blocks) + columns @ torch.diag(J) @ columns.T
        twice = torch.full((4,), 2)
        expected = float(torch.linalg.eigvalsh(whole)[0])
        assert math.isclose(lowest_eigenvalue(D, R, J, twice), expected, rel_tol=1e-10)


def test_the_lowest_eigenvalue_is_found_among_poles() -> None:
    """Among columns of all sizes, also more than there are rows, as pooling over the whole image has them: where an
    eigenvalue lies next to one of the blocks, rounding once decided what was counted.
    """
    generator = torch.Generator().manual_seed(0)
    for draw in range(300):
        height, width, channels = ((1, 1, 3), (1, 1, 2), (3, 5, 3))[draw % 3]
        grid = Grid(height, width, torch.zeros((), dtype=torch.float64))
        kernel = torch.randn(channels, channels, 3, 3, generator=generator, dtype=torch.float64)
        kernel = kernel + transposed(kernel)
        size = 10 ** (10 * torch.rand((), generator=generator, dtype=torch.float64) - 8)
        columns = size * torch.randn(height * width * channels, 1 + draw % 4, generator=generator, dtype=torch.float64)
        J = torch.randint(0, 2, (columns.shape[1],), generator=generator).to(torch.float64) * 2 - 1
        whole = grid.convolve(grid.blocks(kernel), torch.eye(len(columns), dtype=torch.float64))
        expected = torch.linalg.eigvalsh(whole + columns * J @ columns.T)
        D, R = torch.complex(*grid.symbol(kernel)), complex_form(grid.forward(columns))
        error = abs(lowest_eigenvalue(D, R, J, grid.multiplicity) - float(expected[0]))
        assert error <= 1e-12 * float(expected.abs().max())
