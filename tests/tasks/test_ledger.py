"""The ledger, when what it is to write cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman.agents.registry import Agents
from helmsman.errors import RegistryUnavailable
from helmsman.model.options import SessionOptions
from helmsman.store.database import Fence
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.ledger import Ledger
from helmsman.tasks.model import ASKED, INPUT_POSITION, OPENED
from helmsman.tasks.registry import Registry
from helmsman.tasks.truth import TaskTruth

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_nothing_is_begun_that_could_not_be_written_down_however_much_else_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **_more: object) -> None:
        raise RegistryUnavailable("The disk is full.")

    monkeypatch.setattr("helmsman.tasks.ledger._MOST_KEPT", 1)
    monkeypatch.setattr(Registry, "update_all", full)
    ledger = Ledger(tmp_path, TaskTruth(Agents()), Fence(1, lambda _: None))
    ledger.update("T-ended", {"note": "It has ended."})
    ledger.place("T-next", "engine", None)
    with pytest.raises(RegistryUnavailable, match="it is not begun"):
        await ledger.write_intent("T-next")
    await ledger.close()


async def test_what_could_not_be_written_takes_nothing_from_what_was_said_meanwhile_nor_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, TaskTruth(Agents()), Fence(1, lambda _: None))
    task_id, draft = draft_task("work", SessionOptions(agent="codex"), session_id=None, terms={})
    await ledger.enter(draft)

    async def say_more_and_fail(_: object) -> None:
        ledger.update(task_id, {"metadata": {INPUT_POSITION: "e 1", ASKED: 2}})
        raise RegistryUnavailable("The disk is full.")

    ledger.update(task_id, {"metadata": {OPENED: "s", ASKED: 1}})
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "registry", say_more_and_fail)
        await ledger.write()
    await ledger.write()
    task = await ledger.registry(lambda registry: registry.get(task_id))
    assert task is not None
    assert [task.metadata.get(key) for key in (OPENED, ASKED, INPUT_POSITION)] == ["s", 2, "e 1"]
    await ledger.close()
