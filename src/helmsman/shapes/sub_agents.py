"""Sub-agents of a session's turn, as front ends show them. Each is a session of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import present
from helmsman.base.structs import Value
from helmsman.model.events import CollabToolCall, ModelUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.sessions.session import Session
    from helmsman.tasks.prices import Prices

# Codex names them in snake_case and camelCase, by version and by event.
_WORDS = {
    **dict.fromkeys(("pending_init", "pendingInit"), "starting"),
    **dict.fromkeys(("started", "interacted"), "running"),
    **dict.fromkeys(("not_found", "notFound"), "gone"),
    "completed": "done",
    "errored": "failed",
    "shutdown": "ended",
}
"""States of sub-agents, as agents call them."""


class SubAgent(Value, frozen=True, kw_only=True):
    """Sub-agent of a turn. `name` is what it was asked to do, `usage` the tokens it has spent.

    `depth` is 0 if the session itself started it, and grows by one with each sub-agent in between.
    """

    id: str
    depth: int = 0
    name: str
    status: str
    usage: Usage | None = None


def sub_agent_word(status: str) -> str:
    return _WORDS.get(status, status)


def sub_agents_of(session: Session) -> Sequence[SubAgent]:
    """Return the sub-agents of the current (or last) turn as a tree: each before those that it started."""
    names: dict[str, str] = {}
    statuses: dict[str, str] = {}
    parents: dict[str, str | None] = {}
    own = [(None, item) for item in session.items if isinstance(item, CollabToolCall)]
    for caller, call in (*own, *session.state.calls_by_agents.values()):
        for agent in call.agents:
            # Later calls about the same sub-agent have no prompt, or a message to it.
            names[agent.id] = names.get(agent.id) or (call.prompt or "").strip().partition("\n")[0]
            statuses[agent.id] = agent.status
            parents.setdefault(agent.id, caller)
    state, shown = session.state, list[SubAgent]()

    def add(one: str, depth: int) -> None:
        # Popped, because sub-agents that call each other would have no end.
        status = statuses.pop(one)
        shown.append(
            SubAgent(
                id=one,
                depth=depth,
                name=names[one],
                # The event of the sub-agent itself is newer than the call that started it.
                status=sub_agent_word(state.status_by_agent.get(one, status)),
                usage=state.usage_by_agent.get(one),
            )
        )
        for other in [other for other in statuses if parents[other] == one]:
            if other in statuses:
                add(other, depth + 1)

    for one in [*(one for one in names if parents[one] not in names), *names]:
        if one in statuses:
            add(one, 0)
    return shown


def sub_agents_output(session: Session, prices: Prices) -> list[dict[str, Any]] | None:
    """Return them for a page, with what each has cost. None if there are none."""
    return [
        present(
            {
                "id": one.id,
                "depth": one.depth,
                "name": one.name or None,
                "status": one.status,
                "tokens": None if one.usage is None else one.usage.input_tokens + one.usage.output_tokens,
                "costUsd": None if one.usage is None else prices.cost_of([ModelUsage(session.model, one.usage)]),
            }
        )
        for one in sub_agents_of(session)
    ] or None
