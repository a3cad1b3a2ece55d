"""The regions of the two-by-two example."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lben
from lben.experiments.regions import read_regions, regions, reproduce_regions


def test_regions_are_those_of_the_example(tmp_path: Path) -> None:
    found = regions(17, extent=4.0)
    W12, W22 = found.W12[None, :], found.W22[:, None]
    assert torch.equal(found.diagonal_metric, (W22 < 1).expand(17, 17))
    assert torch.equal(found.monotone, (W22 < 1) & (4 * (1 - W22) - W12**2 > 1e-9))
    assert bool((found.diagonal_metric | ~found.monotone).all())
    assert bool((found.perron_frobenius | ~found.norm).all())
    assert int(found.diagonal_metric.sum()) > int(found.monotone.sum())
    written = reproduce_regions(tmp_path, 9)
    assert torch.equal(read_regions(tmp_path / "regions.json").monotone, written.monotone)
    (tmp_path / "regions.json").write_text("[]")
    with pytest.raises(lben.InvalidFile, match="does not hold regions"):
        reproduce_regions(tmp_path)
