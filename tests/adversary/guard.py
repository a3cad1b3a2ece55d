"""Trials in a process of their own: little memory, no network, a time limit for each, and a note of the one under way.

    python -m tests.adversary.guard MODULE FIRST COUNT FOLDER

runs MODULE.trial(seed, tally, folder) for COUNT seeds from FIRST on; one seed alone shows one failure again.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.adversary.tally import Tally, single_thread

SECONDS = 30  # of one core, for one call
_MEMORY = 8 * 2**30
_PATIENCE = 3600  # of a whole process, in which a call may hang that no signal reaches
_ROOT = Path(__file__).resolve().parents[2]


class TooLong(BaseException):
    """A call took longer than is allowed; no handler of ordinary errors may swallow it."""


def hurry(on: bool) -> None:
    """Start or stop the clock of one call."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS if on else 0)


def run(part: str, module: str, first: int, count: int, folder: Path, record: Callable[[str, object], None]) -> None:
    """Trials of a module; their counts go to the summary under the name of a part, and failures fail the test."""
    tally = Tally(part)
    _run(tally, module, first, count, folder)
    tally.finish(record)


def _run(tally: Tally, module: str, first: int, count: int, folder: Path) -> None:
    """All trials of a module, begun again after one that ends its process."""
    end = first + count
    while first < end:
        for name in ("results.json", "current.txt"):
            (folder / name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.adversary.guard", module, str(first), str(end - first), str(folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        environment |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}  # where data sets would be kept
        try:
            ended = subprocess.run(
                command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
            reason = f"it ended with {ended.returncode}: {ended.stderr[-500:]}"
        except subprocess.TimeoutExpired:
            reason = "it hangs"
        results = json.loads((folder / "results.json").read_text())
        tally.merge(results["counts"], results["failures"])
        if results["done"]:
            return
        seed = int((folder / "seed.txt").read_text())
        current = (folder / "current.txt").read_text() if (folder / "current.txt").exists() else "nothing was called"
        tally.fail(f"{module}: a process died", f"seed {seed}: {reason}; last called: {current}")
        first = seed + 1


def _refuse(*_: object, **__: object) -> NoReturn:
    raise OSError("there is no network here")


def _ring(_: int, __: FrameType | None) -> NoReturn:
    raise TooLong


def _main(name: str, first: int, count: int, folder: Path) -> None:
    work: Any = importlib.import_module(name)
    single_thread()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    socket.socket.connect = _refuse  # type: ignore[method-assign]
    signal.signal(signal.SIGPROF, _ring)
    place = folder / "work"  # what is written by a relative path lands here
    place.mkdir(exist_ok=True)
    os.chdir(place)
    tally = Tally(name)

    def write(done: bool) -> None:
        results = {"done": done, "counts": tally.counts, "failures": tally.failures}
        (folder / "results.json").write_text(json.dumps(results))

    for seed in range(first, first + count):
        (folder / "seed.txt").write_text(str(seed))
        if (seed - first) % 20 == 0:  # what a process that dies has counted since is lost
            write(False)
        work.trial(seed, tally, folder)
    write(True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]).resolve())
