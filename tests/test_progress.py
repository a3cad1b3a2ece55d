"""Progress: a bar on a terminal after some seconds, none elsewhere, and lines where they are asked for."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lben import progress
from lben.progress import Show, bar, track

Terminal = Callable[[Show], str]


def drain(end: int, said: list[bytes]) -> None:
    """All that is written to the other end of a terminal, until it is closed."""
    try:
        while part := os.read(end, 4096):
            said.append(part)
    except OSError:  # the other end is closed
        pass


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Some work that shows its progress; what it writes to a terminal of 80 columns that is stderr."""
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)

    def work(show: Show) -> str:
        ours, theirs = pty.openpty()
        said: list[bytes] = []
        reader = threading.Thread(target=drain, args=(ours, said))
        reader.start()
        progress._console.cache_clear()
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            with bar("unconstrained ODE", 40, show=show) as shown:
                for step in range(40):
                    time.sleep(0.005)
                    shown.advance(1, f"epoch 40, loss 0.{step:03d}, error 11.00 %")
                shown.line("the end")
        reader.join()
        os.close(ours)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(said).decode())

    yield work
    progress._console.cache_clear()


def test_a_bar_appears_by_itself_on_a_terminal_and_leaves_nothing(on_a_terminal: Terminal) -> None:
    said = on_a_terminal(None)
    assert "epoch 40" in said
    assert "━" in said
    assert "the end" not in said


def test_no_bar_without_patience_a_terminal_or_rich(
    on_a_terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(progress, "PATIENCE", 1e9)
        assert on_a_terminal(None) == ""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rich.console", None)
        assert on_a_terminal(None) == ""
    assert on_a_terminal(False) == ""
    assert list(track(range(3), "work", 3, show=None)) == [0, 1, 2]
    assert capfd.readouterr().err == ""


def test_a_bar_that_is_asked_for_fits_into_eighty_columns(on_a_terminal: Terminal) -> None:
    said = on_a_terminal(True)
    shown = re.split(r"[\r\n]+", said)
    assert "unconstrained ODE: the end" in shown
    bars = [line for line in shown if "━" in line]
    assert bars
    for line in bars[1:]:
        assert len(line) <= 80
        assert "error 11.00 %" in line
        assert "…" not in line


@pytest.mark.parametrize("show", [True, "lines"])
def test_lines_need_no_terminal(show: Show, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("row", 2, show=show) as shown:
        shown.advance(2, "words")
        shown.line("epoch 1 [of] 2")
    assert capsys.readouterr().err == "row: epoch 1 [of] 2\n"


def test_lines_alone_draw_no_bar_on_a_terminal(on_a_terminal: Terminal) -> None:
    assert on_a_terminal("lines").split() == ["unconstrained", "ODE:", "the", "end"]
