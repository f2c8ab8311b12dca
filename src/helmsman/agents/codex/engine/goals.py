"""A session with a goal must not run away while it is being loaded for something else.

Codex begins a turn towards an active goal as soon as the thread is loaded, and a message that comes then melts into that
turn or is lost. So the goal is paused before, and goes on after the next turn that was asked for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from helmsman.agents.codex.features import Feature
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.app_server import AppServer

log = logging.getLogger(__name__)


async def pause_goal(api: AppServer, binary: CodexBinary, thread_id: str) -> bool:
    """Pause the active goal of a thread that is about to be loaded; False where there is none."""
    if not binary.can(Feature.GOALS):
        return False
    try:
        goal = await api.goal(thread_id)
    except HelmsmanError as error:  # goals may be switched off
        log.debug("thread/goal/get of %s: %s", thread_id, error)
        return False
    if goal is None or goal.status != "active":
        return False
    await api.set_goal_status(thread_id, "paused")
    return True


async def resume_goal(api: AppServer, thread_id: str) -> None:
    """Let Codex go on towards the goal of a thread that was paused, if it is so still."""
    try:
        goal = await api.goal(thread_id)
        if goal is not None and goal.status == "paused":
            await api.set_goal_status(thread_id, "active")
    except HelmsmanError as error:
        log.warning("the goal of session %s stays paused: %s", thread_id, error)
