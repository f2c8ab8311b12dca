"""Spending of sessions on disk, for all agents, with a cache.

Of sessions that Helmsman ran, the store usually tells (`helmsman.capabilities.usage_report`), and their files stay closed.

Reading the files of years takes seconds, but size and modification time show whether a file has changed. So results are
cached in a small file in the state directory, and only new or grown files are read again. The cache may be lost,
damaged or written by two processes concurrently: invalid entries are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from helmsman.base.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CACHE_NAME: Final = "usage-{home}.json"
_VERSION: Final = 3


class TurnSpending(NamedTuple):
    """Spending of one turn on one model. `began_at` is in seconds since 1970; not every agent gives a turn a `turn_id`.
    `cost_usd` is the cost that the agent itself reports.

    There are tens of thousands of these, so they are plain tuples, which a cache can store directly.
    """

    turn_id: str | None
    began_at: float
    model: str | None
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    cost_usd: float | None = None


class SessionSpending(NamedTuple):
    """Spending of a session according to its files.

    `turns` may begin with copies of the turns of `forked_from`. `parent_id` is the session whose sub-agent this is.
    """

    agent: str
    session_id: str
    directory: str | None
    created_at: float | None
    parent_id: str | None
    forked_from: str | None
    turns: tuple[TurnSpending, ...]


class SpendingFiles(Protocol):
    """Session files of an agent, and how to read one. Calls block."""

    home: Path
    """Directory that contains all of them."""

    def files(self) -> Iterable[tuple[str, int, int]]:
        """Yield a key for each file or session, its size, and its modification time in nanoseconds."""
        ...

    def read(self, key: str) -> SessionSpending | None:
        """Read a file; None if it is not a session, or is unreadable."""
        ...

    def names(self, turn_id: str) -> bool:
        """Return whether files have turns by this id. For other turns a file counts for its whole session."""
        ...

    def session_of(self, key: str) -> str | None:
        """Return the session of a key, if the key contains its id and its turns count as one in whatever model they used."""
        ...


class SpendingIndex:
    """Spending of every session of one agent. Thread-safe; calls block."""

    def __init__(self, source: SpendingFiles, state_dir: Path) -> None:
        self._source = source
        self.names = source.names
        # One cache for each home: the same state directory may serve several.
        which = hashlib.sha256(os.fsencode(source.home)).hexdigest()[:12]
        self._cache = state_dir / CACHE_NAME.format(home=which)
        self._known: dict[str, _Known] | None = None
        self._lock = threading.Lock()

    def sessions(self, since: float | None = None, stored: Mapping[str, float] | None = None) -> list[SessionSpending]:
        """Return the spending of every session, in order of creation, without unreadable files.

        With `since`, a time in seconds, only sessions that have changed since then, which is fast. Of the sessions that are
        `stored`, only those with a file that has changed after the given time.
        """
        with self._lock:
            # The file is read once for each process.
            known = self._known if self._known is not None else _read_cache(self._cache)
            current: dict[str, _Known] = {}
            news = False
            for key, size, changed in self._source.files():
                entry = known.get(key)
                # A file that did not change since then cannot have newer turns.
                if since is not None and changed < since * 1e9:
                    continue
                if stored and changed <= stored.get(self._source.session_of(key) or "", 0.0) * 1e9:
                    continue
                if entry is None or (entry.size, entry.changed) != (size, changed):
                    news = True
                    entry = _Known(size, changed, self._source.read(key))
                current[key] = entry
            # A partial look must not drop the others from the cache.
            if since is not None:
                self._known = known | current
            else:
                # Without news the file stays as it is, since writing years of turns takes time.
                if news or current.keys() != known.keys():
                    _write_cache(self._cache, current)
                self._known = current
        found = [
            (entry.spending.created_at or 0.0, key, entry.spending) for key, entry in current.items() if entry.spending
        ]
        return [spending for _, _, spending in sorted(found, key=lambda one: one[:2])]


class _Known(NamedTuple):
    """Cached content of a file with this size and modification time; None if it is not a session."""

    size: int
    changed: int
    spending: SessionSpending | None


# --- the file --------------------------------------------------------------------------------------------------------


def _read_cache(path: Path) -> dict[str, _Known]:
    try:
        seal, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if seal != _seal(content):
        return {}  # damaged, half written, or of another version
    return msgspec.convert(json.loads(content), dict[str, _Known])


def _seal(content: bytes) -> bytes:
    return b"helmsman usage %d %08x" % (_VERSION, zlib.crc32(content))


def _write_cache(path: Path, known: Mapping[str, _Known]) -> None:
    # A name that is no text is escaped, and comes back.
    content = json.dumps(known, separators=(",", ":")).encode("ascii")
    with contextlib.suppress(OSError):  # a full disk is no reason not to answer
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, _seal(content) + b"\n" + content)
