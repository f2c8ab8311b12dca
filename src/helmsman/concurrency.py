"""Small pieces of structured concurrency that anyio leaves to its users."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """A task group for work that serves the block: cancelled when the block ends.

    Unlike a bare task group it lets the block's own exception out as it is, not wrapped in an exception group, so that
    a caller can say `except StepFailed`. A failing background task still cancels the block and comes out as a group.
    """
    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    try:
        yield tasks
    finally:
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)
