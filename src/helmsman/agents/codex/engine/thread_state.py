"""What the app-server engine has to know of a thread, its own or a sub-agent's, and what is said when one is opened."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.codex.access.confinement import read_policy
from helmsman.agents.codex.engine.turn_kinds import ThreadMode
from helmsman.agents.codex.wire.app_server import ThreadSettings
from helmsman.agents.protocol import Opened
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.codex.access.confinement import Policy
    from helmsman.agents.codex.access.plan import Access
    from helmsman.agents.codex.wire.app_server import Thread
    from helmsman.model.events import FileChange, McpToolCall
    from helmsman.model.options import SessionOptions


@dataclass(slots=True)
class ThreadState:
    options: SessionOptions | None = None
    directory: str | None = None
    access: Access | None = None
    model: str | None = None
    """To be sent with the next turn: Codex does not have it yet."""
    holds_goal: bool = False
    """Its goal was paused while it was loaded, and may be gone on with after the next turn."""
    policy: Policy | None = None
    """What holds: as Codex reported it, or as the newest turn said it."""
    mode: ThreadMode = field(default_factory=ThreadMode)
    turn_id: str | None = None
    ended_turn_id: str | None = None
    reviewing: bool = False
    """A review is a turn with a turn of the reviewer inside, which Codex (0.115 and newer) announces under another id."""
    idle: anyio.Event = field(default_factory=anyio.Event)
    asked_about: dict[str, FileChange | McpToolCall] = field(default_factory=dict[str, "FileChange | McpToolCall"])
    """The items of the running turn to which a question may refer, by their ids."""

    def opened(self, thread: Thread, options: SessionOptions, access: Access) -> None:
        """Codex has opened the thread under these options."""
        self.options, self.access, self.directory, self.policy = options, access, thread.cwd, thread.policy
        self.mode.learn(thread)

    def changed(self, params: Mapping[str, Any]) -> None:
        """Somebody has changed the settings of the thread: we, with a turn, or another client of the same engine."""
        settings = params.get("threadSettings")
        if isinstance(settings, dict):
            roots = self.policy.workspace_roots if self.policy is not None else ()
            reported = read_policy({**settings, "sandbox": settings.get("sandboxPolicy")})
            self.policy = replace(reported, workspace_roots=roots)

    def began(self, turn_id: str) -> None:
        if self.turn_id != turn_id:  # told twice, by the answer and by a notification; whoever waits must not be lost
            self.turn_id = turn_id
            self.idle = anyio.Event()

    def answered_for(self, turn_id: str) -> None:
        """Codex says that it begins a turn. The turn's first events, even its end, may have been read before that."""
        if turn_id == self.ended_turn_id or (self.reviewing and self.turn_id is not None):
            return
        self.began(turn_id)


# --- opening one -----------------------------------------------------------------------------------------------------

_ONLY_AT_OPENING: Final = ("profile", "config", "base_instructions", "developer_instructions", "trust_repository")


def thread_settings(options: SessionOptions, access: Access) -> ThreadSettings:
    return ThreadSettings(
        cwd=options.cwd,
        model=options.model,
        sandbox=access.thread_sandbox,
        approval_policy=access.approval_policy,
        config=access.config,
        base_instructions=options.base_instructions,
        developer_instructions=options.developer_instructions,
    )


def as_opened(thread: Thread, access: Access) -> Opened:
    return Opened(
        session_id=thread.id,
        directory=thread.cwd,
        model=thread.model,
        approval_policy=thread.approval_policy,
        sandbox=access.sandbox or thread.sandbox,
        notes=access.notes,
        raw=thread.raw,
    )


def remark_on_ignored(options: SessionOptions) -> tuple[str, ...]:
    """What to tell who resumes, with options, a session that its engine has open already for somebody else."""
    given = [name for name in _ONLY_AT_OPENING if getattr(options, name)]
    if not given:
        return ()
    return (f"Codex has this session open already and did not take {', '.join(given)}. Start a new session for that.",)


def refuse_what_only_opening_takes(known: SessionOptions, wanted: SessionOptions) -> None:
    """A loaded thread takes a new model, sandbox or approval policy with its next turn, and ignores the rest silently.

    Raises:
        InvalidInput: Something is wanted that can only be had in a new session.
    """
    changed = [name for name in ("cwd", *_ONLY_AT_OPENING) if getattr(known, name) != getattr(wanted, name)]
    if changed:
        raise InvalidInput(
            f"Codex takes {', '.join(changed)} only when it opens a session, and this one is open. Start a new one for it."
        )
