"""Helpers for commands on one session."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar

import click

from helmsman.base.caller_context import expand_home
from helmsman.base.sanitize import one_line
from helmsman.base.structs import replace
from helmsman.base.user_directories import enclosing_roots
from helmsman.cli.command import option
from helmsman.cli.completing import SHORT, complete_session
from helmsman.cli.consoles import echo, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import command_here, host
from helmsman.cli.output import can_ask, session_word
from helmsman.errors import InvalidInput, SessionBusy, SessionNotFound
from helmsman.shapes.listed_sessions import listed_sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from helmsman.client import Helmsman
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings


# A whole id: no search is needed.
_FULL: Final = 36
_LEAST: Final = 3
_PAGE: Final = 500
_MOST_CANDIDATES: Final = 50
_SHOWN: Final = 9
_LISTED_TITLE: Final = 60
_NO_SESSION: Final = 'There is no session yet. Start one: helmsman run "…"'


def short_id(session_id: str) -> str:
    """Return the name of a session in commands."""
    return there(session_id[-SHORT:])


def there(session_id: str, name: str | None = None) -> str:
    """Return an id prefixed with its machine, if that is another one. Commands accept it (`helmsman.cli.thin`)."""
    machine = host().name if name is None else name
    return f"{machine}:{session_id}" if machine else session_id


LAST: Final = "-"
"""Session that was active last, in any directory."""


async def full_session_id(helm: Helmsman, text: str) -> str:
    """Return the id of the session that the text names, as `matching` does; `-` is the last one.

    Raises:
        InvalidInput: Several match, or the text is too short.
        SessionNotFound: None matches.
    """
    if len(text) >= _FULL:
        return text
    if text == LAST:
        found, _ = await helm.list(limit=1)
        if not found:
            raise SessionNotFound(_NO_SESSION)
        return found[0].session_id
    known = await _titles_of_all(helm)
    # Sub-agents go last, so that they make no part of another session's id ambiguous.
    if not matching(text, known):
        known = await _titles_of_all(helm, include_sub_agents=True)
    return the_one_meant(text, known)


async def _titles_of_all(helm: Helmsman, *, include_sub_agents: bool = False) -> dict[str, str]:
    """Return all sessions with their titles, because a prefix must be unique among all. Archived ones count too."""
    known: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page, cursor = await helm.list(
            limit=_PAGE, cursor=cursor, include_archived=True, include_sub_agents=include_sub_agents
        )
        known |= {info.session_id: info.about or "" for info in page}
        if cursor is None:
            return known


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
    # The beginning and the end go first: lists show the end, and programs the beginning.
    begins_or_ends = [one for one in sessions if _names(text, one)]
    if begins_or_ends:
        return begins_or_ends
    inside = [one for one in sessions if text in one]
    if inside:
        return inside
    wanted = text.casefold()
    titled = [one for one, title in sessions.items() if wanted in title.casefold()]
    # A title that is equal goes before one that only contains the text.
    return [one for one in titled if sessions[one].strip().casefold() == wanted] or titled


def _names(text: str, session_id: str) -> bool:
    # The end of an id, as lists show it, may be typed in part.
    return session_id.startswith(text) or session_id.endswith(text) or session_id[-SHORT:].startswith(text)


def _listed(session_ids: Sequence[str], titles: Mapping[str, str]) -> str:
    shown = [f"  {short_id(one)}  {one_line(titles[one])[:_LISTED_TITLE]}".rstrip() for one in session_ids[:_SHOWN]]
    return "\n".join(shown if len(session_ids) <= _SHOWN else [*shown, f"  and {len(session_ids) - _SHOWN} more"])


@dataclass(frozen=True)
class SessionHere:
    """Session that a command without an id may mean. `worktree`: its directory, if that is a worktree."""

    session_id: str
    title: str
    status: str
    when: datetime
    worktree: str | None = None

    @property
    def is_running(self) -> bool:
        return self.status in ("active", "awaiting_approval")


async def candidates_here(helm: Helmsman) -> list[SessionHere]:
    """Return the sessions of the directory that the user is in, newest first.

    Without any it is the directory of the repository around it; for another machine all of its sessions count.
    """
    # A directory of this machine means nothing there.
    places = [None] if host().name else _places(host().place(None))
    for place in places:
        found, _ = await helm.list(directory=place, limit=_MOST_CANDIDATES)
        if found:
            return [
                SessionHere(
                    one["sessionId"],
                    one.get("name") or one.get("summary") or "",
                    one.get("status") or "",
                    datetime.fromisoformat(one["timestamp"]),
                    # The list names the repository of sessions in a worktree only.
                    one.get("directory") if "repository" in one else None,
                )
                for one in await listed_sessions(helm, found)
            ]
    return []


def _places(directory: Path) -> list[Path]:
    # The nearest repository first.
    roots = enclosing_roots(str(directory), str(expand_home("~")))
    return list(dict.fromkeys([directory, *map(Path, reversed(roots))]))


def meant_here(candidates: Sequence[SessionHere]) -> list[SessionHere]:
    """Return the session that is meant without an id, or several if it is not clear: the running ones."""
    running = [one for one in candidates if one.is_running]
    # A turn that runs is what most commands are for.
    return running or list(candidates[:1])


def refuse_several(candidates: Sequence[SessionHere]) -> Never:
    """Refuse a command without an id that could mean several sessions.

    Raises:
        InvalidInput: Always. It lists them.
    """
    listed = _listed([one.session_id for one in candidates], {one.session_id: one.title for one in candidates})
    what = "are running here" if all(one.is_running for one in candidates) else "here have a worktree"
    raise InvalidInput(f"{len(candidates)} sessions {what}. Name the one you mean:\n{listed}")


ResultT = TypeVar("ResultT")
Body = Callable[..., Any]

_TITLE: Final = 70
_MEANT: Final = "without it, the one running here or the last of this directory."

# Words that could be an id are read as one, so that a misspelt id is not sent as a message.
_LIKE_AN_ID: Final = re.compile(r"[0-9a-f-]{6,36}|-")


def optional_session(complete: Callable[..., list[CompletionItem]], meant: str = _MEANT) -> Callable[[Body], Body]:
    """Add the argument SESSION, which may be missing. The help of the command ends with what it means."""

    def declare(body: Body) -> Body:
        named = f"SESSION is a part of an id or title, or `-` for the last one; {meant}"
        body.__doc__ = f"{inspect.cleandoc(body.__doc__ or '')}\n\n{named}"
        return click.argument("session", metavar="[SESSION]", required=False, shell_complete=complete)(body)

    return declare


def session_argument(body: Body) -> Body:
    """Add the argument SESSION to a command, which gets the id of the session that the user means (`the_session`)."""

    @functools.wraps(body)
    def command(session: str | None, **options: Any) -> Any:
        return body(session=the_session(session, as_json=options["as_json"]), **options)

    return optional_session(complete_session)(command)


def session_and(name: str, *, required: bool = True) -> Callable[[Body], Body]:
    """Add the arguments SESSION and another, a text. A single argument is the text, with the session that is meant."""

    def declare(body: Body) -> Body:
        @functools.wraps(body)
        def command(session: str | None, **options: Any) -> Any:
            # With a single argument it is unclear which of the two it is.
            if options[name] is None and session is not None and _is_text(session, required=required):
                session, options[name] = None, session
            if options[name] is None and required:
                raise click.UsageError(f"Missing argument '{name.upper()}'.")
            return body(session=the_session(session, as_json=options["as_json"]), **options)

        text = click.argument(name, metavar=name.upper() if required else f"[{name.upper()}]", required=False)
        return optional_session(complete_session)(text(command))

    return declare


def _is_text(given: str, *, required: bool) -> bool:
    """Return whether a single argument is the text and not the session."""
    return given == "-" or _LIKE_AN_ID.fullmatch(given) is None if required else any(map(str.isspace, given))


def the_session(reference: str | None, *, as_json: bool, with_worktree: bool = False) -> str:
    """Return the id of the session that the user means.

    With a reference, it is the session that any part of an id or a title names, or with `-` the last one. Without one, it is
    the only session running in this directory, or else the last of this directory. For a command on a worktree it is the
    session of this directory that has one. If that leaves several, the user picks one on the terminal.

    Raises:
        InvalidInput: Several match, and the user cannot be asked.
        SessionNotFound: None matches.
        click.exceptions.Exit: The user picked none.
    """
    if reference is not None:
        return with_helmsman(lambda helm: full_session_id(helm, reference))
    candidates = with_helmsman(candidates_here)
    meant = meant_here(candidates)
    # A worktree that was discarded stays known as the place of its session.
    trees = [one for one in candidates if one.worktree is not None and (host().name or Path(one.worktree).is_dir())]
    if with_worktree and trees:
        candidates = meant = trees
    if not meant:
        raise SessionNotFound(
            f"There is no session in this directory. `{command_here('list')}` shows those of other directories."
        )
    # Guessing could stop or answer the wrong session.
    if len(meant) > 1:
        if not can_ask(as_json=as_json):
            refuse_several(meant)
        # All sessions of the directory are offered, with those that run first.
        return _picked(candidates)
    # Said on stderr, because nothing else names the session that was chosen.
    if not as_json:
        echo(f"Session {short_id(meant[0].session_id)}  {one_line(meant[0].title)[:_TITLE]}".rstrip(), err=True)
    return meant[0].session_id


def _picked(candidates: Sequence[SessionHere]) -> str:
    """Let the user pick a session, those that run first."""
    from helmsman.terminal.picker import PickerLine, pick

    ordered = sorted(candidates, key=lambda one: not one.is_running)
    choices = [
        PickerLine(one.session_id, f"{short_id(one.session_id)}  {session_word(one.status):<15}", one.title)
        for one in ordered
    ]
    picked = host().run(functools.partial(pick, choices, "Which session?"))
    if picked is None:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED)
    return picked


# for commands that show a turn on a terminal
interactive_option = option("-i --interactive", "Stay after the turn, for the next message; Ctrl-D leaves.")


@contextmanager
def names_ways_out(session_id: str | None) -> Iterator[None]:
    """Turn "session is busy" errors into errors that name commands for sending the message anyway."""
    try:
        yield
    except SessionBusy as error:
        name = short_id(session_id or "")
        raise SessionBusy(
            f'A turn is running in session {name}. `helmsman say {name} "…" --steer` puts your message into it, --queue '
            f"sends it when that has ended. `helmsman watch {name}` follows it, `helmsman interrupt {name}` stops it.",
            **error.details,
        ) from error


def titles(session_ids: Iterable[str | None]) -> dict[str, str]:
    """Return known titles of sessions: their names, or their first prompts."""
    # From the disk, without a hub: only titles are needed.
    indexes = host().indexes(settings_of_command()).values()
    found = {one: next(filter(None, (index.find(one) for index in indexes)), None) for one in session_ids if one}
    return {one: info.about or "" for one, info in found.items() if info is not None}


def with_helmsman(
    do: Callable[[Helmsman], Awaitable[ResultT]],
    *,
    settings: Settings | None = None,
    detach: bool = True,
    on_question: QuestionHandler | None = None,
) -> ResultT:
    """Call `do` with an open Helmsman.

    Args:
        settings: Default: the user's settings.
        detach: Whether its engine may outlive it.
        on_question: Answers questions of the agent.
    """
    chosen = settings_of_command() if settings is None else settings
    # Its own engine, which ends with it.
    if not detach:
        chosen = replace(chosen, detach=False)

    async def run() -> ResultT:
        async with host().helmsman(chosen, on_question) as helm:
            return await do(helm)

    return host().run(run)
