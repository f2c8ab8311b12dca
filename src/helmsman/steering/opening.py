"""How sessions and turns come to be in an engine: a session started, perhaps in a worktree of its own, or forked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman import worktrees
from helmsman.model.events import Notice, SettingsApplied
from helmsman.steering.past_turns import past_turn_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helmsman.agents.protocol import Engine, Opened
    from helmsman.model.events import Event
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.worktrees import Worktree


@dataclass(frozen=True, slots=True)
class Fresh:
    """A session that has just been opened, and what it is to have before it hears of anything."""

    opened: Opened
    options: SessionOptions
    directory: str | None
    on_question: QuestionHandler | None
    worktree: Worktree | None = None


SessionOpener = Callable[["Engine"], Awaitable[Fresh]]

TurnBeginner = Callable[["Engine"], Awaitable[str | None]]
"""Starts a turn in an engine and gives its id, where that is known at once."""


def as_events(opened: Opened) -> Iterator[Event]:
    """What an engine said of a session it has opened: the settings in force, and remarks."""
    yield SettingsApplied(
        session_id=opened.session_id,
        model=opened.model,
        approval_policy=opened.approval_policy,
        sandbox=opened.sandbox,
        raw=opened.raw,
    )
    for note in opened.notes:
        yield Notice(session_id=opened.session_id, kind="warning", message=note)


def start_session(
    options: SessionOptions, turn: TurnInput, on_question: QuestionHandler | None, *, worktrees_in: Path | None
) -> SessionOpener:
    """Start one; with `worktrees_in`, a state directory, in a worktree of its own."""

    async def start(engine: Engine) -> Fresh:
        if worktrees_in is None or options.cwd is None:
            return Fresh(await engine.start(options, turn), options, str(options.cwd), on_question)
        tree = await anyio.to_thread.run_sync(worktrees.create, options.cwd, worktrees_in)
        inside = replace(options, cwd=tree.directory)
        try:
            opened = await engine.start(inside, turn)
            tree = await anyio.to_thread.run_sync(worktrees.assign, tree, opened.session_id)
        except Exception:
            await anyio.to_thread.run_sync(worktrees.discard, tree)
            raise
        return Fresh(opened, inside, str(inside.cwd), on_question, tree)

    return start


def fork_session(
    source: Session,
    options: SessionOptions,
    turn: TurnInput | None,
    from_turn: int | str | None,
    on_question: QuestionHandler | None,
) -> SessionOpener:
    """Fork one from another, at its end or from one of its turns."""

    async def fork(engine: Engine) -> Fresh:
        last = None if from_turn is None else await past_turn_id(engine, source.id, from_turn)
        opened = await engine.fork(source.id, options, turn, last_turn_id=last)
        return Fresh(opened, options, source.directory, on_question)

    return fork
