"""Rollout files as they are carried to another machine, and placed there: see `helmsman.agents.transcripts`.

A thread is all files with its id in their names: one that was taken back to an earlier turn goes on in a second file, and
the first alone would be resumed as it was before. A fork, and such a second file, begin where they parted from another file
and name it (`history_base`, by the last id in its name): without that one Codex refuses to load them. Files are found by id
anywhere below `sessions/`; Codex's databases need not be carried.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, BinaryIO, Final

from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.rollouts import ARCHIVED, NAMES, SESSIONS, SessionNames, open_rollout, readable
from helmsman.agents.transcripts import CarriedTranscripts, TranscriptFile
from helmsman.base.json_values import integer, json_object, mapping
from helmsman.base.structs import Value
from helmsman.errors import CannotMove

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

_ID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NAME: Final = re.compile(
    rf"rollout-(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})T[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}-(?P<id>{_ID})(?:_(?P<part>{_ID}))?\.jsonl"
)
_COMPRESSED: Final = ".zst"
_FIRST_LINE: Final = 16 * 1024 * 1024
_PAGINATED: Final = "paginated"


class _Beginning(Value, frozen=True):
    """What the first line of a file says: whose it is, which Codex wrote it, and where it parted from which other file."""

    thread_id: str | None
    version: Version
    is_paginated: bool
    base: str | None
    base_end: int


class CodexTranscripts(CarriedTranscripts):
    """The threads below one CODEX_HOME. `version` is that of the Codex that is to go on with them here."""

    def __init__(self, codex_home: Path, version: Version) -> None:
        super().__init__()
        self._home = codex_home
        self._version = version
        # An older Codex continues such a thread without line numbers, after which no Codex can load it.
        self.forms = (_PAGINATED,) if Feature.KEEPS_PAGINATED_FILES.is_in(version) else ()
        self._names = SessionNames(codex_home / NAMES)
        self._beginnings: dict[Path, _Beginning] = {}

    def files(self, session_id: str) -> list[TranscriptFile]:
        everything = dict(self._everything())
        own = {path: name for path, name in everything.items() if session_id in name}
        by_last_id = {_last_id(name): path for path, name in everything.items()}
        lineage: dict[Path, int] = {}
        for path in (pending := list(own)):
            beginning = self._beginning(path)
            parent = None if beginning is None else by_last_id.get(beginning.base or "")
            if beginning is None or parent is None or parent in own:
                continue
            if parent not in lineage:
                pending.append(parent)
            lineage[parent] = max(lineage.get(parent, 0), beginning.base_end)
        before = [TranscriptFile(everything[path], path, is_own=False, end=end) for path, end in lineage.items()]
        return [*reversed(before), *(TranscriptFile(name, path) for path, name in sorted(own.items()))]

    def _everything(self) -> Iterator[tuple[Path, str]]:
        """All rollout files, with the names under which they are carried. An archived or compressed one is one as well."""
        for root in (SESSIONS, ARCHIVED):
            for directory, _, names in os.walk(self._home / root):
                for name in names:
                    if _NAME.fullmatch(name.removesuffix(_COMPRESSED)):
                        yield self._home / directory / name, name.removesuffix(_COMPRESSED)

    def _beginning(self, path: Path) -> _Beginning | None:
        if path not in self._beginnings:
            try:
                with self.open(path) as file:
                    found = _read_beginning(file)
            except (OSError, EOFError, ValueError):
                return None
            if found is None:
                return None  # it is just being written
            self._beginnings[path] = found
        return self._beginnings[path]

    def targets(self, session_id: str, files: Collection[str], directory: Path) -> dict[str, Path]:
        known = {name: path for path, name in self._everything() if path.name == name and ARCHIVED not in path.parts}
        found: dict[str, Path] = {}
        for file in files:
            parts = _NAME.fullmatch(file)
            if parts is None:
                raise CannotMove(
                    f"No rollout file of Codex is called {file!r:.200}, so it is not placed. Start a new session."
                )
            usual = self._home / SESSIONS / parts["day"].replace("-", "/") / file
            found[file] = known.get(file, usual)
        before = {name for name in known if session_id in name}
        if before and before != {file for file in files if session_id in file}:
            # By its database Codex would go on with the file that it knows, and so with turns that were taken back.
            raise CannotMove(
                f"Session {session_id} was taken back to an earlier turn on another machine, and Codex here knows it as it "
                "was before. Let another machine go on with it, or start a new session."
            )
        return found

    def check(self, session_id: str, files: Mapping[str, Path]) -> None:
        carried = {_last_id(name): path.stat().st_size for name, path in files.items()}
        if not any(session_id in name for name in files):
            raise _incomplete(session_id)
        for name, path in files.items():
            with path.open("rb") as file:
                beginning = _read_beginning(file)
            if beginning is None or (beginning.thread_id or "?") not in name:
                raise _incomplete(session_id)
            if beginning.base is not None and carried.get(beginning.base, 0) < beginning.base_end:
                raise _incomplete(session_id)
            if beginning.is_paginated and not self.forms:
                raise CannotMove(
                    f"Codex {self._version} would damage session {session_id}, which Codex {beginning.version} has written. "
                    f"Install {Feature.KEEPS_PAGINATED_FILES.since} or newer on this machine, or let another continue it."
                )

    def form_of(self, session_id: str) -> str | None:
        beginnings = [self._beginning(path) for path, name in self._everything() if session_id in name]
        return _PAGINATED if any(one is not None and one.is_paginated for one in beginnings) else None

    def name_of(self, session_id: str) -> str | None:
        return self._names.read().get(session_id) or None

    def open(self, path: Path) -> BinaryIO:
        return open_rollout(path)


def _incomplete(session_id: str) -> CannotMove:
    return CannotMove(
        f"Not all files of session {session_id} were carried here, so Codex could not go on with it. Start a new session."
    )


def _last_id(name: str) -> str:
    found = _NAME.fullmatch(name)
    return "" if found is None else found["part"] or found["id"]


def _read_beginning(file: BinaryIO) -> _Beginning | None:
    first = json_object(file.readline(_FIRST_LINE))
    if first is None:
        return None
    meta = mapping(first.get("payload"))
    base = mapping(meta.get("history_base"))
    version = Version.parse(readable(meta.get("cli_version")) or "0.1.0")
    return _Beginning(
        thread_id=readable(meta.get("id")),
        version=version,
        is_paginated=meta.get("history_mode") == _PAGINATED or Feature.PAGINATED_FILES.is_in(version),
        base=readable(base.get("thread_id")),
        base_end=integer(base.get("end_byte_offset")) or 0,
    )
