"""Progress: a bar on a terminal after some seconds, none elsewhere, and lines where they are asked for."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from lben.progress import Show, bar, track

WORK = """
import sys, time
from lben import progress
{before}
progress.PATIENCE = 0.05
with progress.bar("unconstrained ODE", 40, show={show!r}) as shown:
    for step in range(40):
        time.sleep(0.005)
        shown.advance(1, f"epoch 40, loss 0.{{step:03d}}, error 11.00 %")
    shown.line("the end")
"""


def on_a_terminal(show: Show, before: str = "", columns: int = 80) -> str:
    """What the work writes to a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    code = WORK.format(show=show, before=before)
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


def test_a_bar_appears_by_itself_on_a_terminal_and_leaves_nothing() -> None:
    said = on_a_terminal(None)
    assert "epoch 40" in said
    assert "━" in said
    assert "the end" not in said


def test_no_bar_without_patience_a_terminal_or_rich(capfd: pytest.CaptureFixture[str]) -> None:
    assert on_a_terminal(None, "progress.time.monotonic = lambda: 0.0") == ""
    assert on_a_terminal(None, "sys.modules['rich.console'] = None") == ""
    assert on_a_terminal(False) == ""
    assert list(track(range(3), "work", 3, show=None)) == [0, 1, 2]
    assert capfd.readouterr().err == ""


def test_a_bar_that_is_asked_for_fits_into_eighty_columns() -> None:
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


def test_lines_alone_draw_no_bar_on_a_terminal() -> None:
    assert on_a_terminal("lines").split() == ["unconstrained", "ODE:", "the", "end"]
