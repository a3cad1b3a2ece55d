"""Lightning and skorch train a network without anything made for them: the two examples, in small."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.problems import ROOT


def example(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*deprecated")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.parametrize("name", ["lightning_digits", "skorch_digits"])
def test_the_example_learns_and_proves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    accuracy, certificate, share = example(name).run(hidden=12, epochs=2, images=400)
    assert accuracy > 0.3  # a tenth by chance
    assert certificate
    assert certificate.gamma == 1.0
    assert 0 < share <= accuracy
    assert list(tmp_path.iterdir()) == []
