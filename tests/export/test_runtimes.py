"""Exported networks in torch's own formats, in ONNX files and in onnxruntime, and from the command line."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import lben
from tests.cli.test_commands import call
from tests.export.networks import ACTIVATIONS, KINDS, Make, lively, with_activation
from tests.problems import name


def batches(made: lben.Exported) -> list[Tensor]:
    """Of one, and of more."""
    torch.manual_seed(2)
    return [torch.rand(count, *made.in_shape, dtype=made.dtype) for count in (1, 7)]


def agree(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert np.allclose(np.asarray(mine), np.asarray(theirs), atol=tolerance, rtol=0, equal_nan=True)


def exported(make: Make) -> lben.Exported:
    return lben.export(lively(make))  # type: ignore[arg-type]


def test_torch_export_with_any_batch() -> None:
    made = exported(KINDS["LBEN"])
    program = torch.export.export(made, (batches(made)[1],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for x in batches(made):
        agree(program.module()(x), made(x), 1e-6)
    assert not program.constants  # all are buffers


@pytest.mark.parametrize("kind", ["LBEN", "feed-forward", "deep"])
def test_torch_jit_trace(kind: str) -> None:
    made = exported(KINDS[kind])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        traced = torch.jit.trace(made, batches(made)[1])
    for x in batches(made):
        agree(traced(x), made(x), 1e-6)


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")  # the compiler's own
def test_torch_compile_without_breaks() -> None:
    made = exported(KINDS["LBEN"])
    compiled = torch.compile(made, fullgraph=True, backend="eager")
    for x in batches(made):
        agree(compiled(x), made(x), 1e-6)


def run(file: Path, x: Tensor) -> list[Any]:
    found: list[Any] = onnxruntime.InferenceSession(file).run(None, {"x": x.numpy()})
    return found


def check_onnx(made: lben.Exported, file: Path) -> None:
    made.to_onnx(file)
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["x", "y", "residual"]
    assert {entry.key: entry.value for entry in model.metadata_props}["promise"] == made.promise == model.doc_string
    for x in batches(made):
        agree(run(file, x), made(x))
    x[1].view(-1)[0] = torch.nan
    assert np.isnan(run(file, x)[1]).tolist() == [i == 1 for i in range(len(x))]


def test_onnx(tmp_path: Path) -> None:
    made = exported(KINDS["deep"])
    check_onnx(made, tmp_path / "net.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the compiler's own parts
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_onnx_and_compiled(kind: str, tmp_path: Path) -> None:
    made = exported(KINDS[kind])
    check_onnx(made, tmp_path / "net.onnx")
    program = torch.export.export(made, (batches(made)[1],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.compiler.reset()  # which counts how often one forward was compiled, and gives up after some
    compiled = torch.compile(made, fullgraph=True)
    for x in batches(made):
        agree(program.module()(x), made(x), 1e-6)
        agree(compiled(x), made(x), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_every_activation_in_onnx(activation: lben.Activation, tmp_path: Path) -> None:
    if isinstance(activation, lben.Elementwise):
        activation = lben.Elementwise(torch.tanh)  # onnxruntime has no softplus in double precision
    net = with_activation(activation)
    for dtype, accuracy in ((torch.float64, 1e-5), (torch.float32, 1e-2)):
        check_onnx(lben.export(net, accuracy=accuracy, dtype=dtype), tmp_path / "net.onnx")


# --- refusals, with nothing half-written


@pytest.mark.parametrize("file", ["net.pt", "net", "missing/net.onnx"])
def test_a_file_of_another_name_is_refused(file: str, tmp_path: Path) -> None:
    made = exported(KINDS["LBEN"])
    with pytest.raises(lben.InvalidInput, match=r"must end in .onnx|in a directory that exists"):
        made.to_onnx(tmp_path / file)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    made, real = exported(KINDS["LBEN"]), importlib.import_module

    def without(wanted: str, *rest: Any) -> Any:
        if wanted == "onnx":
            raise ModuleNotFoundError(wanted)
        return real(wanted, *rest)

    with (
        patch.object(importlib, "import_module", without),
        pytest.raises(lben.MissingExtra, match=r"An ONNX file needs onnx: pip install 'lben\[onnx\]'"),
    ):
        made.to_onnx(tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line(tmp_path: Path) -> None:
    source, target = tmp_path / "net.safetensors", tmp_path / "net.onnx"
    net = with_activation(lben.ReLU())
    lben.save(net, source)
    assert "must end in .onnx" in call("export", str(source), str(tmp_path / "net.pt"), code=1)
    assert "accuracy must be a finite number above 0" in call(
        "export", str(source), str(target), "--accuracy", "0", code=1
    )
    assert not target.exists()
    said = call("export", str(source), str(target), "--accuracy", "1e-3", "--low", "-1")
    assert "For every input with all entries in [-1, 1], the output is within 0.001" in said
    x = 2 * torch.rand(5, 4) - 1
    assert float((torch.from_numpy(run(target, x)[0]).double() - lben.enclose(net, x).y).norm(dim=1).max()) <= 1e-3
    assert "is there already: --force overwrites it" in call("export", str(source), str(target), code=1)
