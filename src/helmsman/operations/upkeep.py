"""Upkeep of a session: fork, rollback, compact, rename, archive, goal."""

from __future__ import annotations

from pydantic import Field

from helmsman.agents.protocol import Capability
from helmsman.model.nature import ACTS, ARRANGES, FORGETS
from helmsman.operations.sessions import state_in_words
from helmsman.operations.table import OperationCall, operation
from helmsman.sessions.state import SessionStatus
from helmsman.shapes.contract import Input, Output, SayOutput, SessionId, SessionInput, StateOutput


class ForkInput(Input):
    session_id: SessionId
    message: str | None = Field(
        None,
        description='What it does first, e.g. "Try it without the cache". Left out, it waits for {tool}_say.',
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
    goal_status: str | None = Field(None, description="As {agent} says it, e.g. active, paused, blocked, complete.")
    tokens_used: int | None = None
    seconds_used: int | None = None


@operation(
    "{tool}_fork",
    "Fork {a_session}",
    ACTS,
    lambda fork: f"{fork.session_id}: {fork.status}, forked from {fork.forked_from}",
    needs=Capability.FORK,
)
async def fork(call: OperationCall, args: ForkInput) -> ForkOutput:
    """A new session with the history of another one, to its end or to an earlier turn: for trying another way without
    losing the first. Files on disk are shared and stay as they are. Returns at once; with a message, follow it with
    {tool}_wait. To continue in the same session use {tool}_say."""
    fork = await call.helm.fork(args.session_id, args.message, from_turn=args.from_turn, on_question=call.on_question)
    return ForkOutput(session_id=fork.id, forked_from=args.session_id, status=fork.status, task_id=fork.task_id)


@operation("{tool}_rollback", "Forget the last turns of a session", FORGETS, state_in_words, needs=Capability.ROLL_BACK)
async def rollback(call: OperationCall, args: RollbackInput) -> StateOutput:
    """Take the last turns out of a session's history: {agent} forgets them, files stay as they are. Not while a turn is
    running: {tool}_interrupt first. To keep both ways use {tool}_fork; to take files back
    too, {tool}_rewind."""
    session = await call.helm.extras.upkeep.roll_back(args.session_id, args.turns)
    return StateOutput(session_id=session.id, status=session.status)


@operation("{tool}_compact", "Compact a session's history", ACTS, state_in_words, needs=Capability.COMPACT)
async def compact(call: OperationCall, args: SessionInput) -> SayOutput:
    """Replace the history of a long session by a summary, to make room in the model's context. A turn of its own:
    returns at once, follow it with {tool}_wait. {Agent} also does it by itself when it has to."""
    session = await call.helm.extras.upkeep.compact(args.session_id)
    return SayOutput(session_id=session.id, status=session.status, task_id=session.task_id)


@operation(
    "{tool}_rename",
    "Name {a_session}",
    ARRANGES,
    lambda named: f"{named.session_id} is now called {named.name!r}.",
    needs=Capability.RENAME,
)
async def rename(call: OperationCall, args: RenameInput) -> RenameOutput:
    """Give a session a name, which {tool}_list then shows as its summary. Any session, also a busy one."""
    session = await call.helm.extras.upkeep.rename(args.session_id, args.name)
    return RenameOutput(session_id=session.id, name=session.state.name or "")


def _archive_in_words(output: ArchiveOutput) -> str:
    return f"{output.session_id} is {'archived' if output.archived else 'back from the archive'}."


@operation("{tool}_archive", "Archive {a_session}", ARRANGES, _archive_in_words, needs=Capability.ARCHIVE)
async def archive(call: OperationCall, args: SessionInput) -> ArchiveOutput:
    """Archive a session: {tool}_list shows it only with includeArchived, and it goes on only after {tool}_unarchive.
    Nothing is deleted. Not while a turn is running: {tool}_interrupt first."""
    await call.helm.extras.upkeep.archive(args.session_id)
    return ArchiveOutput(session_id=args.session_id, archived=True)


@operation("{tool}_unarchive", "Bring back an archived session", ARRANGES, _archive_in_words, needs=Capability.ARCHIVE)
async def unarchive(call: OperationCall, args: SessionInput) -> ArchiveOutput:
    """Bring back what {tool}_archive put away; {tool}_list with includeArchived finds it."""
    await call.helm.extras.upkeep.unarchive(args.session_id)
    return ArchiveOutput(session_id=args.session_id, archived=False)


def _goal_in_words(output: GoalOutput) -> str:
    if output.goal is None:
        return f"{output.session_id}: {output.status}, no goal"
    return f"{output.session_id}: {output.status}\nGoal ({output.goal_status}): {output.goal}"


@operation("{tool}_goal", "Give a session a goal", ACTS, _goal_in_words, needs=Capability.GOALS)
async def goal(call: OperationCall, args: GoalInput) -> GoalOutput:
    """Set, read or clear the goal of a session. With a new goal {agent} starts at once and goes on, turn after turn, until
    it is reached or blocked: follow it with {tool}_wait, stop it with {tool}_interrupt, end it for good with an empty
    goal. For a single piece of work use {tool}_say."""
    upkeep = call.helm.extras.upkeep
    # The session is opened in any case, because the answer has its status.
    session = await call.helm.session(args.session_id)
    found = None
    if args.goal is None:
        found = await upkeep.goal(session.id)
    elif args.goal.strip():
        # An empty goal clears it. None only reads, so that a missing argument changes nothing.
        found = await upkeep.set_goal(session.id, args.goal, on_question=call.on_question)
    else:
        await upkeep.clear_goal(session.id)
    output = GoalOutput(session_id=session.id, status=session.status)
    if found is not None:
        output.goal, output.goal_status = found.objective, found.status
        output.tokens_used, output.seconds_used = found.tokens_used, found.seconds_used
    return output
