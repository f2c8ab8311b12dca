"""What an engine knows of a session and of the turn that runs in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.json_values import amount, mapping, text
from helmsman.model.events import Failure, Usage

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
    cost: float | None = 0.0
    """What the session had cost before this turn, as the agent tells it; None where that is not known."""
    told_cost: float | None = None
    idle_since: float = 0.0
    leaving: bool = False
    model: str | None = None

    def note_cost(self, update: Mapping[str, Any]) -> None:
        """Take in what the session has cost by now, if an update says so: agents tell a sum, and 0 if they know no price."""
        cost = mapping(update.get("cost"))
        if cost.get("currency", "USD") == "USD":
            self.told_cost = amount(cost.get("amount")) or self.told_cost

    def used_in(self, turn: AgentTurn) -> Usage | None:
        """What a turn that ends has used, and cost, as far as that was told."""
        told, self.told_cost = self.told_cost, None
        if told is None or (turn.usage is not None and turn.usage.cost_usd is not None):
            return turn.usage
        before, self.cost = self.cost, told
        return turn.usage if before is None else replace(turn.usage or Usage(), cost_usd=max(0.0, told - before))

    def since_last(self, total: Usage) -> Usage:
        """What of a sum is new."""
        used, self.counted = total - self.counted, total
        return used
