"""Waiting for sessions and jobs on behalf of a client: progress on its token, questions to its person, or a task instead."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.concurrency import background_tasks
from helmsman.base.truncate import LINE_CHARS, cut
from helmsman.mcp.call import CallContext
from helmsman.mcp.current_call import current_call
from helmsman.mcp.tasks import job_handle, task_handle
from helmsman.operations.table import Deferred
from helmsman.sessions.session import first_change
from helmsman.shapes.job_answers import job_sessions
from helmsman.shapes.session_status import progress_line, session_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Literal

    import mcp_types as types

    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task

# Claude Code gives up after 5 minutes of silence on HTTP, SDKs for TypeScript after 60 s.
HEARTBEAT_SECONDS: Final = 10.0
"""Seconds between progress messages. Short enough for the timeouts of all known clients."""


async def wait_for_session(
    call: CallContext,
    session: Session,
    *,
    seconds: float,
    until: Literal["attention", "change"] = "attention",
    every: float = HEARTBEAT_SECONDS,
    first: float = 0.0,
) -> types.InputRequiredResult | dict[str, Any] | None:
    """Wait until the session ends its turn or asks, or the time is up.

    None when that is so; else what the client must be told instead of an answer: that input is required, or a task.
    """
    # The call may be the second one of a client of 2026-07-28, with answers.
    await call.elicitor.take_responses(call.context, call.params.input_responses, session)
    task = await task_handle(call, session)
    if task is not None:
        return task
    numbered = current_call.get()
    with anyio.move_on_after(seconds):
        async with background_tasks() as tasks:
            now = partial(session_progress, session)
            tasks.start_soon(report_progress, call, now, session.feed.changed, every, first)
            changed = False
            while True:
                for question in session.questions:
                    required = await call.elicitor.input_required(call.context, session, question)
                    if required is not None:
                        return required
                    await call.elicitor.ask_now(call.context, session, question)
                # After the questions: a form of this client must be open before the wait can end.
                if changed or not session.state.is_running or session.feed.closed:
                    break
                # A question that only a person may answer does not end the model's wait.
                if until == "attention" and call.elicitor.has_for_agent(session):
                    break
                if numbered is not None:
                    # A call that only waits is no suspect if the hub dies.
                    numbered.rest()
                with session.watched():
                    await (session.feed.changed() if until == "change" else _until_news(call, session))
                changed = until == "change"
    if numbered is not None:
        # What follows is work on the answer again.
        numbered.take()
    return None


async def _wait_for_sessions(
    call: CallContext, sessions: Sequence[Session], *, seconds: float, until: Literal["attention", "change", "all"]
) -> None:
    """Wait for any of several sessions, or for all. Questions stay with the model: a form would hold up the others."""

    def has_ended(session: Session) -> bool:
        return not session.state.is_running or session.feed.closed

    def is_over() -> bool:
        if any(map(call.elicitor.has_for_agent, sessions)):
            return True
        return all(map(has_ended, sessions)) if until == "all" else any(map(has_ended, sessions))

    def progress() -> str:
        return f"{sum(map(has_ended, sessions))} of {len(sessions)} sessions have ended"

    numbered = current_call.get()
    with anyio.move_on_after(seconds):
        async with background_tasks() as tasks:
            tasks.start_soon(report_progress, call, progress)
            changed = False
            while not is_over() and not changed:
                if numbered is not None:
                    numbered.rest()
                with ExitStack() as watched:
                    for session in sessions:
                        watched.enter_context(session.watched())
                    await first_change([session for session in sessions if not has_ended(session)])
                changed = until == "change"
    if numbered is not None:
        numbered.take()


async def wait_for_job(
    call: CallContext, task: Task, *, seconds: float
) -> types.InputRequiredResult | dict[str, Any] | None:
    """Wait until a job ends, one of its sessions asks, or the time is up. Returns the same as for a session."""
    helm = call.helm
    for session in await job_sessions(helm, task):
        # Answers come by the id of the question, in whichever session it is open.
        await call.elicitor.take_responses(call.context, call.params.input_responses, session)
    handle = await job_handle(call, task)
    if handle is not None:
        return handle
    numbered, told = current_call.get(), task

    async def changed() -> None:
        nonlocal told
        job = helm.running_job(task.id)
        # A job of another hub has no event here.
        await (anyio.sleep_forever() if job is None else job.changed.wait())
        told = await helm.tasks.find(task.id)

    with anyio.move_on_after(seconds):
        async with background_tasks() as tasks:
            tasks.start_soon(report_progress, call, lambda: (told.progress or {}).get("text", told.status), changed)
            while True:
                # Its sessions change while it runs: a job opens more of them.
                for session in await job_sessions(helm, task):
                    for question in session.questions:
                        required = await call.elicitor.input_required(call.context, session, question)
                        if required is not None:
                            return required
                        await call.elicitor.ask_now(call.context, session, question)
                    # On a pipe the person is asked as soon as a question arises.
                    call.elicitor.ask_from_now_on(call.context, session)
                asking = [session for session in await job_sessions(helm, task) if session.questions]
                if task.has_ended or any(map(call.elicitor.has_for_agent, asking)):
                    break
                if numbered is not None:
                    numbered.rest()
                # A question may be answered without the task changing.
                if asking:
                    await first_change(asking)
                    task = await helm.tasks.find(task.id)
                else:
                    task = await helm.tasks.wait(task)
                    if task.input_required and not any(one.questions for one in await job_sessions(helm, task)):
                        break  # it asks in a way that only its own answer shows
    if numbered is not None:
        numbered.take()
    return None


async def _until_news(call: CallContext, session: Session) -> None:
    """Wait until the turn ends, other questions are open, or the model may answer one of them."""
    asked = [question.id for question in session.questions]
    while session.state.is_running and not session.feed.closed:
        if [question.id for question in session.questions] != asked or call.elicitor.has_for_agent(session):
            return
        await session.feed.changed()


async def report_progress(
    call: CallContext,
    now: Callable[[], str],
    changed: Callable[[], Awaitable[None]] = anyio.sleep_forever,
    every: float = HEARTBEAT_SECONDS,
    first: float = 0.0,
) -> None:
    """Report progress on the caller's own token: whenever something happens, and now and then when nothing does.

    The first comes after `first` seconds.
    """
    began = time.monotonic()
    await anyio.sleep(first)
    while True:
        await call.context.session.report_progress(round(time.monotonic() - began, 3), None, now())
        with anyio.move_on_after(every):
            await changed()
            # Also the least interval between two messages.
            await anyio.sleep(1)  # a turn that streams tells of each second, not of each word


def session_progress(session: Session) -> str:
    """Return the progress of a session in a sentence."""
    status = session_status(session, output_lines=0)
    told = status.note or (progress_line(status.progress) if status.progress is not None else status.status)
    return cut(told, LINE_CHARS)


class ClientCall(CallContext, frozen=True):
    """Call of an operation by an MCP client (`helmsman.operations.table.OperationCall`)."""

    async def wait(
        self, sessions: Sequence[Session], *, seconds: float, until: Literal["attention", "change", "all"] = "attention"
    ) -> Deferred | None:
        channel = self.elicitor.channel
        with channel.quiet(session.id for session in sessions) if channel is not None else nullcontext():
            if len(sessions) > 1:
                await _wait_for_sessions(self, sessions, seconds=seconds, until=until)
                return None
            # With one session, all is the same as any.
            until_one = "attention" if until == "all" else until
            instead = await wait_for_session(self, sessions[0], seconds=seconds, until=until_one)
        return None if instead is None else Deferred(instead)

    async def wait_for_job(self, task: Task, *, seconds: float) -> Deferred | None:
        instead = await wait_for_job(self, task, seconds=seconds)
        return None if instead is None else Deferred(instead)

    async def watch(self, session: Session, *, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            async with background_tasks() as tasks:
                tasks.start_soon(report_progress, self, partial(session_progress, session), session.feed.changed)
                await session.wait(until="attention")
