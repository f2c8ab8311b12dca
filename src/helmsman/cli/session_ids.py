"""Short forms of session ids: a person types the part of an id that tells it from the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.cli.host import command_here, host
from helmsman.errors import InvalidInput, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.service import Helmsman

SHORT: Final = 8
"""The last characters of an id are random; the first ones are a time, and the same for all sessions of a minute."""

_FULL: Final = 36
_LEAST: Final = 4
_PAGE: Final = 500


def short_id(session_id: str) -> str:
    """What a person calls a session in commands, which all take it."""
    return there(session_id[-SHORT:])


def there(session_id: str, name: str | None = None) -> str:
    """An id, with the machine it is of where that is another. Commands take it like this, too (`helmsman.cli.thin`)."""
    machine = host().name if name is None else name
    return f"{machine}:{session_id}" if machine else session_id


async def full_session_id(helm: Helmsman, text: str) -> str:
    """The one session whose id is, begins or ends with the text; or whose short form begins with it.

    Raises:
        InvalidInput: Several do, or the text is too short to mean one.
        SessionNotFound: None does.
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
    """Return the one of these sessions that the text means, as `full_session_id` does."""
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
