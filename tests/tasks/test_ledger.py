"""The ledger, when what it is to write cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman.agents.registry import Agents
from helmsman.errors import RegistryUnavailable
from helmsman.tasks.database import Fence
from helmsman.tasks.ledger import Ledger
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
