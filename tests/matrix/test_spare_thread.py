"""Sessions started one after another are each what they would be alone, whatever Codex has open in advance."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, always, say

pytestmark = [pytest.mark.matrix, pytest.mark.anyio]


async def test_each_start_is_its_own_session_and_reads_the_instructions_of_now(
    helm: HelmsmanService, model: ScriptedModel, codex_home: CodexHome, folder: Path
) -> None:
    model.otherwise(always(say("done")))
    for number in range(5):
        if number % 2:
            (folder / "AGENTS.md").write_text(f"Rule {number}.\n", encoding="utf-8")
        session = await helm.start("go", cwd=folder)
        assert await session.wait(until="end", timeout=60)
        assert session.result == "done"
        newest = number if number % 2 else number - 1
        assert number == 0 or f"Rule {newest}." in str(model.requests[-1].body)
    assert len(helm.sessions) == 5
    assert len(list(codex_home.path.rglob("rollout-*.jsonl"))) == 5
