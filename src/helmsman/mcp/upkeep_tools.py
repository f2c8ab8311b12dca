"""Tools of the toolset `extras` for the upkeep of a session: fork, rollback, compact, rename, archive, goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from pydantic import Field

from helmsman.mcp.toolset import ACTS, Tool
from helmsman.sessions.state import SessionStatus
from helmsman.shapes.contract import Input, Output, SessionId, StateOutput

if TYPE_CHECKING:
    from helmsman.agents.protocol import Goal
    from helmsman.mcp.toolset import CallContext

_ARRANGES: Final = types.ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
"""Changes how a session is kept, and nothing that could be lost."""


class ForkInput(Input):
    session_id: SessionId
    message: str | None = Field(
        None,
        description='What the new session does first, e.g. "Try it without the cache". Left out, it waits for codex_say.',
    )
    from_turn: int | str | None = Field(
        None,
        description="The last turn the new session shares: its number counted from 1, e.g. 2, or its id. Default: the last.",
    )


class ForkOutput(Output):
    session_id: str = Field(description="The new session.")
    forked_from: str
    status: SessionStatus
    task_id: str | None = Field(None, description="The task of its first turn, where a message was given.")


class RollbackInput(Input):
    session_id: SessionId
    turns: int = Field(1, ge=1, description="How many turns to forget, from the last one on, e.g. 1.")


class CompactInput(Input):
    session_id: SessionId


class CompactOutput(Output):
    session_id: str
    status: SessionStatus
    task_id: str | None = None


class RenameInput(Input):
    session_id: SessionId
    name: str = Field(description='One line that lists then show, e.g. "Parser rewrite".')


class RenameOutput(Output):
    session_id: str
    name: str


class ArchiveInput(Input):
    session_id: SessionId


class ArchiveOutput(Output):
    session_id: str
    archived: bool


class GoalInput(Input):
    session_id: SessionId
    goal: str | None = Field(
        None,
        description='What the session is to reach, e.g. "All tests pass on Python 3.14". An empty string takes the goal '
        "away. Left out, the goal is only read.",
    )


class GoalOutput(Output):
    session_id: str
    status: SessionStatus = Field(description="What the session is doing.")
    goal: str | None = Field(None, description="Absent: the session has no goal.")
    goal_status: str | None = Field(None, description="As Codex says it, e.g. active, paused, blocked, complete.")
    tokens_used: int | None = Field(None, description="Tokens spent on the goal so far.")
    seconds_used: int | None = Field(None, description="Time spent on it so far.")


async def _fork(call: CallContext, args: ForkInput) -> ForkOutput:
    asked = call.doors.handler(call.context)
    fork = await call.helm.fork(args.session_id, args.message, from_turn=args.from_turn, on_question=asked)
    return ForkOutput(
        session_id=fork.id,
        forked_from=args.session_id,
        status=fork.status,
        task_id=fork.task_id,
    )


async def _rollback(call: CallContext, args: RollbackInput) -> StateOutput:
    session = await call.helm.extras.upkeep.roll_back(args.session_id, args.turns)
    return StateOutput(session_id=session.id, status=session.status)


async def _compact(call: CallContext, args: CompactInput) -> CompactOutput:
    session = await call.helm.extras.upkeep.compact(args.session_id)
    return CompactOutput(session_id=session.id, status=session.status, task_id=session.task_id)


async def _rename(call: CallContext, args: RenameInput) -> RenameOutput:
    session = await call.helm.extras.upkeep.rename(args.session_id, args.name)
    return RenameOutput(session_id=session.id, name=session.state.name or "")


async def _archive(call: CallContext, args: ArchiveInput) -> ArchiveOutput:
    await call.helm.extras.upkeep.archive(args.session_id)
    return ArchiveOutput(session_id=args.session_id, archived=True)


async def _unarchive(call: CallContext, args: ArchiveInput) -> ArchiveOutput:
    await call.helm.extras.upkeep.unarchive(args.session_id)
    return ArchiveOutput(session_id=args.session_id, archived=False)


async def _goal(call: CallContext, args: GoalInput) -> GoalOutput:
    upkeep = call.helm.extras.upkeep
    session = await call.helm.session(args.session_id)
    found: Goal | None = None
    if args.goal is None:
        found = await upkeep.goal(session.id)
    elif args.goal.strip():
        session.on_question = call.doors.handler(call.context) or session.on_question
        found = await upkeep.set_goal(session.id, args.goal)
    else:
        await upkeep.clear_goal(session.id)
    return GoalOutput(
        session_id=session.id,
        status=session.status,
        goal=found.objective if found else None,
        goal_status=found.status if found else None,
        tokens_used=found.tokens_used if found else None,
        seconds_used=found.seconds_used if found else None,
    )


def _fork_in_words(output: ForkOutput) -> str:
    return f"{output.session_id}: {output.status}, forked from {output.forked_from}"


def _state_in_words(output: StateOutput | CompactOutput) -> str:
    return f"{output.session_id}: {output.status}"


def _name_in_words(output: RenameOutput) -> str:
    return f"{output.session_id} is now called {output.name!r}."


def _archive_in_words(output: ArchiveOutput) -> str:
    return f"{output.session_id} is {'archived' if output.archived else 'back from the archive'}."


def _goal_in_words(output: GoalOutput) -> str:
    if output.goal is None:
        return f"{output.session_id}: {output.status}, no goal"
    return f"{output.session_id}: {output.status}\nGoal ({output.goal_status}): {output.goal}"


UPKEEP_TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="codex_fork",
        title="Fork a Codex session",
        description=(
            "A new session that shares the history of another one, up to its end or up to an earlier turn: for trying "
            "another way without losing the first. The files on disk are shared and stay as they are. Returns at once; "
            "with a message follow the new session with codex_wait. To go on in the same session use codex_say."
        ),
        takes=ForkInput,
        gives=ForkOutput,
        annotations=ACTS,
        run=_fork,
        in_words=_fork_in_words,
    ),
    Tool(
        name="codex_rollback",
        title="Forget the last turns of a session",
        description=(
            "Take the last turns out of a session's history, so that Codex knows nothing of them any more. Files stay "
            "as those turns left them. Not while a turn is running: codex_interrupt first. To keep both ways use "
            "codex_fork instead."
        ),
        takes=RollbackInput,
        gives=StateOutput,
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
        ),
        run=_rollback,
        in_words=_state_in_words,
    ),
    Tool(
        name="codex_compact",
        title="Compact a session's history",
        description=(
            "Let Codex replace the history of a long session by a summary, so that more fits into the model's context. "
            "That is a turn of its own: returns at once, follow it with codex_wait. Codex also does it by itself when "
            "it has to."
        ),
        takes=CompactInput,
        gives=CompactOutput,
        annotations=ACTS,
        run=_compact,
        in_words=_state_in_words,
    ),
    Tool(
        name="codex_rename",
        title="Name a Codex session",
        description="Give a session a name, which codex_list then shows as its summary. Any session, also a busy one.",
        takes=RenameInput,
        gives=RenameOutput,
        annotations=_ARRANGES,
        run=_rename,
        in_words=_name_in_words,
    ),
    Tool(
        name="codex_archive",
        title="Archive a Codex session",
        description=(
            "Put a session away: codex_list shows it only with includeArchived, and codex_unarchive has to bring it "
            "back before it can go on. Nothing is deleted. Not while a turn is running: codex_interrupt first."
        ),
        takes=ArchiveInput,
        gives=ArchiveOutput,
        annotations=_ARRANGES,
        run=_archive,
        in_words=_archive_in_words,
    ),
    Tool(
        name="codex_unarchive",
        title="Bring back an archived session",
        description="Bring a session back that codex_archive put away; codex_list with includeArchived finds it.",
        takes=ArchiveInput,
        gives=ArchiveOutput,
        annotations=_ARRANGES,
        run=_unarchive,
        in_words=_archive_in_words,
    ),
    Tool(
        name="codex_goal",
        title="Give a session a goal",
        description=(
            "Set, read or clear the goal of a session. With a new goal Codex sets to work at once and goes on by "
            "itself, turn after turn, until it says the goal is reached or blocked: follow it with codex_wait, stop it "
            "with codex_interrupt, end it for good with an empty goal. For a single piece of work use codex_say."
        ),
        takes=GoalInput,
        gives=GoalOutput,
        annotations=ACTS,
        run=_goal,
        in_words=_goal_in_words,
    ),
)
