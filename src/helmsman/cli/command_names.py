"""Names of commands, and what each is about. The thin client reads this before anything else is imported."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NOUNS = frozenset(
    ("agents", "config", "fleet", "hub", "job", "session")
)  # groups of commands that run in different places
SESSION_VERBS = ("rename", "hand", "archive", "unarchive", "compact", "goal", "rollback")  # in `session_commands`
_SESSION = (*SESSION_VERBS, "rewind", "discard", "export")

ASKING = frozenset(
    (
        *("status", "list", "respond", "diff", "tasks", "schedule", "usage", "session worktrees"),
        *("config rules", "config notify", "agents models", "agents account"),
    )
)
"""Commands that ask: the hub renders the answer. Their subcommands that change something need their own process."""
ON_OTHER_HOSTS = frozenset(
    (
        *("run", "plan", "review", "watch", "say", "status", "respond", "steer", "interrupt", "fork", "apply"),
        *("job debug", "job refactor", "job test", "agents", "agents models", "agents account"),
        *("list", "diff", "tasks", "schedule", "usage", "session worktrees", "session search", "session attach"),
        *(f"session {name}" for name in _SESSION),
    )
)
"""Commands that work on another machine, by calling its hub."""
OF_SESSION = frozenset(
    (
        *("status", "watch", "say", "steer", "interrupt", "respond", "diff", "apply", "fork", "session attach"),
        *(f"session {name}" for name in _SESSION),
    )
)
"""Commands whose first argument is a session."""


def command_name(arguments: Sequence[str]) -> str:
    """Return the name of the command in these arguments: `list`, or `session rename` for a command of a noun."""
    first, second = (*arguments[:2], "", "")[:2]
    return f"{first} {second}" if first in _NOUNS and second and not second.startswith("-") else first
