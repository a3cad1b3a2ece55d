"""ONNX files of exported networks."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lben.checks import need
from lben.disk import check_target, write_bytes
from lben.errors import InvalidInput

_OPSET = 17


def check_onnx(path: str | os.PathLike[str]) -> Any:
    """The package onnx, if this file can be written, its name says what it is, and the extra is there."""
    check_target(path)
    if Path(path).suffix.lower() != ".onnx":
        raise InvalidInput(f"{str(path)!r} must end in .onnx: that is the format that is written.")
    return need("onnx", "An ONNX file", extra="onnx")


def write_onnx(module: nn.Module, sample: Tensor, path: str | os.PathLike[str], metadata: dict[str, str]) -> None:
    """Write a module with one input, "x", and outputs "y" and "residual", with a batch of any size.

    By torch's exporter of traces, since that of whole programs takes many times as long.
    """
    onnx, content = check_onnx(path), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told to be replaced one day
        torch.onnx.export(
            module,
            (sample,),
            content,  # type: ignore[arg-type] # a buffer serves as well as a path
            input_names=["x"],
            output_names=["y", "residual"],
            dynamic_axes={name: {0: "batch"} for name in ("x", "y", "residual")},
            opset_version=_OPSET,
            dynamo=False,
        )
    model = onnx.load_from_string(content.getvalue())
    onnx.helper.set_model_props(model, metadata)
    model.doc_string = metadata["promise"]
    write_bytes(path, model.SerializeToString())
