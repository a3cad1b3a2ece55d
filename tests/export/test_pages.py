"""Pages as files: whole, self-contained, of what they say, and made again when anything of them has changed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lben
from lben.data.columns import Column, Columns, Target
from lben.export import pages
from tests.problems import ROOT

DOCS = {"play.html": "digits", "surface.html": "surface"}


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize("name", DOCS)
def test_pages_of_the_documents_are_current(name: str) -> None:
    """`python scripts/play.py` makes them again."""
    text = (ROOT / "docs" / name).read_text("utf-8")
    data = data_of(text)
    title = ", ".join(net["name"] for net in data["networks"])
    assert text == pages.filled(DOCS[name], title, data)
    assert len(text.encode()) < pages.MOST_BYTES


def test_the_page_of_digits_holds_the_networks_of_the_package() -> None:
    data = data_of((ROOT / "docs" / "play.html").read_text("utf-8"))
    assert data["images"] == pages._images()
    for described, name in zip(data["networks"], ("mnist-gamma-1", "mnist-mon"), strict=True):
        net = lben.pretrained(name)
        weights = net.weights()
        for key in ("W", "U", "bz", "Wo", "by", "lam"):
            packed = described[key]
            values = np.frombuffer(base64.b64decode(packed["data"]), packed["type"]).reshape(packed["shape"])
            # made by products whose order of sums is the machine's own
            assert np.allclose(values, getattr(weights, key).detach().numpy(), rtol=1e-5, atol=1e-6)
        assert described["bound"] == pytest.approx(lben.tightest_bound(net, domain="pixels").gamma, rel=1e-5)
        gamma = np.array(described["gamma"])
        assert np.array_equal(gamma, gamma.T)
        assert gamma.max() <= np.sqrt(2) * described["bound"] * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["digits", "surface"])
def test_all_of_the_code_is_in_the_page_and_nothing_elsewhere(kind: str) -> None:
    text = pages.filled(kind, "a & b", {"networks": []})
    assert "<title>" in text
    assert "a &amp; b</title>" in text
    assert "<!-- " not in text
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)
    assert not re.search(r"https?:|//\w+\.\w+/|\bsrc=|@import|url\(", text)
    assert "default-src 'none'" in text
    folder = Path(pages.__file__).parent / "page"
    needed = {file.name for file in folder.glob("*.js")}
    used = {file.name for file in folder.glob("*.js") if file.read_text("utf-8").splitlines()[0] in text}
    others = {
        "digits": {"surface.js", "scene.js"},
        "surface": {"digits.js", "panel.js", "pad.js", "attack.js", "drawing.js"},
    }
    assert used == needed - others[kind]


def test_numbers_are_packed_without_loss() -> None:
    for values, kind in (
        (torch.tensor([[1.5, 0.1]]), "float32"),
        (torch.tensor([0.1], dtype=torch.float64), "float64"),
        (torch.tensor([0, 255], dtype=torch.uint8), "uint8"),
    ):
        packed = pages.packed(values)
        assert packed["type"] == kind
        again = np.frombuffer(base64.b64decode(packed["data"]), np.dtype(kind).newbyteorder("<"))
        assert np.array_equal(again.reshape(packed["shape"]), values.numpy())


def columns(*texts: str) -> Columns:
    return Columns((Column("a", texts),), (Target("y"),))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: {}, "needs networks by their names"),
        (lambda: {1: lben.LBEN(2, 3, 1)}, "must be a text that can be shown, not 1"),
        (
            lambda: {"a": lben.LBEN(2, 3, 1), "b": lben.LBEN(2, 3, 1, normalize=lben.Normalize(0.0, 10.0))},
            "must all normalise their inputs, or none",
        ),
        (
            lambda: {"net": lben.LBEN(4, 3, 3)},
            "net has 4 inputs and 3 outputs: a page is made of dense networks of 784",
        ),
        (lambda: {"net": lben.LBEN(784, 3, 2)}, "net has 784 inputs and 2 outputs"),
        (
            lambda: {"net": lben.ConvLBEN((1, 28, 28), 1, 10, gamma=1.0)},
            "net is a ConvLBEN, which is not dense: a page",
        ),
        (lambda: {"net": lben.ODE(lben.LBEN(2, 3, 1))}, "net is a ODE: a page is made of"),
        (lambda: {"net": lben.Sequential(lben.LBEN(2, 3, 1))}, "net is a Sequential: a page is made of"),
        (lambda: {"a": lben.LBEN(2, 3, 1), "b": lben.LBEN(784, 3, 10)}, "a has 2 inputs, b has 784 inputs"),
        (
            lambda: {"net": lben.LBEN(2, 2, 1, activation=lben.Softmax(2))},
            "net has the activation .*: a page knows ReLU, LeakyReLU, Tanh",
        ),
        (lambda: {str(k): lben.LBEN(2, 600, 1) for k in range(2)}, "at most 3: give fewer networks, or smaller ones"),
    ],
)
def test_other_networks_are_refused_by_name(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(lben.InvalidInput, match=words):
        lben.write_page(tmp_path / "page.html", make())
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_proved_gets_no_page(tmp_path: Path) -> None:
    net = lben.UnconstrainedEN(2, 3, 1)
    net.parameterization.W.data = 3 * torch.eye(3)
    with pytest.raises(lben.NotWellPosed):
        lben.write_page(tmp_path / "page.html", {"net": net})


def test_texts_have_no_surface_and_names_must_say_html(tmp_path: Path) -> None:
    net = lben.LBEN(2, 3, 1, gamma=1.0)
    with pytest.raises(lben.InvalidInput, match="the column 'a' holds texts"):
        lben.write_page(tmp_path / "page.html", {"net": net}, columns=columns("no", "yes"))
    with pytest.raises(lben.InvalidInput, match=r"must end in \.html"):
        lben.write_page(tmp_path / "page.htm", {"net": net})
    with pytest.raises(lben.InvalidInput, match="directory that exists"):
        lben.write_page(tmp_path / "nowhere" / "page.html", {"net": net})


@pytest.mark.skipif(shutil.which("node") is None, reason="What pages compute is tried without a browser by node")
def test_what_pages_compute_is_right_without_a_browser() -> None:
    tests = str(Path(__file__).with_name("page.test.mjs"))
    run = subprocess.run(["node", "--test", tests], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr
    passed = re.search(r"pass (\d+)", run.stdout)
    assert passed is not None
    assert int(passed[1]) >= 25
