"""A session as another process holds it: a copy of what is true, kept true by the events that follow.

Whoever serves a session makes the copy (`copy_of`); who holds one takes it over (`take_over`) and then applies every event
it is sent. A copy may also come later, when events were missed, or from the next hub, which numbers events anew: what has
become different meanwhile is then told as events, so that whoever reads them misses no end and no question.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import Value
from helmsman.model.answered_by import TURN_ENDED
from helmsman.model.events import (
    AgentMessage,
    Event,
    ItemEnded,
    ItemStarted,
    QuestionAsked,
    QuestionClosed,
    SettingsApplied,
    TurnEnded,
    TurnRequested,
    TurnStarted,
    UserMessage,
)
from helmsman.sessions.session import QueuedTurn
from helmsman.sessions.state import SessionState, StateView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.model.events import TurnOutcome
    from helmsman.sessions.session import Session

_MESSAGES: Final = (AgentMessage, UserMessage)
"""A Codex that is asked again what was said gives these other ids; whoever has read them is not told them twice."""


class SessionCopy(Value, frozen=True):
    """What is true of a session; its kept events from some cursor on, and the cursor behind the last of them."""

    facts: Mapping[str, Any]
    state: Mapping[str, Any]
    events: tuple[Event, ...]
    cursor: int


def copy_of(session: Session, *, since: int = 0) -> SessionCopy:
    """The session as it is."""
    page = session.feed.since(since)
    return SessionCopy(facts_of(session), session.state.snapshot(), page.events, page.cursor)


def facts_of(session: Session) -> dict[str, Any]:
    """What is true of a session and comes with no event."""
    return {
        "options": session.options,
        "limits": session.limits,
        "notes": session.notes,
        "worktree": session.worktree,
        "handed_over_from": session.handed_over_from,
        "opened_by": session.opened_by,
        "task_ids": tuple(session.task_ids),
        "output_schema": session.output_schema,
        "created_at": session.created_at,
        "changed_at": session.changed_at,
        "turn_began_at": session.turn_began_at,  # by the clock that all processes of a machine share
        "turn_cursor": session.turn_cursor,
        "elsewhere": session.elsewhere,
        "queue": tuple((one.turn, one.task_id, one.options, one.is_away(), one.not_before) for one in session.queue),
        "waiting": session.waiting,
        "deadlines": {question_id: deadline.time_left for question_id, deadline in session.deadlines.items()},
    }


def by_own_clock(facts: Mapping[str, Any], ahead: float) -> Mapping[str, Any]:
    """What another machine says of a session, by our clock, which is so much ahead of its."""
    if not ahead:
        return facts
    began = facts["turn_began_at"]
    if began is not None:
        began = min(began + ahead, time.monotonic())  # clocks are compared over a line that takes its time
    deadlines = {question_id: left.shifted(ahead) for question_id, left in facts.get("deadlines", {}).items()}
    return {**facts, "turn_began_at": began, "deadlines": deadlines}


def apply_facts(session: Session, facts: Mapping[str, Any], *, offset: int) -> None:
    """Make them true of a copy, whose cursors are `offset` ahead of those of the original."""
    session.change_options(facts["options"])
    session.change_limits(facts["limits"])
    session.replace_notes(*facts["notes"])
    session.assign_worktree(facts["worktree"])
    session.continue_from(facts["handed_over_from"])
    session.assign_owner(facts["opened_by"])
    session.replace_tasks(facts["task_ids"])
    session.describe_turn(planning=False, is_message=True, output_schema=facts["output_schema"])
    session.date(created_at=facts["created_at"], changed_at=facts["changed_at"])
    session.become_copy(waiting=facts["waiting"], elsewhere=facts["elsewhere"])
    session.drop_queued(*(queued.task_id for queued in session.queue))
    for turn, task_id, options, is_away, not_before in facts["queue"]:
        session.enqueue(QueuedTurn(turn, task_id, options, _run_by_the_hub, partial(bool, is_away), not_before))
    session.began(facts["turn_began_at"], max(0, facts["turn_cursor"] + offset))


async def _run_by_the_hub(_session: Session, queued: QueuedTurn) -> Session:
    raise AssertionError(f"{queued.task_id} is not for the holder of a copy to run")


def take_over(session: Session, copy: SessionCopy, offset: int | None) -> int:
    """Make a copy that was held before true again; the offset of its cursors from now on.

    `offset` is that of before; None where the original is another one, whose events have other numbers.
    """
    now = SessionState(session.id)
    now.restore(copy.state)
    if offset is None:
        for event in differences(session.state, now):
            session.apply(event)
    else:
        known = session.feed.cursor - offset - (copy.cursor - len(copy.events))
        session.feed.miss(-known)
        for event in copy.events[max(0, known) :]:
            session.apply(event)
    session.restore(copy.state)
    offset = session.feed.cursor - copy.cursor
    apply_facts(session, copy.facts, offset=offset)
    return offset


def differences(before: StateView, now: StateView) -> Iterator[Event]:
    """What has become different, as the events that a reader would have been told."""
    session_id, turn_id = now.session_id, now.turn_id
    if now.turn_count > before.turn_count or (now.is_running and not before.is_running):
        if before.is_running:
            yield TurnEnded(session_id=session_id, turn_id=before.turn_id, outcome="completed")
        yield TurnRequested(session_id=session_id, text=now.prompt or "")
        known: dict[str, Any] = {}
    else:
        known = {item.id: item for item in before.items}
    if turn_id is not None and turn_id != before.turn_id:
        yield TurnStarted(session_id=session_id, turn_id=turn_id)
    if now.model != before.model:
        yield SettingsApplied(session_id=session_id, model=now.model)
    named = {item.id for item in now.items}
    gone = (item for item in known.values() if item.id not in named)
    renamed = [(type(item), item.text) for item in gone if isinstance(item, _MESSAGES)]
    for item in now.items:
        if item.id not in known and isinstance(item, _MESSAGES) and (type(item), item.text) in renamed:
            renamed.remove((type(item), item.text))
        elif known.get(item.id) != item:
            kind = ItemEnded if item.status in ("completed", "failed") else ItemStarted
            yield kind(session_id=session_id, turn_id=turn_id, item=item)
    decisions = {decision.id: decision for decision in now.decisions(turn_id)}
    for question_id in before.questions.keys() - now.questions.keys():
        decision = decisions.get(f"decision_{question_id}")
        yield QuestionClosed(
            session_id=session_id,
            question_id=question_id,
            answer=decision.answer if decision is not None else None,
            by=(decision.by if decision is not None else None) or str(TURN_ENDED),
            door=decision.door if decision is not None else None,
        )
    for question in now.questions.values():
        if question.id not in before.questions:
            yield QuestionAsked(session_id=session_id, question=question)
    if not now.is_running and (before.is_running or now.turn_count > before.turn_count):
        yield TurnEnded(
            session_id=session_id,
            turn_id=turn_id,
            outcome=_outcome(now),
            failure=now.error,
            final_message=now.result,
        )


def _outcome(state: StateView) -> TurnOutcome:
    match state.status:
        case "error":
            return "failed"
        case "interrupted":
            return "interrupted"
        case _:
            return "completed"
