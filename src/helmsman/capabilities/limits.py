"""Handle turns that end because the account's usage limit is reached.

`on_limit` selects the policy. `wait` resumes automatically, in the same thread and as the same task; `fail` ends the
task; `ask` asks the user. A waiting task holds no slot. The wait is stored before a client learns of it, so that the
next hub resumes the task; it can be cancelled, moved, or started immediately.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.model.events import USAGE_LIMIT, MessageDelayed, MessageQueued, TurnEnded
from helmsman.model.nature import ACTS, verb
from helmsman.model.prompts import GO_ON
from helmsman.model.questions import STOP, WAIT, Choice, Prompt, Question, own_question
from helmsman.sessions.session import QueuedTurn, Session
from helmsman.tasks.model import QUOTA, Task, TaskChanges

if TYPE_CHECKING:
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

_UNKNOWN: Final = timedelta(hours=1)
"""Delay before a retry if the agent did not say when its limit resets."""
_SHORTEST: Final = timedelta(minutes=1)
"""Minimum wait after an agent reports that a limit is reached, although it should have been reset."""
ANSWERED_WITHIN: Final = timedelta(hours=24)
"""Timeout of questions that are likely to arise without a user: at a limit at night, or in a scheduled run."""


def waits_until(moment: datetime) -> str:
    """Return the note of a task, or of its session, that continues then."""
    return f"Usage limit reached. The task resumes at {moment.astimezone():%Y-%m-%d %H:%M}."


class UsageLimits:
    """`helm.extras.limits`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    def asks(self, session: Session, ended: TurnEnded) -> bool:
        """Return whether a person is asked to wait, before a session receives the end of its turn by a usage limit."""
        failure = ended.failure
        # A turn of another kind, such as a review, cannot be continued by a message.
        if failure is None or failure.code != USAGE_LIMIT or session.state.turn_kind == "other":
            return False
        # Without a task, there is nothing that could wait and be resumed.
        if self._helm.task_writer.running_task(session.id) is None:
            return False
        now = datetime.now(UTC)
        resumes_at = self._helm.agents[session.options.agent].resets_at(failure) or (failure.at or now) + _UNKNOWN
        if resumes_at <= now and failure.at is None:  # the limit would be reached again immediately
            resumes_at = now + _SHORTEST
        match session.state.limits.on_limit or self._helm.settings.on_limit:
            case "wait":
                self._wait(session, resumes_at, failure.at or now)
            case "ask":
                answered = partial(self._answered, session, ended, resumes_at, failure.at or now)
                timeout = ANSWERED_WITHIN.total_seconds()
                self._helm.ask_first(session, _question(session, resumes_at), answered, timeout)
                return True
        return False

    @verb(ACTS)
    async def go_on(self, task: Task, at: str | None = None) -> Task:
        """Move the moment at which a task that waits for its limit continues: to now, or to another time in words.

        Raises:
            InvalidInput: It does not wait for one, or this is no time.
        """
        # A new hub may still be reading which tasks wait.
        session = await self._helm.session_with_queue(task.session_id or "")
        if all(one.task_id != task.id for one in session.queue) or task.waiting_for != QUOTA:
            raise InvalidInput(
                f"Task {task.id} is {task.status} and does not wait for a usage limit. Send its session a message to "
                "continue there.",
                parameter="task_id",
            )
        from helmsman.schedules.when import parse_when  # with all that reads times, which few ever need

        now = datetime.now(UTC)
        moment = now if at is None else parse_when(now, at=at).at
        session.apply(MessageDelayed(session_id=session.id, task_id=task.id, not_before=moment or now))
        changes: TaskChanges = {
            "note": waits_until(moment or now),
            "resumes_at": moment or now,
        }
        self._helm.task_writer.update(task.id, changes)
        await self._helm.task_writer.write()
        self._helm.run_later(session, task.id)
        return await self._helm.recovery.now(task)

    def _answered(
        self,
        session: Session,
        ended: TurnEnded,
        resumes_at: datetime,
        reached_at: datetime,
        choices: tuple[Choice, ...] | None,
    ) -> None:
        if choices and choices[0].value == WAIT:
            self._wait(session, resumes_at, reached_at)
        session.apply(ended)
        self._helm.make_room()

    def _wait(self, session: Session, resumes_at: datetime, reached_at: datetime) -> None:
        """Keep the task of the turn that is about to end open, to resume later."""
        task_id = self._helm.task_writer.running_task(session.id)
        assert task_id is not None
        engine = self._helm.task_writer.engine_of(session.id)
        request = replace(session.request(session.continuation(GO_ON)), engine=engine)
        note = waits_until(resumes_at)
        self._helm.task_writer.go_on_later(
            session.id,
            {
                "spec": request.packed(),
                "note": note,
                "waiting_for": QUOTA,
                "resumes_at": resumes_at,
                "limit_reached_at": reached_at,
            },
        )
        session.attach_queued(task_id, QueuedTurn(request, self._helm.run_queued))
        session.apply(
            MessageQueued(
                session_id=session.id, task_id=task_id, text=request.turn.text, not_before=resumes_at, first=True
            )
        )
        self._helm.run_later(session, task_id)
        log.info("task %s waits for its usage limit until %s", task_id, resumes_at.isoformat(timespec="minutes"))


def _question(session: Session, resumes_at: datetime) -> Question:
    left = max(int((resumes_at - datetime.now(UTC)).total_seconds() // 60), 0)
    span = f"{left // 60} h {left % 60} min" if left >= 60 else f"{left} min" if left else "less than a minute"
    then = f"{resumes_at.astimezone():%Y-%m-%d %H:%M}"
    prompt = Prompt(
        text=f"Usage limit reached. Resume automatically at {then} (in {span})?",
        options=(WAIT, STOP),
        key="limit",
        descriptions={WAIT: "the task waits and then resumes", STOP: "the task ends here, as failed"},
    )
    return own_question(session.id, session.state.turn_id, prompt, {"directory": session.directory})
