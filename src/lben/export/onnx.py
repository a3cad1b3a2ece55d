"""ONNX files of exported networks."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from lben.checks import need
from lben.disk import check_target, write_bytes
from lben.errors import InvalidInput

_OPSET = 18


def check_onnx_target(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is not to be written, or whose name says something else."""
    check_target(path)
    if Path(path).suffix.lower() != ".onnx":
        raise InvalidInput(f"{str(path)!r} must end in .onnx: that is the format that is written.")


def write_onnx(module: nn.Module, sample: Tensor, path: str | os.PathLike[str], metadata: dict[str, str]) -> None:
    """Write a module with one input, "x", and outputs "y" and "residual", with a batch of any size."""
    check_onnx_target(path)
    onnx = need("onnx", "An ONNX file", extra="onnx")
    need("onnxscript", "An ONNX file", extra="onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own ways, which nobody here can change
        program = torch.onnx.export(
            module,
            (sample,),
            input_names=["x"],
            output_names=["y", "residual"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, metadata)
    model.doc_string = metadata["promise"]
    write_bytes(path, model.SerializeToString())
