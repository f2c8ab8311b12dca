"""Commands that sessions have left running, and their end.

Codex (0.115 and newer) names its thread in the environment of every command it runs, and whatever that starts inherits it:
also a daemon that has left its group and its parent. So they are found whichever process the engine belongs to, and
nobody else is: not the shell of a person who looks at a worktree, nor an MCP server.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.process_ending import end_processes
from helmsman.base.processes import Process, parents_of, running_process
from helmsman.base.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Collection


_MARK: Final = b"CODEX_THREAD_ID="
_WRAPPERS: Final = ("codex-linux-sandbox", "bwrap")
"""The programs that Codex runs around a command, wherever they are; the command is named itself."""
_SHOWN_CHARS: Final = 200


def commands_left(session_ids: Collection[str], directory: Path) -> tuple[str, ...]:
    """What these sessions, or any in this directory, have left running, in words. Blocks.

    Where the system does not tell of processes (there is no /proc), none.
    """
    found = _left_running(session_ids, directory)
    return tuple(found[process] for process in sorted(found) if not _is_wrapper(found[process]))


def end_commands(session_ids: Collection[str], directory: Path | None = None) -> None:
    """End them, and wait until they are gone; without a directory only those of these sessions. Blocks."""
    end_processes(lambda: _left_running(session_ids, directory).keys())


def _left_running(session_ids: Collection[str], directory: Path | None) -> dict[Process, str]:
    places = () if directory is None else (directory.absolute(), directory.resolve())
    sessions = {session_id.encode() for session_id in session_ids}
    ourselves = parents_of(os.getpid())  # a command of Codex may be what runs us
    found: dict[Process, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            session = _session_of(entry)
            if session is None or int(entry.name) in ourselves:
                continue
            if session in sessions or _works_in(entry, places):
                process = running_process(int(entry.name))
                if process is not None:
                    found[process] = _in_words(entry)
    return found


def _session_of(entry: Path) -> bytes | None:
    variables = (entry / "environ").read_bytes().split(b"\0")
    return next((one.removeprefix(_MARK) for one in variables if one.startswith(_MARK)), None)


def _works_in(entry: Path, places: Collection[Path]) -> bool:
    where = (entry / "cwd").readlink()
    return any(where.is_relative_to(place) for place in places)


def _is_wrapper(words: str) -> bool:
    return words.partition(" ")[0].rpartition("/")[2] in _WRAPPERS


def _in_words(entry: Path) -> str:
    words = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return f"{redact(words)[:_SHOWN_CHARS]} (pid {entry.name})"
