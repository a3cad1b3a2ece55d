"""Settings of all tests, and the counts of those that try to break what is claimed."""

from __future__ import annotations

import gc
from collections import Counter
from io import StringIO

import pytest
import torch
from hypothesis import HealthCheck, settings
from rich.console import Console

from tests.adversary.tally import total

GOLDEN = (5**0.5 - 1) / 2

# The same examples on every run, for the seed is fixed; how long they take is the affair of the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

torch.set_warn_always(True)  # torch gives many warnings only once a process, which would hide them from later tests


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked `sampled(k)`, one in k stays in `make test`; the others are for `make test-slow`.

    Which ones follows the golden ratio: a fixed stride would meet the same value of an inner parameter every time.
    """
    seen: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            name = item.nodeid.split("[")[0]
            if seen[name] * GOLDEN % 1 >= 1 / sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1


def pytest_collection_finish() -> None:
    """What is there when the tests begin stays: to look through it for garbage, again and again, takes time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What bars write, as if to a terminal."""
    written = StringIO()
    console = Console(file=written, force_terminal=True)
    monkeypatch.setattr("lben.progress._console", lambda: console)
    return written


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the adversary tried, in all processes together: a folder's own conftest is not read where xdist prints."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, []) if r.when == "call"]
    found = total(pair for report in reports for pair in report.user_properties)
    if found:
        terminalreporter.section("adversary")
    for part, counts in sorted(found.items()):
        terminalreporter.line(f"{part}: " + ", ".join(f"{number:,} {what}" for what, number in counts.items()))
