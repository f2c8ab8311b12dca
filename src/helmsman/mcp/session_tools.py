"""The toolset `sessions`: start, say, status, wait, respond, interrupt, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.base.shown_text import exact
from helmsman.mcp.doors import by_tool
from helmsman.mcp.toolset import ACTS, READS, STOPS, Tool
from helmsman.mcp.waiting import wait_for_session
from helmsman.shapes.contract import (
    InterruptInput,
    ListedSession,
    ListInput,
    ListOutput,
    RespondInput,
    SayInput,
    SayOutput,
    StartInput,
    StartOutput,
    StateOutput,
    StatusInput,
    StatusOutput,
    WaitInput,
)
from helmsman.shapes.session_status import in_words, known_status, session_status, started

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mcp_types as types

    from helmsman.agents.protocol import SessionInfo
    from helmsman.mcp.toolset import CallContext
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task

_SUMMARY_CHARS: Final = 200


async def _start(call: CallContext, args: StartInput) -> StartOutput:
    return started(await call.helm.start(args.prompt, **start_arguments(call, args)))


def start_arguments(call: CallContext, args: StartInput) -> dict[str, Any]:
    """What a new session is started with, besides the prompt."""
    return args.arguments() | {"on_question": call.doors.handler(call.context)}


async def _say(call: CallContext, args: SayInput) -> SayOutput:
    session = await call.helm.session(args.session_id)
    session.on_question = call.doors.handler(call.context) or session.on_question
    await session.say(args.message, images=args.images, when_busy=args.when_busy)
    return SayOutput(session_id=session.id, status=session.status, task_id=session.task_id)


async def _status(call: CallContext, args: StatusInput) -> StatusOutput:
    session = await call.helm.session(args.session_id)
    return session_status(session, output_lines=args.output_lines, since_cursor=args.since_cursor)


async def _wait(call: CallContext, args: WaitInput) -> StatusOutput | types.InputRequiredResult | dict[str, Any]:
    session = await call.helm.session(args.session_id)
    instead = await wait_for_session(call, session, seconds=args.timeout_sec, until=args.until)
    return instead if instead is not None else session_status(session)


async def _respond(call: CallContext, args: RespondInput) -> StateOutput:
    session = await call.helm.respond(args.session_id, args.id, args.answers, by=by_tool(call.context))
    return StateOutput(session_id=session.id, status=session.status)


async def _interrupt(call: CallContext, args: InterruptInput) -> StateOutput:
    session = await call.helm.interrupt(args.session_id)
    return StateOutput(session_id=session.id, status=session.status)


async def _list(call: CallContext, args: ListInput) -> ListOutput:
    found, cursor = await call.helm.list(
        directory=args.working_directory,
        query=args.query,
        limit=args.limit,
        cursor=args.cursor,
        include_archived=args.include_archived,
    )
    tasks = await call.helm.tasks.of_sessions([info.session_id for info in found])
    sessions = [_listed(call.helm.sessions.get(info.session_id), info, tasks[info.session_id]) for info in found]
    return ListOutput(sessions=sessions, next_cursor=cursor)


def _listed(session: Session | None, info: SessionInfo, tasks: Sequence[Task]) -> ListedSession:
    status = known_status(session, tasks)
    running = status in ("active", "awaiting_approval")
    summary = info.name or info.first_prompt
    return ListedSession(
        session_id=info.session_id,
        agent=info.agent,
        directory=info.directory,
        summary=" ".join(summary.split())[:_SUMMARY_CHARS] if summary else None,
        timestamp=info.updated_at.isoformat(),
        is_active=running,
        active_status=status if running else None,
        source=info.source,
        model=info.model,
        task_ids=[task.id for task in reversed(tasks)] or None,
    )


def state_in_words(output: StartOutput | SayOutput | StateOutput) -> str:
    words = f"{output.session_id}: {output.status}"
    if isinstance(output, StartOutput):
        words += f"\nWorktree: {output.worktree.path} on {output.worktree.branch}" if output.worktree else ""
        words += f"\n{output.note}" if output.note else ""
    return words


def _list_in_words(output: ListOutput) -> str:
    if not output.sessions:
        return "No sessions. codex_start begins one."
    rows = ((one.session_id, one.timestamp, one.directory or "", one.summary or "") for one in output.sessions)
    return "\n".join("  ".join(map(exact, row)) for row in rows)


SESSION_TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="codex_start",
        title="Start Codex on a task",
        description=(
            "Hand a coding task to Codex in a new session. Returns at once with a sessionId while Codex works on; follow it "
            "with codex_wait. To go on with an existing session use codex_say; to find one, codex_list."
        ),
        takes=StartInput,
        gives=StartOutput,
        annotations=ACTS,
        run=_start,
        in_words=state_in_words,
    ),
    Tool(
        name="codex_say",
        title="Send Codex the next message",
        description=(
            "Continue a session with another message: any session on this machine, also one from an earlier run or made by "
            "a person in the terminal. Returns at once; follow with codex_wait. While a turn is running it is an error, "
            "unless whenBusy says to steer the running turn or to queue the message."
        ),
        takes=SayInput,
        gives=SayOutput,
        annotations=ACTS,
        run=_say,
        in_words=state_in_words,
    ),
    Tool(
        name="codex_status",
        title="Look at a Codex session",
        description=(
            "What a session is doing right now: status, recent output, what it has done, what it asks, its result. Does not "
            "wait; to be told when something happens use codex_wait."
        ),
        takes=StatusInput,
        gives=StatusOutput,
        annotations=READS,
        run=_status,
        in_words=in_words,
    ),
    Tool(
        name="codex_wait",
        title="Wait for a Codex session",
        description=(
            "Wait until a session's turn ends or Codex asks something, then return what codex_status returns; when the time "
            "is up, likewise. Use this instead of polling, and call it again while status is active. If pendingQuestion is "
            "there, answer it with codex_respond and wait again."
        ),
        takes=WaitInput,
        gives=StatusOutput,
        annotations=READS,
        run=_wait,
        in_words=in_words,
    ),
    Tool(
        name="codex_respond",
        title="Answer what Codex asks",
        description=(
            "Answer the pendingQuestion of a session: approve or deny a command or a change, or give the input it asks for. "
            "Then codex_wait. A question nobody answers is denied after some minutes."
        ),
        takes=RespondInput,
        gives=StateOutput,
        annotations=ACTS,
        run=_respond,
        in_words=state_in_words,
    ),
    Tool(
        name="codex_interrupt",
        title="Stop a Codex session's turn",
        description=(
            "Stop what a session is doing: the turn, its sub-agents and the commands it left running. Returns when they "
            "have stopped. The session stays and can be continued with codex_say. An idle session is left as it is."
        ),
        takes=InterruptInput,
        gives=StateOutput,
        annotations=STOPS,
        run=_interrupt,
        in_words=state_in_words,
    ),
    Tool(
        name="codex_list",
        title="List Codex sessions",
        description=(
            "The sessions Codex has on this machine, newest first, from any directory and origin, those running now marked. "
            "Use it to find a sessionId to continue."
        ),
        takes=ListInput,
        gives=ListOutput,
        annotations=READS,
        run=_list,
        in_words=_list_in_words,
    ),
)
