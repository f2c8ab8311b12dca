"""A session with a goal must not run away while it is being loaded for something else."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from helmsman.agents.codex.features import Feature
from helmsman.errors import CodexUnsupported, HelmsmanError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.app_server import AppServer

log = logging.getLogger(__name__)


@asynccontextmanager
async def goal_held(api: AppServer, binary: CodexBinary, thread_id: str, *, then_resumed: bool) -> AsyncIterator[None]:
    """Keep the goal of a thread paused while the block loads it.

    Codex begins a turn towards an active goal as soon as the thread is loaded, and a message that comes then melts into that
    turn or is lost. `then_resumed` says whether it may go on towards the goal afterwards: after the turn the block began.
    """
    if not await _has_active_goal(api, binary, thread_id):
        yield
        return
    await api.set_goal_status(thread_id, "paused")
    try:
        yield
    finally:
        if then_resumed:
            try:
                await api.set_goal_status(thread_id, "active")
            except HelmsmanError as error:
                log.warning("the goal of session %s stays paused: %s", thread_id, error)


async def _has_active_goal(api: AppServer, binary: CodexBinary, thread_id: str) -> bool:
    if not binary.can(Feature.GOALS):
        return False
    try:
        goal = await api.goal(thread_id)
    except CodexUnsupported:  # switched off
        return False
    except HelmsmanError as error:
        log.debug("thread/goal/get of %s: %s", thread_id, error)
        return False
    return goal is not None and goal.status == "active"
