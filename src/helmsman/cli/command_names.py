"""Names of commands, and where each command runs. The thin client reads this before anything else is imported."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NOUNS = frozenset(
    ("agents", "config", "fleet", "hub", "job", "session")
)  # groups of commands that run in different places
_SESSION = ("rewind", "rollback", "compact", "goal", "rename", "hand", "archive", "unarchive", "discard")

IN_HUB = frozenset(
    (
        *("say", "status", "respond", "steer", "interrupt", "list", "fork", "diff", "tasks", "schedule", "usage"),
        *(f"session {name}" for name in (*_SESSION, "worktrees")),
        *("config rules", "config notify", "agents models", "agents account"),
    )
)
"""Commands that the hub runs. The others need a terminal or their own process; `apply` creates files as the user."""
IN_OTHER_HUB = IN_HUB | {"agents"}
"""Commands that the hub of another machine runs."""
CALLING_OTHER_HUB = frozenset(
    (
        *("run", "plan", "review", "watch", "say", "status", "respond", "steer", "interrupt", "fork", "apply"),
        *("job debug", "job refactor", "job test"),
        *("session search", "session rewind", "session rollback", "session discard", "session attach"),
    )
)
"""Commands that a local process runs for another machine by calling its hub."""
OF_SESSION = frozenset(
    (
        *("status", "watch", "say", "steer", "interrupt", "respond", "diff", "apply", "fork", "session attach"),
        *(f"session {name}" for name in _SESSION),
    )
)
"""Commands whose first argument is a session."""
OF_STDIN = frozenset(("say", "steer", "schedule", "tasks"))
"""Commands that read stdin for the argument `-`."""


def command_name(arguments: Sequence[str]) -> str:
    """Return the name of the command in these arguments: `list`, or `session rename` for a command of a noun."""
    first, second = (*arguments[:2], "", "")[:2]
    return f"{first} {second}" if first in _NOUNS and second and not second.startswith("-") else first
