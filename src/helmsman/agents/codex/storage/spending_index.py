"""What all sessions on disk have spent, known at once the second time.

To read the rollout files of years takes seconds; whether one has changed is seen from its size and its time. So what was
read is kept in a small file in the state directory, and only what is new or has grown is read again. The file may be
lost, damaged or written by two processes at once: it only saves time, and whatever of it makes no sense is read anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helmsman.agents.codex.storage.rollout_usage import SessionSpending, TurnSpending, read_spending
from helmsman.agents.codex.storage.rollouts import read_rollout, rollout_files
from helmsman.base.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CACHE_NAME: Final = "usage-{home}.json"
_VERSION: Final = 2


class SpendingIndex:
    """The spending of every session under one CODEX_HOME. May be used from several threads; calls block."""

    def __init__(self, codex_home: Path, state_dir: Path) -> None:
        self._home = codex_home
        which = hashlib.sha256(os.fsencode(codex_home)).hexdigest()[:12]
        self._cache = state_dir / CACHE_NAME.format(home=which)
        self._known: dict[str, _Known] | None = None
        self._lock = threading.Lock()

    def sessions(self, since: float | None = None) -> list[SessionSpending]:
        """What every session has spent, in the order in which they were begun. What cannot be read is left out.

        With `since`, a time in seconds, only the sessions in which something has happened since then: that is quick.
        """
        with self._lock:
            known = self._known if self._known is not None else _read_cache(self._cache)
            current: dict[str, _Known] = {}
            news = False
            for path, size, changed in rollout_files(self._home):
                entry = known.get(path)
                if since is not None and changed < since * 1e9:
                    continue
                if entry is None or (entry.size, entry.changed) != (size, changed):
                    news = True
                    entry = _Known(size, changed, read_rollout(path, read_spending))
                current[path] = entry
            if since is not None:
                self._known = known | current
            else:
                if news or current.keys() != known.keys():
                    _write_cache(self._cache, current)
                self._known = current
        # The name of a file begins with the time of its session, wherever the file lies.
        in_order = sorted(current.items(), key=lambda item: os.path.basename(item[0]))  # noqa: PTH119 - thousands
        return [entry.spending for _, entry in in_order if entry.spending is not None]


class _Known(NamedTuple):
    """What was read of a file when it had this size and this time of change; None of what is no session."""

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
    return {file: _entry(*row) for file, row in json.loads(content).items()}


def _seal(content: bytes) -> bytes:
    return b"helmsman usage %d %08x" % (_VERSION, zlib.crc32(content))


def _entry(size: int, changed: int, session: list[Any] | None) -> _Known:
    if session is None:
        return _Known(size, changed, None)
    *about, turns = session
    return _Known(size, changed, SessionSpending._make([*about, tuple(map(TurnSpending._make, turns))]))


def _write_cache(path: Path, known: Mapping[str, _Known]) -> None:
    # A name that is no text is escaped, and comes back.
    content = json.dumps(known, separators=(",", ":")).encode("ascii")
    with contextlib.suppress(OSError):  # a full disk is no reason not to answer
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, _seal(content) + b"\n" + content)
