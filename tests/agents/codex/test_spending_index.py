"""Tests of the cached spending of all sessions: read once, read again after a change, and never trusted blindly.

A change that keeps size and time reveals whether a file was read again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.codex.storage import CodexSessions
from helmsman.agents.spending import SpendingIndex
from tests.agents.codex.test_rollout_usage import HEAD, begin, count, written

ID = "0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f0{}"


class Places:
    """CODEX_HOME and state directory."""

    def __init__(self, folder: Path) -> None:
        self.home, self.state = folder / "codex", folder / "state"

    def write(self, number: int, *entries: dict[str, Any], folder: str = "sessions/2026/11/15") -> Path:
        session_id = ID.format(number)
        path = self.home / folder / f"rollout-2026-11-15T12-00-0{number}-{session_id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"type": "session_meta", "payload": {**HEAD["payload"], "id": session_id}}  # type: ignore[dict-item]
        path.write_bytes(written(*entries, head=head).getvalue())
        return path

    def spent(self) -> dict[str, int]:
        """Read with a new process's empty cache."""
        sessions = SpendingIndex(CodexSessions(self.home), self.state).sessions()
        return {session.session_id[-1]: sum(turn.input_tokens for turn in session.turns) for session in sessions}

    @property
    def cache(self) -> Path:
        (file,) = self.state.glob("usage-*")
        return file


def change_unseen(path: Path, old: int, new: int) -> None:
    """Change the content of a file without changing its size and time."""
    time = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b'"input_tokens":%d' % old, b'"input_tokens":%d' % new))
    os.utime(path, ns=(time, time))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_each_file_is_read_once_and_again_when_it_has_grown(places: Places) -> None:
    first = places.write(1, begin("t1"), count(10))
    places.write(2, begin("t2"), count(20))
    places.write(3, begin("t3"), count(30), folder="archived_sessions")
    assert places.spent() == {"1": 10, "2": 20, "3": 30}
    change_unseen(first, 10, 99)
    assert places.spent() == {"1": 10, "2": 20, "3": 30}
    places.write(2, begin("t2"), count(20), begin("t4"), count(50))
    assert places.spent() == {"1": 10, "2": 50, "3": 30}
    os.utime(first)
    assert places.spent() == {"1": 99, "2": 50, "3": 30}


def test_one_index_sees_what_changes_while_it_lives(places: Places) -> None:
    index = SpendingIndex(CodexSessions(places.home), places.state)
    assert index.sessions() == []
    path = places.write(1, begin("t1"), count(10))
    assert len(index.sessions()) == 1
    path.unlink()
    assert index.sessions() == []
    assert places.spent() == {}


def test_an_invalid_session_is_left_out(places: Places) -> None:
    places.write(1).write_text("no session\n", encoding="utf-8")
    for _ in range(2):
        assert places.spent() == {}


def test_a_compressed_session_counts(places: Places) -> None:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    path = places.write(1, begin("t1"), count(10))
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(zstd.compress(path.read_bytes()))
    path.unlink()
    assert places.spent() == {"1": 10}


def test_a_damaged_cache_is_not_believed(places: Places) -> None:
    path = places.write(1, begin("t1"), count(10))
    places.spent()
    good = places.cache.read_bytes()
    change_unseen(path, 10, 20)
    assert places.spent() == {"1": 10}
    for damaged in (b"", b"\xff" * 50, good[:-5], good.replace(b"10", b"99"), good.replace(b"usage ", b"usage 0")):
        places.cache.write_bytes(damaged)
        assert places.spent() == {"1": 20}
        assert places.cache.read_bytes() != damaged


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes.")
def test_only_its_owner_can_read_the_cache(places: Places) -> None:
    places.write(1, begin("t1"), count(10))
    places.spent()
    assert places.cache.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in places.state.iterdir()] == [places.cache.name]


def test_an_unwritable_cache_is_ignored(places: Places) -> None:
    places.write(1, begin("t1"), count(10))
    places.state.write_text("a file where the directory should be", encoding="utf-8")
    assert places.spent() == {"1": 10}
