from __future__ import annotations

import os
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helmsman.base.files import create_once, replace_file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("content", ["text with ü\r\n", b"\xff\x00bytes"])
def test_a_file_is_replaced_byte_for_byte_and_nothing_lies_beside_it(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    replace_file(path, content)
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")
def test_its_mode_is_private_or_the_one_asked_for_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, mode, expected in [("own", 0o600, 0o600), ("shared", 0o664, 0o664), ("new", None, 0o640)]:
            replace_file(tmp_path / name, "", mode=mode)
            assert mode_of(tmp_path / name) == expected
    finally:
        os.umask(before)


def test_a_last_look_that_raises_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")

    def look() -> None:
        raise ValueError("somebody else was here")

    with pytest.raises(ValueError, match="somebody else"):
        replace_file(path, "new", last_look=look)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        replace_file(tmp_path / "nowhere" / "file", "")


@pytest.mark.parametrize("left", [None, ""])
def test_concurrent_creators_of_a_file_get_the_same_content(tmp_path: Path, left: str | None) -> None:
    path = tmp_path / "file"
    if left is not None:
        path.write_text(left, encoding="utf-8")  # as something killed in between leaves it
    together = threading.Barrier(8, timeout=10)

    def create(number: int) -> str:
        together.wait()
        return create_once(path, f"content {number}")

    with ThreadPoolExecutor(8) as pool:
        (got,) = set(pool.map(create, range(8)))
    assert path.read_text(encoding="utf-8") == got
    assert create_once(path, "later") == got


@pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")
def test_a_file_created_once_is_private_even_if_the_empty_file_was_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o644)
    create_once(path, "content")
    assert mode_of(path) == 0o600


def test_existing_files_are_read_on_a_read_only_disk(tmp_path: Path) -> None:
    create_once(tmp_path / "file", "content")
    (tmp_path / "file.lock").unlink()
    tmp_path.chmod(0o500)
    try:
        assert create_once(tmp_path / "file", "other") == "content"
    finally:
        tmp_path.chmod(0o700)
    assert not (tmp_path / "file.lock").exists()
