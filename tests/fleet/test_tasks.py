"""Tasks of a fleet on real machines' processes, with real Codex and a real Postgres."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from helmsman.base.concurrency import sleep_until
from helmsman.errors import QuestionNotOpen
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.model.events import ItemEnded, QuestionClosed, TurnEnded, TurnStarted
from helmsman.testing import ScriptedModel, run, say
from tests.fleet.conftest import Fleet

pytestmark = pytest.mark.anyio


async def test_a_task_is_run_told_answered_and_ended(fleet: Fleet, model: ScriptedModel) -> None:
    model.on("work", run("touch made"), say("done"))
    await fleet.worker("one")
    task = await fleet.start(
        "work", options={"approval_policy": "untrusted", "sandbox": "workspace-write"}, idempotency_key="k"
    )
    assert (await fleet.start("work", idempotency_key="k")).id == task.id
    seen: list[Any] = []

    async def answer() -> None:
        now, asks = await fleet.client.until(task.id, lambda task: task.input_required, timeout=60)
        assert asks, f"{now} {fleet.logs()}"
        (asked,) = await fleet.client.questions()
        await fleet.client.answer(task.id, asked.question.id, ["approve"], PERSON_AT_TERMINAL)
        with pytest.raises(QuestionNotOpen):
            await fleet.client.answer(task.id, asked.question.id, ["deny"], PERSON_AT_TERMINAL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        cursor = 0
        with anyio.fail_after(60):
            while not any(isinstance(event, TurnEnded) for event in seen):
                changed = fleet.client.watch(task.id)
                page = await fleet.client.log(str(task.session_id), cursor)
                seen, cursor = [*seen, *page.events], page.cursor
                if not page.events:
                    await sleep_until(changed, 5)
    ended = await fleet.client.get(task.id)
    assert (ended.status, ended.result, ended.origin) == ("completed", "done", "fleet"), fleet.logs()
    assert ended.usage is not None
    assert ended.usage.input_tokens > 0
    assert (fleet.directory / "made").exists()
    kinds = [type(event) for event in seen]
    assert kinds.index(TurnStarted) < kinds.index(QuestionClosed) < kinds.index(TurnEnded)
    assert ItemEnded in kinds
    assert (seen[0].task_id, seen[-1].outcome, seen[-1].final_message) == (task.id, "completed", "done")
    assert (await fleet.client.outcome(task.id)).commands[0].exit_code == 0
    assert await fleet.client.questions() == []
