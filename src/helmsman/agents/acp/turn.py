"""A turn that runs, as its engine knows it. The protocol has none: a turn is a prompt, or some, that nobody has answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.json_values import mapping, rows, text, texts
from helmsman.model.events import Failure, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.acp.updates import TurnItems
    from helmsman.base.jsonrpc import IncomingRequest, RequestId
    from helmsman.model.events import TurnOutcome

_OUTCOMES: Final[Mapping[str, TurnOutcome]] = {"end_turn": "completed", "cancelled": "interrupted"}


@dataclass(slots=True, eq=False)
class AgentTurn:
    """A turn that runs. `unanswered` is how many of its prompts are.

    `later` is what the agent is given when it asks, and else what is sent when they are answered; `reasons` are sent only
    then, since an agent that was refused may ask and stop all the same.
    """

    id: str
    items: TurnItems
    prompts: list[tuple[RequestId, int]] = field(default_factory=list[tuple["RequestId", int]])
    """All that were sent, each with how much the process had been told before."""
    unanswered: int = 0
    later: list[str] = field(default_factory=list[str])
    reasons: list[str] = field(default_factory=list[str])
    only_asked: list[Mapping[str, Any]] = field(default_factory=list["Mapping[str, Any]"])
    """Calls of tools that were said in a question alone, each with its line: the line is dropped once it is answered."""
    interrupted: bool = False
    usage: Usage | None = None
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answered_at: int | None = None
    """The line of the newest answer to one of its prompts, in the output of a supervised process."""
    failure: Failure | None = None
    sent: anyio.Event = field(default_factory=anyio.Event)
    """Its process has the first prompt."""
    is_told: bool = False
    """Its end was told."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    """It is over, or its process has gone."""

    def noted(self) -> dict[str, Any]:
        """What the next owner of its process has to know of it; the rest comes again."""
        return {
            "id": self.id,
            "prompts": self.prompts,
            "later": self.later,
            "reasons": self.reasons,
            "only_asked": self.only_asked,
            "interrupted": self.interrupted,
            "declined": sorted(self.items.declined),
        }

    def recall(self, noted: Mapping[str, Any]) -> None:
        """Take over what an earlier owner has noted."""
        self.later, self.reasons = texts(noted.get("later")), texts(noted.get("reasons"))
        self.only_asked = rows(noted.get("only_asked"))
        self.interrupted = noted.get("interrupted") is True
        self.items.declined.update(texts(noted.get("declined")))

    def decline(self, request: IncomingRequest) -> None:
        """What this asked for was refused."""
        self.items.declined.add(text(mapping(request.params.get("toolCall")).get("toolCallId")))

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
