"""Words that people try, and the commands that they mean."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
    "undo": ("session", "rewind"),
    "cost": ("usage",),
    "web": ("dashboard",),
    "uninstall": ("install", "--remove"),
    **{name: ("session", name) for name in ("archive", "attach", "commit", "discard", "export")},
    **{name: ("session", name) for name in ("import", "open", "pr", "rename", "rewind")},
    **{name: ("session", name) for name in ("search", "watch-pr", "worktrees")},
    **{name: ("job", name) for name in ("debug", "refactor", "test")},
    **{name: ("config", name) for name in ("hosts", "notify", "rules")},
    **{name: ("agents", name) for name in ("login", "models")},
}
"""The beginning of the command for a word. Nothing is approved without being shown: `approve` shows what is asked."""
_HELP = "help"
_CONTINUES = frozenset(("resume", "continue"))


def expanded(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a word that stands for a command replaced by that command."""
    word, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if word == _HELP:
        return [*expanded(rest), "--help"]
    if word in ALIASES:
        return [*ALIASES[word], *rest]
    if word not in _CONTINUES:
        return list(arguments)
    if not rest or rest[0].startswith("-") or any(map(str.isspace, rest[0])):
        return ["run", "--continue", *rest]  # the last session of the directory
    return ["run", "--session", *rest]
