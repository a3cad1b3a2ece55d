"""A real browser, without a window, for what pages do in one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser() -> Iterator[Chrome]:
    """Chromium, driven by chromedriver; a test is skipped where either is not there."""
    program = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Pages are tried in Chromium: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = Chrome(options=options, service=ChromeService(driver))
    try:
        opened.set_script_timeout(120)
        yield opened
    finally:
        opened.quit()


def visit(page: Chrome, path: Path) -> None:
    """Open a file, and forget what was said before."""
    page.get(path.resolve().as_uri())
    until(page, "return 'lben' in window")


def until(page: Chrome, script: str, seconds: float = 60) -> Any:
    """What a script returns, as soon as that is true."""
    return WebDriverWait(page, seconds).until(lambda driver: driver.execute_script(script))


def frames(page: Chrome) -> None:
    """Wait until the page has drawn what it was told."""
    page.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")


def complaints(page: Chrome) -> list[str]:
    """What the browser's console says, since it was asked last."""
    return [entry["message"] for entry in page.get_log("browser")]


def overflow(page: Chrome, width: int) -> int:
    """By how many pixels a page is wider than a screen of this width, as that of a phone."""
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    found: int = page.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return found


def brightness(page: Chrome, scheme: str) -> tuple[int, int]:
    """Of the ground and of the text, where the user prefers this scheme of colours."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    ground, text = page.execute_script(
        "const style = getComputedStyle(document.body);"
        "return [style.backgroundColor, style.color].map(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))"
    )
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return ground, text
