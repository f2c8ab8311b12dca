"""Open sessions: new ones, optionally in their own worktree, or forks of others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread
from msgspec import field

from helmsman.agents.protocol import Capability, Engine, NothingBegun, Opened
from helmsman.base.files import refuse_moved
from helmsman.base.programs import reason_of_sessions, replaceable_entry
from helmsman.base.structs import Value, replace
from helmsman.errors import EngineLost, InvalidInput
from helmsman.git import lifecycle
from helmsman.git.worktree import Worktree
from helmsman.model.events import PastTurn, RemarksChanged, SettingsApplied
from helmsman.model.options import SessionOptions, WorktreeOptions
from helmsman.sessions.session import QuestionHandler, ToolRunner
from helmsman.steering.worktree_settings import environment_of

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.agents.protocol import Begun
    from helmsman.model.options import TurnInput
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings


class Fresh(Value, frozen=True):
    """Session that has just been opened, with its setup for the first turn. `made` is the worktree that was created for it
    here, and is removed if the start fails.
    """

    opened: Opened
    options: SessionOptions
    directory: str | None
    on_question: QuestionHandler | None
    worktree: Worktree | None = None
    made: Worktree | None = None
    tools: Mapping[str, ToolRunner] = field(default_factory=dict["str", "ToolRunner"])
    history: tuple[PastTurn, ...] = ()
    """Turns of the session that it was forked from."""


class Carried(Value, frozen=True):
    """Input for opening a session that another machine began: its id, if known, and the worktree that was created for it."""

    session_id: str | None = None
    tree: Worktree | None = None


PICTURES: Final = "pictures"
"""Subdirectory of the state directory for images from the dashboard."""

SessionOpener = Callable[["Engine"], Awaitable[Fresh]]


def needed_for(options: SessionOptions, turn: TurnInput | None, allowed_roots: Sequence[Path]) -> Iterator[Capability]:
    """Yield the capabilities that an engine needs for a turn with these options."""
    # Only a sandbox keeps a session inside the allowed roots.
    if allowed_roots or (options.writes in ("nothing", "workspace") and not options.unenforced):
        yield Capability.SANDBOX
    if options.asks not in (None, "never"):
        yield Capability.ASK
    if options.tools:
        yield Capability.CLIENT_TOOLS
    if options.model is not None:
        yield Capability.MODEL
    if options.profile is not None or options.config:
        yield Capability.SESSION_CONFIG
    if options.base_instructions is not None or options.developer_instructions is not None:
        yield Capability.INSTRUCTIONS
    if turn is None:
        return
    if turn.review is not None:
        yield Capability.REVIEW
    if turn.plan:
        yield Capability.PLAN
    if turn.images:
        yield Capability.IMAGES
    if turn.output_schema is not None:
        yield Capability.OUTPUT_SCHEMA


def writable_places(options: SessionOptions) -> tuple[Path, ...]:
    """Return the directories that a session works in or may write, as they were given."""
    return (*(() if options.cwd is None else (options.cwd,)), *options.writable_roots)


def image_roots(settings: Settings) -> tuple[Path, ...]:
    """Return the directories that images may come from; empty means anywhere."""
    return (*settings.session_roots, settings.state_dir.resolve() / PICTURES) if settings.allowed_roots else ()


def start_session(
    options: SessionOptions,
    on_question: QuestionHandler | None,
    *,
    worktree: WorktreeOptions | None,
    settings: Settings,
    tools: Mapping[str, ToolRunner] | None = None,
    carried: Carried | None = None,
) -> SessionOpener:
    """Open a new session, in new worktrees if requested.

    A session that was `carried` here is resumed; its permissions are set again, as for a new one.
    """
    carried = carried or Carried()

    async def start(engine: Engine) -> Fresh:
        async def begin(options: SessionOptions) -> Opened:
            await anyio.to_thread.run_sync(refuse_moved, "this session", writable_places(options))
            _refuse_replaceable(engine)
            if carried.session_id is not None:
                return await engine.resume(carried.session_id, options)
            try:
                return await engine.open(options)
            except EngineLost as error:  # a session without a turn is nothing yet
                raise NothingBegun(error.message, **error.details) from error

        if worktree is None or options.cwd is None:
            return Fresh(await begin(options), options, str(options.cwd), on_question, tools=tools or {})
        notes: list[str] = []
        made = None
        if carried.tree is None:
            await anyio.to_thread.run_sync(refuse_moved, "this session", worktree.add_dirs)
            create = partial(lifecycle.create, start=worktree.start, add_dirs=worktree.add_dirs)
            made = await anyio.to_thread.run_sync(create, options.cwd, settings.state_dir, notes.append)
        tree = made or carried.tree
        assert tree is not None
        look = partial(environment_of, tree, settings, trusts_repository=options.trust_repository)
        try:
            inside = replace(options, cwd=tree.directory, environment=await anyio.to_thread.run_sync(look))
            # The further worktrees lie outside the first one, where the sandbox lets nothing be written.
            if tree.others and options.writes != "nothing":
                further = tuple(one.directory for one in tree.others)
                inside = replace(inside, writable_roots=(*options.writable_roots, *further))
            opened = await begin(inside)
        except Exception:
            if made is not None:
                await anyio.to_thread.run_sync(lifecycle.discard, made)
            raise
        opened = replace(opened, notes=(*opened.notes, *notes))
        return Fresh(opened, inside, str(inside.cwd), on_question, tree, made, tools or {})

    return start


def _refuse_replaceable(engine: Engine) -> None:
    """Refuse an engine if the new session could replace its program, or a program that it starts by name.

    Another engine runs a copy of the program, and has another PATH.

    Raises:
        NothingBegun: The session could.
    """
    if engine.program is not None and (reason := reason_of_sessions(engine.program)) is not None:
        raise NothingBegun(f"{engine.program} is not used for new sessions: {reason}. Try again.")
    if (entry := replaceable_entry(engine.search_path)) is not None:
        raise NothingBegun(f"This engine has {entry} on its PATH, where sessions may write. Try again.")


def fork_session(
    source: Session,
    options: SessionOptions,
    from_turn: int | str | None,
    on_question: QuestionHandler | None,
    turns: Sequence[PastTurn] = (),
) -> SessionOpener:
    """Fork one from another, at its end or from one of its turns. `turns` are those of the other that are known."""

    async def fork(engine: Engine) -> Fresh:
        last = None if from_turn is None else await _past_turn_id(engine, source.id, from_turn)
        await anyio.to_thread.run_sync(refuse_moved, f"session {source.id}", writable_places(options))
        opened = await engine.fork(source.id, options, last_turn_id=last)
        # A fork has no part of a running turn.
        shared = [turn for turn in turns if turn.status != "inProgress"]
        if last is not None:
            ids = [turn.id for turn in shared]
            shared = shared[: ids.index(last) + 1] if last in ids else []
        return Fresh(opened, options, source.directory, on_question, history=tuple(shared))

    return fork


async def _past_turn_id(engine: Engine, session_id: str, which: int | str) -> str:
    """Return the id of a turn by its number, counted from 1 (possibly as text), or by its id.

    Raises:
        InvalidInput: There is no such turn.
    """
    ids = [turn.id for turn in await engine.history(session_id)]
    if isinstance(which, int) or which.isdecimal():
        number = int(which)
        which = ids[number - 1] if 0 < number <= len(ids) else str(number)
    if which not in ids:
        there = f"a number from 1 to {len(ids)}, or the id of a turn" if ids else "another session: this one has none"
        raise InvalidInput(f"There is no turn {which} in session {session_id}. Give {there}.", parameter="from_turn")
    return which


def note_opened(session: Session, opened: Opened, begun: Begun | None = None) -> None:
    """Record an engine's report on an opened session: its id, the settings in force, and remarks."""
    remarks = (*opened.notes, *(() if begun is None else begun.notes))
    if remarks != session.notes:
        session.apply(RemarksChanged(session_id=session.id, remarks=remarks))
    session.apply(
        SettingsApplied(
            session_id=session.id if begun is None else begun.session_id,
            model=opened.model,
            approval_policy=opened.approval_policy,
            sandbox=opened.sandbox,
            enforced=opened.enforced,
        ).with_raw(opened.raw)
    )
    session.warn(session.notes)
