"""Find the session that a command means: by any part of its id or title, or without an id by the directory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Never

from helmsman.base.caller_context import expand_home
from helmsman.base.sanitize import one_line
from helmsman.base.user_directories import enclosing_roots
from helmsman.cli.host import command_here, host
from helmsman.errors import InvalidInput, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.client import Helmsman

SHORT: Final = 8
"""Characters at the end of an id, which are random; the first encode the time and are shared by sessions of the same
minute.
"""

_FULL: Final = 36
_LEAST: Final = 3
_PAGE: Final = 500
_LOOKED_AT: Final = 50
_SHOWN: Final = 9
_TITLE: Final = 60
_NO_SESSION: Final = 'There is no session yet. Start one: helmsman run "…"'
_NO_SESSION_HERE: Final = "There is no session in this directory."


def short_id(session_id: str) -> str:
    """Return the name of a session in commands."""
    return there(session_id[-SHORT:])


def there(session_id: str, name: str | None = None) -> str:
    """Return an id prefixed with its machine, if that is another one. Commands accept it (`helmsman.cli.thin`)."""
    machine = host().name if name is None else name
    return f"{machine}:{session_id}" if machine else session_id


LAST: Final = "-"
"""The session that was active last, in any directory."""


async def full_session_id(helm: Helmsman, text: str) -> str:
    """Return the id of the session that the text names, as `matching` does; `-` is the last one.

    Raises:
        InvalidInput: Several match, or the text is too short.
        SessionNotFound: None matches.
    """
    if len(text) >= _FULL:
        return text
    if text == LAST:
        page, _ = await helm.list(limit=_LOOKED_AT)
        found = [info for info in page if info.parent_id is None]
        if not found:
            raise SessionNotFound(_NO_SESSION)
        return found[0].session_id
    known: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page, cursor = await helm.list(limit=_PAGE, cursor=cursor, include_archived=True)
        known |= {info.session_id: info.about or "" for info in page}
        if cursor is None:
            return the_one_meant(text, known)


def the_one_meant(text: str, sessions: Mapping[str, str]) -> str:
    """Return the only session that the text names, as `full_session_id` does, of ids with their titles."""
    if len(text) < _LEAST:
        raise InvalidInput(
            f"{text!r} is too short for a session. Give at least {_LEAST} characters of its id or title."
        )
    found = matching(text, sessions)
    if not found:
        raise SessionNotFound(f"There is no session {text}. `{command_here('list')}` shows those there are.")
    if len(found) > 1:
        raise InvalidInput(f"{text} may be any of these. Give more of the id or title.\n{_listed(found, sessions)}")
    return found[0]


def matching(text: str, sessions: Mapping[str, str]) -> list[str]:
    """Return the sessions whose id the text begins, ends or is part of, or else those with the text in their title."""
    begins_or_ends = [one for one in sessions if _names(text, one)]
    if begins_or_ends:
        return begins_or_ends
    inside = [one for one in sessions if text in one]
    if inside:
        return inside
    wanted = text.casefold()
    titled = [one for one, title in sessions.items() if wanted in title.casefold()]
    return [one for one in titled if sessions[one].strip().casefold() == wanted] or titled


def _names(text: str, session_id: str) -> bool:
    return session_id.startswith(text) or session_id.endswith(text) or session_id[-SHORT:].startswith(text)


def _listed(session_ids: Sequence[str], titles: Mapping[str, str]) -> str:
    shown = [f"  {short_id(one)}  {one_line(titles[one])[:_TITLE]}".rstrip() for one in session_ids[:_SHOWN]]
    return "\n".join(shown if len(session_ids) <= _SHOWN else [*shown, f"  and {len(session_ids) - _SHOWN} more"])


@dataclass(frozen=True)
class SessionHere:
    """A session that a command without an id may mean."""

    session_id: str
    title: str
    status: str
    when: datetime

    @property
    def is_running(self) -> bool:
        return self.status in ("active", "awaiting_approval")


async def candidates_here(helm: Helmsman) -> list[SessionHere]:
    """Return the sessions of the directory that the user is in, newest first.

    Without any it is the directory of the repository around it; for another machine all of its sessions count.
    """
    from helmsman.shapes.listed_sessions import listed_sessions

    places = [None] if host().name else _places(host().place(None))
    for place in places:
        page, _ = await helm.list(directory=place, limit=_LOOKED_AT)
        own = [info for info in page if info.parent_id is None]
        if own:
            return [
                SessionHere(
                    one["sessionId"],
                    one.get("name") or one.get("summary") or "",
                    one.get("status") or "",
                    datetime.fromisoformat(one["timestamp"]),
                )
                for one in await listed_sessions(helm, own)
            ]
    return []


def _places(directory: Path) -> list[Path]:
    roots = enclosing_roots(str(directory), str(expand_home("~")))
    return list(dict.fromkeys([directory, *map(Path, reversed(roots))]))


def meant_here(candidates: Sequence[SessionHere]) -> list[SessionHere]:
    """Return the session that is meant without an id, or several if it is not clear: the running ones."""
    running = [one for one in candidates if one.is_running]
    return running or list(candidates[:1])


def refuse_several(candidates: Sequence[SessionHere]) -> Never:
    """Refuse a command without an id that could mean several sessions.

    Raises:
        InvalidInput: Always. It lists them.
    """
    listed = _listed([one.session_id for one in candidates], {one.session_id: one.title for one in candidates})
    raise InvalidInput(f"{len(candidates)} sessions are running here. Name the one you mean:\n{listed}")


def refuse_none() -> Never:
    """Refuse a command without an id where there is no session.

    Raises:
        SessionNotFound: Always.
    """
    raise SessionNotFound(f"{_NO_SESSION_HERE} `{command_here('list')}` shows those of other directories.")
