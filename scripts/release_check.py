"""Build what is published, and try it in clean environments: `make release-check`.

The source archive and the wheel are installed with their requirements alone, the wheel with each extra alone, and with
all of them, each in an environment of its own, through constraints.txt. In each the fifteen lines of docs/start.md run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 6_000_000  # bytes of a wheel
START = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.S)
TRY = {  # after the fifteen lines, whose X and y are digits
    "sdp": "assert lben.certify(lben.LBEN(3, 4, 2, gamma=1.0), rigorous=True)",
    "ode": "lben.ContractingODE(1, 3, 1, rate=0.1).simulate(X[:2, :1], torch.zeros(2, 3), torch.linspace(0, 1, 3))",
    "qp": "lben.Projection(lben.Polyhedron(torch.eye(2), torch.ones(2)))(torch.rand(3, 2))",
    "attacks": "lben.attack(lben.LBEN(3, 4, 2, gamma=1.0).eval(), torch.rand(2, 3), torch.tensor([0, 1]), [0.1])",
    "experiments": "from lben.cli.main import app",
    "cluster": "import distributed",
    "onnx": "lben.export(lben.LBEN(3, 4, 2, gamma=1.0).eval(), accuracy=1e-3).to_onnx('small.onnx')",
    "sklearn": "import lben.sklearn; lben.sklearn.LBENClassifier().fit(X[:99, 200:203].numpy(), y[:99].numpy() > 4)",
    "parquet": "import pyarrow.parquet",
    "docs": "import myst_nb, furo, sphinx",
    "dev": "import pytest, ruff",
}


def run(*words: object, folder: Path) -> str:
    """What a command says; if it fails, all it says, and the end. One thread: several that wait take long."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, words)], cwd=folder, env=alone, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))[:200]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def environment(folder: Path, *wanted: object) -> Path:
    """A clean environment with what is wanted, and its folder of commands; nothing is compiled that is not imported."""
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-compile"]
    run(*pip, "--disable-pip-version-check", "-c", ROOT / "constraints.txt", *wanted, folder=folder)
    return folder / "bin"


def build(folder: Path) -> tuple[Path, Path]:
    """The source archive and the wheel, built in a clean environment and looked at by twine."""
    tools = environment(folder / "tools", "build", "twine", "hatchling")
    run(tools / "python", "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT, folder=folder)
    archive, wheel = next((folder / "dist").glob("*.tar.gz")), next((folder / "dist").glob("*.whl"))
    print(run(tools / "twine", "check", "--strict", archive, wheel, folder=folder).strip())
    for file in (archive, wheel):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    if wheel.stat().st_size >= LARGEST:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size} bytes, but must have fewer than {LARGEST}.")
    return archive, wheel


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as held:
        return message_from_bytes(held.read(next(name for name in held.namelist() if name.endswith("/METADATA"))))


def trials(archive: Path, wheel: Path, extras: list[str]) -> Iterator[tuple[str, str, str]]:
    """Name, what to install, and what to run besides the fifteen lines."""
    yield "archive", str(archive), ""
    yield "wheel", str(wheel), ""
    yield from ((extra, f"{wheel}[{extra}]", TRY[extra]) for extra in extras if extra != "all")
    yield "all", f"{wheel}[all]", ""


def check(name: str, wanted: str, extra: str, version: str, folder: Path) -> None:
    """Install, import, run the fifteen lines and what the extra is for; of all extras, the command."""
    began = time.monotonic()
    commands = environment(folder / name, wanted)
    place = folder / name / "work"
    place.mkdir()
    assert START is not None
    imported = f"import torch, lben\nassert lben.__version__ == {version!r}, lben.__version__\n"
    imported += f"assert str(lben.__file__).startswith({str(folder)!r}), lben.__file__\n"
    run(commands / "python", "-I", "-c", f"{imported}{START[1]}\n{extra}\n", folder=place)
    if name == "all":
        run(commands / "lben", "--help", folder=place)
    shutil.rmtree(folder / name)
    print(f"{name}: installed, imported and run in {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--only", nargs="*", help="the names of some trials: archive, wheel, an extra, all")
    only = options.parse_args().only
    with tempfile.TemporaryDirectory(prefix="lben-release-") as scratch:
        folder = Path(scratch)
        archive, wheel = build(folder)
        said = metadata(wheel)
        extras = said.get_all("Provides-Extra", [])
        if set(extras) != {*TRY, "all"}:
            sys.exit(f"What is tried of {', '.join(set(extras) ^ {*TRY, 'all'})}?")
        for name, wanted, extra in trials(archive, wheel, extras):
            if only is None or name in only:
                check(name, wanted, extra, said["Version"], folder)


if __name__ == "__main__":
    main()
