"""The store is damaged while a turn runs: the turn goes on, the damage is reported, and the next work is stored again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import run, say
from tests.faults.scene import SECONDS, Scene, bound

pytestmark = pytest.mark.anyio


def damage(store: Path) -> None:
    """Put files with other content in the place of the store's."""
    for name in (store.name, f"{store.name}-wal"):
        other = store.with_name("other")
        other.write_bytes(b"not a database, " * 1000)
        other.replace(store.with_name(name))


@bound
async def test_a_turn_continues_when_the_store_is_damaged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    store = scene.settings.state_dir / REGISTRY_NAME
    with caplog.at_level(logging.ERROR):
        async with scene.helmsman() as helm:
            session = await helm.start("touch", cwd=scene.repo, sandbox="workspace-write", approval_policy="on-request")
            assert await session.wait(until="attention", timeout=SECONDS)
            before = session.feed.cursor
            await helm.task_writer.write()
            damage(store)
            (question,) = session.questions
            await session.respond(question.id, "approve")
            assert await session.wait(until="end", timeout=SECONDS)
            assert (session.status, session.result) == ("done", "made")
            await scene.next_session_works(helm, after=session)
            await helm.task_writer.write()
            logged = await helm.task_writer.registry(lambda registry: registry.events(session.id, before))
            assert logged.cursor == session.feed.cursor
            assert list(logged.events) == list(session.feed.since(before).events)
    assert "is damaged" in caplog.text
    assert [file for file in store.parent.iterdir() if ".damaged-" in file.name]
