"""Tools of the toolset `extras` for the upkeep of a session: fork, rollback, compact, rename, archive, goal."""

from __future__ import annotations

from pydantic import Field

from helmsman.mcp.session_tools import state_in_words
from helmsman.mcp.toolset import ACTS, ARRANGES, FORGETS, CallContext, tool
from helmsman.sessions.state import SessionStatus
from helmsman.shapes.contract import Input, Output, SayOutput, SessionId, SessionInput, StateOutput


class ForkInput(Input):
    session_id: SessionId
    message: str | None = Field(
        None,
        description='What it does first, e.g. "Try it without the cache". Left out, it waits for codex_say.',
    )
    from_turn: int | str | None = Field(
        None,
        description="The last turn they share: its number from 1 on, e.g. 2, or its id. Default: the last.",
    )


class ForkOutput(Output):
    session_id: str = Field(description="The new session.")
    forked_from: str
    status: SessionStatus
    task_id: str | None = Field(None, description="Of its first turn, where a message was given.")


class RollbackInput(Input):
    session_id: SessionId
    turns: int = Field(1, ge=1, description="How many of the last turns, e.g. 1.")


class RenameInput(Input):
    session_id: SessionId
    name: str = Field(description='One line that lists then show, e.g. "Parser rewrite".')


class RenameOutput(Output):
    session_id: str
    name: str


class ArchiveOutput(Output):
    session_id: str
    archived: bool


class GoalInput(Input):
    session_id: SessionId
    goal: str | None = Field(
        None,
        description='What to reach, e.g. "All tests pass on Python 3.14". Empty: no goal any more. Left out: only read it.',
    )


class GoalOutput(Output):
    session_id: str
    status: SessionStatus
    goal: str | None = Field(None, description="Absent: the session has no goal.")
    goal_status: str | None = Field(None, description="As Codex says it, e.g. active, paused, blocked, complete.")
    tokens_used: int | None = None
    seconds_used: int | None = None


@tool("Fork a Codex session", ACTS, lambda fork: f"{fork.session_id}: {fork.status}, forked from {fork.forked_from}")
async def codex_fork(call: CallContext, args: ForkInput) -> ForkOutput:
    """A new session with the history of another one, to its end or to an earlier turn: for trying another way without
    losing the first. Files on disk are shared and stay as they are. Returns at once; with a message, follow it with
    codex_wait. To continue in the same session use codex_say."""
    fork = await call.helm.fork(args.session_id, args.message, from_turn=args.from_turn, on_question=call.on_question)
    return ForkOutput(session_id=fork.id, forked_from=args.session_id, status=fork.status, task_id=fork.task_id)


@tool("Forget the last turns of a session", FORGETS, state_in_words)
async def codex_rollback(call: CallContext, args: RollbackInput) -> StateOutput:
    """Take the last turns out of a session's history: Codex forgets them, files stay as they are. Not while a turn is
    running: codex_interrupt first. To keep both ways use codex_fork; to take files back
    too, codex_rewind."""
    session = await call.helm.extras.upkeep.roll_back(args.session_id, args.turns)
    return StateOutput(session_id=session.id, status=session.status)


@tool("Compact a session's history", ACTS, state_in_words)
async def codex_compact(call: CallContext, args: SessionInput) -> SayOutput:
    """Replace the history of a long session by a summary, to make room in the model's context. A turn of its own:
    returns at once, follow it with codex_wait. Codex also does it by itself when it has to."""
    session = await call.helm.extras.upkeep.compact(args.session_id)
    return SayOutput(session_id=session.id, status=session.status, task_id=session.task_id)


@tool("Name a Codex session", ARRANGES, lambda named: f"{named.session_id} is now called {named.name!r}.")
async def codex_rename(call: CallContext, args: RenameInput) -> RenameOutput:
    """Give a session a name, which codex_list then shows as its summary. Any session, also a busy one."""
    session = await call.helm.extras.upkeep.rename(args.session_id, args.name)
    return RenameOutput(session_id=session.id, name=session.state.name or "")


def _archive_in_words(output: ArchiveOutput) -> str:
    return f"{output.session_id} is {'archived' if output.archived else 'back from the archive'}."


@tool("Archive a Codex session", ARRANGES, _archive_in_words)
async def codex_archive(call: CallContext, args: SessionInput) -> ArchiveOutput:
    """Archive a session: codex_list shows it only with includeArchived, and it goes on only after codex_unarchive.
    Nothing is deleted. Not while a turn is running: codex_interrupt first."""
    await call.helm.extras.upkeep.archive(args.session_id)
    return ArchiveOutput(session_id=args.session_id, archived=True)


@tool("Bring back an archived session", ARRANGES, _archive_in_words)
async def codex_unarchive(call: CallContext, args: SessionInput) -> ArchiveOutput:
    """Bring back what codex_archive put away; codex_list with includeArchived finds it."""
    await call.helm.extras.upkeep.unarchive(args.session_id)
    return ArchiveOutput(session_id=args.session_id, archived=False)


def _goal_in_words(output: GoalOutput) -> str:
    if output.goal is None:
        return f"{output.session_id}: {output.status}, no goal"
    return f"{output.session_id}: {output.status}\nGoal ({output.goal_status}): {output.goal}"


@tool("Give a session a goal", ACTS, _goal_in_words)
async def codex_goal(call: CallContext, args: GoalInput) -> GoalOutput:
    """Set, read or clear the goal of a session. With a new goal Codex starts at once and goes on, turn after turn, until
    it is reached or blocked: follow it with codex_wait, stop it with codex_interrupt, end it for good with an empty
    goal. For a single piece of work use codex_say."""
    upkeep = call.helm.extras.upkeep
    session = await call.helm.session(args.session_id)
    found = None
    if args.goal is None:
        found = await upkeep.goal(session.id)
    elif args.goal.strip():
        found = await upkeep.set_goal(session.id, args.goal, on_question=call.on_question)
    else:
        await upkeep.clear_goal(session.id)
    output = GoalOutput(session_id=session.id, status=session.status)
    if found is not None:
        output.goal, output.goal_status = found.objective, found.status
        output.tokens_used, output.seconds_used = found.tokens_used, found.seconds_used
    return output
