"""Full-text search in the transcripts of all sessions of all agents on this machine.

An index answers (`helmsman.store.search_index`). Each search first updates it in the background, with at most half of one
processor's time; a caller that does not wait for the update gets the number of sessions that are still unread. Sessions that
Helmsman ran are indexed from the log, and read again only when the log has grown. The files of agents are read for all other
sessions, and for turns that an agent's own program ran after the last event of the log. Where SQLite has no full text
(FTS5), the transcripts themselves are read, newest first, for a few seconds.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.agents.protocol import SessionInfo
from helmsman.base.files import is_inside, release_lock, take_lock
from helmsman.base.redaction import redact
from helmsman.base.structs import Value
from helmsman.base.truncate import cut
from helmsman.errors import HelmsmanError, InvalidInput, RegistryUnavailable
from helmsman.git.worktree import places
from helmsman.model.events import CommandExecution, FileChange, Item, PastTurn
from helmsman.model.inputs import searched_directory
from helmsman.model.nature import READS, verb
from helmsman.sessions.history import turns_of, unknown_turns
from helmsman.settings import ensure_state_dir
from helmsman.steering.listing import page_of_all
from helmsman.store.log import LogHead, read
from helmsman.store.search_index import IndexedSession, SearchIndex, has_full_text, match_of
from helmsman.tasks.agent_records import WRITES_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.steering.core import Steering

    Words = Sequence[tuple[str, bool]]
    IsWanted = Callable[[SessionInfo], bool]

log = logging.getLogger(__name__)

FOUND_LIMIT: Final = 20
PATIENCE: Final = 5.0
"""Seconds that a search waits for content to be indexed."""
_LOCK_NAME: Final = "search.lock"
_LOCK_SECONDS: Final = 60.0
"""Seconds after which to check again whether another process updates the index."""
_LOOK_SECONDS: Final = 0.05
_LATELY_SECONDS: Final = 30.0
_BATCH_SECONDS: Final = 0.25
_MOST_SESSIONS: Final = 1_000_000
_SESSION_CHARS: Final = 400_000
_ITEM_CHARS: Final = 20_000
_READ_SECONDS: Final = 5.0
"""Seconds for reading sessions directly, without an index."""
_EXCERPT_BEFORE: Final = 60
_EXCERPT_CHARS: Final = 200
_PLACES: Final = 100
"""Matches that are compared for the best excerpt."""
_WORD: Final = re.compile(r'"([^"]+)"|(\S+)')


class FoundSession(Value, frozen=True):
    """Session that matches. `excerpt` is text around a match: every second part is a matching word."""

    session: SessionInfo
    excerpt: tuple[str, ...]


class SearchResult(Value, frozen=True):
    """Results, newest first.

    `unread` is the number of sessions not yet searched, as far as known: ask again. None: all were.
    """

    found: tuple[FoundSession, ...]
    unread: int | None = None


class TranscriptSearch:
    """`Helmsman.extras.search`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm
        self._index = SearchIndex(helm.settings.state_dir)
        self._sessions = helm.agent_records.indexes_for(helm.settings, helm.environment)
        self._listed: dict[str, SessionInfo] = {}
        """All sessions at the last update of the index."""
        self._logs: Mapping[str, LogHead] = {}
        """Ends of the logs at that time, by session id."""
        self._is_listed = anyio.Event()
        self._unread = 0
        self._updated_at = -_LATELY_SECONDS
        self._updating: anyio.Event | None = None

    @verb(READS)
    async def find(
        self,
        words: str,
        *,
        agent: str | None = None,
        directory: str | None = None,
        limit: int = FOUND_LIMIT,
        include_archived: bool = False,
        patience: float = PATIENCE,
    ) -> SearchResult:
        """Find the sessions that contain all these words, newest first. Words match as prefixes; quoted words match as
        a phrase.

        `directory` selects sessions that worked in or below it. `patience` is how many seconds to wait for indexing.
        With allowed roots, only work inside of them is found.

        Raises:
            InvalidInput: There is no word to look for.
        """
        wanted = _words(words)
        agent = None if agent is None else self._helm.agents[agent].name
        inside = None if directory is None else searched_directory(directory)
        place = await anyio.to_thread.run_sync(places, self._helm.settings.state_dir)
        roots = self._helm.allowed_roots

        def is_wanted(info: SessionInfo) -> bool:
            if agent not in (None, info.agent) or (info.archived and not include_archived):
                return False
            where = place(info.directory)
            # With the slash, because `/work/app` does not contain `/work/application`.
            is_there = inside is None or (where is not None and f"{where}/".startswith(f"{inside}/"))
            return is_there and (not roots or (where is not None and is_inside(where, roots)))

        if has_full_text():
            with anyio.move_on_after(patience):
                await self._begin().wait()
            # Hits are shown by the list of sessions, so wait for it even without patience for the index.
            with anyio.move_on_after(PATIENCE):
                await self._is_listed.wait()
            try:
                found = await anyio.to_thread.run_sync(self._find, wanted, is_wanted, limit)
                return SearchResult(tuple(found), None if self._updating is None else self._unread)
            except (sqlite3.Error, OSError) as error:
                log.warning("the search index cannot be used: %s", error)
        self._logs = await self._log_heads()
        return await anyio.to_thread.run_sync(self._read_all, await self._all(), wanted, is_wanted, limit)

    def update_soon(self) -> None:
        """Begin to bring the index up to date, unless that was done lately: who searches then need not wait for it."""
        if time.monotonic() - self._updated_at >= _LATELY_SECONDS and has_full_text():
            self._begin()

    def _begin(self) -> anyio.Event:
        if self._updating is None:
            self._updating = anyio.Event()
            self._helm.in_background(self._update)
        return self._updating

    async def _all(self) -> list[SessionInfo]:
        return (await self._helm.list(limit=_MOST_SESSIONS, include_archived=True))[0]

    async def _log_heads(self) -> Mapping[str, LogHead]:
        await self._helm.task_writer.write()
        try:
            return await self._helm.task_writer.registry(lambda registry: registry.log_heads())
        except RegistryUnavailable as error:
            log.warning("transcripts are read from the files of agents: %s", error)
            return {}

    # --- looking -----------------------------------------------------------------------------------------------------

    def _find(self, wanted: Words, is_wanted: IsWanted, limit: int) -> list[FoundSession]:
        found: list[FoundSession] = []
        for hit in self._index.find(match_of(wanted)):
            info = self._listed.get(hit.session_id)
            if info is None or not is_wanted(info) or (info.path is not None and not info.path.exists()):
                continue  # it is gone, or in another home than this client's
            found.append(FoundSession(info, _excerpt(*hit.read(), wanted)))
            if len(found) == limit:
                break
        return found

    def _read_all(
        self, sessions: Sequence[SessionInfo], wanted: Words, is_wanted: IsWanted, limit: int
    ) -> SearchResult:
        """Search without an index."""
        deadline = time.monotonic() + _READ_SECONDS
        found: list[FoundSession] = []
        for place, info in enumerate(sessions):
            if len(found) == limit:
                break
            if time.monotonic() > deadline:
                return SearchResult(tuple(found), len(sessions) - place)
            if is_wanted(info):
                entry = self._read(info)
                if all(_pattern(word).search(f"{entry.about}\n{entry.text}") for word, _ in wanted):
                    found.append(FoundSession(info, _excerpt(entry.text, entry.about, wanted)))
        return SearchResult(tuple(found))

    # --- the index ---------------------------------------------------------------------------------------------------

    async def _update(self) -> None:
        held: int | None = None
        try:
            held = await self._lock()
            if held is not None:
                await self._bring_up_to_date()
        except (sqlite3.Error, OSError, HelmsmanError) as error:
            log.warning("the search index was not updated: %s", error)
        finally:
            if held is not None:
                release_lock(held)
            self._updated_at = time.monotonic()
            if self._updating is not None:
                self._updating.set()
            self._updating = None

    async def _lock(self) -> int | None:
        """Lock the index for updates: one client of one process at a time."""
        path = ensure_state_dir(self._helm.settings.state_dir) / _LOCK_NAME
        with anyio.move_on_after(_LOCK_SECONDS):
            while (held := take_lock(path)) is None:  # noqa: ASYNC110 - no event says when another process is done
                await anyio.sleep(_LOOK_SECONDS)
            return held
        return None

    async def _bring_up_to_date(self) -> None:
        self._logs = await self._log_heads()
        sessions = await self._all()
        known = await anyio.to_thread.run_sync(self._index.stamps)
        self._listed = {info.session_id: info for info in sessions}
        self._is_listed.set()
        stale = [info for info in sessions if known.get(info.session_id) != self._stamp(info)]
        self._unread = len(stale)
        await anyio.to_thread.run_sync(self._forget_gone, known.keys() - self._listed.keys())
        while stale:
            stale, seconds = await anyio.to_thread.run_sync(self._index_some, stale)
            self._unread = len(stale)
            await anyio.sleep(seconds if stale else 0)  # others want the processor too

    def _forget_gone(self, unlisted: set[str]) -> None:
        if self._helm.allowed_roots and unlisted:  # sessions outside of them are not gone
            everywhere, _ = page_of_all(self._sessions, None, limit=_MOST_SESSIONS, include_archived=True)
            unlisted = unlisted - {info.session_id for info in everywhere}
        if gone := [one for one in unlisted if self._helm.agent_records.look_up(one) is None]:
            self._index.forget(gone)

    def _index_some(self, sessions: list[SessionInfo]) -> tuple[list[SessionInfo], float]:
        """Index the first of these; those that are left, and the processor's time that it took."""
        began = time.thread_time()
        entries: list[IndexedSession] = []
        for info in sessions:
            entries.append(self._read(info))
            if time.thread_time() - began > _BATCH_SECONDS:
                break
        self._index.put(entries)
        return sessions[len(entries) :], time.thread_time() - began

    def _read(self, info: SessionInfo) -> IndexedSession:
        turns = self._turns(info)
        texts = (cut(_text(item), _ITEM_CHARS) for turn in turns for item in turn.items)
        about = filter(None, (info.name, info.directory, info.session_id))
        return IndexedSession(
            session_id=info.session_id,
            stamp=self._stamp(info),
            updated=info.updated_at.timestamp(),
            about="\n".join(about),
            text=redact(cut("\n".join(texts) or info.first_prompt or "", _SESSION_CHARS)),
        )

    def _turns(self, info: SessionInfo) -> tuple[PastTurn, ...]:
        logged: tuple[PastTurn, ...] = ()
        if info.session_id in self._logs:
            stored = self._helm.task_writer.database.read(partial(read, session_id=info.session_id))
            logged = turns_of(info.session_id, stored.events)
        if not self._needs_files(info):
            return logged
        return (*logged, *unknown_turns(self._sessions[info.agent].history(info) or (), logged))

    def _needs_files(self, info: SessionInfo) -> bool:
        """Return whether the agent's own program ran turns of a session that are not in its log."""
        head = self._logs.get(info.session_id)
        return head is None or info.updated_at > head.changed_at + WRITES_AFTER

    def _stamp(self, info: SessionInfo) -> str:
        head = self._logs.get(info.session_id)
        cursor = "" if head is None else str(head.cursor)
        changed = str(info.updated_at.timestamp()) if self._needs_files(info) else ""
        # Everything that the index has of a session must change its stamp.
        return f"{cursor} {changed} {info.archived:d} {info.name or ''}"


def _text(item: Item) -> str:
    match item:
        case CommandExecution():
            return f"{item.command}\n{item.output}"
        case FileChange():
            return "\n".join(change.path for change in item.changes)
        case _:
            return str(getattr(item, item.gist, ""))


def _words(text: str) -> Words:
    """Parse the words of a search, each with whether it matches as a prefix. Quoted words match exactly."""
    found = [(quoted or word.strip('"'), not quoted) for quoted, word in _WORD.findall(text)]
    words = [(word, may_go_on) for word, may_go_on in found if any(map(str.isalnum, word))]
    if not words:
        raise InvalidInput("There is nothing to search for. Give a word or a number.", parameter="words")
    return words


def _pattern(word: str) -> re.Pattern[str]:
    return re.compile(r"(?<!\w)" + re.escape(word), re.IGNORECASE)


def _excerpt(text: str, about: str, wanted: Words) -> tuple[str, ...]:
    """Return an excerpt with most of the words, from the text or from the session's description; every second part
    matches.
    """
    words = re.compile("|".join(_pattern(word).pattern for word, _ in wanted), re.IGNORECASE)
    text = text if words.search(text) else about
    places = list(islice(words.finditer(text), _PLACES))

    def there(first: int) -> int:
        end = places[first].start() + _EXCERPT_CHARS - _EXCERPT_BEFORE
        return len({one.group().lower() for one in places[first:] if one.end() <= end})

    best = max(range(len(places)), key=there, default=None)
    begin = 0 if best is None else max(0, places[best].start() - _EXCERPT_BEFORE)
    shown = " ".join(text[begin : begin + _EXCERPT_CHARS].split())
    if begin:
        shown = f"…{shown}"
    parts: list[str] = []
    end = 0
    for one in words.finditer(shown):
        parts += [shown[end : one.start()], one.group()]
        end = one.end()
    return (*parts, shown[end:] + ("…" if begin + _EXCERPT_CHARS < len(text) else ""))
