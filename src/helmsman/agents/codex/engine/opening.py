"""What is sent to Codex when a thread is opened, and what the caller is told of the session it became."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.agents.codex.wire.app_server import ThreadSettings
from helmsman.agents.protocol import Opened
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.agents.codex.access.plan import Access
    from helmsman.agents.codex.wire.app_server import Thread
    from helmsman.model.options import SessionOptions


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


def as_opened(thread: Thread, access: Access, turn_id: str | None) -> Opened:
    return Opened(
        session_id=thread.id,
        turn_id=turn_id,
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
