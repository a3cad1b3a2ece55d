"""The package: what it needs, what it ships, what it promises to type checkers."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import torch

import lben
from lben.data import embedded_mnist, pixels


def test_core_imports_need_torch_numpy_and_safetensors_alone() -> None:
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        extras = 'scipy rich cvxpy foolbox typer matplotlib pooch sklearn flint'.split()
        if name.split('.')[0] in extras:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import lben, lben.data
lben.LBEN(4, 3, 2, gamma=1.0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_public_name_is_there() -> None:
    for name in lben.__all__:
        assert hasattr(lben, name), name
    assert resources.files("lben").joinpath("py.typed").is_file()


def test_embedded_mnist() -> None:
    data = embedded_mnist()
    assert data.train_images.shape == (6000, 784)
    assert data.test_images.shape == (1000, 784)
    assert data.train_images.dtype == torch.uint8
    shares = torch.bincount(data.train_labels, minlength=10) / 6000
    assert float((shares - torch.bincount(data.test_labels, minlength=10) / 1000).abs().max()) < 0.01
    assert float(shares.min()) > 0.08
    x = pixels(data.test_images)
    assert float(x.min()) == 0.0
    assert float(x.max()) == 1.0
    folder = resources.files("lben").joinpath("embedded")
    assert len(folder.joinpath("mnist.npz").read_bytes()) < 2_500_000
    assert "CC BY-SA 3.0" in folder.joinpath("LICENSE-MNIST.txt").read_text()
