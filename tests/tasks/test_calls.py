"""A call that a client asks for again, because its hub died before the client had the answer."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.agents.registry import Agents
from helmsman.base.processes import Process
from helmsman.errors import (
    EngineLost,
    EngineTimeout,
    HelmsmanError,
    IdempotencyKeyReused,
    InvalidInput,
    OutcomeUnknown,
)
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.calls import ELSEWHERE, CallId, CallLog
from helmsman.tasks.writer import TaskWriter

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "is_done_again"),
    [(EngineLost, False), (EngineTimeout, False), (OutcomeUnknown, False), (InvalidInput, True)],
)
async def test_a_failed_call_is_repeated_only_if_no_agent_can_have_received_it(
    tmp_path: Path, error: type[HelmsmanError], is_done_again: bool
) -> None:
    asked: list[str] = []

    async def do() -> str:
        asked.append("once")
        raise error("It did not work.")

    async def called() -> str:
        try:
            return await calls.once(
                call, "say", do, repeatable=True, stored=str, restored=str, failed=lambda told: told.code
            )
        except HelmsmanError as refused:
            return refused.code

    writer = TaskWriter(tmp_path, AgentRecords(Agents()))
    calls, call = CallLog(writer), CallId("client", 1, Process.me())
    assert [await called(), await called()] == [error.code] * 2
    assert len(asked) == (2 if is_done_again else 1)
    await writer.close()


async def test_a_key_that_is_used_for_another_call_is_refused_at_once(tmp_path: Path) -> None:
    may_end = anyio.Event()
    writer = TaskWriter(tmp_path, AgentRecords(Agents()))
    calls, call = CallLog(writer), CallId("client", 1, ELSEWHERE)

    async def do() -> str:
        await may_end.wait()
        return "done"

    async def called(request: str) -> str:
        return await calls.once(
            call, "say", do, repeatable=True, request=request, stored=str, restored=str, failed=lambda told: told.code
        )

    with anyio.fail_after(30):
        async with anyio.create_task_group() as running:
            running.start_soon(called, "one")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(IdempotencyKeyReused, match="new key"):
                await called("another")
            may_end.set()
        assert await called("one") == "done"
        with pytest.raises(IdempotencyKeyReused):
            await called("another")
    await writer.close()
