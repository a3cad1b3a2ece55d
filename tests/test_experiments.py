"""The experiments: every row runs, its bound holds, and what is done is not done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lben
from lben.data import ImageData, embedded_mnist
from lben.experiments.mnist import PAPER, ROWS, Row, network, run, run_row, slug
from lben.experiments.regions import regions

QUICK = replace(PAPER, epochs=2, learning_rate=5e-3)


def small() -> ImageData:
    data = embedded_mnist()
    return ImageData(data.train_images[:1000], data.train_labels[:1000], data.test_images[:100], data.test_labels[:100])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: slug(row.name))
def test_every_row_trains_two_epochs_and_its_bound_holds(row: Row, tmp_path: Path) -> None:
    result = run_row(replace(row, hidden=15), small(), tmp_path, QUICK)
    assert len(result.history) == 2
    assert 0 <= result.error <= 1
    assert result.multi_step == sorted(result.multi_step)
    assert result.single_step[0] == pytest.approx(result.error, abs=0.02)
    if result.tight is not None:
        assert result.lower <= result.tight
        assert result.certified == sorted(result.certified or [], reverse=True)
        assert result.lower_proved
        assert result.share is not None
        assert 0 <= result.share <= 1
    assert (result.upper is None) == (row.gamma is None)
    if result.upper is not None and result.tight is not None:
        assert result.tight <= result.upper == row.gamma
    if isinstance(network(row, 0), lben.EquilibriumNetwork):
        assert lben.load(tmp_path / "network.safetensors").gamma == row.gamma


def test_all_equilibrium_models_start_at_one_point() -> None:
    nets = {row.name: network(row, 3) for row in ROWS}
    states = {name: net.state_dict() for name, net in nets.items() if isinstance(net, lben.EquilibriumNetwork)}
    for state in states.values():
        for part in ("U", "bz", "Wo", "by"):
            assert torch.equal(state[f"parameterization.{part}"], states["MON"][f"parameterization.{part}"])
    W = [nets[name].weights().W for name in ("MON", "UNC", "LBEN γ<∞")]
    assert torch.equal(W[0], W[1])
    assert torch.equal(W[0], W[2])
    lam = nets["LBEN γ=1"].weights().lam
    assert lam is not None
    assert torch.equal(lam, torch.ones(80))


def test_side_by_side_and_again(tmp_path: Path) -> None:
    rows = [replace(row, hidden=10) for row in ROWS if row.name in ("MON", "plain")]
    first = run(rows, small(), tmp_path, QUICK, jobs=2)
    assert [result.row["name"] for result in first] == ["MON", "plain"]
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/result.json"))]
    again = run(rows, small(), tmp_path, QUICK)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/result.json"))] == written
    assert again == first
    with pytest.raises(lben.InvalidFile, match="other options"):
        run(rows, small(), tmp_path, replace(QUICK, seed=1))
    (tmp_path / "mon" / "result.json").write_text("{}")
    with pytest.raises(lben.InvalidFile, match="not the result of a row"):
        run(rows, small(), tmp_path, QUICK)


def test_regions_are_those_of_the_example() -> None:
    found = regions(17, extent=4.0)
    W12, W22 = found.W12[None, :], found.W22[:, None]
    assert torch.equal(found.diagonal_metric, (W22 < 1).expand(17, 17))
    assert torch.equal(found.monotone, (W22 < 1) & (4 * (1 - W22) - W12**2 > 1e-9))
    assert bool((found.diagonal_metric | ~found.monotone).all())
    assert bool((found.perron_frobenius | ~found.norm).all())
    assert int(found.diagonal_metric.sum()) > int(found.monotone.sum())
