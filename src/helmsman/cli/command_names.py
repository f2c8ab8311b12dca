"""Names of commands, and what each is about. The thin client reads this before anything else is imported."""

from __future__ import annotations

# `typing` alone would take longer than all else that the thin client needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# groups of commands that run in different places
_NOUNS = frozenset(("agents", "config", "fleet", "hub", "job", "session"))
# in `session_commands`
SESSION_VERBS = ("fork", "rename", "hand", "archive", "unarchive", "compact", "goal", "rollback")
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
        *("run", "plan", "review", "watch", "say", "status", "respond", "steer", "interrupt", "apply"),
        *(f"job {name}" for name in ("debug", "plan", "refactor", "review", "test")),
        *("loop", "agents", "agents models", "agents account"),
        *("list", "diff", "tasks", "schedule", "usage", "session worktrees", "session search", "session attach"),
        *(f"session {name}" for name in _SESSION),
    )
)
"""Commands that work on another machine, by calling its hub."""
OF_SESSION = frozenset(
    (
        *("status", "watch", "say", "steer", "interrupt", "respond", "diff", "apply", "session attach"),
        *(f"session {name}" for name in _SESSION),
    )
)
"""Commands whose first argument is a session."""


def command_name(arguments: Sequence[str]) -> str:
    """Return the name of the command in these arguments: `list`, or `session rename` for a command of a noun."""
    first, second = (*arguments[:2], "", "")[:2]
    return f"{first} {second}" if first in _NOUNS and second and not second.startswith("-") else first


# Words that users of other tools try first.
ALIASES = {
    "ps": ("list", "--running"),
    "ls": ("list",),
    "sessions": ("list",),
    "show": ("status",),
    "log": ("status", "--lines", "500"),
    "logs": ("status", "--lines", "500"),
    "follow": ("watch",),
    "start": ("run", "--detach"),
    "stop": ("interrupt",),
    "kill": ("interrupt",),
    "cancel": ("interrupt",),
    "send": ("say",),
    "answer": ("respond",),
    "approve": ("respond",),
    "deny": ("respond",),
    "questions": ("respond",),
    "engines": ("hub", "engines"),
    "undo": ("session", "rewind"),
    "cost": ("usage",),
    "web": ("dashboard",),
    "uninstall": ("install", "--remove"),
    **{name: ("session", name) for name in ("archive", "attach", "commit", "discard", "export", "fork")},
    **{name: ("session", name) for name in ("import", "open", "pr", "rename", "rewind")},
    **{name: ("session", name) for name in ("search", "watch-pr", "worktrees")},
    **{name: ("job", name) for name in ("debug", "refactor", "test")},
    **{name: ("config", name) for name in ("hosts", "notify", "rules")},
    **{name: ("agents", name) for name in ("login", "models")},
}
"""The beginning of the command for a word. Nothing is approved without being shown: `approve` shows what is asked."""
_HELP = "help"
_CONTINUES = frozenset(("resume", "continue"))
WORDS = (*ALIASES, *_CONTINUES, _HELP)


def expanded(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with an alias replaced by its command."""
    word, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if word == _HELP:
        # `help run` reads as `run --help`.
        return [*expanded(rest), "--help"]
    if word in ALIASES:
        return [*ALIASES[word], *rest]
    if word not in _CONTINUES:
        return list(arguments)
    # A word with spaces is a prompt, not the name of a session.
    if not rest or rest[0].startswith("-") or any(map(str.isspace, rest[0])):
        return ["run", "--continue", *rest]  # the last session of the directory
    return ["run", "--session", *rest]
