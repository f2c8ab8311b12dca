"""Policy of a turn. It applies until its end, also when another process follows it.

The client that begins a turn decides how long its questions may wait, where it may write and how long it may be silent.
The policy is stored with the task, so that the next process that finds the turn running applies it. Rules and prices are
in files, which that process reads too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from helmsman.base.caller_context import asking_client
from helmsman.base.clients import McpClient
from helmsman.base.structs import Value, replace, unpack_if_valid
from helmsman.model.options import TurnLimits

if TYPE_CHECKING:
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task


class TurnPolicy(Value, frozen=True):
    """Policy of a turn, in addition to its options."""

    approval_timeout: float | None
    allowed_roots: tuple[Path, ...]
    limits: TurnLimits
    home: str = ""
    """Directory of Codex's sessions."""
    environment_fingerprint: str = ""
    """Fingerprint of environment and settings. A turn must not run in an engine with another one."""
    max_sessions: int | None = None
    path: str = ""
    """Its program, where the settings name one."""
    claude_home: str = ""
    claude_path: str = ""
    """Same for Claude Code."""
    client: McpClient | None = None
    """MCP client that requested the turn for its model."""

    @classmethod
    def of(
        cls, settings: Settings, limits: TurnLimits, environment_fingerprint: str, *, goes_on: bool = True
    ) -> TurnPolicy:
        """`goes_on` is False for a turn that cannot resume after a usage limit because it is no message."""
        limits = replace(limits, on_limit=(limits.on_limit or settings.on_limit) if goes_on else None)
        home, most = str(settings.codex_home), settings.max_sessions
        path = "" if settings.codex_path is None else str(settings.codex_path)
        claude = str(settings.claude_home), "" if settings.claude_path is None else str(settings.claude_path)
        return cls(
            settings.approval_timeout,
            settings.allowed_roots,
            limits,
            home,
            environment_fingerprint,
            most,
            path,
            *claude,
            asking_client(),
        )

    @classmethod
    def stored_with(cls, task: Task) -> Self | None:
        """Return the policy that is stored with a task."""
        return unpack_if_valid(task.policy, cls)

    def settings(self, ours: Settings) -> Settings:
        """Return our settings, overridden by the policy of the turn."""
        return replace(
            ours,
            approval_timeout=self.approval_timeout,
            allowed_roots=self.allowed_roots,
            max_sessions=ours.max_sessions if self.max_sessions is None else self.max_sessions,
            codex_home=Path(self.home) if self.home else ours.codex_home,
            codex_path=Path(self.path) if self.path else ours.codex_path,
            claude_home=Path(self.claude_home) if self.claude_home else ours.claude_home,
            claude_path=Path(self.claude_path) if self.claude_path else ours.claude_path,
        )
