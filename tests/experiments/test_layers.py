"""The study of layers: every row trains, what is proved of it holds, it resumes, and its report has every cell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import lben
from lben.data import ImageData
from lben.experiments import layers
from lben.experiments.layers import Layers, Stacked, quick, rows, shaped
from lben.experiments.report import write_report
from lben.experiments.running import read_description, read_results, run, run_row, slug
from lben.experiments.stacks import Architecture, exported
from lben.train import CrossEntropy, Emma
from tests.problems import few_images

TINY = Architecture((1, 28, 28), 0.13, 0.31, channels=4, inner=(2, 3), depth=(1, 1), hidden=6)
OURS = ("plain", "SLL", "sandwich", "equilibrium", "mix", "mix EMMA")


def tiny(epochs: int = 1) -> dict[str, Layers]:
    return {row.name: replace(row, architecture=TINY) for row in quick(epochs)}


def some(train: int = 128, test: int = 8) -> ImageData:
    return few_images(train, test)


def trained(row: Layers, folder: Path) -> Stacked:
    """What `work` makes of a row, if it is in order and found again."""
    result = run_row(row, some(), folder)
    proved = result.proved
    assert len(result.history) == 1
    assert result.relative_seconds > 0
    assert run_row(row, some(), folder) == result
    if row.kind != "plain":
        assert proved.certified is not None
        assert proved.certified == sorted(proved.certified, reverse=True)
        assert all(low <= high for low, high in zip(proved.certified, proved.attacked, strict=True))
        assert proved.certified[0] <= 1 - proved.error
    return result


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OURS)
def test_every_row_trains_and_what_is_proved_of_it_holds(name: str, tmp_path: Path) -> None:
    row = tiny()[name]
    proved = trained(row, tmp_path).proved
    if name == "plain":
        assert proved.certified is None
        assert proved.bound is None
        return
    assert proved.bound is not None
    assert proved.bound <= TINY.gamma * (1 + 1e-6)


def test_the_row_of_layers_of_others_trains_and_is_proved_from_what_it_computes(tmp_path: Path) -> None:
    pytest.importorskip("orthogonium")
    result = trained(tiny()["orthogonium"], tmp_path)
    saved = lben.load(tmp_path / "network.safetensors").eval()
    assert isinstance(saved, lben.Sequential)
    assert result.proved.bound == pytest.approx(saved.bound(), rel=1e-6)
    assert saved.bound() <= TINY.gamma * 1.01  # as orthogonal as their iterations make them
    assert result.row["model"] == "orthogonium"


@pytest.mark.parametrize("name", ["SLL", "sandwich", "equilibrium", "mix"])
def test_the_bound_holds_between_images(name: str) -> None:
    net = tiny()[name].network().eval()
    assert isinstance(net, lben.Sequential)
    torch.manual_seed(0)
    x = torch.rand(20, 1, 28, 28)
    near = x + 0.05 * torch.randn_like(x)
    with torch.no_grad():
        moved = (net(near) - net(x)).norm(dim=1) / (near - x).flatten(1).norm(dim=1)
    assert float(moved.max()) <= TINY.gamma / TINY.std * (1 + 1e-4)


def test_rows_differ_in_their_layers_alone() -> None:
    for dataset in ("svhn", "cifar10"):
        table = rows(dataset)
        assert [row.name for row in table] == ["plain", "orthogonium", *OURS[1:]]
        plain, *others, _ = table
        alike = replace(plain.config, learning_rate=others[0].config.learning_rate)
        configs = [alike, *(row.config for row in others)]
        assert len({json.dumps(config.description()) for config in configs}) == 1
        assert len({row.architecture for row in table}) == 1
        assert isinstance(table[-1].config.loss, Emma)
        assert isinstance(table[0].config.loss, CrossEntropy)
        assert table[0].config.augment == ("flip and shift" if dataset == "cifar10" else "shift")


def test_the_full_architecture_fits_its_images() -> None:
    net = rows("svhn")[5].network()
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert net(torch.rand(2, 3 * 32 * 32)).shape == (2, 10)


def test_layers_of_others_are_certified_as_what_they_compute() -> None:
    pytest.importorskip("orthogonium")
    net = tiny()["orthogonium"].network().eval()
    plain = exported(net, TINY.in_shape)
    x = torch.rand(3, 1, 28, 28)
    assert torch.allclose(net(x), plain(x), atol=1e-4)
    assert [type(stage) for stage in plain if isinstance(stage, nn.Conv2d)] == 2 * [nn.Conv2d]
    assert plain.bound() <= TINY.gamma * 1.01


def test_a_run_of_some_rows_goes_on_with_the_others_and_is_reported(tmp_path: Path) -> None:
    chosen = [tiny()[name] for name in ("plain", "SLL", "mix")]
    options = {"title": "Layers <small>", "command": "lben reproduce layers", "study": layers.STUDY}
    first = run(chosen, some(), tmp_path, only=["sll"], **options)  # type: ignore[arg-type]
    assert [result.row["name"] for result in first] == ["SLL"]
    assert "2 of 3 rows are not finished" in write_report(tmp_path)[1].read_text()
    run(chosen, some(), tmp_path, **options)  # type: ignore[arg-type]
    found = read_results(tmp_path, read_description(tmp_path), Stacked)
    assert [slug(result.row["name"]) for result in found] == ["plain", "sll", "mix"]
    assert found[1] == first[0]
    page = write_report(tmp_path)[1].read_text()
    table = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert [line.count("|") for line in table] == [12] * 3
    assert f"{found[2].proved.parameters:,}" in table[2]
    assert (tmp_path / "report" / "figures" / "certified.svg").is_file()
    with pytest.raises(lben.InvalidInput, match="There is no row 'SLLs', but plain, SLL, mix"):
        run(chosen, some(), tmp_path, only=["SLLs"])
    changes: list[dict[str, object]] = [{"architecture": None}, {"config": {}}, {"architecture": {"depth": 3}}]
    for change in changes:
        file = tmp_path / "mix" / "result.json"
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "row": {**content["row"], **change}}))
        with pytest.raises(lben.InvalidFile, match="not the result of a row"):
            write_report(tmp_path)
        file.write_text(json.dumps(content))


def test_images_have_their_shape() -> None:
    data = shaped(some(), (1, 28, 28))
    assert data.train_images.shape == (128, 1, 28, 28)
    assert torch.equal(data.test_images.flatten(1), some().test_images)
