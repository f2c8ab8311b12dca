"""Policy of a turn. It applies until its end, also when another process follows it.

The client that begins a turn decides how long its questions may wait, where it may write and how long it may be silent.
The policy is stored with the task, so that the next process that finds the turn running applies it. The cost limit is a
field of the task itself (`Task.max_cost_usd`). Rules and prices are in files, which that process reads too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from helmsman.base.caller_context import asking_client
from helmsman.base.clients import McpClient
from helmsman.base.structs import Value, replace, unpack_if_valid
from helmsman.model.options import TurnLimits

if TYPE_CHECKING:
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task


class TurnPolicy(Value, frozen=True):
    """Policy of a turn, in addition to its options. Most fields are settings of its client."""

    approval_timeout: float | None
    allowed_roots: tuple[Path, ...]
    limits: TurnLimits
    codex_home: Path | None = None
    environment_fingerprint: str = ""
    """Fingerprint of environment and settings. A turn must not run in an engine with another one."""
    max_sessions: int | None = None
    codex_path: Path | None = None
    claude_home: Path | None = None
    claude_path: Path | None = None
    client: McpClient | None = None
    """MCP client that requested the turn for its model."""

    @classmethod
    def of(
        cls, settings: Settings, limits: TurnLimits, environment_fingerprint: str, *, goes_on: bool = True
    ) -> TurnPolicy:
        """`goes_on` is False for a turn that cannot resume after a usage limit because it is no message."""
        return cls(
            limits=replace(limits, on_limit=(limits.on_limit or settings.on_limit) if goes_on else None),
            environment_fingerprint=environment_fingerprint,
            client=asking_client(),
            **{name: getattr(settings, name) for name in (*_ALWAYS, *_IF_SET)},
        )

    @classmethod
    def stored_with(cls, task: Task) -> Self | None:
        """Return the policy that is stored with a task."""
        return unpack_if_valid(task.policy, cls)

    def settings(self, ours: Settings) -> Settings:
        """Return our settings, overridden by the policy of the turn."""
        held = {name: getattr(self, name) for name in (*_ALWAYS, *_IF_SET)}
        # An unset timeout, or no roots, is a decision of the client as well, so it overrides ours.
        return replace(ours, **{name: value for name, value in held.items() if value is not None or name in _ALWAYS})


_ALWAYS: Final = ("approval_timeout", "allowed_roots")
"""Settings that hold also where the client has none."""
_IF_SET: Final = ("max_sessions", "codex_home", "codex_path", "claude_home", "claude_path")
