"""Files are written whole, behind links, and over nothing but files."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

import pytest

import lben
from lben.disk import check_target, make_folder, write_bytes

SOURCE = Path(lben.__file__).parent


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, first, second = tmp_path / "there" / "net", tmp_path / "first", tmp_path / "second"
    first.symlink_to(Path("there") / "net")  # to what is not there yet
    second.symlink_to(first)
    for content in (b"one", b"two"):
        write_bytes(second, content)
        assert target.read_bytes() == content
        assert first.is_symlink()
        assert second.is_symlink()
        assert not target.is_symlink()
        assert [file.name for file in target.parent.iterdir()] == ["net"]


def test_pipes_sockets_and_endless_links_are_refused_and_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        before = {file.name: file.lstat().st_mode for file in tmp_path.iterdir()}
        for name, kind in (
            ("pipe", "a pipe"),
            ("link", "a pipe"),
            ("socket", "a socket"),
            ("loop", "a link to itself"),
        ):
            with pytest.raises(lben.InvalidInput, match=f"'{name}' cannot be written: it is {kind}"):
                lben.save(lben.LBEN(2, 2, 2), name)
        assert {file.name: file.lstat().st_mode for file in tmp_path.iterdir()} == before
        assert stat.S_ISFIFO(Path("pipe").stat().st_mode)


@pytest.mark.parametrize("path", [3, None, b"net", "a\0b", "x" * 5000, "nowhere/net", "", "."])
def test_what_names_no_file_is_refused(path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lben.InvalidInput, match="cannot be written"):
        check_target(path)  # type: ignore[arg-type]
    with pytest.raises(lben.InvalidInput):
        write_bytes(path, b"content")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [3, None, "a\0b", "file", "file/inside"])
def test_what_names_no_folder_is_refused(path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(lben.InvalidInput, match="cannot be made"):
        make_folder(path)  # type: ignore[arg-type]


def test_files_are_written_in_one_place_only() -> None:
    """Nothing in the package opens, renames or saves a file by itself."""
    ways = re.compile(r"os\.replace|\.rename\(|\.write_text\(|open\(([^)]*, )?[\"'][wax]|torch\.save|save_file")
    direct = set()
    for file in SOURCE.rglob("*.py"):
        code = re.sub(r"^ *>>> .*$", "", file.read_text(), flags=re.MULTILINE)  # examples are a user's
        if ways.search(code) or re.search(r"\w\.write_bytes\(", code):
            direct.add(file.name)
    assert direct == {"disk.py"}


def test_permissions_stay(tmp_path: Path) -> None:
    file = tmp_path / "private"
    file.write_bytes(b"old")
    file.chmod(0o600)
    write_bytes(file, b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
