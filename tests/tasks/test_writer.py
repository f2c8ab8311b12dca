"""The writer, when what it is to write cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.agents.registry import Agents
from helmsman.errors import RegistryUnavailable
from helmsman.model.options import SessionOptions
from helmsman.store.database import Fence
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.registry import Registry
from helmsman.tasks.writer import TaskWriter
from tests.turns import requested

pytestmark = pytest.mark.anyio


async def test_no_turn_begins_that_the_store_did_not_record_among_other_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **_more: object) -> None:
        raise RegistryUnavailable("The disk is full.")

    monkeypatch.setattr("helmsman.tasks.writer._MOST_KEPT", 1)
    monkeypatch.setattr(Registry, "commit", full)
    writer = TaskWriter(tmp_path, AgentRecords(Agents()), Fence(1, lambda _: None))
    writer.update("T-ended", {"note": "It has ended."})
    writer.place("T-next", "engine", None)
    with pytest.raises(RegistryUnavailable, match="it was not started"):
        await writer.write_intent("T-next")
    await writer.close()


async def test_failed_writes_and_later_changes_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TaskWriter(tmp_path, AgentRecords(Agents()), Fence(1, lambda _: None))
    task_id, draft = draft_task(requested("work", SessionOptions(agent="codex")), session_id=None, policy={})
    await writer.enter(draft)

    async def say_more_and_fail(_: object) -> None:
        writer.update(task_id, {"input_position": "e 1", "granted": {"a": 2}})
        raise RegistryUnavailable("The disk is full.")

    writer.update(task_id, {"opened_session": "s", "granted": {"a": 1, "b": 3}})
    with monkeypatch.context() as patched:
        patched.setattr(writer, "registry", say_more_and_fail)
        await writer.write()
    await writer.write()
    task = await writer.registry(lambda registry: registry.get(task_id))
    assert task is not None
    assert (task.opened_session, task.input_position) == ("s", "e 1")
    assert (task.granted["a"], task.granted["b"]) == (2, 3)
    await writer.close()


async def test_a_waiting_task_that_could_not_be_read_can_be_taken_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TaskWriter(tmp_path, AgentRecords(Agents()), Fence(1, lambda _: None))
    _, draft = draft_task(
        requested("work", SessionOptions(agent="codex")),
        session_id=None,
        policy={},
        spec={},
    )
    task, _ = await writer.registry(lambda registry: registry.add(draft))

    async def fail(_: object) -> None:
        raise RegistryUnavailable("It is busy.")

    with monkeypatch.context() as patched, pytest.raises(RegistryUnavailable):
        patched.setattr(writer, "registry", fail)
        await writer.take(task)
    assert not writer.has(task.id)
    assert await writer.take(task)
    await writer.close()
