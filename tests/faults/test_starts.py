"""Tests of concurrent starts on an empty CODEX_HOME: newer Codex fails in a race with itself, and Helmsman retries."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.testing import CodexHome, codex_version, say
from tests.faults.scene import SECONDS, Scene

pytestmark = [pytest.mark.long, pytest.mark.anyio]

AT_ONCE = 4


async def test_processes_that_start_at_once_on_an_empty_home_all_work(
    scene: Scene, codex_binary: Path, tmp_path: Path
) -> None:
    scene.model.on("work", say("Done."))
    empty = CodexHome(tmp_path / "empty")
    empty.use_model(scene.model.base_url, codex_version(codex_binary))
    scene.codex_home.path.rename(tmp_path / "not used")
    empty.path.rename(scene.codex_home.path)
    results: list[str | None] = []

    async def work() -> None:
        async with scene.helmsman() as helm:
            session = await helm.start("work", cwd=scene.repo)
            assert await session.wait(until="end", timeout=SECONDS)
            results.append(session.result)

    with anyio.fail_after(2 * SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(work)
    assert results == ["Done."] * AT_ONCE
