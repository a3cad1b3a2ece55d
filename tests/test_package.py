"""The package: what it needs, what it ships, what it promises to type checkers."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import lben
from lben import checks
from lben.data import embedded_mnist, pixels

WITHOUT_EXTRAS = """
import sys
for extra in "scipy rich cvxpy foolbox typer matplotlib pooch sklearn flint torchdiffeq".split():
    sys.modules[extra] = None  # its import now fails
import torch, lben
net = lben.LBEN(4, 3, 2, gamma=1.0)
x, y = torch.rand(2, 4), torch.tensor([0, 1])
"""


def run_without_extras(code: str) -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS + code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_core_imports_need_torch_numpy_and_safetensors_alone() -> None:
    run_without_extras(
        """
assert lben.certify(net).holds and lben.tightest_bound(net).holds and lben.well_posed(net).holds
assert lben.certified_radius(net, x, y).radius.shape == (2,)
assert lben.lipschitz_lower_bound(net, x, restarts=2, steps=2).value > 0
"""
    )


def test_a_missing_extra_says_which_to_install() -> None:
    run_without_extras(
        """
for call, words in (
    (lambda: lben.certify(net, rigorous=True), "rigorous=True needs flint: pip install 'lben[sdp]'."),
    (lambda: lben.tightest_bound(net, solver="scs"), "cvxpy: pip install 'lben[sdp]'."),
    (lambda: lben.ODE(net).simulate(x, torch.zeros(2, 3), x[0].sort().values), "torchdiffeq: pip install 'lben[ode]'."),
    (lambda: lben.attack(net, x, y, [1.0]), "foolbox: pip install 'lben[attacks]'."),
    (lambda: lben.certified_radius(net, x, y, progress=True), "rich.progress: pip install 'lben[experiments]'."),
    (lambda: __import__("lben.sklearn"), "lben.sklearn needs sklearn.base: pip install 'lben[sklearn]'."),
):
    try:
        call()
    except lben.MissingExtra as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
"""
    )


@pytest.mark.slow
def test_certify_is_the_function_whatever_is_imported() -> None:
    """`lben.certify` is a verb and its room has the same name: importing from the room must not hide the verb."""
    run_without_extras("import lben.certify.radius; from lben.certify import lower; assert lben.certify(net).holds")


@pytest.mark.slow
def test_what_the_readme_writes_needs_no_other_import() -> None:
    run_without_extras(
        """
assert callable(lben.train.fit) and lben.train.TrainConfig().epochs
assert callable(lben.data.mnist) and callable(lben.data.svhn) and lben.baselines.FeedForward(2, 3, 2)
assert isinstance(lben.__version__, str)
"""
    )


def test_the_version_is_that_of_the_package() -> None:
    assert lben.__version__ == version("lben")


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
    folder = resources.files("lben.data")
    assert len(folder.joinpath("mnist.npz").read_bytes()) < 2_500_000
    assert "CC BY-SA 3.0" in folder.joinpath("LICENSE-MNIST.txt").read_text()


def test_warnings_of_others_while_they_are_imported_are_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As errors they would be ours: an escape that is none is a syntax error then, from Python 3.12 on."""
    source = '"""A set: \\(x)."""\nimport warnings\nwarnings.warn("old", DeprecationWarning)\n'
    (tmp_path / "careless.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert checks.need("careless", "This test", extra="dev").__doc__ == "A set: \\(x)."
