"""Find sessions on another machine that use a local tree, for `diff`, `apply` and `discard`."""

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
    """Return the remote session with a local tree that matches the reference, or None.

    Raises:
        InvalidInput: Several sessions match.
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
    """Refuse to apply remotely what belongs to a tree of the local machine.

    Raises:
        InvalidInput: The session works on a local tree.
    """
    from helmsman.worktrees.returning import find_away

    name = host().name
    known = find_away(settings_of_command().state_dir, reference) if host().is_elsewhere else ()
    if any(one.host == name for one in known):
        raise InvalidInput(f"It works on a tree of this machine. Bring it in here: helmsman apply {reference}")


def with_away(known: Away, do: Callable[[AwayWork, str], Awaitable[ResultT]]) -> ResultT:
    """Call `do` with a remote session that uses a local tree."""
    session_id = known.session_id
    if session_id is None:
        raise InvalidInput(f"As far as is known here, nothing was started with what was sent to {known.host}.")
    with hosted(TreeElsewhere(known.host)):
        return with_helmsman(lambda helm: do(helm.workspaces, session_id))
