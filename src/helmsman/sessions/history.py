"""Turns of a session, as its log has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from helmsman.base.structs import replace
from helmsman.model.events import (
    AgentMessage,
    ErrorItem,
    HistoryImported,
    ItemEnded,
    ModelUsage,
    PastTurn,
    SteerFailed,
    TurnAdopted,
    TurnsForgotten,
    Usage,
    UsageReported,
    UserMessage,
    added_up,
)
from helmsman.sessions.state import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from helmsman.agents.protocol import RecordedTurn
    from helmsman.model.events import Event, Item
    from helmsman.sessions.state import StateView

_STATUS: Final = {"done": "completed", "error": "failed", "interrupted": "interrupted"}


def turns_of(session_id: str, events: Iterable[Event]) -> tuple[PastTurn, ...]:
    """Return the turns in a log, oldest first. The last one is `inProgress` while it runs.

    A turn begins with its prompt, holds what became of questions where that was decided, and ends with the reason if it
    failed.
    """
    state = SessionState(session_id)
    turns: list[PastTurn] = []
    for event in events:
        had_turn = state.has_turn
        state.apply(event)
        match event:
            case HistoryImported():
                turns += event.turns
            case TurnsForgotten():
                del turns[max(0, len(turns) - event.count) :]
            case ItemEnded() | SteerFailed() if turns and not had_turn and turns[-1].id == (state.turn_id or ""):
                turns[-1] = _ended(state)  # Codex may report a command's end after its turn's
            case _ if had_turn and not state.has_turn:
                turns.append(_ended(state))
            case _:
                pass
    if state.has_turn:
        turns.append(PastTurn(id=state.turn_id or "", status="inProgress", items=tuple(items_with_prompt(state))))
    return tuple(turns)


def _ended(state: StateView) -> PastTurn:
    items = items_with_prompt(state)
    if state.error is not None and not any(isinstance(item, ErrorItem) for item in items):
        items.append(ErrorItem(id="failure", status="failed", message=state.error.message))
    status = _STATUS[state.between_turns or state.status]
    return PastTurn(id=state.turn_id or "", status=status, items=tuple(items))


def items_with_prompt(state: StateView) -> list[Item]:
    """Return the items of the current or last turn, the prompt first.

    `codex exec` does not repeat the prompt, and the app-server does so after a moment.
    """
    items = state.items_and_decisions
    if state.prompt is not None and not (items and isinstance(items[0], UserMessage)):
        items.insert(0, UserMessage(id="prompt", text=state.prompt))
    return items


def unknown_turns(recorded: Sequence[PastTurn], logged: Sequence[PastTurn]) -> tuple[PastTurn, ...]:
    """Return the turns that an agent has recorded and a log does not have.

    Some agents number the turns in their files: then those of the log are taken for the first ones.
    """
    known = {turn.id for turn in logged}
    # Equal ids prove that agent and log name the turns alike.
    if any(turn.id in known for turn in recorded):
        return tuple(turn for turn in recorded if turn.id not in known)
    return tuple(recorded[len(logged) :])


def completed(turns: Iterable[PastTurn], events: Iterable[Event], recorded: Iterable[PastTurn]) -> tuple[PastTurn, ...]:
    """Return the turns of a log, those that outlived a hub with what only their agent has recorded of them."""
    adopted = {event.turn_id for event in events if isinstance(event, TurnAdopted)}
    whole = {turn.id: turn for turn in recorded if turn.id in adopted}
    return tuple(_fuller(turn, whole[turn.id]) if turn.id in whole else turn for turn in turns)


def _fuller(logged: PastTurn, recorded: PastTurn) -> PastTurn:
    """Insert the messages that only the agent has recorded, in the order of the record."""
    items, place = list(logged.items), 0
    for item in recorded.items:
        if not isinstance(item, UserMessage | AgentMessage):
            continue
        known = next((at for at, one in enumerate(items) if type(one) is type(item) and one.text == item.text), None)
        if known is None:
            items.insert(place, item)
        elif items[known].status == "failed":  # a message into the turn that the agent read after the hub's end
            items[known] = item
        place = place + 1 if known is None else known + 1
    return replace(logged, items=tuple(items))


# --- what turns have spent ---------------------------------------------------------------------------------------------


class SpentTurn(NamedTuple):
    """Usage of one turn of a session, or of one of its sub-agents. `at` is its start, in seconds since 1970."""

    turn_id: str | None
    at: float
    part: ModelUsage
    is_sub_agents: bool = False


def spent_so_far(session_id: str, spent: Sequence[SpentTurn]) -> UsageReported:
    """Report all that a session without a running turn has spent."""
    return UsageReported(session_id=session_id, before=added_up(one.part for one in spent))


def spent_in_turn(session_id: str, spent: Sequence[SpentTurn], turn: RecordedTurn) -> UsageReported:
    """Report the usage of a session in its running turn, by its agent's records, and the usage before it."""
    began = None if turn.began_at is None else turn.began_at.timestamp()
    before: list[ModelUsage] = []
    sub_agents = Usage()
    for one in spent:
        if one.is_sub_agents and began is not None and one.at >= began:
            sub_agents += one.part.usage
        elif one.turn_id is None or one.turn_id != turn.turn_id:
            before.append(one.part)
    used = turn.usage or Usage()
    total = None if turn.spent_before is None else turn.spent_before + used
    return UsageReported(session_id=session_id, before=added_up(before), turn=used, total=total, sub_agents=sub_agents)
