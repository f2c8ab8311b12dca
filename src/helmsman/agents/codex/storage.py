"""Sessions that Codex has on disk, from every program, read without starting Codex.

Each session is an append-only file of JSON lines (`sessions/YYYY/MM/DD/rollout-<time>-<id>.jsonl`; moved to
`archived_sessions/` when archived, and perhaps compressed when old). The first line describes the session (`session_meta`);
the first prompt and the model follow a few lines later. A listing reads only this head, only of the files on a page, and
never again once it is complete. It is sorted by the time of the last change. Damaged or unknown lines are skipped.

`read_turn` and `turns_of` read backwards, a block at a time: files grow to hundreds of megabytes, and recovery nearly always
asks for the last turn. How a turn is recorded depends on the version:

- since 0.145: `task_started` and `task_complete` or `turn_aborted`, with the turn's id; a failure has its `error`;
- 0.115 to 0.130: the same, but a failure looks like a completion without a last message;
- 0.93: no ids, no beginnings and no ends but `turn_aborted`; a turn begins with its `user_message`, and is complete if it
  ends in a message of the agent.

`read_history` reads forwards. Prompts and messages are `user_message` and `agent_message` up to 0.149, `item_completed`
since 0.152. Commands and patches are the model's calls, which every version records alike.

Up to 0.145 turns that were taken back stay in the file, and a later line says how many (`thread_rolled_back`). Since 0.155
the file of a fork, or of a session that was taken back, begins where it parted and continues its parent's token counts; it
names the parent's file (by the last id in its name) and the place (`history_base`).
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import re
import stat
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, TypeVar, cast

import msgspec

from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.normalise import read_usage, spent_between, turn_failure
from helmsman.agents.protocol import Finding, RecordedTurn, ReviewReport, SessionInfo, review_text
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.agents.transcripts import CarriedTranscripts, TranscriptFile
from helmsman.base.directory_changes import DirectoryChanges
from helmsman.base.files import is_one_of
from helmsman.base.json_values import (
    fraction,
    integer,
    json_object,
    mapping,
    optional_text,
    sequence,
    text,
    timestamp,
)
from helmsman.base.structs import Value, replace
from helmsman.errors import CannotMove, InvalidInput
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    Failure,
    FileChange,
    PastTurn,
    PathChange,
    Usage,
    UserMessage,
)
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from helmsman.model.events import ChangeKind, Item

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
    head: Head | None = None
    lines_after_prompt = 0
    # A damaged file may have a first line of any length.
    left = HEAD_LIMIT
    while left > 0:
        line = file.readline(left)
        if not line:
            return head, False
        left -= len(line)
        entry = line_object(line)
        if head is not None and entry is not None:
            _add_to_head(head, entry)
        elif entry is not None:
            # Only the first counts: a fork of an older version has its parent's first line as its second.
            head = _head_in(entry)
        if head is not None and head.first_prompt is not None:
            lines_after_prompt += 1
            # Up to 0.93 the model follows the prompt.
            if head.model is not None or lines_after_prompt > LINES_AFTER_PROMPT:
                return head, True
    # The limit is reached: more lines would not be read the next time either.
    return head, True


def _add_to_head(head: Head, entry: Mapping[str, Any]) -> None:
    kind, payload = entry.get("type"), mapping(entry.get("payload"))
    item = mapping(payload.get("item"))
    prompt: str | None = None
    if kind == "turn_context":
        head.model = head.model or readable(payload.get("model"))
        head.directory = head.directory or readable(payload.get("cwd"))
    elif kind == "event_msg" and payload.get("type") == "user_message":  # up to 0.149, and reviewers later
        prompt = readable(payload.get("message"))
    elif kind == "event_msg" and payload.get("type") == "item_completed" and item.get("type") == "UserMessage":
        prompt = _first_text(item.get("content"))  # the paginated history, since 0.152
    elif kind == "message" and entry.get("role") == "user":  # long before 0.93: no event, no payload
        said = _first_text(entry.get("content")) or ""
        if said.startswith("<environment_context>"):
            found = re.search(r"<cwd>(.{1,4096}?)</cwd>|Current working directory: (.{1,4096})", said)
            head.directory = head.directory or (found and (found[1] or found[2]))
        elif not said.startswith("<"):  # instructions are put before the prompt in the same way
            prompt = said
    head.first_prompt = head.first_prompt or _shorten(prompt)


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


class CodexSessions:
    """Sessions on disk under one CODEX_HOME. Thread-safe; calls block briefly.

    See `helmsman.agents.protocol.SessionIndex` and `helmsman.agents.spending.SpendingFiles`.
    """

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

    def files(self) -> Sequence[tuple[str, int, int]]:
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

    def turn(self, session_id: str, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
        path = self._path(session_id)
        return None if path is None else read_turn(path, turn_id, since=since)

    def last_turn(self, info: SessionInfo) -> RecordedTurn | None:
        return None if info.path is None else read_turn(info.path, None)

    def turns(self, session_id: str) -> Iterable[RecordedTurn]:
        path = self._path(session_id)
        return () if path is None else turns_of(path)

    def history(self, info: SessionInfo) -> tuple[PastTurn, ...] | None:
        return None if info.path is None else read_history(info.path, self.home)

    def _path(self, session_id: str) -> Path | None:
        info = self.find(session_id)
        return None if info is None else info.path

    def read(self, key: str) -> SessionSpending | None:
        try:
            with open_to_the_end(key) as file:
                return read_spending(file)
        except OSError:
            return None

    def names(self, turn_id: str) -> bool:
        return OWN_ID.fullmatch(turn_id) is not None  # those of before 0.115 are not, nor are those of `codex exec`

    def session_of(self, key: str) -> str | None:
        return id_in_name(key)


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


# --- outcomes, from the end ------------------------------------------------------------------------------------------


_KIND: Final = re.compile(
    rb'\{"timestamp":"(?P<time>[^"]{1,40})",(?:"ordinal":[0-9]{1,20},)?'
    rb'"type":"(?P<type>\w{1,40})"(?:,"payload":\{"type":"(?P<payload>\w{1,40})")?'
)
"""Finds the kind of a line, in every version, without parsing what may be a megabyte of output."""

_OF_TURNS: Final = frozenset(
    {
        *(b"task_started", b"turn_started", b"task_complete", b"turn_complete", b"turn_aborted", b"thread_rolled_back"),
        *(b"agent_message", b"user_message", b"token_count"),
    }
)
_BEGINS: Final = frozenset({"task_started", "turn_started"})
_COMPLETES: Final = frozenset({"task_complete", "turn_complete"})
_ABORTS: Final = "turn_aborted"
_TAKEN_BACK: Final = "thread_rolled_back"
_ABSURD: Final = 10**15
"""Counts above this are corrupt, and would spoil every sum."""
_NO_REASON: Final = (
    "The turn ended without an answer, and Codex did not record why. Send the session a message to continue."
)


def read_turn(path: Path, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
    """Read a turn of the session in this file; None if it is not in the file, or unreadable.

    Args:
        path: The rollout file.
        turn_id: Id of the turn. If it is None, or the file has no turn ids (0.93), `since` decides.
        since: The first turn that began then or later; None means the last turn that the session still has.
    """
    found: RecordedTurn | None = None
    for turn in turns_of(path):
        if turn_id is not None and turn.turn_id is not None:
            if turn.turn_id == turn_id:
                return turn
            continue
        if since is None:
            if not turn.forgotten:
                return turn
        # Turns come last first, so the rest began even earlier.
        elif turn.began_at is None or turn.began_at < since:
            break
        else:
            found = turn
    return found


def turns_of(path: Path) -> Iterator[RecordedTurn]:
    """Yield the turns in a file lazily, last first. An unreadable file has none."""
    try:
        with open_to_the_end(path) as file:
            yield from _turns_in(file)
    except OSError:
        return


def _turns_in(file: BinaryIO) -> Iterator[RecordedTurn]:
    reader = _Reader()
    # From the end: files grow to hundreds of megabytes, and callers mostly want the last turn.
    for line in lines_from_end(file):
        reader.take(line)
        if reader.known:
            yield from reader.take_known()
    # The first turn of the file has no count before it.
    reader.end()
    yield from reader.take_known()


# --- from lines to turns ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stretch:
    """Turn while its lines are read, from its end to its beginning."""

    end: Mapping[str, Any] | None = None
    ended_at: datetime | None = None
    last_written_at: datetime | None = None
    spent: Usage | None = None
    """Usage of the session at the end of the turn."""
    message: str | None = None
    ends_in_message: bool | None = None
    model: str | None = None
    names_no_turn: bool = False


@dataclass(slots=True)
class _Reader:
    """Takes lines from the last to the first. A turn is given out once the spending before it is known too."""

    stretch: _Stretch = field(default_factory=_Stretch)
    known: list[RecordedTurn] = field(default_factory=list)
    waiting: list[tuple[RecordedTurn, Usage | None]] = field(default_factory=list)
    """Turns that only lack the session's usage before them, with the usage after them."""
    is_last: bool = True
    taken_back: int = 0
    """Number of turns still to come that were forgotten."""
    first_count: bytes | None = None
    """Earliest line so far that says how much was spent by then."""

    def take(self, line: bytes) -> None:
        found = _KIND.match(line)
        time, kind, payload = (b"", b"", None) if found is None else found.groups()
        # Most lines are recognised by their beginning and never parsed.
        if kind == b"response_item" and payload is not None:
            self._pass_over(time, is_work=payload != b"message")
        elif kind == b"event_msg" and payload == b"token_count":
            self._pass_over(time)
            self._take_count(line)
        # In versions that name their turns, prompts do not begin any.
        elif kind == b"event_msg" and payload == b"user_message" and not self.stretch.names_no_turn:
            self._pass_over(time)
        # The first line holds the instructions of the session, and says nothing of turns.
        elif kind != b"session_meta" and (payload is None or (kind == b"event_msg" and payload in _OF_TURNS)):
            self._take_entry(line)
        else:
            self._pass_over(time)

    def take_known(self) -> list[RecordedTurn]:
        """Return the turns of which all is known now, once, last first."""
        known, self.known = self.known, []
        return known

    def end(self) -> None:
        """The beginning of the file was reached."""
        self._know_spent_before(_spent_before(self.first_count))

    def _take_entry(self, line: bytes) -> None:
        entry = line_object(line)
        if entry is None:
            return
        kind, payload, time = entry.get("type"), mapping(entry.get("payload")), timestamp(entry.get("timestamp"))
        self.stretch.last_written_at = self.stretch.last_written_at or time
        if kind == "turn_context":
            self.stretch.model = self.stretch.model or readable(payload.get("model"))
            self.stretch.names_no_turn = "turn_id" not in payload
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._take_count(line)
        elif kind == "event_msg":
            self._take_event(payload, time)

    def _pass_over(self, time: bytes, *, is_work: bool = False) -> None:
        stretch = self.stretch
        # Lines come from the end, so the first time seen is the last one written.
        if stretch.last_written_at is None:
            stretch.last_written_at = timestamp(time.decode("ascii", "replace"))
        if is_work and stretch.ends_in_message is None:
            stretch.ends_in_message = False  # a tool call or its output, and no message after it

    def _take_count(self, line: bytes) -> None:
        """Codex writes a count after every response of the model. Only the last one of each turn is parsed."""
        if self.stretch.spent is None or self.waiting:
            spent = _count(_counts(line), "total_token_usage")
            if spent is None:
                return
            self._know_spent_before(spent)
            self.stretch.spent = self.stretch.spent or spent
        # Every line overwrites it: the last value is the file's first count.
        self.first_count = line

    def _take_event(self, payload: Mapping[str, Any], time: datetime | None) -> None:
        kind = payload.get("type")
        if kind == "agent_message":
            if self.stretch.ends_in_message is None:
                self.stretch.ends_in_message, self.stretch.message = True, readable(payload.get("message"))
        elif kind == _TAKEN_BACK:
            self.taken_back += max(0, integer(payload.get("num_turns")) or 0)
        elif kind == _ABORTS or kind in _COMPLETES:
            # An end begins the next turn to be read: everything before it belongs to this one.
            self.stretch = _Stretch(end=payload, ended_at=time, last_written_at=time)
        elif kind in _BEGINS:
            self._turn_begins(readable(payload.get("turn_id")), time)
        elif kind == "user_message" and self.stretch.names_no_turn:
            self._turn_begins(None, time)

    def _turn_begins(self, turn_id: str | None, time: datetime | None) -> None:
        stretch, self.stretch = self.stretch, _Stretch()
        end = stretch.end
        if end is not None and readable(end.get("turn_id")) not in (turn_id, None):
            end = None  # two processes wrote concurrently: this is the end of the other one's turn
        turn = replace(
            _outcome(stretch, end, is_last=self.is_last),
            turn_id=turn_id,
            model=stretch.model,
            began_at=time,
            ended_at=None if end is None else stretch.ended_at,
            last_written_at=stretch.last_written_at,
            forgotten=self.taken_back > 0,
        )
        self.is_last = False
        self.taken_back = max(0, self.taken_back - 1)
        if stretch.spent is None and not self.waiting:
            self.known.append(turn)
        else:
            self.waiting.append((turn, stretch.spent))

    def _know_spent_before(self, spent: Usage) -> None:
        for turn, after in self.waiting:
            usage = None if after is None else spent_between(spent, after)
            self.known.append(turn if usage is None else replace(turn, usage=usage, spent_before=spent))
        self.waiting.clear()


def _counts(line: bytes) -> Mapping[str, Any]:
    return mapping(mapping(mapping(line_object(line)).get("payload")).get("info"))


def _count(counts: Mapping[str, Any], name: str) -> Usage | None:
    usage = read_usage(counts.get(name))
    # Damaged counts would spoil every sum.
    return None if usage is None or max(usage.input_tokens, usage.output_tokens) >= _ABSURD else usage


def _spent_before(first_count: bytes | None) -> Usage:
    """Return the usage before the first count of a file: none, unless the file continues another one."""
    if first_count is None:
        return Usage()
    counts = _counts(first_count)
    total, last = _count(counts, "total_token_usage"), _count(counts, "last_token_usage")
    # The total minus the last response is the usage before the file's first count.
    return Usage() if total is None or last is None else spent_between(last, total)


def _outcome(stretch: _Stretch, end: Mapping[str, Any] | None, *, is_last: bool) -> RecordedTurn:
    if end is not None and end.get("type") == _ABORTS:
        return RecordedTurn(outcome="interrupted")
    if end is not None:
        return _completion(stretch, end)
    # Codex 0.93 records no end of a turn, only its messages.
    if stretch.names_no_turn and stretch.ends_in_message:
        return RecordedTurn(outcome="completed", message=stretch.message)
    if is_last:
        return RecordedTurn(outcome="open")
    if stretch.names_no_turn:
        return RecordedTurn(outcome="failed", error=Failure(code="other", message=_NO_REASON))
    return RecordedTurn(outcome="interrupted")  # another turn began: this one has not gone on


def _completion(stretch: _Stretch, end: Mapping[str, Any]) -> RecordedTurn:
    message, error = optional_text(end.get("last_agent_message")), end.get("error")
    if isinstance(error, dict):
        return RecordedTurn(outcome="failed", error=turn_failure(error))
    # Up to 0.130 a failed turn is recorded as one without a message.
    if message is None and "started_at" not in end and not stretch.ends_in_message:
        return RecordedTurn(outcome="failed", error=Failure(code="other", message=_NO_REASON))
    return RecordedTurn(outcome="completed", message=message)


# --- spending --------------------------------------------------------------------------------------------------------

# Up to 0.130 a turn begins with a count that repeats the last one, so only a difference of two counts is a spending. A fork
# continues the count of its parent. Up to 0.145 its file begins with a copy of the parent's lines: the turns keep their ids,
# by which a copy is known, but on 0.93 they have none, and all get the time of the copying.


def read_spending(file: BinaryIO) -> SessionSpending | None:
    """Return the spending of the session in this file; None if it is not a session."""
    head = read_meta(file)
    if head is None or head.session_id is None:
        return None
    return SessionSpending(
        agent=DEFAULT_AGENT,
        session_id=head.session_id,
        directory=head.directory,
        created_at=None if head.created_at is None else head.created_at.timestamp(),
        parent_id=head.parent_id,
        forked_from=head.forked_from,
        turns=tuple(_spendings(file)),
    )


def _spendings(file: BinaryIO) -> Iterator[TurnSpending]:
    """Yield the turns with spending, oldest first."""
    model: str | None = None
    # The reader goes backwards, and a turn without a model continues with that of the turn before.
    for turn in reversed(list(_turns_in(file))):
        model = turn.model or model
        # A copied or empty turn has no own usage.
        if turn.usage is not None and turn.usage != Usage():
            began = 0.0 if turn.began_at is None else turn.began_at.timestamp()
            yield TurnSpending(turn.turn_id, began, model, *turn.usage.counts)


# --- history, from the beginning -------------------------------------------------------------------------------------


_OF_USE: Final = re.compile(
    rb'"type":"(?:user_message|agent_message|item_completed|task_started|turn_started|task_complete|turn_complete'
    rb'|thread_rolled_back|function_call|function_call_output|custom_tool_call)"'
)
_KIND_BYTES: Final = 400
"""Length of a line's beginning that shows its kind; a megabyte of output may follow."""
_LONGEST_LINE: Final = 4 * 1024 * 1024
_MOST_FILES: Final = 20
"""Limit of files that are followed back through forks."""
_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)
_KINDS: Final[dict[str, ChangeKind]] = {"Add": "add", "Update": "update", "Delete": "delete"}
_EXIT: Final = re.compile(r"(?:Process exited with code|Exit code:) (-?\d+)")
_TEXT_ITEMS: Final = {"UserMessage", "AgentMessage"}


def read_history(path: Path, codex_home: Path) -> tuple[PastTurn, ...]:
    """Return the turns in a file and in the files that it continues, in the same home, oldest first."""
    files: list[tuple[Path, int | None]] = [(path, None)]
    # A file of a fork, or after a revert, continues another one.
    while len(files) < _MOST_FILES and (base := _parted_from(files[0][0], codex_home)) is not None:
        files.insert(0, base)
    history = _History()
    for file, end in files:
        read_rollout(str(file), partial(history.read, end=end))
    return tuple(turn.past() for turn in history.turns)


def _parted_from(path: Path, codex_home: Path) -> tuple[Path, int] | None:
    """Return the file that this one continues, and how many of its bytes it shares."""
    head = read_rollout(str(path), read_meta)
    if head is None or head.base is None:
        return None
    names = tuple(f"{mark}{head.base}.jsonl" for mark in "-_")
    files = CodexSessions(codex_home).files()
    found = next((file for file, _, _ in files if file.removesuffix(".zst").endswith(names)), None)
    return None if found is None else (Path(found), head.base_end)


@dataclass(slots=True)
class _Turn:
    id: str
    status: str = "interrupted"
    items: list[Item] = field(default_factory=list)

    def past(self) -> PastTurn:
        return PastTurn(id=self.id, status=self.status, items=tuple(self.items))


class _History:
    """Takes lines from the first to the last."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._names_turns = False

    def read(self, file: BinaryIO, end: int | None) -> None:
        left = end
        while left is None or left > 0:
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            # A fork shares only the beginning of its parent's file.
            left = None if left is None else left - len(line)
            # Prefilter on the raw bytes: most lines are output that no history shows.
            if _OF_USE.search(line, 0, _KIND_BYTES) and (entry := line_object(line)) is not None:
                self._take(str(entry.get("type")), mapping(entry.get("payload")))

    def _take(self, kind: str, payload: Mapping[str, Any]) -> None:
        match kind, payload.get("type"):
            case "event_msg", "task_started" | "turn_started":
                named = readable(payload.get("turn_id"))
                named = named or readable(mapping(payload.get("turn_attribution")).get("turn_id"))
                self._names_turns = True
                # Some versions name the turn only in its attribution.
                self.turns.append(_Turn(named or str(len(self.turns) + 1)))
            case "event_msg", "user_message":
                self._asked(readable(payload.get("message")))
            case "event_msg", "agent_message":
                self._said(readable(payload.get("message")))
            case "event_msg", "item_completed":
                self._completed(mapping(payload.get("item")))
            case "event_msg", "task_complete" | "turn_complete" if self.turns:
                self.turns[-1].status = "failed" if isinstance(payload.get("error"), dict) else "completed"
            case "event_msg", "thread_rolled_back":
                taken_back = integer(payload.get("num_turns")) or 0
                # Up to 0.145 turns that were taken back stay in the file.
                del self.turns[max(0, len(self.turns) - taken_back) :]
            case "response_item", "function_call" | "custom_tool_call":
                self._called(payload)
            case "response_item", "function_call_output":
                self._add_output(str(payload.get("call_id")), payload.get("output"))

    def _did(self, item: Item) -> None:
        if self.turns:
            self.turns[-1].items.append(item)

    def _asked(self, text: str | None) -> None:
        if text is None:
            return
        if not self._names_turns:  # 0.93: a turn begins with its message, and is over when the agent has said something
            self.turns.append(_Turn(str(len(self.turns) + 1)))
        self._did(UserMessage(id=f"u{len(self.turns)}", text=text))

    def _said(self, text: str | None) -> None:
        if text is not None and self.turns:
            self._did(AgentMessage(id=f"m{len(self.turns[-1].items)}", text=text))
            if not self._names_turns:
                self.turns[-1].status = "completed"

    def _completed(self, item: Mapping[str, Any]) -> None:
        if item.get("type") not in _TEXT_ITEMS:
            return
        parts = (readable(mapping(part).get("text")) for part in sequence(item.get("content")))
        text = "\n".join(filter(None, parts)) or None
        (self._asked if item["type"] == "UserMessage" else self._said)(text)

    def _called(self, call: Mapping[str, Any]) -> None:
        call_id = str(call.get("call_id"))
        if call.get("name") == "apply_patch":
            self._did(FileChange(id=call_id, changes=_patched(call)))
            return
        command = _command(call.get("arguments"))
        if command is not None:
            self._did(CommandExecution(id=call_id, command=command))

    def _add_output(self, call_id: str, output: object) -> None:
        items = self.turns[-1].items if self.turns else []
        found = _EXIT.search(output if isinstance(output, str) else json.dumps(output))
        for place, item in enumerate(items):
            if isinstance(item, CommandExecution) and item.id == call_id and found is not None:
                items[place] = CommandExecution(id=call_id, command=item.command, exit_code=int(found[1]))


def _patched(call: Mapping[str, Any]) -> tuple[PathChange, ...]:
    patch = readable(call.get("input")) or readable(call.get("arguments")) or ""
    return tuple(PathChange(path=path.strip(), kind=_KINDS[kind]) for kind, path in _FILE.findall(patch))


def _command(arguments: object) -> str | None:
    """Return the command of a shell call; None for other tools."""
    given = json_object(optional_text(arguments)) or {}
    command = given.get("cmd", given.get("command"))
    if isinstance(command, list):
        words = [word for word in command if isinstance(word, str)]
        # A shell call: only its script is of interest.
        return words[-1] if len(words) == 3 and words[1] in ("-c", "-lc") else " ".join(words) or None
    return readable(command)


# --- Codex's own review ----------------------------------------------------------------------------------------------

# The reviewer answers in JSON. Codex records that in the session's file (`exited_review_mode`; in paginated files as an
# item, `ExitedReviewMode`). What it shows is a text made of it, without confidence, and without a priority that is not in
# the title. So the file is read first, and the text where the file has no answer. Nothing in either raises.

_RECORDED: Final = re.compile(rb'"(?:exited_review_mode|ExitedReviewMode)"')
_PRIORITY: Final = re.compile(r"^\s*\[P([0-9])\]\s*")
_HEADING: Final = re.compile(r"^(?:full )?review comments?:\s*$", re.IGNORECASE | re.MULTILINE)
_COMMENT: Final = re.compile(
    r"^- (?:\[[ xX]\] )?(?P<title>.+) (?:—|–|--) (?P<file>.+?):(?P<start>[0-9]{1,9})(?:-(?P<end>[0-9]{1,9}))?\s*$"
)


def read_review(path: Path) -> ReviewReport | None:
    """Return the findings of the newest review in a rollout file; None if there is none, it did not end, or it is
    unreadable.
    """
    try:
        with open_to_the_end(path) as file:
            for line in lines_from_end(file):
                # From the end, as the newest review counts.
                if _RECORDED.search(line) and (output := _recorded(line_object(line))) is not None:
                    return from_record(output)
    except OSError:
        return None
    return None


def _recorded(entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the reviewer's answer in a line that records the end of a review; None for other lines."""
    payload = mapping(mapping(entry).get("payload"))
    ended = mapping(payload.get("item")) if payload.get("type") == "item_completed" else payload
    if ended.get("type") not in ("exited_review_mode", "ExitedReviewMode"):
        return None
    return mapping(ended.get("review_output"))


def from_record(output: Mapping[str, Any]) -> ReviewReport | None:
    """Parse the reviewer's answer as Codex records it, or None."""
    if not output:
        return None
    if not output.get("findings"):  # Codex is strict: an answer with a field missing it takes for prose
        output = _answer_in(text(output.get("overall_explanation"))) or output
    findings = tuple(_finding(mapping(raw)) for raw in sequence(output.get("findings")))
    explanation = text(output.get("overall_explanation")).strip()
    return ReviewReport(
        findings=findings,
        explanation=explanation,
        verdict=text(output.get("overall_correctness")).strip() or None,
        confidence=fraction(output.get("overall_confidence_score")),
        text=review_text(explanation, findings),
    )


def from_text(shown: str) -> ReviewReport:
    """Parse Codex's text of a review: an explanation, a heading, and the comments as a list."""
    report = from_record(_answer_in(shown) or {})
    if report is not None:
        return report
    heading = _HEADING.search(shown)
    if heading is None:
        return ReviewReport(text=shown, explanation=shown.strip())
    findings: list[Finding] = []
    body: list[str] = []
    # The sentinel closes the last finding.
    for line in [*shown[heading.end() :].splitlines(), "- "]:
        found = _COMMENT.match(line)
        if (found or line == "- ") and findings:
            shown_body = "\n".join(line.removeprefix("  ") for line in body).strip()
            findings[-1] = replace(findings[-1], body=shown_body)
        if found:
            findings.append(_shown_finding(found))
            body = []
        else:
            body.append(line)
    return ReviewReport(text=shown, findings=tuple(findings), explanation=shown[: heading.start()].strip())


def _answer_in(said: str) -> Mapping[str, Any] | None:
    """Parse a text that consists of the reviewer's answer; None otherwise."""
    # The answer may be wrapped in prose or a code fence.
    begin, end = said.find("{"), said.rfind("}")
    found = json_object(said[begin : end + 1].encode("utf-8", "replace")) if 0 <= begin < end else None
    return found if found is not None and sequence(found.get("findings")) else None


def is_of(report: ReviewReport, shown: str) -> bool:
    """Return whether Codex's text was made from this report."""
    # A file may hold the review of an earlier turn.
    return report.explanation in shown and all(finding.title in shown for finding in report.findings)


def _finding(raw: Mapping[str, Any]) -> Finding:
    place = mapping(raw.get("code_location"))
    lines = mapping(place.get("line_range"))
    title, tagged = _title(text(raw.get("title")))
    priority = integer(raw.get("priority"))
    return Finding(
        title=title,
        body=text(raw.get("body")).strip(),
        priority=priority if priority is not None else tagged,
        confidence=fraction(raw.get("confidence_score")),
        file=text(place.get("absolute_file_path")) or None,
        start_line=integer(lines.get("start")),
        end_line=integer(lines.get("end")),
    )


def _shown_finding(found: re.Match[str]) -> Finding:
    title, priority = _title(found["title"])
    start = int(found["start"])
    return Finding(
        title=title, priority=priority, file=found["file"], start_line=start, end_line=int(found["end"] or start)
    )


def _title(title: str) -> tuple[str, int | None]:
    """Split a title into the text and the priority before it."""
    tag = _PRIORITY.match(title)
    return (title[tag.end() :].strip(), int(tag[1])) if tag else (title.strip(), None)


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
        for file, _, _ in CodexSessions(self._home).files():
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
