"""`background_tasks`: work that serves a block, and ends with it."""

from __future__ import annotations

import anyio
import pytest

from helmsman.base.concurrency import background_tasks

pytestmark = pytest.mark.anyio


async def test_the_blocks_own_exception_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise KeyError("mine")


async def test_background_work_is_cancelled_when_the_block_ends() -> None:
    ended = anyio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with background_tasks() as tasks:
        tasks.start_soon(work)
        await anyio.lowlevel.checkpoint()
    assert ended.is_set()


async def test_a_failing_background_task_cancels_the_block_and_comes_out_as_a_group() -> None:
    async def fail() -> None:
        raise KeyError("background")

    with pytest.raises(ExceptionGroup) as caught:
        async with background_tasks() as tasks:
            tasks.start_soon(fail)
            await anyio.sleep_forever()
    assert caught.group_contains(KeyError, match="background")


async def test_cancelling_the_caller_passes_through() -> None:
    with anyio.move_on_after(0) as scope:
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()  # nothing of the cancellation is left over
