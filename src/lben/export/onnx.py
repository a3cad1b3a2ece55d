"""ONNX files of exported networks."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lben.checks import need
from lben.disk import check_target, write_bytes
from lben.errors import InvalidInput

_OPSET = 18


def check_onnx(path: str | os.PathLike[str]) -> Any:
    """The package onnx, if this file can be written, its name says what it is, and the extra is there."""
    check_target(path)
    if Path(path).suffix.lower() != ".onnx":
        raise InvalidInput(f"{str(path)!r} must end in .onnx: that is the format that is written.")
    need("onnxscript", "An ONNX file", extra="onnx")
    return need("onnx", "An ONNX file", extra="onnx")


def write_onnx(module: nn.Module, sample: Tensor, path: str | os.PathLike[str], metadata: dict[str, str]) -> None:
    """Write a module with one input, "x", and outputs "y" and "residual", with a batch of any size."""
    onnx = check_onnx(path)
    with _quietly():
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


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter says of its own ways, which nobody here can change."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
