"""The page of surfaces in a browser: values, slopes and cones, for every activation that pages know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
        until(opened, "return lben.surfaces.every(surface => surface.values.length > 0)")
        yield opened


def test_values_and_slopes_are_those_of_python(page: Chrome, nets: dict[str, lben.EquilibriumNetwork]) -> None:
    places = (2 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1).tolist()
    values, slopes, inputs = page.execute_script(
        "const places = arguments[0], each = f => lben.networks.map(net => places.map(p => f(net, lben.inputs(...p))));"
        "return [each((net, x) => net.evaluate(x).y[0]),"
        "each((net, x) => [...net.gradient(net.solve(x), Float64Array.of(1), 1e-12)]), places.map(p => [...lben.inputs(...p)])]",
        places,
    )
    x = torch.tensor(inputs, dtype=torch.float64)
    center, reach = torch.tensor([170.0, 40.0]).double(), 3 * torch.tensor([10.0, 20.0]).double()
    assert torch.allclose(x, center + reach * torch.tensor(places, dtype=torch.float64))
    for k, net in enumerate(nets.values()):
        assert torch.allclose(torch.tensor(values[k]).double(), lben.enclose(net, x).y[:, 0], rtol=0, atol=1e-6)
        with torch.no_grad():
            steps = [0.001 * torch.eye(2, dtype=torch.float64)[i] for i in range(2)]
            rise = [(lben.enclose(net, x + s).y - lben.enclose(net, x - s).y)[:, 0] / 0.002 for s in steps]
        kinks = (torch.stack(rise, 1) - torch.tensor(slopes[k]).double()).abs().amax(dim=1) > 1e-5
        assert int(kinks.sum()) <= 1, list(nets)[k]


def test_no_surface_enters_its_cones(page: Chrome, nets: dict[str, lben.EquilibriumNetwork]) -> None:
    """All pairs of points of the grid that is drawn, in the target's unit; the bound is the tightest that is proved."""
    worst = page.execute_script(
        "return lben.surfaces.map(surface => { let most = 0; const v = surface.values;"
        "for (let i = 0; i < v.length; i += 4) for (let j = 0; j < v.length; j += 4)"
        "for (let k = 0; k < v.length; k++) for (let l = 0; l < v.length; l++) {"
        "const allowed = surface.rise((i - k) / 16, (j - l) / 16);"
        "if (allowed > 0) most = Math.max(most, Math.abs(v[j][i] - v[l][k]) / allowed) } return most })"
    )
    assert all(0.05 < share <= 1 + 1e-9 for share in worst), worst
    assert max(worst) > 0.5
    for k, net in enumerate(nets.values()):
        assert page.execute_script(f"return lben.networks[{k}].bound") == lben.tightest_bound(net).gamma
    shown = page.find_elements(By.CSS_SELECTOR, ".bound")
    for element, net in zip(shown, nets.values(), strict=True):
        bound = 12 * float(lben.tightest_bound(net).gamma or 0)
        assert bound <= float(element.text.split()[2].rstrip(",")) <= bound * 1.001


def test_names_and_units_are_those_of_the_table(page: Chrome) -> None:
    assert [element.text for element in page.find_elements(By.CSS_SELECTOR, "h2")][10] == ODD
    assert page.find_element(By.ID, "first-name").text == "height"
    assert page.find_element(By.CSS_SELECTOR, ".value-name").text == "weight here"
    page.execute_script("lben.move([0, 0])")
    value = float(page.find_element(By.CSS_SELECTOR, ".value").text)
    assert value == pytest.approx(page.execute_script("return 70 + 12 * lben.networks[0].evaluate(lben.inputs(0, 0)).y[0]"), rel=1e-3)  # fmt: skip
    assert page.find_element(By.ID, "first-shown").text == "170"


def test_the_cone_moves_and_the_surface_turns(page: Chrome) -> None:
    canvas = page.find_element(By.CSS_SELECTOR, ".scene")
    page.execute_script("lben.move([0, 0])")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert page.execute_script("return lben.state.at") == pytest.approx([0.05, 0.05])
    before = page.execute_script("return arguments[0].toDataURL()", canvas)
    ActionChains(page, duration=20).drag_and_drop_by_offset(canvas, 80, 10).perform()
    assert page.execute_script("return arguments[0].toDataURL()", canvas) != before
    at = page.execute_script("return lben.state.at")
    ActionChains(page, duration=20).move_to_element_with_offset(canvas, 30, 5).perform()
    assert page.execute_script("return lben.state.at") != at
    page.find_element(By.ID, "extent").send_keys(Keys.HOME)
    until(page, "return lben.state.extent === 0.5 && lben.surfaces.every(surface => surface.work.idle)")
    assert page.execute_script("return lben.surfaces[0].cuts.map(cut => cut.length)") == [61, 61]


def test_it_is_legible_and_complains_of_nothing(page: Chrome) -> None:
    assert overflow(page, 360) <= 0
    assert brightness(page, "light")[0] > 600 > 300 > brightness(page, "dark")[0]
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert complaints(page) == []


def test_the_page_of_the_documents_runs(page: Chrome, tmp_path: Path) -> None:
    visit(page, ROOT / "docs" / "surface.html")
    until(page, "return lben.surfaces.every(surface => surface.values.length > 0)")
    assert page.execute_script("return lben.networks.map(net => net.name)") == ["LBEN, γ = 1", "MON"]
    assert complaints(page) == []
