"""Short session ids: any part of an id that identifies it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.cli.host import command_here, host
from helmsman.errors import InvalidInput, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.client import Helmsman

SHORT: Final = 8
"""Characters at the end of an id, which are random; the first encode the time and are shared by sessions of the same
minute.
"""

_FULL: Final = 36
_LEAST: Final = 4
_PAGE: Final = 500


def short_id(session_id: str) -> str:
    """Return the name of a session in commands."""
    return there(session_id[-SHORT:])


def there(session_id: str, name: str | None = None) -> str:
    """Return an id prefixed with its machine, if that is another one. Commands accept it (`helmsman.cli.thin`)."""
    machine = host().name if name is None else name
    return f"{machine}:{session_id}" if machine else session_id


async def full_session_id(helm: Helmsman, text: str) -> str:
    """Return the id of the session that equals, begins or ends with the text, or whose short id begins with it.

    Raises:
        InvalidInput: Several match, or the text is too short.
        SessionNotFound: None matches.
    """
    if len(text) >= _FULL:
        return text
    known: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await helm.list(limit=_PAGE, cursor=cursor, include_archived=True)
        known += [info.session_id for info in page]
        if cursor is None:
            return the_one_meant(text, known)


def the_one_meant(text: str, session_ids: Iterable[str]) -> str:
    """Return the session id that the text identifies, as `full_session_id` does."""
    if len(text) < _LEAST:
        raise InvalidInput(f"{text!r} is too short for a session. Give at least {_LEAST} characters of its id.")
    found = [session_id for session_id in session_ids if _is_meant(session_id, text)]
    if not found:
        raise SessionNotFound(f"There is no session {text}. `{command_here('list')}` shows those there are.")
    if len(found) > 1:
        raise InvalidInput(f"{text} may be any of {', '.join(found[:5])}. Give more of the id.")
    return found[0]


def _is_meant(session_id: str, text: str) -> bool:
    return session_id.startswith(text) or session_id.endswith(text) or session_id[-SHORT:].startswith(text)
