"""The report: it renders, its tables have every cell, and a browser opens its page without an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lben
from lben.experiments.mnist import quick, rows
from lben.experiments.page import NONE
from lben.experiments.regions import reproduce_regions
from lben.experiments.report import write_report
from lben.experiments.running import run
from lben.experiments.study import read_run
from tests.experiments.hasty import hasty
from tests.problems import few_images

FIGURES = ("error-against-lipschitz", "attacks", "training", "regions")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    names = ("LBEN γ=1", "MON", "Lip-NN")
    chosen = [replace(row, hidden=6) for row in quick(rows("paper"), epochs=1) if row.name in names]
    with hasty():
        run(chosen, few_images(128, 12), folder, title="A tiny <run>", command="lben reproduce mnist")
    reproduce_regions(folder, 11)
    write_report(folder)
    return folder


class Reader(HTMLParser):
    """The cells of all tables, row by row, and the sources of all images."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.images: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
            self.inside = True
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "td"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def test_every_cell_is_there(tiny: Path) -> None:
    reader = Reader()
    page = (tiny / "report" / "index.html").read_text()
    reader.feed(page)
    body = [row for row in reader.rows if row]
    assert [row[0] for row in body] == 2 * ["LBEN γ=1", "MON", "Lip-NN"] + ["LBEN γ=1", "MON"]
    assert [{len(row) for row in part} for part in (body[:3], body[3:6], body[6:])] == [{13}, {10}, {8}]
    assert all(cell.strip() for row in body for cell in row)
    bounded = body[0]
    assert NONE not in bounded
    assert bounded[1] == "2.36"
    assert bounded[7:9] == ["1", "1"]
    assert NONE not in body[3]
    assert all(NONE not in row for row in body[6:])
    assert body[2][1] == "3.55"
    assert float(body[5][9]) > 1  # an epoch of Lip-NN costs more than a plain one
    found = read_run(tiny)[1][0].measured
    assert float(bounded[2]) == pytest.approx(100 * found.error, abs=0.006)
    assert "A tiny &lt;run&gt;" in page


def test_markdown_says_the_same(tiny: Path) -> None:
    reader = Reader()
    reader.feed((tiny / "report" / "index.html").read_text())
    lines = (tiny / "report" / "index.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    body = [row for row in table if row[0] not in ("model", ":---")]
    assert body == [row for row in reader.rows if row]
    for name in FIGURES:
        assert f"figures/{name}.svg" in "\n".join(lines)


def test_figures_are_written_twice_and_the_page_needs_nothing_else(tiny: Path) -> None:
    place = tiny / "report" / "figures"
    assert {path.name for path in place.iterdir()} == {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")}
    page = (tiny / "report" / "index.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert len(reader.images) == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in reader.images)
    assert not re.search(r'(src|href)="(?!data:)', page)
    before = (place / "training.svg").read_bytes()
    write_report(tiny)
    assert (place / "training.svg").read_bytes() == before


def test_no_label_is_cut(tiny: Path) -> None:
    """Labels along the y-axis have their base line in the figure, with the height of a letter before it."""
    for name in FIGURES:
        text = (tiny / "report" / "figures" / f"{name}.svg").read_text()
        places = [float(x) for x in re.findall(r"translate\(([-\d.]+) [-\d.]+\) rotate\(-90\)", text)]
        assert places, name
        assert min(places) > 8, name


def test_the_report_counts_the_images_that_there_are(tiny: Path) -> None:
    page = (tiny / "report" / "index.md").read_text()
    assert "one step, on all 12 test images." in page
    assert "2,000" not in page


def test_the_legend_of_the_attacks_names_what_is_proved(tiny: Path) -> None:
    assert "<!-- at most, proved -->" in (tiny / "report" / "figures" / "attacks.svg").read_text()


def test_an_unfinished_run_says_so(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "part")
    (tmp_path / "part" / "mon" / "result.json").unlink()
    page = write_report(tmp_path / "part")[1].read_text()
    assert "1 of 3 rows are not finished" in page
    for name in ("lben-gamma-1", "lip-nn"):
        (tmp_path / "part" / name / "result.json").unlink()
    (tmp_path / "part" / "regions.json").unlink()
    assert "3 of 3 rows are not finished" in write_report(tmp_path / "part")[1].read_text()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lben.InvalidFile, match=r"no run\.json"):
        write_report(tmp_path)
    (tmp_path / "run.json").write_text('{"title": 1}')
    with pytest.raises(lben.InvalidFile, match="does not describe a run"):
        write_report(tmp_path)


def test_the_page_opens_in_a_browser(tiny: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed (Debian's package chromium)")
    picture = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--enable-logging=stderr", "--v=0", "--window-size=1200,3000", "--virtual-time-budget=5000"]
    page = (tiny / "report" / "index.html").as_uri()
    shot = subprocess.run(
        [chromium, *options, f"--screenshot={picture}", page], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in shot.stderr
    assert picture.stat().st_size > 50_000
    dumped = subprocess.run([chromium, *options, "--dump-dom", page], capture_output=True, text=True, timeout=120)
    cells = (tiny / "report" / "index.html").read_text().count("<td>")
    assert dumped.stdout.count("<td>") == cells > 50
