"""The terms a turn was begun under: they hold to its end, whoever follows it then.

How long its questions may wait, where it may write and how long it may be silent are the door's that began it. They are kept
with the task, so that the next process that finds the turn running holds it to them. What else counts (rules, prices) is in
files, which that process reads too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.base.clients import McpClient
from helmsman.base.structs import Value, replace
from helmsman.base.surroundings import asking_client
from helmsman.model.options import TurnLimits

if TYPE_CHECKING:
    from helmsman.settings import Settings


class Terms(Value, frozen=True):
    """What holds for a turn beside its options."""

    approval_timeout: float | None
    allowed_roots: tuple[Path, ...]
    limits: TurnLimits
    home: str = ""
    """Where Codex keeps its sessions."""
    surroundings: str = ""
    """A fingerprint of environment and settings, for comparing: an engine of another one is not for this turn."""
    max_sessions: int | None = None
    path: str = ""
    """Its program, where the settings name one."""
    claude_home: str = ""
    claude_path: str = ""
    """The same two of Claude Code."""
    client: McpClient | None = None
    """The MCP client whose model asked for the turn."""

    @classmethod
    def of(cls, settings: Settings, limits: TurnLimits, surroundings: str, *, goes_on: bool = True) -> Terms:
        """`goes_on`: whether the turn may go on when a usage limit has ended it, as one that is no message cannot."""
        limits = replace(limits, on_limit=(limits.on_limit or settings.on_limit) if goes_on else None)
        home, most = str(settings.codex_home), settings.max_sessions
        path = "" if settings.codex_path is None else str(settings.codex_path)
        claude = str(settings.claude_home), "" if settings.claude_path is None else str(settings.claude_path)
        return cls(
            settings.approval_timeout,
            settings.allowed_roots,
            limits,
            home,
            surroundings,
            most,
            path,
            *claude,
            asking_client(),
        )

    def settings(self, ours: Settings) -> Settings:
        """Our settings with what holds for the turn in place of ours."""
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
