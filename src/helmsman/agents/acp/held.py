"""What an engine knows of a session and of the turn that runs in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.acp.profile import is_enforced
from helmsman.agents.protocol import Opened
from helmsman.base.json_values import mapping, text
from helmsman.model.events import Failure, Usage
from helmsman.model.options import approval_word, sandbox_word

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.agents.acp.process import AgentProcess
    from helmsman.agents.acp.profile import AgentAccess
    from helmsman.agents.acp.updates import TurnItems
    from helmsman.base.jsonrpc import IncomingRequest
    from helmsman.model.events import TurnOutcome
    from helmsman.model.options import SessionOptions

_OUTCOMES: Final[Mapping[str, TurnOutcome]] = {"end_turn": "completed", "cancelled": "interrupted"}


@dataclass(slots=True, eq=False)
class AgentTurn:
    """A turn that runs. `prompts` are those sent and not answered.

    `later` is what the agent is given when it asks, and else what is sent when they are answered; `reasons` are sent only
    then, since an agent that was refused may ask and stop all the same.
    """

    id: str
    items: TurnItems
    prompts: int = 0
    later: list[str] = field(default_factory=list[str])
    reasons: list[str] = field(default_factory=list[str])
    interrupted: bool = False
    usage: Usage | None = None
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failure: Failure | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)

    def decline(self, request: IncomingRequest) -> None:
        """What this asked for was refused."""
        call = self.items.known(text(mapping(request.params.get("toolCall")).get("toolCallId")))
        if call is not None:
            call.declined = True

    def count(self, used: Usage | None) -> None:
        """Take in what was used, if that was told."""
        if used is not None:
            self.usage = used if self.usage is None else self.usage + used

    def outcome(self, title: str) -> tuple[TurnOutcome, Failure | None]:
        """How it has ended, now that all its prompts are answered."""
        if self.interrupted:
            return "interrupted", None
        if self.failure is not None:
            return "failed", self.failure
        if self.items.failure is not None:
            return "failed", Failure(code="agent_error", message=self.items.failure)
        reason = text(self.answer.get("stopReason"))
        if reason in _OUTCOMES:
            return _OUTCOMES[reason], None
        return "failed", Failure(
            code=reason or "unknown", message=f"{title} stopped: {reason or 'it does not say why'}."
        )


@dataclass(slots=True, eq=False)
class HeldSession:
    """A session and the process that holds it, while one does."""

    options: SessionOptions
    directory: Path
    access: AgentAccess
    id: str = ""
    process: AgentProcess | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    gone: anyio.Event = field(default_factory=anyio.Event)
    loading: bool = False
    turn: AgentTurn | None = None
    questions: dict[str, IncomingRequest] = field(default_factory=dict[str, "IncomingRequest"])
    counted: Usage = field(default_factory=Usage)
    """What has been counted so far, where it is told as a sum."""
    idle_since: float = 0.0
    leaving: bool = False
    model: str | None = None

    def opened(self) -> Opened:
        """As whoever asked for it is told."""
        options, enforced = self.options, is_enforced(self.options)
        return Opened(
            session_id=self.id,
            turn_id=None if self.turn is None else self.turn.id,
            directory=str(self.directory),
            model=self.model,
            approval_policy=approval_word(options.asks or "unless_harmless"),
            sandbox=sandbox_word(options.writes or "workspace") if enforced or options.writes == "anything" else None,
            enforced=enforced,
            notes=self.access.notes,
        )

    def since_last(self, total: Usage) -> Usage:
        """What of a sum is new."""
        used, self.counted = total - self.counted, total
        return used
