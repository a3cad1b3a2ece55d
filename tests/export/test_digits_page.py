"""The page of digits in a browser: what it computes is what Python computes, and what it claims holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.interaction import POINTER_TOUCH
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from torch import Tensor

import lben
from lben.data import embedded_mnist, pixels
from tests.export.browser import brightness, browser, complaints, frames, overflow, until, visit

NAMES = ("mnist-gamma-1", "mnist-mon")
EVALUATE = "return lben.images.map(x => lben.networks.map(net => { const at = net.evaluate(x); return %s }))"
ATTACK = """
const [which, images, share, size] = arguments, net = lben.networks[which];
return images.map(k => {
  const x = lben.images[k], at = net.evaluate(x), steps = lben.attack(net, x, at, size ?? share * net.radius(at));
  for (;;) {
    const step = steps.next();
    if (step.done) return { ...step.value, image: [...step.value.image], own: at.predicted };
  }
})
"""
INKED = """
const canvas = document.querySelector('.%s'), context = canvas.getContext('2d');
return context.getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """The page of docs, made on this machine: W is made by products whose order of sums is the machine's own."""
    file = tmp_path_factory.mktemp("page") / "play.html"
    with browser() as opened:
        lben.write_page(file, {name: lben.pretrained(name) for name in NAMES})
        visit(opened, file)
        yield opened


@pytest.fixture(scope="module")
def shown() -> tuple[Tensor, Tensor]:
    """The images of the page and their labels: the first five of each class among the embedded test images."""
    data = embedded_mnist()
    seen: dict[int, int] = {}
    chosen = []
    for k, label in enumerate(data.test_labels.tolist()):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= 5:
            chosen.append(k)
    return pixels(data.test_images[chosen], torch.float64), data.test_labels[chosen]


def test_images_and_outputs_are_those_of_python(page: Chrome, shown: tuple[Tensor, Tensor]) -> None:
    x, labels = shown
    assert len(x) == 50
    assert torch.equal(torch.tensor(page.execute_script("return lben.images.map(x => [...x])"), dtype=torch.float64), x)
    thumbs = page.find_elements(By.CSS_SELECTOR, "#thumbs button")
    assert [int(thumb.get_attribute("aria-label")[-1]) for thumb in thumbs] == labels.tolist()  # type: ignore[index]
    found = torch.tensor(page.execute_script(EVALUATE % "[...at.y]"), dtype=torch.float64)
    for k, name in enumerate(NAMES):
        net = lben.pretrained(name)
        assert torch.allclose(found[:, k], lben.enclose(net, x).y, rtol=0, atol=1e-9)
        net = net.double()
        net.solver = lben.PeacemanRachford(tolerance=1e-9)
        with torch.no_grad():
            assert float((found[:, k] - net(x)).abs().max()) < 1e-4


def compared(page: Chrome, x: Tensor, which: int, net: lben.EquilibriumNetwork, **options: Any) -> None:
    radius = lben.certified_radius(net, x, **options).radius
    found = torch.tensor(page.execute_script(EVALUATE % "net.radius(at)"), dtype=torch.float64)[:, which]
    assert bool((radius > 0).all())
    assert bool((found <= radius).all())
    assert bool((found >= radius * (1 - 1e-4)).all())


def test_radii_are_those_of_python_and_never_above(page: Chrome, shown: tuple[Tensor, Tensor]) -> None:
    compared(page, shown[0], 0, lben.pretrained(NAMES[0]), domain="pixels")  # type: ignore[arg-type]


@pytest.mark.slow
def test_radii_of_the_other_network_are_those_of_python(page: Chrome, shown: tuple[Tensor, Tensor]) -> None:
    compared(page, shown[0], 1, lben.pretrained(NAMES[1]), domain="pixels")  # type: ignore[arg-type]


@pytest.mark.parametrize(("which", "images"), [(0, range(50)), (1, range(0, 50, 5))])
def test_no_attack_succeeds_within_the_radius(page: Chrome, which: int, images: range) -> None:
    found = page.execute_script(ATTACK, which, list(images), 0.999, None)
    radii = page.execute_script(EVALUATE % "net.radius(at)")
    for k, attacked in zip(images, found, strict=True):
        assert attacked["predicted"] == attacked["own"]
        assert attacked["margin"] > 0
        assert 0.9 * radii[k][which] < attacked["length"] < radii[k][which]


def test_attacks_beyond_it_succeed_and_python_agrees(page: Chrome, shown: tuple[Tensor, Tensor]) -> None:
    images = list(range(0, 50, 5))
    for which, name in enumerate(NAMES):
        found = page.execute_script(ATTACK, which, images, None, 2.5)
        x = torch.tensor([attacked["image"] for attacked in found], dtype=torch.float64)
        assert bool(((x >= 0) & (x <= 1)).all())
        assert bool(((x - shown[0][images]).norm(dim=1) <= 2.5).all())
        classes = lben.enclose(lben.pretrained(name), x).y.argmax(dim=1)
        assert classes.tolist() == [attacked["predicted"] for attacked in found]
        assert sum(attacked["predicted"] != attacked["own"] for attacked in found) >= 8


def test_what_is_shown_is_what_is_proved(page: Chrome) -> None:
    for size, words in (("0.02", "Inside the certified radius no attack can succeed"), ("3", "Now a ")):
        page.execute_script("lben.choose(0); const s = document.getElementById('size'); s.value = arguments[0];"
                            "s.dispatchEvent(new Event('input'))", size)  # fmt: skip
        verdict = "document.querySelector('.verdict').textContent"
        said = until(page, f"return !{verdict}.startsWith('Attacking') && {verdict}")
        assert words in said
    radius = page.execute_script("return lben.panels[0].radius")
    text = page.find_element(By.CSS_SELECTOR, ".radius strong").text
    assert radius - 0.001 < float(text) <= radius
    bar = page.execute_script("return document.querySelector('.marks span').style.width")
    assert float(bar.rstrip("%")) == pytest.approx(100 * radius / 3, rel=1e-3)
    trace = page.execute_script("return lben.panels[0].at.trace")
    assert trace[0] > 1e-3
    assert trace[-1] <= 1e-13 < trace[-2]
    for canvas in ("residual", "logits", "lead", "attacked", "change"):
        assert until(page, INKED % canvas), canvas


def drawn(page: Chrome) -> list[int]:
    """The classes of what is drawn, after a look that it is something."""
    frames(page)
    assert page.execute_script("return lben.pad.strokes.flat().length") > 3
    x = page.execute_script("return [...lben.panels[0].x]")
    assert 20 < sum(x) < 200
    assert page.execute_script("return document.querySelectorAll('#thumbs [aria-checked=true]').length") == 0
    classes: list[int] = page.execute_script("return lben.panels.map(panel => panel.at.predicted)")
    page.find_element(By.ID, "clear").click()
    frames(page)
    assert page.execute_script("return lben.pad.strokes.length") == 0
    return classes


def test_a_digit_can_be_drawn_by_mouse(page: Chrome) -> None:
    page.execute_script("lben.choose(0)")
    pad = page.find_element(By.ID, "pad")
    chain = ActionChains(page, duration=20).move_to_element_with_offset(pad, -60, -80).click_and_hold()
    for offset in ((60, 0), (60, 0), (-30, 80), (-30, 80)):
        chain.move_by_offset(*offset)
    chain.release().perform()
    assert drawn(page) == [7, 7]


def test_a_digit_can_be_drawn_by_finger(page: Chrome) -> None:
    pad = page.find_element(By.ID, "pad")
    actions = ActionBuilder(page, mouse=PointerInput(POINTER_TOUCH, "finger"), duration=20)
    actions.pointer_action.move_to(pad, 0, -90).pointer_down()
    for height in (-30, 30, 90):
        actions.pointer_action.move_to(pad, 0, height)
    actions.pointer_action.pointer_up()
    actions.perform()
    assert drawn(page) == [1, 1]


def test_a_digit_can_be_drawn_by_keys(page: Chrome) -> None:
    page.find_element(By.ID, "pad").send_keys(*[Keys.ARROW_UP] * 8, " ", *[Keys.ARROW_DOWN] * 16, " ", Keys.ARROW_LEFT)
    assert drawn(page) == [1, 1]


def test_nothing_is_said_of_an_empty_pad(page: Chrome) -> None:
    page.execute_script("lben.choose(0)")
    panels = page.find_elements(By.CSS_SELECTOR, ".network")
    assert len(panels) == 2
    parts = (".class", ".radius", ".logits", ".verdict", ".lead")
    for empty in (False, True, False):
        if empty:
            page.find_element(By.ID, "clear").click()
        else:
            page.execute_script("lben.choose(1)")
        frames(page)
        for panel in panels:
            assert panel.find_element(By.CSS_SELECTOR, ".nothing").is_displayed() == empty
            assert all(panel.find_element(By.CSS_SELECTOR, part).is_displayed() != empty for part in parts)
            assert ("Draw a digit" in panel.text) == empty
        assert page.execute_script("return lben.panels.map(panel => panel.work.idle && !panel.at)") == [empty, empty]
        widths = page.execute_script("return [...document.querySelectorAll('.marks span')].map(bar => bar.style.width)")
        assert (widths == ["0%", "0%"]) == empty
    page.find_element(By.ID, "clear").click()
    assert until(page, "return document.getElementById('said').textContent === 'Nothing is drawn.'")
    assert complaints(page) == []


def test_everything_can_be_reached_by_keys(page: Chrome) -> None:
    page.execute_script("lben.choose(0)")
    page.find_element(By.CSS_SELECTOR, "#thumbs [tabindex='0']").send_keys(Keys.ARROW_RIGHT)
    second = page.switch_to.active_element
    assert second.get_attribute("aria-checked") == "true"
    assert "Test image 2" in (second.get_attribute("aria-label") or "")
    page.execute_script("document.getElementById('size').value = 1")
    page.find_element(By.ID, "size").send_keys(Keys.ARROW_RIGHT)
    assert page.find_element(By.ID, "shown").text == "1.02 pixels"
    assert page.execute_script("return lben.panels.map(panel => panel.size)") == [1.02, 1.02]
    said = until(page, "return document.getElementById('said').textContent")
    assert said.count("radius") == 2


def test_it_is_legible_on_a_phone_and_in_the_dark(page: Chrome) -> None:
    assert overflow(page, 360) <= 0
    light, dark = brightness(page, "light"), brightness(page, "dark")
    assert light[0] - light[1] > 450
    assert dark[1] - dark[0] > 450


def test_it_asks_nobody_and_complains_of_nothing(page: Chrome) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert complaints(page) == []


def test_other_activations_and_precisions_have_sound_radii(
    page: Chrome, shown: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = lben.LBEN(784, 6, 10, gamma=2.0, activation=lben.Tanh(), dtype=torch.float64).eval()
    for parameter in net.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    lben.write_page(tmp_path / "other.html", {"Tanh": net})
    visit(page, tmp_path / "other.html")
    compared(page, shown[0], 0, net)
    assert complaints(page) == []
