"""The page of surfaces in a browser: values, slopes and cones, for every activation that pages know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

import lben
from lben.activations.scalar import TABLE
from lben.data.columns import Column, Columns, Target
from tests.export.browser import brightness, browser, complaints, overflow, until, visit
from tests.problems import ROOT

COLUMNS = Columns((Column("height"), Column("age")), (Target("weight", mean=70.0, std=12.0),))
ODD = "</script><b>LeakyReLU</b>"


def networks() -> dict[str, lben.EquilibriumNetwork]:
    """One for each activation, one with a skip, and one that is no LBEN."""
    torch.manual_seed(0)
    scale = lben.Normalize([170.0, 40.0], [10.0, 20.0], dtype=torch.float64)
    own: dict[str, lben.EquilibriumNetwork] = {
        kind.__name__: lben.LBEN(2, 6, 1, gamma=2.0, activation=kind(), normalize=scale) for kind in TABLE
    }
    own[ODD] = lben.LBEN(2, 6, 1, gamma=2.0, activation=lben.LeakyReLU(0.3), normalize=scale)
    own["skip"] = lben.LBEN(2, 6, 1, gamma=2.0, skip="linear", normalize=scale)
    own["MON"] = lben.MON(2, 6, 1, normalize=scale)
    for net in own.values():
        for parameter in net.parameters():
            parameter.data += 0.5 * torch.randn_like(parameter)
    return {name: net.eval() for name, net in own.items()}


@pytest.fixture(scope="module")
def nets() -> dict[str, lben.EquilibriumNetwork]:
    return networks()


@pytest.fixture(scope="module")
def page(nets: dict[str, lben.EquilibriumNetwork], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser() as opened:
        path = tmp_path_factory.mktemp("surface") / "page.html"
        lben.write_page(path, nets, columns=COLUMNS)
        visit(opened, path)
        yield opened


VALUES = """
const [places] = arguments, each = f => lben.surfaces.map(surface => places.map(place => f(surface, ...place)));
const slope = (net, x) => [...net.gradient(net.solve(x), Float64Array.of(1), 1e-12)];
return { inputs: places.map(place => [...lben.inputs(...place)]),
  values: each((surface, a, b) => surface.value(a, b, null).value),
  slopes: each((surface, a, b) => slope(surface.net, lben.inputs(a, b))),
  rises: each((surface, a, b) => places.map(([c, d]) => surface.rise(a - c, b - d))) };
"""


def test_values_and_slopes_are_those_of_python_and_within_the_cones(
    page: Chrome, nets: dict[str, lben.EquilibriumNetwork]
) -> None:
    places = 2 * torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    found = {key: torch.tensor(part).double() for key, part in page.execute_script(VALUES, places.tolist()).items()}
    x = found["inputs"]
    assert torch.allclose(x, torch.tensor([170.0, 40.0]) + 3 * torch.tensor([10.0, 20.0]) * places)
    steepest = []
    for k, net in enumerate(nets.values()):
        values, bound = found["values"][k], lben.tightest_bound(net).gamma
        assert torch.allclose(values, 70 + 12 * lben.enclose(net, x).y[:, 0], rtol=0, atol=1e-4)
        steps = 0.001 * torch.eye(2, dtype=torch.float64)
        rise = [(lben.enclose(net, x + step).y - lben.enclose(net, x - step).y)[:, 0] / 0.002 for step in steps]
        kinks = (torch.stack(rise, 1) - found["slopes"][k]).abs().amax(dim=1) > 1e-5
        assert int(kinks.sum()) <= 1, list(nets)[k]
        scaled = x / torch.tensor([10.0, 20.0])
        assert bound is not None
        assert torch.allclose(found["rises"][k], 12 * bound * torch.cdist(scaled, scaled), rtol=1e-5, atol=1e-5)
        steepest.append(float(((values[:, None] - values).abs() / found["rises"][k].fill_diagonal_(1e9)).max()))
    assert max(steepest) <= 1
    assert min(steepest) > 0.05


def test_names_and_units_are_those_of_the_table(page: Chrome, nets: dict[str, lben.EquilibriumNetwork]) -> None:
    assert [element.text for element in page.find_elements(By.CSS_SELECTOR, ".network h2")] == list(nets)
    assert page.find_element(By.ID, "first-name").text == "height"
    assert page.find_element(By.CSS_SELECTOR, ".value-name").text == "weight here"
    until(page, "return document.querySelector('.bound').textContent")
    page.execute_script("lben.move([0, 0])")
    assert page.find_element(By.ID, "first-shown").text == "170"
    net = nets["ReLU"]
    value = 70 + 12 * float(lben.enclose(net, torch.tensor([[170.0, 40.0]]).double()).y)
    assert float(page.find_element(By.CSS_SELECTOR, ".value").text) == pytest.approx(value, rel=1e-3)
    bound = 12 * float(lben.tightest_bound(net).gamma or 0)
    said = page.find_element(By.CSS_SELECTOR, ".bound").text
    assert said.endswith(", proved")
    assert bound <= float(said.split()[2].rstrip(",")) <= bound * 1.001
    assert complaints(page) == []


@pytest.fixture(scope="module")
def two(page: Chrome) -> Chrome:
    """The page of the documents, of two networks."""
    visit(page, ROOT / "docs" / "surface.html")
    until(page, "return lben.surfaces.every(surface => surface.values.length > 0)")
    return page


def test_no_surface_that_is_drawn_enters_its_cones(two: Chrome) -> None:
    worst = two.execute_script(
        "return lben.surfaces.map(surface => { let most = 0; const v = surface.values;"
        "for (let i = 0; i < v.length; i += 2) for (let j = 0; j < v.length; j += 2)"
        "for (let k = 0; k < v.length; k++) for (let l = 0; l < v.length; l++) {"
        "const allowed = surface.rise((i - k) / 16, (j - l) / 16);"
        "if (allowed > 0) most = Math.max(most, Math.abs(v[j][i] - v[l][k]) / allowed) } return most })"
    )
    assert all(0.5 < share <= 1 for share in worst), worst


def test_the_cone_moves_and_the_surface_turns(two: Chrome) -> None:
    canvas = two.find_element(By.CSS_SELECTOR, ".scene")
    two.execute_script("lben.move([0, 0])")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert two.execute_script("return lben.state.at") == pytest.approx([0.05, 0.05])
    before = two.execute_script("return arguments[0].toDataURL()", canvas)
    ActionChains(two, duration=20).drag_and_drop_by_offset(canvas, 80, 10).perform()
    assert two.execute_script("return arguments[0].toDataURL()", canvas) != before
    at = two.execute_script("return lben.state.at")
    ActionChains(two, duration=20).move_to_element_with_offset(canvas, 30, 5).perform()
    assert two.execute_script("return lben.state.at") != at
    two.find_element(By.ID, "extent").send_keys(Keys.HOME)
    until(two, "return lben.state.extent === 0.5 && lben.surfaces.every(surface => surface.work.idle)")
    assert two.execute_script("return lben.surfaces[0].cuts.map(cut => cut.length)") == [61, 61]


def test_it_is_legible_and_complains_of_nothing(two: Chrome) -> None:
    assert overflow(two, 360) <= 0
    assert brightness(two, "light")[0] > 600 > 300 > brightness(two, "dark")[0]
    assert two.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert complaints(two) == []
