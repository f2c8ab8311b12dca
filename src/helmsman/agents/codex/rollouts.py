"""List and read the sessions that Codex has on disk, from every program.

Each session is an append-only file of JSON lines (`sessions/YYYY/MM/DD/rollout-<time>-<id>.jsonl`; moved to
`archived_sessions/` when archived, and perhaps compressed when old). The first line describes the session (`session_meta`);
the first prompt and the model follow a few lines later. A listing reads only this head, only of the files on a page, and
never again once it is complete. It is sorted by the time of the last change. Damaged or unknown lines are skipped.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import stat
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, TypeVar, cast

import msgspec

from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.protocol import SessionInfo
from helmsman.agents.transcripts import CarriedTranscripts, TranscriptFile
from helmsman.base.directory_changes import DirectoryChanges
from helmsman.base.files import is_one_of
from helmsman.base.json_values import integer, json_object, mapping, sequence, timestamp
from helmsman.base.structs import Value
from helmsman.errors import CannotMove, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

# --- the head of a file ----------------------------------------------------------------------------------------------


HEAD_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of a file to read. The first line alone has 20 kB, and both it and a prompt may be far larger."""

LINES_AFTER_PROMPT: Final = 20
"""Lines to read after the first prompt: the model is named right before it, or (0.93) right after it."""

PROMPT_LIMIT: Final = 2000
"""Length of the first prompt that is kept for listings and searches."""

_FIRST_LINE: Final = 16 * 1024 * 1024
_PAGINATED: Final = "paginated"

OWN_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""Format of Codex's ids for threads and, since 0.115, for turns."""


@dataclass(slots=True)
class Head:
    """Facts about a session from the head of its file.

    `is_subagent`: another agent's session started it. `continues`: an earlier file has its beginning, as after a rewind.
    A fork, and a session that was taken back to an earlier turn, begin where they parted from another file (since 0.155):
    `base` is the last id in its name, `base_end` how many of its bytes they share.
    """

    session_id: str | None = None
    created_at: datetime | None = None
    directory: str | None = None
    first_prompt: str | None = None
    model: str | None = None
    source: str | None = None
    originator: str | None = None
    engine_version: str | None = None
    parent_id: str | None = None
    forked_from: str | None = None
    is_subagent: bool = False
    continues: bool = False
    history_mode: str | None = None
    base: str | None = None
    base_end: int = 0

    @property
    def version(self) -> Version:
        """The Codex that wrote the file."""
        return Version.parse(self.engine_version or "0.1.0")

    @property
    def is_paginated(self) -> bool:
        # Newer versions always paginate, even if the mode is missing.
        return self.history_mode == _PAGINATED or Feature.PAGINATED_FILES.is_in(self.version)


def read_meta(file: BinaryIO) -> Head | None:
    """Return what the first line says of a session; None if it is not written yet, or not that of a session."""
    entry = line_object(file.readline(_FIRST_LINE))
    return None if entry is None else _head_in(entry)


def read_head(file: BinaryIO) -> tuple[Head | None, bool]:
    """Return the head, and whether it is complete, so that more lines would add nothing.

    The head is None for a file that is not a session, or whose first line is not written yet.
    """
    reader = _HeadReader()
    complete = reader.read(file)
    return reader.head, complete


class _HeadReader:
    """Reads lines until all is known."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self._lines_after_prompt = 0

    def read(self, file: BinaryIO) -> bool:
        # A damaged file may have a first line of any length.
        left = HEAD_LIMIT
        while left > 0:
            line = file.readline(left)
            if not line:
                return False
            left -= len(line)
            entry = line_object(line)
            if entry is not None:
                self._take(entry)
            if self._is_complete():
                return True
        # The limit is reached: more lines would not be read the next time either.
        return True

    def _is_complete(self) -> bool:
        if self.head is None or self.head.first_prompt is None:
            return False
        self._lines_after_prompt += 1
        # Up to 0.93 the model follows the prompt.
        return self.head.model is not None or self._lines_after_prompt > LINES_AFTER_PROMPT

    def _take(self, entry: Mapping[str, Any]) -> None:
        kind, payload = entry.get("type"), mapping(entry.get("payload"))
        if self.head is None:
            # Only the first counts: a fork of an older version has its parent's first line as its second.
            self.head = _head_in(entry)
        elif kind == "turn_context":
            self.head.model = self.head.model or readable(payload.get("model"))
            self.head.directory = self.head.directory or readable(payload.get("cwd"))
        elif kind == "event_msg":
            self._take_event(self.head, payload)
        elif kind == "message" and entry.get("role") == "user":  # long before 0.93: no event, no payload
            self._take_message(self.head, entry.get("content"))

    def _take_event(self, head: Head, payload: Mapping[str, Any]) -> None:
        item = mapping(payload.get("item"))
        if payload.get("type") == "user_message":  # the older history: up to 0.149, and reviewers later
            prompt = readable(payload.get("message"))
        elif payload.get("type") == "item_completed" and item.get("type") == "UserMessage":
            # the paginated history, since 0.152
            prompt = _first_text(item.get("content"))
        else:
            return
        head.first_prompt = head.first_prompt or _shorten(prompt)

    def _take_message(self, head: Head, content: object) -> None:
        text = _first_text(content) or ""
        if text.startswith("<environment_context>"):
            found = re.search(r"<cwd>(.{1,4096}?)</cwd>|Current working directory: (.{1,4096})", text)
            head.directory = head.directory or (found and (found[1] or found[2]))
        elif not text.startswith("<"):  # instructions are put before the prompt in the same way
            head.first_prompt = head.first_prompt or _shorten(text)


def _head_in(entry: Mapping[str, Any]) -> Head | None:
    """Return the head in a line that describes a session; None for other lines."""
    kind, meta = entry.get("type"), mapping(entry.get("payload"))
    if kind is None and readable(entry.get("id")) and "timestamp" in entry:  # long before 0.93
        meta = entry
    elif kind != "session_meta" or not meta:
        return None
    source, base = meta.get("source"), mapping(meta.get("history_base"))
    kind = next(iter(source), None) if isinstance(source, dict) else source
    is_subagent = isinstance(kind, str) and kind.lower() == "subagent"
    parent = readable(meta.get("parent_thread_id")) or _spawned_by(source)
    return Head(
        session_id=readable(meta.get("id")),
        created_at=timestamp(meta.get("timestamp")),
        directory=readable(meta.get("cwd")),
        source=readable(kind),
        originator=readable(meta.get("originator")),
        engine_version=readable(meta.get("cli_version")),
        parent_id=parent,
        forked_from=readable(meta.get("forked_from_id")),
        is_subagent=is_subagent or parent is not None,
        continues=bool(entry.get("ordinal")),
        history_mode=readable(meta.get("history_mode")),
        base=readable(base.get("thread_id")),
        base_end=integer(base.get("end_byte_offset")) or 0,
    )


def _spawned_by(source: object) -> str | None:
    """`{"subagent": {"thread_spawn": {"parent_thread_id": …}}}`; a reviewer is only `{"subagent": "review"}`."""
    for _ in range(2):
        source = next(iter(mapping(source).values()), None)
    return readable(mapping(source).get("parent_thread_id"))


def line_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, like `json_object` and several times faster: there are millions of lines."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json_object(line)  # takes more, such as half of a surrogate pair
    return value if isinstance(value, dict) else None


def readable(value: object) -> str | None:
    """Return a non-empty text that can be encoded: JSON may contain half of a surrogate pair."""
    if not isinstance(value, str) or not value:
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _first_text(content: object) -> str | None:
    return next((text for part in sequence(content) if (text := readable(mapping(part).get("text")))), None)


def _shorten(text: str | None) -> str | None:
    text = (text or "").strip()
    return text[:PROMPT_LIMIT] + "…" if len(text) > PROMPT_LIMIT else text or None


# --- the index -------------------------------------------------------------------------------------------------------


_Page: TypeAlias = "tuple[list[SessionInfo], str | None]"
_ResultT = TypeVar("_ResultT")

SESSIONS: Final = "sessions"
ARCHIVED: Final = "archived_sessions"
NAMES: Final = "session_index.jsonl"

_ANY_APP_SERVER: Final = "vscode"
"""Source that Codex names for every session of an app-server; the originator distinguishes them."""
_MAX_DEPTH: Final = 8
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}-"
_LOOK_SECONDS: Final = 60.0
"""Everything is looked at after so long: changes by other machines in a network file system are not told."""
_ROLLOUT_NAME: Final = re.compile(
    # With a second id, the session continues in this file. The time is for speed: without it, the search for an id
    # would start at every letter.
    rf"rollout-(?:{_TIME})?+.*?(?P<id>{_UUID})?(?:_{_UUID})?\.jsonl(?P<compressed>\.zst)?"
)
_CURSOR: Final = re.compile(r"(-?[0-9]{1,20}):(.{1,200})")


class RolloutIndex:
    """Sessions on disk under one CODEX_HOME. Thread-safe; calls block briefly."""

    def __init__(self, codex_home: Path, *, open_file: Callable[[Path], BinaryIO] | None = None) -> None:
        """Set up the index. `open_file` opens a rollout for reading, so that tests can count reads."""
        self.home = codex_home
        self._open = open_file or open_rollout
        self._lock = threading.Lock()
        self._heads: dict[str, dict[str, _KnownHead]] = {SESSIONS: {}, ARCHIVED: {}}
        self._trees = {root: _Tree(codex_home / root, archived=root == ARCHIVED) for root in (SESSIONS, ARCHIVED)}
        self._found: dict[tuple[str, ...], tuple[tuple[int, ...], dict[str, _File]]] = {}
        self._sorted: tuple[dict[str, _File], Sequence[_File]] | None = None
        self._names = SessionNames(codex_home / NAMES)

    def list(
        self,
        *,
        directories: Collection[str] | None = None,
        query: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_archived: bool = False,
        include_sub_agents: bool = False,
    ) -> _Page:
        """Return one page of sessions, most recently changed first, and the cursor of the next page, if any.

        A session that changes between two pages moves to the front, where the next listing shows it; no other is lost
        or duplicated.

        Args:
            directories: Only sessions that were started in one of these directories.
            query: Only sessions with these words in their name, first prompt, directory or id.
            limit: Size of the page.
            cursor: End of the previous page.
            include_archived: Include archived sessions.
            include_sub_agents: Include sessions of sub-agents.

        Raises:
            InvalidInput: The limit or the cursor is invalid.
        """
        if limit < 1:
            raise InvalidInput(f"limit cannot be {limit}. Use a number from 1 on.")
        after = _read_cursor(cursor)
        matches = _Filter(directories, query)
        rows: list[tuple[_File, SessionInfo]] = []
        # Files are looked at under the lock, as their state is shared by all calls.
        with self._lock:
            files = self._files(SESSIONS, ARCHIVED) if include_archived else self._files(SESSIONS)
            names = self._names.read()
            for file in self._newest_first(files):
                # The cursor names the last row of the previous page.
                if after is not None and _order(file) >= after:
                    continue
                head = self._head(file)
                if head is None or (head.is_subagent and not include_sub_agents):
                    continue
                info = self._info(file, head, files, names)
                if matches(info):
                    rows.append((file, info))
                    # One row more than asked for shows that there is a next page.
                    if len(rows) > limit:
                        break
        page = [info for _, info in rows[:limit]]
        # Time of change and id: together they are different for every row, however many changed in one moment.
        last = rows[limit - 1][0] if len(rows) > limit else None
        return page, None if last is None else f"{last.changed_ns}:{last.session_id}"

    def find(self, session_id: str) -> SessionInfo | None:
        """Return one session by its id, archived or not; None if it is not on disk."""
        with self._lock:
            files = self._files(SESSIONS, ARCHIVED)
            file = files.get(session_id)
            head = None if file is None else self._head(file)
            return None if file is None or head is None else self._info(file, head, files, self._names.read())

    def rollouts(self) -> Sequence[tuple[str, int, int]]:
        """Return every rollout file: its path, size, and modification time in nanoseconds.

        A session may exist twice while Codex moves or unpacks it.
        """
        with self._lock:
            return [(file.path, *file.seen[1:]) for tree in self._trees.values() for file in tree.scan()]

    def _files(self, *roots: str) -> dict[str, _File]:
        """Return the file of each session, by id.

        A session may exist twice while Codex moves or unpacks it. One that was rolled back continues in a new file, and
        its beginning is in the previous one.
        """
        scanned = {root: self._trees[root].scan() for root in roots}
        generations = tuple(self._trees[root].generation for root in roots)
        # Nothing has changed since the last call, which matters with thousands of files.
        if (last := self._found.get(roots)) is not None and last[0] == generations:
            return last[1]
        files: dict[str, _File] = {}
        for root in roots:
            found = {file.path: file for file in scanned[root]}
            known = self._heads[root]
            # Heads of files that are gone are dropped.
            self._heads[root] = {path: known[path] for path in known.keys() & found.keys()}
            for file in found.values():
                file.earlier = None
                # The name has no id in it, so the head must say.
                if file.session_id is None and (head := self._head(file)) is not None:
                    file.session_id = head.session_id
                session_id = file.session_id
                other = files.get(session_id) if session_id else None
                if session_id and (other is None or _preference(file) > _preference(other)):
                    files[session_id], file.earlier = file, other
                elif other is not None:
                    # The other file is preferred: keep this one for its prompt and model.
                    other.earlier, file.earlier = file, other.earlier
        self._found[roots] = (generations, files)
        return files

    def _newest_first(self, files: dict[str, _File]) -> Sequence[_File]:
        """Return files in the order of a list. Those of the last call are sorted already."""
        if self._sorted is None or self._sorted[0] is not files:
            self._sorted = files, sorted(files.values(), key=_order, reverse=True)
        return self._sorted[1]

    def _head(self, file: _File) -> Head | None:
        known_heads = self._heads[ARCHIVED if file.archived else SESSIONS]
        known = known_heads.get(file.path)
        # A complete head stays valid while the inode is the same: files only grow at their end.
        if known is not None and (known.seen == file.seen or (known.complete and known.seen[0] == file.seen[0])):
            return known.head
        try:
            with self._open(Path(file.path)) as opened:
                head, complete = read_head(opened)
        except _read_errors():
            return None
        known_heads[file.path] = _KnownHead(file.seen, head, complete)
        return head

    def _info(self, file: _File, head: Head, files: Mapping[str, _File], names: Mapping[str, str]) -> SessionInfo:
        session_id = file.session_id or ""
        heads = list(self._heads_of(file))
        return SessionInfo(
            session_id=session_id,
            updated_at=_from_ns(file.changed_ns),
            created_at=head.created_at,
            directory=head.directory,
            name=names.get(session_id) or None,
            first_prompt=_first_prompt(heads) or self._inherited_prompt(head, files),
            model=next((one.model for one in heads if one.model), None),
            # All app-servers report the same source, so the client's name says more.
            source=(head.originator or head.source) if head.source == _ANY_APP_SERVER else head.source,
            originator=head.originator,
            engine_version=head.engine_version,
            parent_id=head.parent_id,
            archived=file.archived,
            path=Path(file.path),
        )

    def _heads_of(self, file: _File | None) -> Iterator[Head]:
        """Yield the heads of a session's files, newest first."""
        while file is not None:
            if (head := self._head(file)) is not None:
                yield head
            file = file.earlier

    def _inherited_prompt(self, head: Head, files: Mapping[str, _File]) -> str | None:
        """Return the first prompt of a fork's parent: newer versions do not copy it into the fork's own file."""
        seen: set[str] = set()
        # Forks may be damaged so that they refer to each other.
        while head.forked_from is not None and head.forked_from not in seen:
            seen.add(head.forked_from)
            heads = list(self._heads_of(files.get(head.forked_from)))
            if not heads:
                return None
            if prompt := _first_prompt(heads):
                return prompt
            head = heads[0]
        return None


def _first_prompt(heads: Sequence[Head]) -> str | None:
    """Return the first prompt of a session from the heads of its files, newest first."""
    prompt: str | None = None
    for head in heads:
        prompt = head.first_prompt or prompt
        if prompt is not None and not head.continues:
            break
    return prompt


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    """Rollout file. `session_id` is None until the head is read if the file name does not have it.

    `seen` is its inode, its size and its modification time in nanoseconds.
    """

    path: str
    session_id: str | None
    archived: bool
    compressed: bool
    seen: tuple[int, int, int]
    earlier: _File | None = None

    @property
    def changed_ns(self) -> int:
        return self.seen[2]


def _order(file: _File) -> tuple[int, str]:
    return (file.changed_ns, file.session_id or "")


def _preference(file: _File) -> tuple[bool, bool, int]:
    return (not file.archived, not file.compressed, file.changed_ns)


class _Tree:
    """Rollout files below a directory. Unreadable directories are skipped; links are followed, loops are not.

    An unchanged file keeps its `_File`, which matters with thousands of files. So does that only changed directories are
    looked at again, where the system tells which have changed.
    """

    def __init__(self, root: Path, *, archived: bool) -> None:
        self._root = str(root)
        self._archived = archived
        self._files: dict[str, dict[str, _File]] = {}
        self._below: dict[str, list[str]] = {}
        self._changes: DirectoryChanges | None = None
        """Set at the second look: many trees are looked at only once."""
        self._is_told_all = False
        """Whether every change since the last look at everything is told."""
        self._looked_at = -math.inf
        self.generation = 0
        """Another one whenever a file has come, gone or changed."""

    def scan(self) -> Iterator[_File]:
        """Return the files as they are now; those of the last call hold no more."""
        changed = None if self._changes is None else self._changes.take()
        is_recent = time.monotonic() - self._looked_at < _LOOK_SECONDS
        if changed is None or not (self._is_told_all and is_recent and self._look_at(changed)):
            self._look_at_all()
        return (file for files in self._files.values() for file in files.values())

    def _look_at(self, changed: Collection[str]) -> bool:
        """Look at changed directories. Return False if others have come or gone."""
        for directory in changed:
            self._watch(directory)
            try:
                found, below, is_same = self._look_into(directory, self._files.get(directory, {}))
            except OSError:
                return False
            if sorted(below) != sorted(self._below.get(directory, ())):
                return False
            self._files[directory] = found
            self.generation += not is_same
        return True

    def _look_at_all(self) -> None:
        before, self._files = self._files, {}
        self._below.clear()
        if self._changes is None and self._looked_at > -math.inf:
            self._changes = DirectoryChanges()
        self._is_told_all, self._looked_at = True, time.monotonic()
        pending: list[tuple[str, int]] = [(self._root, 0)]
        visited: set[tuple[int, int]] = set()
        changed = False
        while pending:
            directory, depth = pending.pop()
            known = before.pop(directory, {})
            self._watch(directory)
            try:
                status = os.stat(directory)  # noqa: PTH116 - thousands of files: strings and scandir, not Path objects
                # Links are followed, so remember directories that were visited.
                if (status.st_dev, status.st_ino) in visited or depth > _MAX_DEPTH:
                    continue
                visited.add((status.st_dev, status.st_ino))
                found, below, is_same = self._look_into(directory, known)
            except OSError:
                continue
            pending += [(f"{directory}{os.sep}{name}", depth + 1) for name in below]
            changed = changed or not is_same
            self._files[directory], self._below[directory] = found, below
        # Directories that are left in `before` are gone.
        if changed or any(before.values()):
            self.generation += 1

    def _watch(self, directory: str) -> None:
        """Have a change told. Called before a look, so that a change during it is looked at again."""
        if self._changes is None or not self._changes.watch(directory):
            self._is_told_all = False

    def _look_into(self, directory: str, known: Mapping[str, _File]) -> tuple[dict[str, _File], list[str], bool]:
        """Return the rollout files in a directory by name, the names of its subdirectories, and whether these files are the
        known ones.
        """
        files: dict[str, _File] = {}
        below: list[str] = []
        same = 0
        # By its descriptor the system need not walk the whole path again for each file.
        opened = os.open(directory, os.O_RDONLY) if os.scandir in os.supports_fd else None
        try:
            with os.scandir(directory if opened is None else opened) as entries:
                for entry in entries:
                    name = entry.name
                    try:
                        if entry.is_symlink():
                            self._is_told_all = False  # inotify reports no change of its target
                        file = known.get(name)
                        parts = _ROLLOUT_NAME.fullmatch(name) if file is None else None
                        # A known name is a rollout, so the pattern is not tried again.
                        if file is None and parts is None:
                            if entry.is_dir():
                                below.append(name)
                            continue
                        status = entry.stat()
                    except OSError:
                        continue
                    seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                    if file is not None and file.seen == seen:
                        files[name] = file
                        same += 1
                    elif stat.S_ISREG(status.st_mode) and (parts := parts or _ROLLOUT_NAME.fullmatch(name)):
                        path, compressed = f"{directory}{os.sep}{name}", parts["compressed"] is not None
                        files[name] = _File(path, parts["id"], self._archived, compressed, seen)
        finally:
            if opened is not None:
                os.close(opened)
        return files, below, same == len(files) == len(known)


def id_in_name(path: str) -> str | None:
    """Return the id of the session in a rollout file, if its name contains one."""
    parts = _ROLLOUT_NAME.fullmatch(path.rpartition(os.sep)[2])
    return None if parts is None else parts["id"]


def read_rollout(path: str, read: Callable[[BinaryIO], _ResultT]) -> _ResultT | None:
    """Return the result of `read` for a rollout file, unpacked if compressed; None if it is unreadable."""
    try:
        with open_rollout(Path(path)) as file:
            return read(file)
    except _read_errors():
        return None


def open_rollout(path: Path) -> BinaryIO:
    if path.suffix == ".zst":
        # Imported when needed: few files are compressed.
        return cast("BinaryIO", importlib.import_module(_ZSTD).open(path, "rb"))
    return path.open("rb", buffering=64 * 1024)


_ZSTD: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def _read_errors() -> tuple[type[Exception], ...]:
    """Return the errors of reading. Those of the decompressor exist only after it was imported."""
    zstd = sys.modules.get(_ZSTD)
    return (OSError, EOFError) if zstd is None else (OSError, EOFError, zstd.ZstdError)


_BLOCK: Final = 64 * 1024


def open_to_the_end(path: str | Path) -> BinaryIO:
    """Open a rollout file for `lines_from_end`. A small one is read whole, and a compressed one is unpacked completely."""
    place = os.fspath(path)
    if place.endswith(".zst"):
        return io.BytesIO(read_rollout(place, lambda file: file.read()) or b"")
    file = open(place, "rb", buffering=0)  # noqa: PTH123, SIM115 - there are thousands, and the caller closes it
    if os.fstat(file.fileno()).st_size > _BLOCK:
        return io.BufferedReader(file, _BLOCK)
    with file:
        return io.BytesIO(file.read())


def lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, last first. An incomplete last line counts only if it is valid."""
    position = file.seek(0, os.SEEK_END)
    pieces: list[bytes] = []  # parts of the line whose beginning has not been read yet, last first
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        first, *lines = file.read(size).split(b"\n")
        if lines:
            # The beginning of this block ends the line that is incomplete so far.
            pieces.append(lines.pop())
            yield b"".join(reversed(pieces))
            yield from reversed(lines)
            pieces = []
        pieces.append(first)
    yield b"".join(reversed(pieces))


def _from_ns(nanoseconds: int) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:  # a file system may claim any time
        return datetime.max.replace(tzinfo=UTC) if nanoseconds > 0 else datetime.min.replace(tzinfo=UTC)


# --- cursors and filters ---------------------------------------------------------------------------------------------


def _read_cursor(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use nextCursor of the page before, or none.")
    return int(found[1]), found[2]


class _Filter:
    def __init__(self, directories: Collection[str] | None, query: str | None) -> None:
        self._is_there = cache(partial(is_one_of, places=directories))
        self._words = (query or "").casefold().split()

    def __call__(self, info: SessionInfo) -> bool:
        if not self._is_there(info.directory):
            return False
        texts = (info.name, info.first_prompt, info.directory, info.session_id)
        text = "\n".join(text for text in texts if text).casefold() if self._words else ""
        return all(word in text for word in self._words)


# --- cache ------------------------------------------------------------------------------------------------------------


class _KnownHead(Value, frozen=True):
    """Cached head; None for a file that does not (yet) begin like a session."""

    seen: tuple[int, int, int]
    head: Head | None
    complete: bool


class SessionNames:
    """Names that users gave to sessions: a file of lines of which the last about a session counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._names: dict[str, str] = {}

    def read(self) -> Mapping[str, str]:
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != self._seen and stat.S_ISREG(status.st_mode):
                with self._path.open("rb") as file:
                    self._names = dict(_named(file))
                self._seen = seen
        except OSError:
            self._seen, self._names = None, {}
        return self._names


def _named(lines: BinaryIO) -> Iterator[tuple[str, str]]:
    for line in lines:
        entry = line_object(line) or {}
        session_id = readable(entry.get("id"))
        if session_id is not None:
            yield session_id, readable(entry.get("thread_name")) or ""


# --- files that are carried to another machine -------------------------------------------------------------------------

# See `helmsman.agents.transcripts`. A thread is all files with its id in their names: one that was taken back to an earlier
# turn continues in a second file, and the first alone would be resumed as it was before. Without the file from which another
# parted, Codex refuses to load that one. Codex finds files by id anywhere below `sessions/`, without its databases.

_NAME: Final = re.compile(
    rf"rollout-(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})T[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}-(?P<id>{_UUID})(?:_(?P<part>{_UUID}))?\.jsonl"
)
_COMPRESSED: Final = ".zst"


class CodexTranscripts(CarriedTranscripts):
    """Threads below one CODEX_HOME. `version` is that of the Codex that continues them here."""

    def __init__(self, codex_home: Path, version: Version) -> None:
        super().__init__()
        self._home = codex_home
        self._version = version
        # An older Codex continues such a thread without line numbers, after which no Codex can load it.
        self.forms = (_PAGINATED,) if Feature.KEEPS_PAGINATED_FILES.is_in(version) else ()
        self._names = SessionNames(codex_home / NAMES)
        self._heads: dict[Path, Head] = {}

    def files(self, session_id: str) -> list[TranscriptFile]:
        everything = dict(self._everything())
        own = {path: name for path, name in everything.items() if session_id in name}
        by_last_id = {_last_id(name): path for path, name in everything.items()}
        lineage: dict[Path, int] = {}
        # The list grows while it is read, so that the lineage is followed to its beginning.
        for path in (pending := list(own)):
            head = self._head(path)
            parent = None if head is None else by_last_id.get(head.base or "")
            if head is None or parent is None or parent in own:
                continue
            if parent not in lineage:
                pending.append(parent)
            # Several forks may share a parent: carry it as far as the longest needs.
            lineage[parent] = max(lineage.get(parent, 0), head.base_end)
        before = [TranscriptFile(everything[path], path, is_own=False, end=end) for path, end in lineage.items()]
        # Parents first: a fork is refused without them.
        return [*reversed(before), *(TranscriptFile(name, path) for path, name in sorted(own.items()))]

    def _everything(self) -> Iterator[tuple[Path, str]]:
        """Yield all rollout files, archived and compressed ones too, with the names under which they are carried."""
        for file, _, _ in RolloutIndex(self._home).rollouts():
            name = os.path.basename(file).removesuffix(_COMPRESSED)  # noqa: PTH119 - there may be thousands
            if _NAME.fullmatch(name):
                yield Path(file), name

    def _head(self, path: Path) -> Head | None:
        if path not in self._heads and (found := read_rollout(str(path), read_meta)) is not None:
            self._heads[path] = found
        return self._heads.get(path)  # of a file that is just being written there is none

    def targets(self, session_id: str, files: Collection[str], directory: Path) -> dict[str, Path]:
        known = {name: path for path, name in self._everything() if path.name == name and ARCHIVED not in path.parts}
        found: dict[str, Path] = {}
        for file in files:
            parts = _NAME.fullmatch(file)
            if parts is None:
                raise CannotMove(
                    f"No rollout file of Codex is called {file!r:.200}, so it is not placed. Start a new session."
                )
            # Codex finds files by id anywhere below `sessions/`; this is where it would write it.
            usual = self._home / SESSIONS / parts["day"].replace("-", "/") / file
            found[file] = known.get(file, usual)
        before = {name for name in known if session_id in name}
        if before and before != {file for file in files if session_id in file}:
            # Codex would continue with the file in its database, and so with turns that were rolled back.
            raise CannotMove(
                f"Session {session_id} was taken back to an earlier turn on another machine, and Codex here knows it as it "
                "was before. Let another machine continue it, or start a new session."
            )
        return found

    def check(self, session_id: str, files: Mapping[str, Path]) -> None:
        carried = {_last_id(name): path.stat().st_size for name, path in files.items()}
        if not any(session_id in name for name in files):
            raise _incomplete(session_id)
        for name, path in files.items():
            with path.open("rb") as file:
                head = read_meta(file)
            if head is None or (head.session_id or "?") not in name:
                raise _incomplete(session_id)
            # The parent must reach at least to where the fork parted.
            if head.base is not None and carried.get(head.base, 0) < head.base_end:
                raise _incomplete(session_id)
            if head.is_paginated and not self.forms:
                raise CannotMove(
                    f"Codex {self._version} would damage session {session_id}, which Codex {head.version} has written. "
                    f"Install {Feature.KEEPS_PAGINATED_FILES.since} or newer on this machine, or let another continue it."
                )

    def form_of(self, session_id: str) -> str | None:
        heads = [self._head(path) for path, name in self._everything() if session_id in name]
        return _PAGINATED if any(one is not None and one.is_paginated for one in heads) else None

    def name_of(self, session_id: str) -> str | None:
        return self._names.read().get(session_id) or None

    def open(self, path: Path) -> BinaryIO:
        return open_rollout(path)


def _incomplete(session_id: str) -> CannotMove:
    return CannotMove(
        f"Not all files of session {session_id} were carried here, so Codex could not continue it. Start a new session."
    )


def _last_id(name: str) -> str:
    found = _NAME.fullmatch(name)
    return "" if found is None else found["part"] or found["id"]
