"""Operations on sessions: start, say, status, wait, respond, interrupt, list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from helmsman.base.sanitize import exact
from helmsman.base.truncate import LINE_CHARS, counted, cut
from helmsman.errors import InvalidInput, Unsupported
from helmsman.model.nature import ANSWERS, INTERRUPTS, READS, STARTS
from helmsman.operations.table import Deferred, OperationCall, operation
from helmsman.operations.texts import CODEX
from helmsman.shapes import contract
from helmsman.shapes.agents import all_agents
from helmsman.shapes.contract import Output
from helmsman.shapes.listed_sessions import found_sessions, listed_sessions
from helmsman.shapes.rendering import ttl_ms
from helmsman.shapes.session_status import in_words, session_status, started
from helmsman.shapes.task_answers import retention_of
from helmsman.steering.ownership import who_answers
from helmsman.tasks.call_key import done_before

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.sessions.session import Session


class AgentOutput(Output):
    agent: str
    title: str
    is_default: bool = False
    installed: bool
    version: str | None = None
    login: str | None = None
    problem: str | None = Field(None, description="Why it cannot be used.")
    can: list[str] | None = None
    cannot: dict[str, str] | None = Field(None, description="With what to do instead.")


def state_in_words(output: Any) -> str:
    """Describe any output with a session and its status."""
    words = f"{output.session_id}: {output.status}"
    if isinstance(output, contract.StartOutput):
        words += f"\nWorktree: {output.worktree.path} on {output.worktree.branch}" if output.worktree else ""
    if isinstance(output, contract.StartOutput | contract.SayOutput):
        words += f"\n{output.note}" if output.note else ""
    return words


# Accepted without asking the agent, which would start one only to list its models.
_COMMON_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh"})


async def refuse_unknown_effort(call: OperationCall, effort: str | None, agent: str | None) -> None:
    """Refuse an effort that no model of the agent has. Newer Codex accepts any word, and sends it to the model.

    Raises:
        InvalidInput: No model has it.
    """
    if effort is None or effort in _COMMON_EFFORTS:
        return
    try:
        models = await call.helm.extras.account.models(agent or call.helm.settings.default_agent)
    except Unsupported:
        return  # the agent cannot list its models, so it has to check the effort itself
    known = list(dict.fromkeys(one for model in models for one in model.efforts))
    # An agent that names no efforts cannot be checked against.
    if known and effort not in known:
        raise InvalidInput(f"There is no effort {effort!r:.100}. Use one of: {', '.join(known)}.", parameter="effort")


@operation(
    "{tool}_start",
    "Start {agent} on a task",
    STARTS,
    state_in_words,
    agent_input=contract.AgentStartInput,
    fleet_input=(contract.FleetStartInput, contract.FleetAgentStartInput),
)
async def start(call: OperationCall, args: contract.StartInput) -> contract.StartOutput:
    """Hand a coding task to {agent} in a new session. Returns at once with a sessionId while {agent} works on; follow it
    with {tool}_wait. To continue an existing session use {tool}_say; to find one, {tool}_list."""
    options = {"agent": CODEX} | args.options()
    await refuse_unknown_effort(call, args.effort, options["agent"])
    return started(await call.helm.start(args.prompt, on_question=call.on_question, **options))


@operation("{tool}_say", "Send {agent} the next message", STARTS, state_in_words, agent_input=contract.AgentSayInput)
async def say(call: OperationCall, args: contract.SayInput) -> contract.SayOutput:
    """Continue a session with another message: any on this machine, also of earlier runs or made by a person in the
    terminal. Returns at once; follow with {tool}_wait."""
    # Use this client's settings, not those of the session's previous user.
    session = await call.helm.say(args.session_id, args.message, on_question=call.on_question, **args.options())
    before = done_before()
    handed_over_from = session.state.handed_over_from if session.id != args.session_id else None
    return contract.SayOutput(
        session_id=session.id,
        status=session.status,
        # The turn can be over when `say` returns: the task is the one of this message, not a later one's.
        task_id=session.task_id if before is None else before.id,
        handed_over_from=handed_over_from,
        note=" ".join(session.notes) or None if handed_over_from else None,
    )


@operation("{tool}_status", "Look at {a_session}", READS, in_words)
async def status(call: OperationCall, args: contract.StatusInput) -> contract.StatusOutput:
    """What a session is doing right now: status, recent output, what it asks, its result. Does not wait: use
    {tool}_wait for that."""
    session = await call.helm.session(args.session_id)
    status = session_status(session, output_lines=args.output_lines, since_cursor=args.since_cursor)
    return _for_caller(call, session, status)


@operation("{tool}_wait", "Wait for {a_session}", READS, in_words)
async def wait(call: OperationCall, args: contract.WaitInput) -> contract.StatusOutput | Deferred:
    """Wait until a session's turn ends, {agent} asks something or the time is up, and return what {tool}_status returns. Use
    this instead of polling; call it again while status is active. If pendingQuestion is there, answer it with
    {tool}_respond and wait again, unless note says that a person answers it."""
    sessions = [await call.helm.session(session_id) for session_id in args.ids]
    deferred = await call.wait(sessions, seconds=args.timeout_sec, until=args.until)
    if deferred is not None:
        return deferred
    # `min` keeps the caller's order among equals. Only one status is returned in full: a model's context pays for it.
    session = min(sessions, key=_urgency)
    status = _for_caller(call, session, session_status(session))
    if len(sessions) > 1:
        # Enough to decide which session to look at next.
        status.sessions = [
            contract.WaitedSession(
                session_id=one.id, status=one.status, result=cut(one.result or "", LINE_CHARS) or None
            )
            for one in sessions
        ]
    return status


def _urgency(session: Session) -> int:
    """Rank sessions that were waited for: one that asks first, then one that has ended."""
    return 0 if session.questions else 1 if not session.state.is_running else 2


def _for_caller(call: OperationCall, session: Session, status: contract.StatusOutput) -> contract.StatusOutput:
    """Add how long the session is kept, and in the note that a person answers, where the model that asks may not."""
    last_use = datetime.now(UTC) if session.state.is_running else session.state.changed_at
    status.ttl_ms = ttl_ms(last_use + retention_of(call.helm))
    who = who_answers(session, call.helm.settings)
    status.note = " ".join(filter(None, (who, status.note))) or None
    return status


@operation("{tool}_respond", "Answer what {agent} asks", ANSWERS, state_in_words)
async def respond(call: OperationCall, args: contract.RespondInput) -> contract.StateOutput:
    """Answer a pendingQuestion, by its sessionId and id: approve or deny a command or a change, or give the input it asks
    for. Then {tool}_wait. A question nobody answers is denied when its deadline is over."""
    session = await call.respond(args.session_id, args.id, args.answers)
    return contract.StateOutput(session_id=session.id, status=session.status)


@operation("{tool}_interrupt", "Stop {session's} turn", INTERRUPTS, state_in_words)
async def interrupt(call: OperationCall, args: contract.SessionInput) -> contract.StateOutput:
    """Stop what a session is doing: the turn, its sub-agents and the commands it left running. Returns when they have
    stopped. The session stays and can be continued with {tool}_say."""
    session = await call.helm.interrupt(args.session_id)
    return contract.StateOutput(session_id=session.id, status=session.status)


def _list_in_words(output: contract.ListOutput) -> str:
    rows = (
        (one.session_id, one.agent, one.timestamp, one.active_status, one.directory, one.summary, one.excerpt)
        for one in output.sessions
    )
    lines = ["  ".join(map(exact, filter(None, row))) for row in rows] or ["No sessions."]
    return "\n".join([*lines, output.note] if output.note else lines)


@operation("{tool}_list", "List {sessions}", READS, _list_in_words, agent_input=contract.AgentListInput)
async def list_sessions(call: OperationCall, args: contract.ListInput) -> contract.ListOutput:
    """The sessions {agents_have} on this machine, newest first, from any directory and origin, those running now marked.
    Use it to find a sessionId to continue."""
    # Tools of Codex list Codex only. Those of any agent pass their own agent, which wins here.
    options = {"agent": CODEX} | args.model_dump(exclude={"working_directory", "search"})
    if args.search is not None:
        return await _searched(call, args.search, args.working_directory, options)
    found, cursor = await call.helm.list(directory=args.working_directory, **options)
    rows = await listed_sessions(call.helm, found)
    return contract.ListOutput(sessions=list(map(contract.ListedSession.of, rows)), next_cursor=cursor)


async def _searched(
    call: OperationCall, words: str, directory: str | None, options: Mapping[str, Any]
) -> contract.ListOutput:
    # Results of a search are ranked, so they have no pages.
    if options["query"] is not None or options["cursor"] is not None:
        raise InvalidInput("search goes with neither query nor cursor. Leave them out.", parameter="search")
    wanted = {name: options[name] for name in ("agent", "limit", "include_archived")}
    result = await call.helm.extras.search.find(words, directory=directory, **wanted)
    rows = await found_sessions(call.helm, result)
    unread = (
        f"Not indexed yet: {counted(result.unread, 'session')}. Search again in a moment."
        if result.unread is not None
        else None
    )
    return contract.ListOutput(sessions=list(map(contract.ListedSession.of, rows)), note=unread)


class AgentsOutput(Output):
    agents: list[AgentOutput]


def _agents_in_words(output: AgentsOutput) -> str:
    lines = []
    for one in output.agents:
        known = f"{one.version or 'installed'}" if one.installed else f"not installed: {one.problem or ''}"
        lines.append(exact(f"{one.agent}{' (default)' if one.is_default else ''}: {known}"))
    return "\n".join(lines)


@operation("{tool}_agents", "List agents", READS, _agents_in_words)
async def agents(call: OperationCall, _args: contract.NothingInput) -> AgentsOutput:
    """Which agents are installed here, which is the default, and what each can do."""
    found = await all_agents(call.helm)
    return AgentsOutput(agents=[AgentOutput.model_validate(one) for one in found])
