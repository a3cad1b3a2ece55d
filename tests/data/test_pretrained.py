"""The networks that ship with the package, and those beside it: they are what their cards say."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from importlib import resources
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import lben
from lben.data import ENVIRONMENT, ImageData, embedded_mnist, mnist, pixels
from lben.train import error_rate
from tests.problems import ROOT

DATA = Path(str(resources.files("lben.data")))
GAMMAS = ("0.2", "0.4", "0.8", "1", "5", "none")
NAMES = [*(f"mnist-gamma-{gamma}" for gamma in GAMMAS), "mnist-mon"]
WIDE = [ROOT / "docs" / "results" / "mnist-certified" / name for name in ("for-0.3-pixels", "for-1.58-pixels")]


def test_all_are_listed_and_small() -> None:
    cards = lben.pretrained()
    assert [card.name for card in cards] == NAMES
    assert str(cards).count("\n") == len(cards) - 1
    for card, line in zip(cards, str(cards).splitlines(), strict=True):
        assert line.startswith(f"{card.name}: ")
        assert f"{100 * card.error:.2f} % error" in line
        assert f"Lipschitz bound {card.bound:.4g}" in line
    assert sum(file.stat().st_size for name in NAMES for file in DATA.glob(f"{name}.*")) < 3_000_000
    assert sorted(file.name for file in DATA.glob("*.safetensors")) == sorted(f"{name}.safetensors" for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_agrees_with_what_the_embedded_images_can_tell(name: str) -> None:
    """A thousand of the ten thousand test images: the error is that of the card, but for the luck of the draw."""
    net = lben.pretrained(name)
    card = next(card for card in lben.pretrained() if card.name == name)
    assert not net.training
    assert net.parameterization.U.dtype == torch.float32
    assert (type(net).__name__, net.gamma, net.hidden_features) == (card.kind, card.gamma, card.hidden)
    assert card.gamma is None or (card.bound <= card.gamma and lben.certify(net))
    assert card.seed == 0
    assert set(card.versions) == {"lben", "torch", "Python"}
    assert list(card.certified.values()) == sorted(card.certified.values(), reverse=True)
    data = embedded_mnist()
    error, unanswered = error_rate(net, data.test_images, data.test_labels)
    assert unanswered == 0
    assert abs(error - card.error) < 5 * (card.error / len(data.test_labels)) ** 0.5
    assert lben.tightest_bound(net).gamma == pytest.approx(card.bound, rel=1e-3)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(lben.InvalidInput, match=r"no pretrained network 'mnist': there are mnist-gamma-0\.2, "):
        lben.pretrained("mnist")


def test_a_file_that_its_card_is_not_about_is_refused(tmp_path: Path) -> None:
    shutil.copy(DATA / "mnist-mon.json", tmp_path / "mnist-mon.json")
    lben.save(lben.MON(784, 80, 10), tmp_path / "mnist-mon.safetensors")
    with patch("importlib.resources.files", return_value=tmp_path), pytest.raises(lben.InvalidFile, match="its card"):
        lben.pretrained("mnist-mon")


def everything() -> ImageData:
    """MNIST, if its folder is named: a test does not download."""
    if not os.environ.get(ENVIRONMENT):
        pytest.skip(f"{ENVIRONMENT} does not name a folder with MNIST")
    try:
        return mnist(os.environ[ENVIRONMENT])
    except lben.DataNotFound as error:
        pytest.skip(str(error))


def check(net: object, card: lben.Card) -> None:
    """Measure again what a card says; machines may differ in the last image. A quarter of an hour for 750 units."""
    data = everything()
    x, y = pixels(data.test_images), data.test_labels
    one = 1.5 / len(y)
    assert card.images == len(y)
    assert error_rate(net, data.test_images, y)[0] == pytest.approx(card.error, abs=one)  # type: ignore[arg-type]
    assert lben.tightest_bound(net).gamma == pytest.approx(card.bound, rel=1e-4)  # type: ignore[arg-type]
    radii = [float(radius) for radius in card.certified]
    found = lben.certified_accuracy(net, x, y, radii, domain="pixels")  # type: ignore[arg-type]
    for share, said in zip(found.accuracy.tolist(), card.certified.values(), strict=True):
        assert share == pytest.approx(said, abs=2 * one)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_measured_again_from_the_file(name: str) -> None:
    check(lben.pretrained(name), next(card for card in lben.pretrained() if card.name == name))


@pytest.mark.slow
@pytest.mark.parametrize("folder", WIDE, ids=lambda folder: folder.name)
def test_the_wide_networks_beside_the_package_are_what_their_cards_say(folder: Path) -> None:
    file = folder / "network.safetensors"
    card = lben.Card(**json.loads(file.with_suffix(".json").read_text()))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == card.sha256
    check(lben.load(file).eval(), card)
