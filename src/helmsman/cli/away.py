"""Sessions on another machine that work with a tree of this one: `diff`, `apply` and `discard` find them by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from helmsman.cli.consoles import settings_of_command
from helmsman.cli.host import TreeElsewhere, host, hosted
from helmsman.cli.on_session import with_helmsman
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.hub.away import AwayWork
    from helmsman.worktrees.returning import Away

ResultT = TypeVar("ResultT")


def away_session(reference: str) -> Away | None:
    """The one that is meant; None if it is none of these.

    Raises:
        InvalidInput: It may be several.
    """
    if host().is_elsewhere:
        return None
    from helmsman.worktrees.returning import find_away

    found = find_away(settings_of_command().state_dir, reference)
    if len(found) > 1:
        raise InvalidInput(f"{reference} may be several sessions. Give more of the id.")
    if not found:
        return None
    host().require_own_process()
    return found[0]


def refuse_brought(reference: str) -> None:
    """What was changed there in a tree of this machine belongs into that tree, not into the copy there.

    Raises:
        InvalidInput: The session is one of these.
    """
    from helmsman.worktrees.returning import find_away

    name = host().name
    known = find_away(settings_of_command().state_dir, reference) if host().is_elsewhere else ()
    if any(one.host == name for one in known):
        raise InvalidInput(f"It works on a tree of this machine. Bring it in here: helmsman apply {reference}")


def with_away(known: Away, do: Callable[[AwayWork, str], Awaitable[ResultT]]) -> ResultT:
    """Do something with what is known of a session there."""
    session_id = known.session_id
    if session_id is None:
        raise InvalidInput(f"As far as is known here, nothing was started with what was sent to {known.host}.")
    with hosted(TreeElsewhere(known.host)):
        return with_helmsman(lambda helm: do(helm.workspaces, session_id))
